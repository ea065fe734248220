"""Several ranks, one training: bits after deaths in every phase, memory faults, other numbers of ranks, and the agent.

The scenarios are real processes with real signals, forked by driving.py. The last test is `holdfast launch` itself.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.distributed.job import Job
from holdfast.distributed.rank_watch import Boards
from holdfast.run.folder import list_runs
from tests.distributed.driving import DEATHS, SCRIPT, STAYS, free_port

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked by these tests"),
    pytest.mark.timeout(600),
]


def _some(cases: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
    """These cases as parameters: those that are kept run in `make test`, all of them in `make test-long`."""
    return [case if case in kept else pytest.param(case, marks=pytest.mark.long) for case in cases]


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


class Found(Mapping[str, dict[str, Any]]):
    """The result of each scenario, by its name. A scenario runs when the first test asks for it."""

    def __init__(self, folder: Path) -> None:
        self._driver = subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.driving", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
            cwd=ROOT,
        )
        self._known: dict[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self._known:
            assert self._driver.stdin is not None and self._driver.stdout is not None
            print(name, file=self._driver.stdin, flush=True)
            self._known[name] = json.loads(self._driver.stdout.readline())
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def close(self) -> None:
        self._driver.communicate()
        assert self._driver.returncode == 0


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    found = Found(tmp_path_factory.mktemp("ranks"))
    yield found
    found.close()


def test_two_ranks_finish(found: Found) -> None:
    two = found["two"]
    assert two["outcome"]["state"] == "FINISHED" and two["codes"] == [[0, 0]]
    assert two["receipt"]["steps"] == 14 and not two["faults"]


@pytest.mark.parametrize("die", _some(DEATHS, ["0:3:peers", "1:4:snapshot"]))
def test_a_rank_killed_in_any_phase_costs_no_bit(found: Found, die: str) -> None:
    rank = int(die[0])
    killed, again = found[f"death {die}"]["codes"]
    assert killed[rank] == -signal.SIGKILL and killed[1 - rank] == 76 and again == [0, 0]
    result = found[f"death {die}"]
    assert result["sha256"] == found["two"]["sha256"]
    assert [fault["kind"] for fault in result["faults"]] == ["killed"]
    assert result["faults"][0]["device"] == f"rank {rank}"
    assert result["epochs"] == [0, 1]
    assert result["best"] == found["two"]["best"] and result["best"]["best"]["value"] == 0.0
    receipt = result["receipt"]
    assert receipt["recoveries"] == 1 and receipt["steps_lost"] == 0
    assert receipt["steps_repeated"] < 14, "those since the last commit, and the ranks choose when that is"
    assert receipt["samples_skipped"] == receipt["samples_repeated"] == 0


@pytest.mark.all
@pytest.mark.parametrize("die", _some([*STAYS], ["0:4:optimizer"]))
def test_the_others_stay_when_one_is_killed(found: Found, die: str) -> None:
    """The same process numbers, a new one for the lost rank alone, and at any cadence the same bits."""
    rank, result = int(die[0]), found[f"stay {die}"]
    assert result["codes"][rank] == [-signal.SIGKILL, 0] and result["codes"][1 - rank] == [0]
    assert len(result["pids"][1 - rank]) == 1 and len(set(result["pids"][rank])) == 2
    assert result["sha256"] == found["two"]["sha256"]
    assert [fault["kind"] for fault in result["faults"]] == ["killed"]
    assert result["faults"][0]["device"] == f"rank {rank}"
    assert result["faults"][0]["reason"] == "this rank is replaced, the others stay"
    assert result["epochs"] == [0, 1] and result["best"] == found["two"]["best"]
    receipt = result["receipt"]
    most = 14 if STAYS[die] == "auto" else int(STAYS[die]) + 1
    assert receipt["recoveries"] == 1 and receipt["steps_lost"] == 0 and receipt["steps_repeated"] <= most
    assert receipt["samples_skipped"] == receipt["samples_repeated"] == 0
    assert _samples(result, 0) == Counter(range(60)) == _samples(result, 1)


@pytest.mark.all
def test_a_script_that_works_once_in_a_process_gets_a_new_one(found: Found) -> None:
    """The rank that stays calls the script a second time. What that raises before a commit does not count."""
    result = found["once in a process"]
    assert result["codes"][0] == [76, 0] and result["codes"][1][0] == -signal.SIGKILL and result["codes"][1][-1] == 0
    assert result["sha256"] == found["two"]["sha256"] and result["outcome"]["state"] == "FINISHED"


@pytest.mark.all
@pytest.mark.parametrize("where", _some(["forward", "backward"], ["backward"]))
def test_a_fault_beside_the_exchange_of_a_wrapper(found: Found, where: str) -> None:
    """One rank runs out of memory while the other waits inside backward for its gradients: both go back, and stay."""
    result, undisturbed = found[f"ddp {where}"], found["ddp undisturbed"]
    assert undisturbed["codes"] == result["codes"] == [[0], [0]]
    assert result["sha256"] == undisturbed["sha256"] and result["receipt"]["steps"] == 14
    (fault,) = result["faults"]
    assert fault["fault"]["kind"] == "out_of_memory" and fault["move"]["action"] == "retry"
    if where == "forward":
        assert fault["fault"]["evidence"]["rank"] == 1
    assert _samples(result, 0) == Counter(range(60)) == _samples(result, 1)


@pytest.mark.long
def test_a_fault_between_two_commits_costs_no_bit(found: Found) -> None:
    """Both go back to where the step began; a rank that could not copy that in time goes back to the last commit."""
    result = found["ddp between"]
    assert result["sha256"] == found["ddp undisturbed"]["sha256"] and result["receipt"]["steps"] == 14
    assert {fault.get("kind") or fault["fault"]["kind"] for fault in result["faults"]} == {"out_of_memory"}
    assert _samples(result, 0) == Counter(range(60)) == _samples(result, 1)


@pytest.mark.long
def test_a_fault_after_the_vote_costs_that_rank_its_process(found: Found) -> None:
    """The other rank may be in the next step: both go back to the last commit, to the same bits."""
    result = found["ddp update"]
    assert result["codes"] == [[0], [76, 0]] and result["sha256"] == found["ddp undisturbed"]["sha256"]
    (fault,) = result["faults"]
    assert fault["kind"] == "out_of_memory" and fault["step"] == 4
    assert result["receipt"]["steps_lost"] == 0 and _samples(result, 0) == Counter(range(60)) == _samples(result, 1)


@pytest.mark.long
def test_a_wrapped_model_is_computed_in_pieces(found: Found) -> None:
    result = found["ddp twice"]
    assert result["codes"] == [[0], [0]] and result["outcome"]["state"] == "FINISHED"
    assert [each["move"]["action"] for each in result["faults"]] == ["retry", "split"]


@pytest.mark.all
def test_a_wrapped_model_learns_what_an_unwrapped_one_does(found: Found) -> None:
    """Shares of 5 and 4 samples count as they are, though a wrapper averages over ranks."""
    for name, values in found["ragged 2"]["weights"].items():
        assert found["ragged wrapped"]["weights"][name] == pytest.approx(values, abs=2e-5)


@pytest.mark.long
def test_a_death_with_a_wrapped_model_costs_no_bit(found: Found) -> None:
    result = found["ddp death"]
    assert result["codes"] == [[0], [-signal.SIGKILL, 0]] and result["sha256"] == found["ddp whole"]["sha256"]


@pytest.mark.all
def test_a_death_among_four_ranks_with_a_wrapped_model_costs_no_bit(found: Found) -> None:
    """torch would sort gradients into other buckets after the first step of the new process."""
    assert found["four death"]["sha256"] == found["four undisturbed"]["sha256"] is not None
    assert sorted(map(len, found["four death"]["pids"])) == [1, 1, 1, 2]


@pytest.mark.all
def test_one_rank_out_of_memory_rolls_all_back(found: Found) -> None:
    """The first answer is to try the step whole again: the same bits."""
    assert found["full once"]["codes"] == [[0, 0]]
    assert found["full once"]["sha256"] == found["full never"]["sha256"]
    (fault,) = found["full once"]["faults"]
    assert fault["fault"]["kind"] == "out_of_memory" and fault["move"]["action"] == "retry"


@pytest.mark.all
def test_one_rank_out_of_memory_twice_splits_all(found: Found) -> None:
    """Told by rank 0, which had room: the fault was rank 1's."""
    first, second = found["full twice"]["faults"]
    assert [each["move"]["action"] for each in (first, second)] == ["retry", "split"]
    assert second["move"]["pieces"] == 2 and second["fault"]["evidence"]["rank"] == 1
    assert found["full twice"]["outcome"]["state"] == "FINISHED"
    assert found["full twice"]["receipt"]["steps"] == 14


