"""From a device that behaves badly to its verdict: real processes, a pretend device, and cures that are found."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import processes
from holdfast.devices import battery, probe_catalog
from holdfast.devices.battery import Host, ProbeResult
from holdfast.devices.doctor import Doctor
from holdfast.devices.examined import Examined, Listener, Patient
from holdfast.devices.ledger import Ledger
from holdfast.devices.own_step import merged
from holdfast.devices.remedies import Remedy
from holdfast.devices.saved_verdicts import Verdicts
from holdfast.devices.verdict import Policy, Verdict
from holdfast.injection import ailments, symptoms
from holdfast.injection.symptoms import Symptom
from tests.waiting import wait_until

DEVICE = "pretend:0"
pytestmark = pytest.mark.skipif(processes.portable(), reason="these share processes to fork from")


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
            self.hosts[key] = Kept({**env, ailments.VARIABLE: str(self.place), "OMP_NUM_THREADS": "1"})
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


class Ends(Listener):
    def __init__(self) -> None:
        self.ended: list[str] = []

    def ends(self, seen: Examined) -> None:
        self.ended.append(seen.verdict.device)


class Meets(Doctor):
    """The first probe of each device waits for that of the other: that ends only where both are examined at once."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.both = threading.Barrier(2, timeout=300)
        self.met: set[str] = set()

    def run(self, device: str, *args: Any, **kwargs: Any) -> Iterator[ProbeResult]:
        if device not in self.met:
            self.met.add(device)
            self.both.wait()
        yield from super().run(device, *args, **kwargs)


def test_the_cpu_is_examined_beside_another_device(clinic: Clinic) -> None:
    symptoms.write(clinic.place, [])
    heard = Ends()
    with Meets(listener=heard, host=clinic.host, only=("first step", "linear fp32"), fresh=True, beside=True) as doctor:
        seen = doctor.examine_all([Patient("cpu"), Patient(DEVICE)])
    assert [each.verdict.device for each in seen] == ["cpu", DEVICE] == heard.ended
    assert {each.verdict.state for each in seen} == {"trusted"}
    assert [each.probe for each in seen[0].results] == [each.probe for each in seen[1].results]


