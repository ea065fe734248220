"""The battery: every kind of bad behaviour of a device is a result, in the right check; a healthy device passes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import processes
from holdfast.base.errors import UserError
from holdfast.devices import battery, probe_catalog, probe_turn
from holdfast.devices.battery import Host, ProbeResult, run, run_one, select, took_machine_down
from holdfast.devices.ledger import Ledger
from holdfast.devices.probe_catalog import PROBES, Probe, find, script_probe
from holdfast.injection import ailments, symptoms
from holdfast.injection.symptoms import Symptom

DEVICE = "pretend:0"
SILENCE = 60.0
"""Seconds without a word after which these probes are killed: many times what they take on a busy machine."""
pytestmark = pytest.mark.skipif(processes.portable(), reason="these share one process to fork from")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pretend") / "pretend.json"


@pytest.fixture(scope="module")
def host(place: Path) -> Iterator[Host]:
    with Host({ailments.VARIABLE: str(place), "OMP_NUM_THREADS": "1"}) as host:
        yield host


@pytest.fixture(autouse=True)
def healthy(place: Path) -> Iterator[None]:
    """Every test begins with a device that is well, and leaves no process behind."""
    symptoms.write(place, [])
    yield
    if processes.LINUX:
        left = [line for line in processes.children(os.getpid()).values() if " one " in line]
        assert left == []


def probed(host: Host, name: str, *suffering: Symptom, place: Path, silence: float = SILENCE) -> dict[str, ProbeResult]:
    symptoms.write(place, suffering)
    probe = find(name)
    found = run_one(DEVICE, name, host=host, deadline_s=silence)
    assert [result.probe for result in found] == list(probe.names)
    assert all(result.device == DEVICE and result.evidence["family"] == probe.family for result in found)
    return dict(zip(probe.checks, found, strict=True))


def statuses(found: dict[str, ProbeResult]) -> list[str]:
    return [result.status for result in found.values()]


# The catalogue ----------------------------------------------------------------------------------------------------


def test_the_catalogue_covers_what_it_should() -> None:
    names = [name for probe in PROBES for name in probe.names]
    assert len(set(names)) == len(names), "a name is a key"
    assert len({probe.name for probe in PROBES}) == len(PROBES)
    for device in ("cpu", "cuda:0", "mps", "xpu:0", DEVICE):
        assert sum(len(probe.checks) for probe in select(device, full=True)) >= 60
        quick = select(device)
        assert 8 <= len(quick) <= 12 and set(quick) < set(select(device, full=True))
    assert {probe.precision for probe in select("cuda:0", full=True)} == {"", "fp32", "tf32", "fp16", "bf16"}
    assert {probe.batch for probe in PROBES} >= {1, 7, 8, 32}
    assert {probe.sdpa for probe in PROBES} == {"", "math", "flash", "efficient", "cudnn"}
    assert not any(probe.precision == "tf32" for probe in select("cpu", full=True))


def test_a_probe_is_found_by_its_name_or_a_check() -> None:
    assert find("conv2d fp16 backward") is find("conv2d fp16")
    assert [probe.name for probe in select("cpu", only=["lstm fp32"])] == ["lstm fp32"]
    with pytest.raises(UserError) as caught:
        find("conv2d fp61")
    assert list(caught.value.hints) == ["did you mean `conv2d fp16`?"]


# Bad behaviour ----------------------------------------------------------------------------------------------------


def test_a_healthy_device_passes(host: Host, place: Path) -> None:
    for name in ("first step", "transfer", "conv2d fp32", "network bf16", "memory limit", "conv2d fp32 again"):
        found = probed(host, name, place=place)
        assert {result.status for result in found.values()} <= {"passed", "skipped"}, found
        for result in found.values():
            assert result.error is None or result.bound is None or result.error <= result.bound
    assert probed(host, "transfer", place=place)["pinned"].why == "this device has no pinned memory"


def test_a_crash(host: Host, place: Path) -> None:
    found = probed(host, "conv2d fp32", Symptom("crash", kernel="convolution", part="backward"), place=place)
    assert statuses(found) == ["passed", "crashed", "skipped"]
    assert found["backward"].why == "its process was killed by SIGSEGV"
    assert found["backward"].evidence["signal"] == "SIGSEGV"
    assert found["training"].why == "not reached: conv2d fp32 backward"


def test_an_abort_with_its_last_words(host: Host, place: Path) -> None:
    found = probed(host, "linear fp32", Symptom("abort", kernel="mm", part="forward"), place=place)
    assert statuses(found) == ["crashed", "skipped", "skipped"]
    assert found["forward"].evidence["signal"] == "SIGABRT"
    assert any("Memory access fault by GPU node-1" in line for line in found["forward"].evidence["last_words"])


def test_a_hang(host: Host, place: Path) -> None:
    found = probed(host, "attention fp32", Symptom("hang", part="backward"), place=place, silence=4.0)
    assert statuses(found)[1:] == ["hung", "skipped"]
    hung = found["backward"]
    assert hung.why == "no sign of life for 4 s" and hung.seconds >= 4.0
    assert hung.evidence["silent_s"] >= 4.0 and hung.evidence["process_state"] in "SRD"


def test_a_device_error(host: Host, place: Path) -> None:
    found = probed(host, "lstm fp32", Symptom("error", part="forward"), place=place)
    assert statuses(found) == ["failed", "skipped", "skipped"]
    assert found["forward"].why.startswith("RuntimeError: CUDA error: an illegal memory access was encountered")


@pytest.mark.sample(4)
@pytest.mark.parametrize("how", ["scale", "zero", "nan", "bit"])
def test_wrong_numbers_in_the_forward_pass(host: Host, place: Path, how: str) -> None:
    found = probed(host, "linear fp32", Symptom("wrong", kernel="addmm", part="forward", how=how), place=place)
    assert statuses(found) == ["failed", "skipped", "skipped"]
    forward = found["forward"]
    assert forward.bound is not None and forward.bound < 1e-4
    if how == "nan":
        assert forward.error is None and forward.why == "it is not finite"
    else:
        assert forward.error is not None and forward.error > 100 * forward.bound


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ["conv2d fp32", "depthwise fp32", "batchnorm fp32 channels_last", "attention fp32"])
def test_wrong_gradients_after_a_right_forward_pass(host: Host, place: Path, name: str) -> None:
    found = probed(host, name, Symptom("wrong", kernel="backward", part="backward"), place=place)
    assert statuses(found) == ["passed", "failed", "skipped"]
    assert "bound" in found["backward"].why


@pytest.mark.all
def test_wrong_only_in_half_precision(host: Host, place: Path) -> None:
    symptom = Symptom("wrong", kernel="convolution", precision="fp16")
    assert statuses(probed(host, "conv2d fp16", symptom, place=place)) == ["failed", "skipped", "skipped"]
    assert statuses(probed(host, "conv2d fp32", symptom, place=place)) == ["passed"] * 3


@pytest.mark.all
def test_wrong_only_from_a_batch_size_on(host: Host, place: Path) -> None:
    symptom = Symptom("wrong", kernel="convolution", precision="fp16", batch=7, how="nan")
    assert statuses(probed(host, "network fp16 batch 1", symptom, place=place)) == ["passed"] * 3
    found = probed(host, "network fp16 batch 7", symptom, place=place)
    assert statuses(found) == ["failed", "skipped", "skipped"] and found["forward"].evidence["batch"] == 7
    shapes = probed(host, "network fp32 changing shapes", Symptom("wrong", kernel="conv", batch=32), place=place)
    assert shapes["forward"].status == "failed" and shapes["forward"].evidence["tensor"] == "output 2"


def test_wrong_only_in_channels_last(host: Host, place: Path) -> None:
    symptom = Symptom("wrong", kernel="batch_norm_backward", channels_last=True)
    assert statuses(probed(host, "batchnorm fp32 channels_last", symptom, place=place))[:2] == ["passed", "failed"]
    assert statuses(probed(host, "batchnorm fp32", symptom, place=place)) == ["passed"] * 3


def test_nan_in_the_gradient_of_a_gradient(host: Host, place: Path) -> None:
    symptom = Symptom("wrong", kernel="convolution", part="double backward", how="nan")
    found = probed(host, "conv2d fp32 again", symptom, place=place)
    assert statuses(found) == ["failed"]
    assert found["double backward"].evidence["situation"] == "double backward"
    assert statuses(probed(host, "conv2d fp32", symptom, place=place)) == ["passed"] * 3


def test_less_memory_than_it_says(host: Host, place: Path) -> None:
    found = probed(host, "memory limit", Symptom("memory", limit=24 << 20, reported=64 << 20), place=place)[""]
    assert found.status == "failed" and found.why == "less memory than the driver says is free"
    assert found.evidence["reported_bytes"] == 64 << 20 and 16 << 20 <= found.evidence["reached_bytes"] <= 24 << 20


@pytest.mark.long
def test_a_slow_first_launch(place: Path) -> None:
    """What the first probe had compiled, the next ones have: the caches are those of the host, and go with it."""
    symptoms.write(place, [Symptom("slow", seconds=3.0)])
    with Host({ailments.VARIABLE: str(place), "OMP_NUM_THREADS": "1"}) as host:
        (slow,) = run_one(DEVICE, "first step", host=host, options={"bound_s": 2.0})
        (again,) = run_one(DEVICE, "first step", host=host)
    assert again.error is not None and again.error < 3.0 and not host.caches.exists()
    assert slow.status == "failed" and slow.error is not None and slow.error >= 3.0 and slow.bound == 2.0
    assert slow.evidence["second_s"] < 3.0


@pytest.mark.all
def test_a_fault_that_shows_only_under_load(host: Host, place: Path) -> None:
    symptom = Symptom("wrong", kernel="mm", seconds=3.0)
    assert statuses(probed(host, "linear fp32", symptom, place=place)) == ["passed"] * 3
    found = probed(host, "sustained load", symptom, place=place)[""]
    assert found.status == "failed" and found.evidence["situation"] == "sustained" and found.evidence["after_s"] >= 0


@pytest.mark.all
def test_a_fault_that_shows_only_with_a_second_process(host: Host, place: Path) -> None:
    symptom = Symptom("wrong", part="backward", company=True)
    assert statuses(probed(host, "network fp32", symptom, place=place)) == ["passed"] * 3
    found = probed(host, "network in company", symptom, place=place)
    assert statuses(found) == ["failed"] and found[""].evidence["situation"] == "company"


def test_a_crash_of_whoever_comes_second(host: Host, place: Path) -> None:
    """Either of the two may be the one that dies."""
    found = probed(host, "network in company", Symptom("crash", part="backward", company=True), place=place)
    assert statuses(found) == ["crashed"] and found[""].why.endswith("was killed by SIGSEGV")


@pytest.mark.all
def test_a_kernel_that_is_being_compiled_is_no_hang(
    host: Host, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that compiles in the process shows it in its caches: the deadline waits, but not for ever."""
    monkeypatch.setattr(probe_turn, "COMPILING", 2.5)
    grows = [True, True, False]
    monkeypatch.setattr(probe_turn.Turn, "_caches_grow", lambda self: grows.pop(0) if grows else False)
    found = probed(host, "linear fp32", Symptom("hang", part="forward"), place=place, silence=2.0)
    assert found["forward"].status == "hung" and grows == []
    part = probe_turn.Turn(
        find("linear fp32"), DEVICE, host, tmp_path, ledger=None, full=False, deadline_s=60.0, options={},
        announce=lambda name: None, before={},
    )  # fmt: skip
    monkeypatch.undo()
    for path in host.caches.rglob("*"):
        os.utime(path, (0, 0))
    assert not part._caches_grow()
    (host.caches / "miopen" / "kernel.bin").write_bytes(b"code")
    assert part._caches_grow()