def _samples(result: dict[str, Any], epoch: int) -> Counter[int]:
    """How often each sample was used in an epoch, over all ranks; of a step that was done again, the last time."""
    used: dict[tuple[str, str], list[str]] = {}
    for rank, lines in result["seen"].items():
        for line in lines:
            number, step, *samples = line.split()
            if int(number) == epoch:
                used[rank, step] = samples
    return Counter(int(sample) for samples in used.values() for sample in samples)


@pytest.mark.parametrize("name", ["two", "death 1:4:snapshot"])
@pytest.mark.parametrize("epoch", [0, 1])
def test_every_sample_once(found: Found, name: str, epoch: int) -> None:
    assert _samples(found[name], epoch) == Counter(range(60))


@pytest.mark.all
def test_a_wish_to_stop_stops_all_at_one_step(found: Found) -> None:
    stopped = found["stopped"]
    assert stopped["outcome"]["state"] == "STOPPED" and stopped["codes"] == [[0, 0]]
    assert {lines[-1].split()[1] for lines in stopped["seen"].values()} == {"4"}, (
        "agreed on with the step after the wish"
    )
    assert stopped["checkpoints"] == ["000004"]


@pytest.mark.all
def test_a_checkpoint_goes_on_with_another_number_of_ranks(found: Found) -> None:
    three = found["three"]
    assert three["outcome"]["state"] == "FINISHED" and three["receipt"]["steps"] == 14
    assert three["receipt"]["samples_skipped"] == three["receipt"]["samples_repeated"] == 0
    assert set(three["seen"]) == {"rank0", "rank1", "rank2"}
    assert _samples(three, 0) == Counter(range(60)) == _samples(three, 1)


