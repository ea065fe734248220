"""Out of memory: rolled back and done again, in pieces if it must be, on the CPU if nothing else helps."""

from __future__ import annotations

import sys

import pytest

from holdfast.testing.experiment import max_relative_difference
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import JOBS, Run, assert_exact

MEMORY = JOBS / "memory.py"


def pieces(run: Run) -> dict[int, list[tuple[str, int]]]:
    """For each step, the device and size of each piece whose loss was computed."""
    found: dict[int, list[tuple[str, int]]] = {}
    for line in (run.folder / "witness.txt").read_text().splitlines():
        _, step, device, *samples = line.split()
        found.setdefault(int(step), []).append((device, len(samples)))
    return found


@pytest.mark.parametrize("norm", [pytest.param("none", marks=pytest.mark.long), "batch"])
def test_rolled_back_and_retried_whole(drive: Drive, reference: Drive, norm: str) -> None:
    """In forward, in backward, and inside of optimizer.step() when half of the parameters are updated already."""
    run = drive(faults="oom@5:forward,oom@9:backward,oom_in_step@13", norm=norm)
    assert_exact(run, reference(norm=norm), faults=3)
    assert run.faults() == ["out_of_memory"] * 3
    assert run.actions() == ["retry"] * 3
    assert [event.data["phase"] for event in run.of("fault")] == ["forward", "backward", "optimizer"]
    assert run.receipt["steps_repeated"] == 3
    assert len(run.of("worker")) == 1  # the process is healthy and stays
    assert [event.data["step"] for event in run.of("recovered")] == [5, 9, 13]


def test_several_updates_in_one_transaction(drive: Drive, reference: Drive) -> None:
    script = JOBS / "updates.py"
    run = drive(script, fail=6)
    wanted = reference(script)
    assert (run.outcome.state, run.actions()) == ("FINISHED", ["retry"]), run.story()
    assert run.state()["tensors"] == wanted.state()["tensors"]
    assert run.receipt["steps_repeated"] == 1


def test_split_while_memory_is_short_and_whole_again_later(drive: Drive, reference: Drive) -> None:
    """The sum over pieces of exact weight is the whole batch's to the last bits, and the pieces go away again."""
    run = drive(MEMORY, device="pretend:0", fits=4, first=5, last=12, settings={"oom.grow_back_steps": "3"})
    whole = reference(MEMORY, device="pretend:0")
    assert run.outcome.state == "FINISHED", run.story()
    assert run.actions() == ["retry", "split"] * 2  # at step 5, and at step 8, when it tried the whole batch again
    assert run.diary() == whole.diary()
    assert [run.receipt[key] for key in ("steps_lost", "samples_skipped", "samples_repeated")] == [0, 0, 0]
    seen = pieces(run)
    for step in range(1, 25):  # after the second time it waits twice as long: six steps from step 7 on
        wanted = [("cpu:0", 4)] * 2 if 5 <= step <= 13 else [("cpu:0", 8)]
        assert seen[step] == wanted, step
    assert [event.data["pieces"] for event in run.of("note")] == [1, 1]
    difference = max_relative_difference(whole.folder / "final.safetensors", run.folder / "final.safetensors")
    assert difference is not None and difference <= 1e-5


@pytest.mark.all
@pytest.mark.parametrize("allowed", [False, True])
def test_batchnorm_is_split_only_where_that_is_allowed(drive: Drive, reference: Drive, allowed: bool) -> None:
    """Its statistics would be those of the pieces. Without leave the batch goes to the CPU, whole and exact."""
    settings = {"oom.allow_batchnorm_split": str(allowed).lower()}
    run = drive(MEMORY, device="pretend:0", fits=4, first=5, last=6, norm="batch", settings=settings)
    assert run.outcome.state == "FINISHED", run.story()
    if allowed:
        assert run.actions() == ["retry", "split"]
        assert pieces(run)[5] == [("cpu:0", 4)] * 2
    else:
        assert run.actions() == ["retry", "cpu_batch"] * 2
        assert pieces(run)[5] == pieces(run)[6] == [("cpu", 8)]
        assert_exact(run, reference(MEMORY, device="pretend:0", norm="batch"), faults=4)


def test_one_batch_that_never_fits_is_computed_on_the_cpu(drive: Drive, reference: Drive) -> None:
    """And only that one: those after it are on the device again, and whole."""
    run = drive(MEMORY, device="pretend:0", never=6, dropout=0.1)
    assert_exact(run, reference(MEMORY, device="pretend:0", dropout=0.1), faults=5)
    assert run.actions() == ["retry", "split", "split", "split", "cpu_batch"]
    seen = pieces(run)
    assert seen[6] == [("cpu", 8)]
    assert all(seen[step] == [("cpu:0", 8)] for step in seen if step != 6)
    assert len(run.of("worker")) == 1


def test_a_transient_error_is_retried(drive: Drive, reference: Drive) -> None:
    run = drive(faults="transient@5:forward,transient@9:optimizer", device="pretend:0")
    assert_exact(run, reference(device="pretend:0"), faults=2)
    assert run.faults() == ["transient"] * 2
    assert run.actions() == ["retry"] * 2
    assert len(run.of("worker")) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no limits to set")
@pytest.mark.parametrize("how", ["limit", "python"])
def test_host_memory_exhausted(drive: Drive, reference: Drive, how: str) -> None:
    """A new worker starts with a clean heap."""
    run = drive(JOBS / "host.py", how=how)
    assert_exact(run, reference(), faults=1)
    assert run.faults() == ["host_memory"], run.story()
    assert run.actions() == ["replace"]


def test_snapshots_every_few_steps(drive: Drive, reference: Drive) -> None:
    """A rollback of more than one step replaces the worker; what it repeats is bounded by the distance."""
    run = drive(faults="oom@6,sigkill@12", settings={"snapshot.every": "4"})
    wanted = reference()
    assert run.outcome.state == "FINISHED", run.story()
    assert run.state() == wanted.state()
    assert run.receipt["steps_lost"] == 0
    assert run.receipt["steps_repeated"] <= 2 * 4


def test_the_state_does_not_fit_into_memory(drive: Drive, reference: Drive) -> None:
    """Then it goes to a file, which is said once, and is as good."""
    run = drive(faults="sigkill@5,oom@9", settings={"snapshot.memory": "1MiB"})
    assert_exact(run, reference(), faults=2)
    (said,) = run.of("arena")
    assert said.data["where"] == "file"
    assert "snapshot.memory allows 1.0 MiB" in said.data["text"]
    assert not (run.folder / "slots").exists()


def test_memory_for_two_slots(drive: Drive, reference: Drive) -> None:
    """Then there are two, which is said, and a run survives the same with them: its checkpoints are whole, too."""
    file = drive(settings={"snapshot.memory": "1MiB"})
    (said,) = file.of("arena")
    two = 2 * int(said.data["bytes"]) // 5
    settings = {"snapshot.memory": f"{two}B", "snapshot.every": "1", "checkpoint.every": "0.05"}
    run = drive(faults="sigkill@5,oom@9", settings=settings)
    assert_exact(run, reference(), faults=2)
    assert [each.data["slots"] for each in run.of("arena")] == [2], run.story()
    assert run.of("checkpoint"), run.story()
