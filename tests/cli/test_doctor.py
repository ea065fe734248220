"""`holdfast doctor` as a person runs it, and what `train` makes of its verdicts: real processes, text, exit codes."""

from __future__ import annotations

import argparse
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.base import processes
from holdfast.cli.doctor import Bar, workload_script
from holdfast.cli.supervise import rungs_for, rungs_of
from holdfast.console.output import Output
from holdfast.console.usage import UsageError
from holdfast.devices.results import ProbeResult
from holdfast.devices.saved_verdicts import Verdicts
from holdfast.devices.verdict import Policy, Verdict
from holdfast.faults.ladder import Rung
from holdfast.run import workload_registry
from tests.waiting import wait_until

from .driving import drawn, environment, holdfast, said

REMEDIES = (("HOLDFAST_REMEDIES", "fp16-off,microbatch=2"),)
CARE = Verdict("pretend:0", "use_with_care", "wrong in fp16", Policy(("fp32", "bf16"), env=dict(REMEDIES)))
REFUSED = Verdict("pretend:0", "refused", "conv2d forward kills its process")

SCRIPT = """
import os, torch, holdfast
from torch import nn
from torch.nn.functional import mse_loss

def train(session):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = holdfast.Loader([(torch.randn(4), torch.randn(1)) for _ in range(20)], batch_size=5)
    session.protect(model=model, optimizer=optimizer, data=data)
    sizes = []

    def loss(batch):
        sizes.append(len(batch[0]))
        return mse_loss(model(batch[0]), batch[1])

    for epoch in session.epochs(1):
        for batch in session.batches(data):
            session.step(loss, batch)
    with torch.autocast("cpu", torch.float16):
        half = torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        brain = torch.is_autocast_enabled("cpu")
    session.log(largest=max(sizes), half=float(half), brain=float(brain))
"""


# The command --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_machine_and_what_is_remembered_of_it(tmp_path: Path) -> None:
    first = holdfast("doctor", "--device", "cpu", cwd=tmp_path)
    assert first.code == 0, first.err
    lines = first.out.splitlines()
    assert lines[0].startswith("holdfast ") and lines[0].endswith(" · 1 device")
    assert lines[2].startswith("[✓] cpu ") and " trusted " in lines[2]
    assert "Verdicts saved for 30 days or until driver, torch or kernel changes." in lines
    assert lines[-1] == (
        "Now type `holdfast train my_script.py --device cpu`: it trains on the CPU and survives crashes and hangs."
    )
    assert first.err.startswith("cpu: trusted, ")
    assert not list(tmp_path.glob(".holdfast-doctor-*"))
    began = time.monotonic()
    again = holdfast("doctor", "--device", "cpu", "--json", cwd=tmp_path)
    took = time.monotonic() - began
    (device,) = again.json["devices"]
    assert again.json["schema"] == 1 and again.json["usable"] == ["cpu"]
    assert device["verdict"] == "trusted" and device["remembered"] and device["probes"]["passed"] >= 8
    assert device["seconds"] < took and device["checks"] == {}, "nothing was probed again"
    assert again.err == ""


@pytest.mark.long
def test_one_step_of_a_script_of_ones_own(tmp_path: Path) -> None:
    Verdicts().put(Verdict("cpu", "trusted", probes={"passed": 9}))
    (tmp_path / "job.py").write_text(SCRIPT)
    good = holdfast("doctor", "--device", "cpu", "--script", "job.py", cwd=tmp_path)
    assert good.code == 0, good.err
    assert "    ✓ one step of job.py works (off by 0, limit " in good.out
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"job.py"}, "no run folder is left behind"
    (tmp_path / "job.py").write_text(SCRIPT.replace("nn.Linear(4, 1)", "nn.Linear(5, 1)"))
    bad = holdfast("doctor", "--device", "cpu", "--workload", "job.py", cwd=tmp_path)
    assert "! D072  one step of job.py fails on the CPU: RuntimeError: mat1 and mat2 shapes" in bad.out
    assert bad.out.splitlines()[-1] == "Mend job.py, then type `holdfast doctor --workload job.py` again."
    assert bad.code == 0, "the device is as good as before"


def test_a_workload_is_a_script_with_a_name() -> None:
    assert workload_script("detection") == workload_registry.ROOT / "detection" / "training.py"
    assert workload_script("eeg-pretrained") == workload_script("eeg-pretrain"), (
        "the first of several runs needs none before it"
    )
    assert workload_script("examples/windows.py") == Path("examples/windows.py")
    with pytest.raises(UsageError) as caught:
        workload_script("egg")
    assert caught.value.message == "unknown workload `egg`"
    assert caught.value.cause == f"the workloads are {', '.join(workload_registry.names())}"
    assert next(iter(caught.value.hints)) == "a similar workload exists: `eeg`"


def test_a_workload_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    both = said("doctor", "--workload", "eeg", "--script", "job.py", cwd=tmp_path)
    assert (both.code, both.err.splitlines()[0]) == (2, "error: --script and --workload cannot be combined")
    unknown = said("doctor", "--workload", "egg", cwd=tmp_path)
    assert (unknown.code, unknown.err.splitlines()[0]) == (2, "error: unknown workload `egg`")
    assert unknown.err.splitlines()[-1] == "For more information, try `holdfast doctor --help`"