@pytest.mark.all
def test_memory_of_the_machine_is_capped(host: Host, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_turn, "memory_cap", lambda: 1 << 30)
    found = probed(host, "linear fp32", Symptom("greedy", part="forward"), place=place)
    assert found["forward"].status == "failed" and found["forward"].why.endswith("MB of memory, and 1024 are allowed")


def test_an_index_out_of_bounds_is_noticed(host: Host, place: Path) -> None:
    found = probed(host, "index out of bounds", place=place)[""]
    assert found.status == "passed" and found.evidence["raised"].startswith("IndexError")


# Remedies ---------------------------------------------------------------------------------------------------------


@pytest.mark.all
def test_what_cures_it_is_in_the_environment_of_a_host(place: Path) -> None:
    symptoms.write(
        place,
        [
            Symptom("wrong", kernel="scaled_dot", cure="sdpa-math"),
            Symptom("crash", kernel="convolution", cure="MIOPEN_FIND_MODE=2"),
        ],
    )
    env = {ailments.VARIABLE: str(place), "HOLDFAST_REMEDIES": "sdpa-math", "MIOPEN_FIND_MODE": "2"}
    with Host(env) as cured:
        for name in ("attention fp32", "conv2d fp32"):
            assert [result.status for result in run_one(DEVICE, name, host=cured)] == ["passed"] * 3