@pytest.mark.all
@pytest.mark.parametrize("ranks", _some([2, 3], [3]))
def test_gradients_are_those_of_the_whole_batch(found: Found, ranks: int) -> None:
    alone, together = found["ragged 1"]["weights"], found[f"ragged {ranks}"]["weights"]
    assert found[f"ragged {ranks}"]["outcome"]["state"] == "FINISHED"
    for name, values in alone.items():
        assert together[name] == pytest.approx(values, abs=2e-5)


@pytest.mark.all
def test_an_error_of_one_rank_ends_all_and_names_it(found: Found) -> None:
    failed = found["failed"]
    assert failed["codes"] == [[0, 0]], "code 0: the agent must not start them again"
    assert failed["outcome"]["state"] == "FAILED"
    assert "does not like the data" in failed["outcome"]["error"]["message"]
    assert "rank 1" in failed["outcome"]["error"]["cause"]


# The command ------------------------------------------------------------------------------------------------


class Chaos:
    """Signals for ranks of a launch: each time another, once there has been progress."""

    def __init__(self, signals: list[int], seed: int) -> None:
        self.signals = list(signals)
        self.random = random.Random(seed)
        self.sent: list[tuple[int, int]] = []
        self.stayed: list[bool] = []
        """For each signal, whether the other ranks had the same processes afterwards."""
        self._hit = 0
        self._others: set[int] = set()

    def look(self, boards: Boards, ranks: int) -> None:
        seen = boards.look()
        steps = [each.beat.step for each in seen]
        pids = {each.pid for each in seen}
        if len(seen) < ranks or min(steps) < 1 or self._hit in pids:  # not yet replaced
            return
        if len(self.stayed) < len(self.sent):
            self.stayed.append(self._others < pids)
        if not self.signals:
            return
        victim = self.random.choice(seen)
        time.sleep(self.random.random() * 0.05)
        os.kill(victim.pid, self.signals.pop(0))
        self.sent.append((victim.rank, max(steps)))
        self._hit, self._others = victim.pid, pids - {victim.pid}