def test_words_without_a_script_are_a_usage_error(tmp_path: Path) -> None:
    done = said("doctor", "lr=3", cwd=tmp_path)
    assert (done.code, done.err.splitlines()[0]) == (2, "error: unexpected argument `lr=3`")


def test_a_device_that_is_not_here_is_a_no(tmp_path: Path) -> None:
    done = holdfast("doctor", "--device", "mps" if sys.platform != "darwin" else "cuda:0", "--json", cwd=tmp_path)
    (device,) = done.json["devices"]
    assert (done.code, device["verdict"], done.json["usable"]) == (1, "refused", [])
    assert device["why"].startswith("no such device was found; this machine has ")


def test_an_unknown_device_is_a_usage_error(tmp_path: Path) -> None:
    done = said("doctor", "--device", "gpu", cwd=tmp_path)
    assert done.code == 2
    assert "unknown device `gpu`" in done.err


def test_a_folder_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    if os.name != "posix" or os.geteuid() == 0:
        pytest.skip("needs a folder that this user may not write to")
    (tmp_path / "closed").mkdir(mode=0o500)
    done = holdfast("doctor", "--device", "cpu", cwd=tmp_path / "closed")
    assert "D066" in done.out


class Tty(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def test_the_bar_is_drawn_over_and_leaves_nothing() -> None:
    stream = Tty()
    output = Output.from_args(argparse.Namespace(), stderr=stream, env={"COLUMNS": "70", "TERM": "xterm"})
    bar = Bar(output)
    bar.begins("cuda:0", 4)
    bar.result(ProbeResult("conv2d fp32 forward", "cuda:0", "passed"))
    shown = drawn(stream.getvalue())
    assert shown.startswith("cuda:0  ━━━━━━──────────────────  1/4  ")
    assert len(shown) < 70 and shown.endswith("conv2d fp32 forward")
    bar.close()
    assert drawn(stream.getvalue()).strip() == ""


@pytest.mark.all
@pytest.mark.skipif(not processes.LINUX, reason="needs /proc")
def test_interrupted_it_leaves_no_process_behind(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "holdfast", "doctor", "--device", "cpu"]
    doctor = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def torch() -> list[int]:
        return [pid for pid, words in processes.children(doctor.pid).items() if "probes.child" in words]

    try:
        assert wait_until(torch), "a child that imports torch"
        (child,) = torch()
        time.sleep(0.5)
        doctor.send_signal(signal.SIGINT)
        out, _ = doctor.communicate(timeout=60)
        assert (doctor.returncode, out) == (130, b"")
        assert wait_until(lambda: not processes.exists(child)), "the end of the child"
    finally:
        doctor.kill()


# What train makes of it ---------------------------------------------------------------------------------------------


def test_without_a_verdict_nothing_changes() -> None:
    assert rungs_of("cuda:0") == [Rung("cuda:0"), Rung("cuda:0", "fp32")]
    told: list[str] = []
    assert rungs_for("pretend:0", told.append)[0] == Rung("pretend:0")
    assert told == []


def test_remedies_become_rungs() -> None:
    assert rungs_of("pretend:0", CARE) == [Rung("pretend:0", "", REMEDIES), Rung("pretend:0", "fp32", REMEDIES)]
    alone = Policy(("fp32",), env={"HOLDFAST_REMEDIES": "fp16-off,bf16-off"})
    assert rungs_of("cuda:0", Verdict("cuda:0", "use_with_care", policy=alone)) == [
        Rung("cuda:0", "fp32", (("HOLDFAST_REMEDIES", "fp16-off,bf16-off"),))
    ]


def test_a_refused_device_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Verdicts().put(REFUSED)
    monkeypatch.setattr("holdfast.devices.inventory.candidates", lambda: ["pretend:0", "cpu"])
    told: list[str] = []
    assert rungs_for("auto", told.append) == [Rung("cpu"), Rung("cpu", "fp32")]
    assert told == ["• pretend:0 is left out (holdfast doctor: refused, conv2d forward kills its process)"]


def test_a_refused_device_is_used_if_it_is_asked_for() -> None:
    Verdicts().put(REFUSED)
    told: list[str] = []
    assert rungs_for("pretend:0", told.append)[0] == Rung("pretend:0")
    assert told == [
        "! pretend:0 is used although it should not be (holdfast doctor: refused, conv2d forward kills its process)"
    ]


@pytest.mark.long
def test_a_run_trains_with_the_remedies_of_the_verdict(tmp_path: Path) -> None:
    Verdicts().put(CARE)
    (tmp_path / "job.py").write_text(SCRIPT)
    done = holdfast("train", "job.py", "--device", "pretend:0", "run.threads=1", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.json["metrics"]["largest"] == 2, "batches of five, two at once and no more"
    assert (done.json["metrics"]["half"], done.json["metrics"]["brain"]) == (0.0, 1.0)
    journal = Path(done.json["folder"], "journal.jsonl").read_text()
    assert "HOLDFAST_REMEDIES=fp16-off,microbatch=2" in journal.splitlines()[0]