# The whole --------------------------------------------------------------------------------------------------------


@pytest.mark.all
def test_the_rest_is_left_alone_after_two_hangs(host: Host, place: Path) -> None:
    symptoms.write(place, [Symptom("hang", part="forward")])
    names = ["linear fp32", "conv2d fp32", "lstm fp32", "attention fp32"]
    found = list(run(DEVICE, select(DEVICE, only=names), host, deadline_s=3.0))
    assert [result.status for result in found].count("hung") == 2
    assert found[-1].why == "not tried: this device hung 2 times before"
    assert len(found) == 12, "every check has a result"


def test_each_check_is_announced_and_on_record_before_it_begins(host: Host, place: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    said: list[str] = []
    chosen = select(DEVICE, only=["linear fp32"])
    names = [result.probe for result in run(DEVICE, chosen, host, ledger=ledger, announce=said.append)]
    assert said == names
    opened = [line for line in ledger.lines() if line.kind == "open"]
    assert [line.data["act"] for line in opened] == [f"probe {name}" for name in names]
    assert {line.rung for line in opened} == {"probe"}
    assert len([line for line in ledger.lines() if line.kind == "close"]) == 3 and ledger.in_use() == []


@pytest.mark.all
def test_what_took_the_machine_down_is_not_done_again(host: Host, place: Path, tmp_path: Path) -> None:
    """The doctor was killed with the machine during a check: the entry is open, and the boot is another one."""
    name = "conv2d fp16 backward"
    before = Ledger(tmp_path)
    before.open(DEVICE, "probe", run="doctor", boot_id="an earlier boot", act=f"probe {name}")
    before.leave()
    ledger = Ledger(tmp_path)
    (settled,) = ledger.settle("this boot")
    assert settled.judgement.blamed
    assert list(took_machine_down(ledger, DEVICE)) == [name]

    chosen = select(DEVICE, only=["conv2d fp16", "conv2d fp32"])
    found = {result.probe: result for result in run(DEVICE, chosen, host, ledger=ledger)}
    assert found["conv2d fp16 forward"].status == "passed"
    skipped = found[name]
    assert skipped.status == "skipped" and skipped.evidence["took_machine_down"] is True
    assert "took the machine down" in skipped.why
    assert found["conv2d fp16 training"].why == "not reached"
    assert found["conv2d fp32 training"].status == "passed"

    again = [result.status for result in run(DEVICE, [find("conv2d fp16")], host, ledger=ledger, again=True)]
    assert again == ["passed"] * 3
    ledger.forget(DEVICE)
    assert took_machine_down(ledger, DEVICE) == {}


@pytest.mark.long
def test_a_host_that_dies_takes_no_result_with_it(place: Path) -> None:
    with Host({ailments.VARIABLE: str(place), "OMP_NUM_THREADS": "1"}) as host:
        while host.torch is None:
            host.poll()
            time.sleep(0.01)
        assert host._server is not None
        os.kill(host._server.pid, signal.SIGKILL)
        assert [result.status for result in run_one(DEVICE, "linear fp32", host=host)] == ["passed"] * 3
        assert "ended" in host.note


@pytest.mark.all
def test_probes_share_a_process_as_long_as_nothing_fails(host: Host, place: Path) -> None:
    """One that fails there is done again alone, and the next ones have a new process."""
    names = ["first step", "transfer", "linear fp32", "conv2d fp32", "attention fp32", "known answers"]
    names += ["network in company"]
    pids: list[int] = []
    start = host.start

    def counted(config: dict[str, Any]) -> Any:
        pids.append(1)
        return start(config)

    host.start = counted  # type: ignore[method-assign]
    try:
        found = list(run(DEVICE, select(DEVICE, only=names), host, share=True))
        assert {result.status for result in found} <= {"passed", "skipped"}
        assert [result.probe for result in found] == [name for each in names for name in find(each).names]
        assert len(pids) == 3, "one for all that share, and two in company"
        pids.clear()
        symptoms.write(place, [Symptom("wrong", kernel="convolution", part="backward")])
        found = list(run(DEVICE, select(DEVICE, only=names[2:5]), host, share=True))
        by_name = {result.probe: result.status for result in found}
        assert by_name["conv2d fp32 backward"] == "failed" and by_name["attention fp32 training"] == "passed"
        assert len(found) == 9 and len(pids) == 2, "it was done again alone, and attention needs a new one"
        symptoms.write(place, [Symptom("crash", kernel="convolution", part="backward")])
        found = list(run(DEVICE, select(DEVICE, only=names[2:5]), host, share=True))
        assert [result.status for result in found].count("crashed") == 1
        assert {result.status for result in found[-3:]} == {"passed"}
    finally:
        del host.start
        host.part()


@pytest.mark.all
def test_without_fork_each_probe_is_a_fresh_process(place: Path) -> None:
    symptoms.write(place, [Symptom("crash", kernel="convolution", part="backward")])
    with Host({ailments.VARIABLE: str(place), "OMP_NUM_THREADS": "1"}, fork=False) as host:
        found = run_one(DEVICE, "conv2d fp32", host=host)
    assert [result.status for result in found] == ["passed", "crashed", "skipped"]


def test_a_device_that_is_not_there_is_a_result(host: Host) -> None:
    found = run_one("xpu:7", "linear fp32", host=host)
    assert [result.status for result in found] == ["failed", "skipped", "skipped"]


def test_results_are_plain_data() -> None:
    result = ProbeResult("a", "cpu", "failed", 1.0, 0.5, 0.1, {"why": "it is wrong"})
    assert result.to_json()["evidence"] == {"why": "it is wrong"} and not result.ok
    assert set(battery.STATUSES) == {"passed", "failed", "crashed", "hung", "skipped"}
    assert isinstance(PROBES[0], Probe) and probe_catalog.kind_of("cuda:3") == "cuda"


# The user's own ---------------------------------------------------------------------------------------------------

SCRIPT = """
import torch, holdfast
from torch import nn

def train(session, width=8, fails=False):
    model = nn.Sequential(nn.Conv1d(4, width, 5), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(46 * width, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = holdfast.Loader([(torch.randn(4, 50), i % 3) for i in range(64)], batch_size=16)
    session.protect(model=model, optimizer=optimizer, data=data)
    for epoch in session.epochs(1000):
        for batch in session.batches(data):
            if fails:
                raise ValueError("a bug of the script")
            try:
                session.step(lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), batch)
            except Exception:
                pass
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def test_one_real_step_of_a_script(host: Host, place: Path, script: Path) -> None:
    probe = script_probe(script, {"width": "12"})
    (fine,) = run(DEVICE, [probe], host)
    assert fine.status == "passed" and fine.probe == "script mine.py" and fine.evidence["batch"] == 16
    assert fine.evidence["precision"] == "fp32" and fine.evidence["loss"] > 0
    symptoms.write(place, [Symptom("wrong", kernel="convolution_backward")])
    (wrong,) = run_one(DEVICE, "script mine.py", host=host)
    assert wrong.status == "failed" and wrong.evidence["tensor"].startswith("convolution_backward in backward")
    assert [path.name for path in script.parent.iterdir() if "pycache" not in path.name] == ["mine.py"], (
        "no run is left"
    )


@pytest.mark.all
def test_a_bug_of_a_script_is_told_as_what_it_is(host: Host, script: Path) -> None:
    (raised,) = run("cpu", [script_probe(script, {"fails": "yes"})], host)
    assert raised.status == "failed" and raised.why == "ValueError: a bug of the script"


# Healthy ----------------------------------------------------------------------------------------------------------


GROUPS = {
    "layers": lambda probe: probe.precision == "fp32" and probe.batch == 8 and not probe.situation,
    "half": lambda probe: probe.precision in ("fp16", "bf16"),
    "rest": lambda probe: probe.precision in ("", "fp32") and (probe.batch != 8 or probe.situation != ""),
}
LONG = ("compile", "sustained")
"""Together they take most of a minute: `make bench`."""


@pytest.mark.all
@pytest.mark.sample(3)
@pytest.mark.parametrize("group", GROUPS)
def test_nothing_fails_on_a_cpu_that_is_well(host: Host, group: str) -> None:
    chosen = [probe for probe in select("cpu", full=True) if GROUPS[group](probe) and probe.situation not in LONG]
    found = list(run("cpu", chosen, host, full=True))
    assert [result for result in found if result.status not in ("passed", "skipped")] == []
    assert sum(result.ok for result in found) >= 15


@pytest.mark.all
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.long), DEVICE])
def test_nothing_of_the_quick_set_fails_on_a_device_that_is_well(host: Host, device: str) -> None:
    found = list(run(device, select(device), host))
    assert [result for result in found if result.status not in ("passed", "skipped")] == []
    assert len(found) >= 20


@pytest.mark.bench
@pytest.mark.timeout(600)
@pytest.mark.parametrize("example", symptoms.EXAMPLES)
def test_the_quick_set_notices_it(host: Host, place: Path, example: str) -> None:
    """Only what takes long to show is left to the whole battery."""
    symptoms.write(place, [symptoms.EXAMPLES[example]])
    deadline = 5.0 if example == "a hang" else None
    found = list(run(DEVICE, select(DEVICE), host, deadline_s=deadline))
    noticed = any(result.status in ("failed", "crashed", "hung") for result in found)
    assert noticed is (example != "wrong only under sustained load")


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_the_whole_battery_passes_twenty_times_in_a_row(host: Host) -> None:
    for _ in range(20):
        found = list(run("cpu", select("cpu", full=True), host, full=True))
        assert [result for result in found if result.status not in ("passed", "skipped")] == []
