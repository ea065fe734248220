"""Probes: real children that pass, fail, crash, hang and cannot be killed; and what a pretend device suffers from."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from holdfast.base import processes
from holdfast.base.errors import UserError
from holdfast.devices import probe_process
from holdfast.devices.probe_process import ProbeProcess, ProbeResult, run_probe
from holdfast.injection import ailments, pretend
from holdfast.injection.ailments import Ailment, Patient
from holdfast.probes import short_training as child

PATIENCE = 100.0
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every child has ended when its test has."""
    yield
    if processes.LINUX:
        left = [line for line in processes.children(os.getpid()).values() if "devices.probe" in line]
        assert left == []


def ill(tmp_path: Path, *suffering: Ailment) -> dict[str, str]:
    """The environment of devices that have failed in training once."""
    path = ailments.write(tmp_path / "pretend.json", suffering)
    for each in suffering:
        assert Patient(path, each.device).falls_ill(step=each.step, age=each.after, phase=each.phase) == each
    return {ailments.VARIABLE: str(path)}


# Children ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_whatever_a_device_does_is_a_result(tmp_path: Path) -> None:
    """Four devices at once: nothing here waits for one of them."""
    env = ill(
        tmp_path,
        Ailment("crash", times=None, device="pretend:1"),
        Ailment("error", times=None, device="pretend:2"),
        Ailment("wrong", times=None, device="pretend:3"),
    )
    began = time.monotonic()
    probes = {number: ProbeProcess.start(f"pretend:{number}", PATIENCE, env) for number in range(4)}
    assert [probe.poll() for probe in probes.values()] == [None] * 4
    assert time.monotonic() - began < PATIENCE / 2, "starting and asking do not wait"
    results: dict[int, ProbeResult] = {}
    while len(results) < 4:
        for number, probe in probes.items():
            result = probe.poll()
            if result is not None:
                results[number] = result
        time.sleep(0.02)
    assert (results[0].ok, results[0].why) == (True, "")
    assert [check["name"] for check in results[0].checks] == ["memory", "product", "training"]
    assert (results[1].ok, results[1].why.partition(":")[0]) == (False, "it was killed by SIGSEGV")
    assert results[2].why == (
        "it ended with code 1: RuntimeError: CUDA error: an illegal memory access was encountered "
        "(a pretend device, holdfast.testing)"
    )
    assert results[3].why.startswith("training is off by ") and results[3].why.endswith("the bound is 0.0001")
    assert all(result.seconds > 0 and result.abandoned is None for result in results.values())
    assert probes[0].poll() is results[0], "the result stays"


@pytest.mark.all
def test_a_probe_that_hangs_is_ended_at_its_deadline(tmp_path: Path) -> None:
    env = ill(tmp_path, Ailment("hang", times=None))
    result = run_probe("pretend:0", 2.0, env)
    assert (result.ok, result.why, result.abandoned) == (False, "it gave no answer in 2 s", None)


ABANDON = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from tests.real_faults import unkillable
from holdfast.devices import probe_process
probe_process.KILL_GRACE = 0.5
unkillable.hold_fire()
probe = probe_process.ProbeProcess.start("pretend:0", 0.5)
while (result := probe.poll()) is None:
    time.sleep(0.02)
print(json.dumps({"ok": result.ok, "why": result.why, "abandoned": result.abandoned, "pid": probe.pid}), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not processes.LINUX, reason="a process that cannot be killed is made with seccomp")
def test_a_probe_that_cannot_be_killed_is_left_behind(tmp_path: Path) -> None:
    """From the inside of a process whose signals do nothing."""
    env = {**os.environ, **ill(tmp_path, Ailment("hang", times=None))}
    words = [sys.executable, "-c", ABANDON, str(Path(__file__).parents[2])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True) as asker:
        assert asker.stdout is not None
        line = asker.stdout.readline()
        if not line:
            pytest.skip("no seccomp filter can be set here")
        said = json.loads(line)
        try:
            assert processes.exists(said["pid"]), "it is still there"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(said["pid"], signal.SIGKILL)
    assert (said["ok"], said["abandoned"]) == (False, said["pid"])
    assert said["why"] == (
        f"it hung, and process {said['pid']} cannot be killed: it may hold the device until a reboot"
    )


def test_a_probe_nobody_wants_any_more_is_ended() -> None:
    probe = ProbeProcess.start("cpu", PATIENCE)
    probe.close()
    assert not processes.exists(probe.pid)
    result = probe.poll()
    assert result is not None and (result.ok, result.why) == (False, "it was cancelled")
    probe.close()