def _jobs_of(pid: int) -> list[Path]:
    found = []
    for path in Path("/dev/shm").glob("holdfast-job-*/owner.json"):
        try:
            if json.loads(path.read_text())["pid"] == pid:
                found.append(path.parent)
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.long
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="snapshots of ranks are looked for in /dev/shm")
def test_launch_survives_a_kill_and_a_stop_bit_for_bit(found: Found, tmp_path: Path) -> None:
    words = ["pause=0.03", "watchdog.floor=1s", "run.threads=1", f"run.folder={tmp_path}", "--json", "-q"]
    launch = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "launch", "--nproc", "2", str(SCRIPT), *words],
        stdout=subprocess.PIPE,
        env=_environment(),
        cwd=tmp_path,
    )
    chaos, boards = Chaos([signal.SIGKILL, signal.SIGSTOP], seed=5), None
    try:
        while launch.poll() is None:
            jobs = _jobs_of(launch.pid)
            if boards is None and jobs:
                boards = Boards(Job(jobs[0]))
            if boards is not None:
                chaos.look(boards, 2)
            time.sleep(0.02)
    finally:
        if launch.poll() is None:
            launch.terminate()
        printed = json.loads(launch.communicate()[0])
    assert len(chaos.sent) == 2 and chaos.stayed == [True, True]
    assert launch.returncode == 0 and printed["state"] == "FINISHED"
    (run,) = list_runs(tmp_path)
    receipt = run.receipt() or {}
    assert receipt["weights_sha256"] == found["two"]["sha256"]
    assert receipt["faults"] == {"hang": 1, "killed": 1} and receipt["steps_lost"] == 0
    assert not _jobs_of(launch.pid), "nothing is left in shared memory"


@pytest.mark.long
def test_two_machines_and_a_rank_of_the_second_dies(found: Found, tmp_path: Path) -> None:
    """Two agents that meet over loopback, each with folders of its own: what two machines would be."""
    (tmp_path / "seen").mkdir()
    given = ["die=1:4:backward", f"seen={tmp_path / 'seen'}", "watchdog.floor=1s", "run.threads=1", "--json", "-q"]
    meeting = ["--nproc", "1", "--nodes", "2", "--master", f"127.0.0.1:{free_port()}"]
    machines = []
    for number in ("0", "1"):
        (tmp_path / number).mkdir()
        words = [*meeting, "--node-rank", number, str(SCRIPT), *given, f"run.folder={tmp_path / number}"]
        machines.append(
            subprocess.Popen(
                [sys.executable, "-m", "holdfast", "launch", *words],
                stdout=subprocess.PIPE,
                env={**_environment(), "HOLDFAST_STATE": str(tmp_path / number / "state")},
                cwd=tmp_path / number,
            )
        )
    try:
        first, second = (json.loads(each.communicate(timeout=300)[0]) for each in machines)
    finally:
        for each in machines:
            if each.poll() is None:
                each.terminate()
    assert [each.returncode for each in machines] == [0, 0]
    assert first["state"] == "FINISHED" and second == {"schema": 1, "state": "FINISHED", "exit_code": 0}
    assert (tmp_path / "seen" / "died-1-4-backward").exists()
    assert first["receipt"]["weights_sha256"] == found["two"]["sha256"]
    assert first["receipt"]["steps_lost"] == 0 and sum(first["receipt"]["faults"].values()) == 1
    assert len(list_runs(tmp_path / "0")) == 1 and not list_runs(tmp_path / "1")
