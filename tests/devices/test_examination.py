"""From a device that behaves badly to its verdict: real processes, a pretend device, and cures that are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.devices.battery import Host
from holdfast.devices.examination import Doctor, Examined, Listener, Patient
from holdfast.devices.ledger import Ledger
from holdfast.devices.remedies import Remedy
from holdfast.devices.verdicts import Verdicts
from holdfast.runtime import process
from holdfast.testing import ailments, symptoms
from holdfast.testing.symptoms import Symptom

DEVICE = "pretend:0"
pytestmark = pytest.mark.skipif(process.portable(), reason="these share processes to fork from")


class Kept(Host):
    """Stays after the examination: importing torch takes longer than what is tested."""

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pretend") / "pretend.json"


@pytest.fixture(scope="module")
def hosts(place: Path) -> Iterator[dict[tuple[tuple[str, str], ...], Kept]]:
    made: dict[tuple[tuple[str, str], ...], Kept] = {}
    yield made
    for host in made.values():
        Host.close(host)


@dataclass
class Clinic:
    """Examines one pretend device; what was tried is on record."""

    place: Path
    hosts: dict[tuple[tuple[str, str], ...], Kept]
    tried: list[str] = field(default_factory=list)

    def host(self, env: Mapping[str, str]) -> Host:
        key = tuple(sorted(env.items()))
        if key not in self.hosts:
            self.hosts[key] = Kept({**env, ailments.VARIABLE: str(self.place)})
        return self.hosts[key]

    def examine(self, only: tuple[str, ...], *suffering: Symptom, backend: str | None = "cpu") -> Examined:
        symptoms.write(self.place, suffering)
        heard = Heard(self.tried)
        with Doctor(listener=heard, host=self.host, only=("first step", *only), fresh=True) as doctor:
            return doctor.examine(Patient(DEVICE, backend=backend))


class Heard(Listener):
    def __init__(self, tried: list[str]) -> None:
        self.tried = tried

    def tries(self, device: str, remedy: Remedy, probe: str) -> None:
        self.tried.append(remedy.name)


@pytest.fixture
def clinic(place: Path, hosts: dict[tuple[tuple[str, str], ...], Kept]) -> Clinic:
    return Clinic(place, hosts)


def codes(seen: Examined) -> list[str]:
    """What was found, without the notes on it."""
    return [each.about.slug for each in seen.verdict.findings if each.level != "note"]


def test_a_healthy_device_is_trusted(clinic: Clinic) -> None:
    seen = clinic.examine(("linear fp32", "conv2d fp32"))
    assert (seen.verdict.state, seen.verdict.why, codes(seen)) == ("trusted", "", [])
    assert seen.verdict.policy.plain
    assert clinic.tried == []


def test_a_crash_is_cured_by_a_switch(clinic: Clinic) -> None:
    seen = clinic.examine(("conv2d fp32",), Symptom("crash", kernel="convolution", part="backward", cure="mkldnn-off"))
    assert clinic.tried == ["mkldnn-off"]
    assert seen.verdict.state == "use_with_care"
    assert seen.verdict.policy.env == {"HOLDFAST_REMEDIES": "mkldnn-off"}
    assert codes(seen) == ["probe-crashed", "trains-with-a-remedy"]
    by_name = {each.probe: each.status for each in seen.results}
    assert by_name["first step"] == "crashed"
    assert by_name["conv2d fp32 training"] == "passed", "what was not tried before is done with the remedy"


def test_a_cure_by_a_variable_is_found_after_one_that_does_not_help(clinic: Clinic) -> None:
    wrong = Symptom("wrong", kernel="addmm", part="forward", cure="ATEN_CPU_CAPABILITY=avx2")
    seen = clinic.examine(("linear fp32",), wrong)
    assert clinic.tried[:2] == ["mkldnn-off", "plain-cpu"]
    assert seen.verdict.policy.remedies == ("plain-cpu",)
    assert seen.verdict.policy.env == {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert seen.verdict.state == "use_with_care"


def test_wrong_gradients_without_a_cure_leave_inference(clinic: Clinic) -> None:
    seen = clinic.examine(("conv2d fp32",), Symptom("wrong", kernel="convolution", part="backward"))
    assert seen.verdict.state == "inference_only"
    assert codes(seen) == ["wrong-backward"]
    assert len(clinic.tried) >= 3


def test_a_device_that_does_not_start_is_not_asked_for_more(clinic: Clinic) -> None:
    seen = clinic.examine(("conv2d fp32", "linear fp32"), Symptom("error"))
    assert seen.verdict.state == "refused"
    assert codes(seen) == ["device-does-not-start"]
    assert {each.probe for each in seen.results if each.status != "skipped"} == {"first step"}


def test_wrong_in_fp16_alone_is_done_without_fp16(clinic: Clinic) -> None:
    seen = clinic.examine(("conv2d fp16",), Symptom("wrong", kernel="convolution", precision="fp16"), backend="mps")
    assert seen.verdict.state == "use_with_care"
    assert seen.verdict.policy.env == {"HOLDFAST_REMEDIES": "fp16-off"}
    assert codes(seen) == ["wrong-in-low-precision"]
    assert "conv2d fp32 forward" in {each.probe for each in seen.results}, "the simpler check was added"


def test_wrong_from_a_batch_of_seven_on_is_computed_in_smaller_pieces(clinic: Clinic) -> None:
    probes = ("network fp32 batch 1", "network fp32 batch 7", "network fp32 batch 32")
    seen = clinic.examine(probes, Symptom("wrong", part="forward", kernel="addmm", batch=7), backend="mps")
    assert seen.verdict.policy.microbatch == 1
    assert "wrong-at-some-batch-sizes" in codes(seen)


def test_wrong_beside_a_second_process(clinic: Clinic) -> None:
    seen = clinic.examine(("network in company", "network fp32"), Symptom("wrong", company=True), backend="mps")
    assert seen.verdict.state == "use_with_care"
    assert codes(seen) == ["fails-with-a-second-process"]
    assert seen.verdict.policy.avoid == ("a second process",)


def test_less_memory_than_it_says(clinic: Clinic) -> None:
    seen = clinic.examine(("memory limit",), Symptom("memory", limit=24 << 20, reported=256 << 20), backend="mps")
    assert seen.verdict.state == "use_with_care"
    assert codes(seen) == ["less-memory-than-reported"]
    headroom = seen.verdict.policy.memory_headroom_bytes
    assert headroom is not None and headroom >= 200 << 20


def test_a_verdict_is_kept_and_used_until_asked_for_a_fresh_one(clinic: Clinic) -> None:
    symptoms.write(clinic.place, [])
    ledger = Ledger()
    verdicts = Verdicts(ledger=ledger, env={})
    with Doctor(ledger=ledger, verdicts=verdicts, host=clinic.host, only=("first step",)) as doctor:
        seen = doctor.examine(Patient(DEVICE))
        assert not seen.remembered
        verdicts.put(seen.verdict)
        again = doctor.examine(Patient(DEVICE))
        assert again.remembered and again.verdict.state == "trusted"
        doctor.fresh = True
        assert not doctor.examine(Patient(DEVICE)).remembered
        doctor.fresh, doctor.full = False, True
        assert not doctor.remembered(DEVICE), "a quick verdict is not a full one"


def test_what_cannot_be_probed_is_refused_and_not_kept(clinic: Clinic) -> None:
    with Doctor(host=clinic.host) as doctor:
        seen = doctor.examine(Patient("cuda:7", unusable="no driver has taken the card"))
        assert (seen.verdict.state, seen.verdict.why) == ("refused", "no driver has taken the card")
        assert doctor.verdicts.get("cuda:7").verdict is None