@pytest.mark.skipif(not processes.LINUX, reason="the kernel ends children with their parent on Linux")
def test_a_probe_ends_with_its_parent() -> None:
    code = (
        "import time\nfrom holdfast.devices.probe_process import ProbeProcess\n"
        "print(ProbeProcess.start('cpu', 600.0).pid, flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + PATIENCE
    while processes.exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes.exists(pid)


def test_what_is_heard_of_a_child_that_babbles() -> None:
    assert probe_process._object('hello\n{"ok": true}\n[1]\nbye {') == {"ok": True}
    assert probe_process._object("42\n\n[]") is None
    assert probe_process._ended(-9, "") == "it was killed by SIGKILL"
    assert probe_process._ended(-999, "") == "it ended with code -999"
    assert probe_process._ended(3, "a\nImportError: no torch\n\n") == "it ended with code 3: ImportError: no torch"


def test_a_device_that_is_not_there_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.backends.mps.is_available():
        pytest.skip("this machine has one")
    assert child.main(["--device", "mps"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["device"], said["ok"], len(said["checks"])) == (1, "mps", False, 1)
    assert said["why"].startswith("memory: ")


# What is checked ------------------------------------------------------------------------------------------------


def test_the_cpu_agrees_with_itself() -> None:
    assert [(check.name, check.ok) for check in child.probe(CPU)] == [
        ("memory", True),
        ("product", True),
        ("training", True),
    ]


@pytest.mark.sample(4, 1)
@pytest.mark.parametrize("how", ailments.WRONG)
def test_every_kind_of_wrong_gradient_is_far_beyond_the_bound(how: str) -> None:
    error, bound = child.check_training(CPU, lambda gradient: pretend.spoil(gradient, how))
    assert error > 10 * bound


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_product_in_another_precision_is_beyond_the_bound(dtype: torch.dtype) -> None:
    """TF32 that could not be switched off has the mantissa of fp16."""
    left, right = torch.randn(64, 64), torch.randn(64, 64)
    rounded = left.to(dtype).float() @ right.to(dtype).float()
    assert child.relative(rounded, left.double() @ right.double()) > 10 * child.PRODUCT


def test_what_is_not_finite_is_infinitely_wrong() -> None:
    right = torch.ones(3)
    assert child.relative(torch.tensor([1.0, float("nan"), 1.0]), right) == float("inf")
    assert child.relative(torch.full((3,), float("inf")), right) == float("inf")
    assert child.relative(right, right) == 0.0


# Ailments -----------------------------------------------------------------------------------------------------------


def test_it_fails_n_times_and_heals(tmp_path: Path) -> None:
    path = ailments.write(tmp_path / "pretend.json", [Ailment("error", step=5, times=3, phase="forward")])
    patient = Patient(path, "pretend:0")
    assert patient.fails_probe() is None, "well before it failed for the first time"
    assert patient.falls_ill(step=4, age=3, phase="forward") is None
    assert patient.falls_ill(step=5, age=4, phase="backward") is None
    assert patient.falls_ill(step=5, age=4, phase="forward") is not None
    again = Patient(path, "pretend:0")
    assert [again.fails_probe() is not None for _ in range(4)] == [True, True, False, False]
    assert again.falls_ill(step=9, age=0, phase="forward") is None
    assert again.suffered() == 3


def test_it_never_heals(tmp_path: Path) -> None:
    path = ailments.write(tmp_path / "pretend.json", [Ailment("crash", times=None)])
    patient = Patient(path, "pretend:0")
    assert patient.falls_ill(step=1, age=0, phase="backward") is not None
    assert all(patient.fails_probe() is not None for _ in range(20))


def test_it_flaps(tmp_path: Path) -> None:
    """Every probe passes, and every worker fails after three steps."""
    path = ailments.write(tmp_path / "pretend.json", [Ailment("hang", after=3, times=None, probes=False)])
    patient = Patient(path, "pretend:0")
    for start in (1, 10, 20):
        shown = [patient.falls_ill(step=start + age, age=age, phase="backward") is not None for age in range(4)]
        assert shown == [False, False, False, True]
        assert patient.fails_probe() is None


def test_another_device_is_well(tmp_path: Path) -> None:
    path = ailments.write(tmp_path / "pretend.json", [Ailment("error", device="pretend:1")])
    assert Patient(path, "pretend:0").falls_ill(step=1, age=0, phase="backward") is None


CLAIM = """
import sys
from pathlib import Path
from holdfast.injection.ailments import Patient
patient = Patient(Path(sys.argv[1]), "pretend:0")
print(sum(patient.falls_ill(step=1, age=0, phase="backward") is not None for _ in range(10)))
"""


@pytest.mark.all
def test_processes_that_fail_at_once_count_together(tmp_path: Path) -> None:
    path = ailments.write(tmp_path / "pretend.json", [Ailment("error", times=23)])
    words = [sys.executable, "-c", CLAIM, str(path)]
    children = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    counts = [int(each.communicate(timeout=100)[0]) for each in children]
    assert sum(counts) == 23
    ailments.write(path, [Ailment("error", times=23)])
    assert Patient(path, "pretend:0").suffered() == 0, "written anew, it is well"


@pytest.mark.parametrize("text", ["", "[]", '{"ailments": 3}', '{"ailments": [{"sort": "crash"}]}', "{"])
def test_a_file_that_is_none_is_a_user_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "pretend.json").write_text(text)
    with pytest.raises(UserError):
        ailments.read(tmp_path / "pretend.json")


def test_an_ailment_nobody_knows() -> None:
    with pytest.raises(UserError, match="no pretend device suffers from `crush`") as caught:
        Ailment("crush")
    assert caught.value.hints[0] == "did you mean `crash`?"


def test_wrong_gradients() -> None:
    gradient = torch.tensor([[0.5, -1.0], [2.0, 0.25]]).t()
    assert torch.equal(pretend.spoil(gradient, "scale"), gradient * 1000)
    assert torch.equal(pretend.spoil(gradient, "zero"), torch.zeros(2, 2))
    assert torch.equal(pretend.spoil(gradient, "zero", last=False), gradient)
    flipped = pretend.spoil(gradient, "bit")
    assert flipped[0, 0] == 0.5 / 65536 and torch.equal(flipped.flatten()[1:], gradient.flatten()[1:])
    assert torch.equal(pretend.spoil(flipped, "bit"), gradient), "the same bit once more"