def test_a_device_that_hangs_does_not_hold_up_the_verdict_on_the_cpu(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device hangs until the verdict on the CPU is in the file, and is ended then: one that waited for the other
    would wait for its deadline. The device is first in the list, so the listener hears of its end first."""
    monkeypatch.setattr(battery, "run", functools.partial(battery.run, deadline_s=600.0))
    monkeypatch.setattr(probe_catalog, "select", functools.partial(_first_step, probe_catalog.select))
    symptoms.write(clinic.place, [Symptom("hang", part="backward")])
    ledger, heard = Ledger(tmp_path), Ends()
    reader, kept = Verdicts(ledger=Ledger(tmp_path)), []
    host = clinic.host({})

    def end_the_hang() -> None:
        wait_until(lambda: reader.get("cpu").verdict is not None, 300)
        kept.append(reader.get("cpu").verdict)
        for pid in list(host._running):
            processes.send_group(pid, processes.KILL)

    ending = threading.Thread(target=end_the_hang)
    ending.start()
    with Doctor(listener=heard, ledger=ledger, host=lambda env: host, beside=True, budget_s=0.0) as doctor:
        seen = doctor.examine_all([Patient(DEVICE, backend="cpu"), Patient("cpu")])
    ending.join()
    assert [each.verdict.state for each in seen] == ["refused", "trusted"]
    assert [each.status for each in seen[0].results] == ["crashed"]
    assert heard.ended == [DEVICE, "cpu"]
    assert kept[0] is not None and kept[0].state == "trusted"


def _first_step(select: Any, device: str, **wanted: Any) -> Any:
    """The quick set of a test: `only` would keep its verdicts from the file."""
    return select(device, only=("first step",))


def test_beside_each_other_is_for_the_quick_set_on_a_machine_with_cores(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cores, full, expected in ((16, False, True), (16, True, False), (2, False, False)):
        monkeypatch.setattr("holdfast.run.machine.usable_cpus", lambda cores=cores: cores)
        assert Doctor(host=clinic.host, full=full).beside is expected


@pytest.mark.all
def test_a_crash_is_cured_by_a_switch(clinic: Clinic) -> None:
    seen = clinic.examine(("conv2d fp32",), Symptom("crash", kernel="convolution", part="backward", cure="mkldnn-off"))
    assert clinic.tried == ["mkldnn-off"]
    assert seen.verdict.state == "use_with_care"
    assert seen.verdict.policy.env == {"HOLDFAST_REMEDIES": "mkldnn-off"}
    assert codes(seen) == ["probe-crashed", "trains-with-a-remedy"]
    by_name = {each.probe: each.status for each in seen.results}
    assert by_name["first step"] == "crashed"
    assert by_name["conv2d fp32 training"] == "passed", "what was not tried before is done with the remedy"


@pytest.mark.long
def test_a_cure_by_a_variable_is_found_after_one_that_does_not_help(clinic: Clinic) -> None:
    wrong = Symptom("wrong", kernel="addmm", part="forward", cure="ATEN_CPU_CAPABILITY=avx2")
    seen = clinic.examine(("linear fp32",), wrong)
    assert clinic.tried[:2] == ["mkldnn-off", "plain-cpu"]
    assert seen.verdict.policy.remedies == ("plain-cpu",)
    assert seen.verdict.policy.env == {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert seen.verdict.state == "use_with_care"


@pytest.mark.long  # a remedy for each environment; make test has one that cures, make test-all one where nothing does
def test_wrong_gradients_without_a_cure_leave_inference(clinic: Clinic) -> None:
    seen = clinic.examine(("conv2d fp32",), Symptom("wrong", kernel="convolution", part="backward"))
    assert seen.verdict.state == "inference_only"
    assert codes(seen) == ["wrong-backward"]
    assert len(clinic.tried) >= 3


@pytest.mark.all
def test_a_device_that_does_not_start_is_not_asked_for_more(clinic: Clinic) -> None:
    seen = clinic.examine(("conv2d fp32", "linear fp32"), Symptom("error"))
    assert seen.verdict.state == "refused"
    assert codes(seen) == ["device-does-not-start"]
    assert {each.probe for each in seen.results if each.status != "skipped"} == {"first step"}


@pytest.mark.long
def test_wrong_in_fp16_alone_is_done_without_fp16(clinic: Clinic) -> None:
    seen = clinic.examine(("conv2d fp16",), Symptom("wrong", kernel="convolution", precision="fp16"), backend="mps")
    assert seen.verdict.state == "use_with_care"
    assert seen.verdict.policy.env == {"HOLDFAST_REMEDIES": "fp16-off"}
    assert codes(seen) == ["wrong-in-low-precision"]
    assert "conv2d fp32 forward" in {each.probe for each in seen.results}, "the simpler check was added"


@pytest.mark.long
def test_wrong_from_a_batch_of_seven_on_is_computed_in_smaller_pieces(clinic: Clinic) -> None:
    probes = ("network fp32 batch 1", "network fp32 batch 7", "network fp32 batch 32")
    seen = clinic.examine(probes, Symptom("wrong", part="forward", kernel="addmm", batch=7), backend="mps")
    assert seen.verdict.policy.microbatch == 1
    assert "wrong-at-some-batch-sizes" in codes(seen)


@pytest.mark.long
def test_wrong_beside_a_second_process(clinic: Clinic) -> None:
    seen = clinic.examine(("network in company", "network fp32"), Symptom("wrong", company=True), backend="mps")
    assert seen.verdict.state == "use_with_care"
    assert codes(seen) == ["fails-with-a-second-process"]
    assert seen.verdict.policy.avoid == ("a second process",)


@pytest.mark.long
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


# A script of one's own ----------------------------------------------------------------------------------------------

SCRIPT = """
import torch, holdfast
from torch import nn

def train(session, bug=False, half=False):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1 + bug))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = holdfast.Loader([(torch.randn(6), torch.randn(1)) for _ in range(16)], batch_size=8)
    session.protect(model=model, optimizer=optimizer, data=data)

    def loss(batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            found = model(batch[0])
        if bug:
            raise ValueError("a bug of the script")
        return nn.functional.mse_loss(found.float(), batch[1])

    for epoch in session.epochs(1):
        for batch in session.batches(data):
            session.step(loss, batch)
"""


@dataclass
class WithScript:
    """A clinic where one step of a script is part of the examination, on a device that is well otherwise."""

    clinic: Clinic
    path: Path

    def examine(self, *suffering: Symptom, **arguments: str) -> Examined:
        symptoms.write(self.clinic.place, suffering)
        probe = probe_catalog.script_probe(self.path, arguments)
        heard = Heard(self.clinic.tried)
        self.verdicts = Verdicts(env={})
        with Doctor(listener=heard, host=self.clinic.host, verdicts=self.verdicts, script=probe) as doctor:
            self.verdicts.put(Verdict(DEVICE, "trusted", policy=Policy(("fp32", "bf16")), probes={"passed": 9}))
            return doctor.examine(Patient(DEVICE, backend="cpu"))


@pytest.fixture
def scripted(clinic: Clinic, tmp_path: Path) -> WithScript:
    (tmp_path / "mine.py").write_text(SCRIPT, encoding="utf-8")
    return WithScript(clinic, tmp_path / "mine.py")


def test_a_step_that_is_wrong_is_cured_and_the_cure_is_kept(scripted: WithScript) -> None:
    seen = scripted.examine(Symptom("wrong", kernel="tanh_backward", cure="mkldnn-off"))
    assert scripted.clinic.tried == ["sdpa-math", "mkldnn-off"]
    assert seen.script is not None and seen.script.ok
    assert (seen.verdict.state, codes(seen)) == ("use_with_care", ["trains-with-a-remedy"])
    assert seen.verdict.findings[0].sentence() == (
        "one step of mine.py passes with torch's own CPU kernels instead of oneDNN's"
    )
    kept = scripted.verdicts.get(DEVICE).verdict
    assert kept is not None and kept.policy.env == {"HOLDFAST_REMEDIES": "mkldnn-off"}, "`holdfast train` has it too"
    assert kept.measured_at == seen.verdict.measured_at


@pytest.mark.long
def test_a_step_that_is_wrong_in_half_precision_is_done_in_fp32(scripted: WithScript) -> None:
    seen = scripted.examine(Symptom("wrong", kernel="tanh", precision="bf16", how="nan"), half="yes")
    assert scripted.clinic.tried[-1] == "no-low-precision"
    assert seen.verdict.policy.env == {"HOLDFAST_REMEDIES": "fp16-off,bf16-off"}
    assert (seen.verdict.policy.precisions, seen.verdict.policy.dtype) == (("fp32",), "float32")


@pytest.mark.all
def test_what_nothing_cures_is_refused_here_and_kept_as_it_was(scripted: WithScript) -> None:
    seen = scripted.examine(Symptom("crash", kernel="tanh_backward"))
    assert (seen.verdict.state, seen.verdict.why) == ("refused", "one step of mine.py fails here")
    assert codes(seen) == ["own-step-fails"] and "mkldnn-off" in scripted.clinic.tried
    kept = scripted.verdicts.get(DEVICE).verdict
    assert kept is not None and kept.state == "trusted"


def test_for_a_bug_of_the_script_no_remedy_is_tried(scripted: WithScript) -> None:
    seen = scripted.examine(bug="yes")
    assert (seen.verdict.state, codes(seen)) == ("trusted", ["own-script-fails-everywhere"])
    assert scripted.clinic.tried == []


def test_switches_of_two_environments_add_up() -> None:
    first = {"HSA_ENABLE_SDMA": "0", "HOLDFAST_REMEDIES": "sdpa-math,microbatch=2"}
    assert merged(first, {"HOLDFAST_REMEDIES": "sdpa-math,fp16-off", "MIOPEN_FIND_MODE": "2"}) == {
        "HSA_ENABLE_SDMA": "0",
        "MIOPEN_FIND_MODE": "2",
        "HOLDFAST_REMEDIES": "sdpa-math,microbatch=2,fp16-off",
    }
    assert merged({}, {}) == {}


# Every kind of bad behaviour ----------------------------------------------------------------------------------------

FOUND = {
    "a crash": ("conv2d fp32", "probe-crashed", "refused"),
    "an abort": ("conv2d fp32", "probe-crashed", "refused"),
    "a hang": ("linear fp32", "probe-hung", "refused"),
    "a device error": ("linear fp32", "device-does-not-start", "refused"),
    "a wrong forward pass": ("linear fp32", "wrong-forward", "refused"),
    "wrong gradients only": ("linear fp32", "wrong-backward", "inference_only"),
    "wrong only in fp16": ("conv2d fp16", "wrong-in-low-precision", "use_with_care"),
    "NaN only in fp16 from batch 7 on": ("network fp16 batch 7", "wrong-in-low-precision", "use_with_care"),
    "wrong only in channels_last": ("batchnorm fp32 channels_last", "wrong-in-channels-last", "use_with_care"),
    "NaN in the gradient of a gradient": ("conv2d fp32 again", "not-finite-in-double-backward", "use_with_care"),
    "less memory than it says": ("memory limit", "less-memory-than-reported", "use_with_care"),
    "a slow first launch": ("linear fp32", "slow-first-launch", "trusted"),
    "wrong only under sustained load": ("sustained load", "wrong-under-load", "refused"),
    "wrong only beside a second process": ("network in company", "fails-with-a-second-process", "use_with_care"),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", symptoms.EXAMPLES)
def test_every_bad_behaviour_has_its_finding(name: str, clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, slug, state = FOUND[name]
    sooner = {"first step": {"bound_s": 2.0}} if name == "a slow first launch" else {}
    patience = {"deadline_s": 4.0} if name == "a hang" else {}
    monkeypatch.setattr(battery, "run", functools.partial(battery.run, options=sooner, **patience))
    suffering = symptoms.EXAMPLES[name]
    if suffering.kind == "slow":
        suffering = replace(suffering, seconds=3.0)
    seen = clinic.examine((probe,), suffering, backend="xpu")
    assert slug in [each.about.slug for each in seen.verdict.findings], codes(seen)
    assert seen.verdict.state == state
