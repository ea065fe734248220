"""Which rank hangs, from what the boards show; and which command starts the ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.base import interpreter, processes
from holdfast.base.board import Beat, Board, Phase, PhaseTimes
from holdfast.cli.main import main
from holdfast.distributed import job as jobs
from holdfast.distributed import rank_watch
from holdfast.distributed.job import Job
from holdfast.distributed.place import Place
from holdfast.distributed.rank_watch import Boards, Seen, hung
from holdfast.distributed.torchrun import Wanted, command_for
from holdfast.run.settings import Settings

WATCHDOG = Settings.load({"watchdog.floor": "5s", "watchdog.factor": "4"}).watchdog


def _beat(phase: Phase, silence: float) -> Beat:
    board = Board.create()
    learned = {each: PhaseTimes(count=50, slowest_s=0.1, first_s=0.1) for each in Phase}
    beat = replace(board.read(), phase=phase, silence=silence, times=learned)
    board.close()
    return beat


@pytest.mark.parametrize(
    ("phase", "silence", "stopped", "hangs"),
    [
        (Phase.BACKWARD, 4.0, False, False),
        (Phase.BACKWARD, 6.0, False, True),
        (Phase.PEERS, 600.0, False, False),  # it waits because another one hangs
        (Phase.PEERS, 2.0, True, True),  # unless it was stopped itself
        (Phase.SETUP, 60.0, False, False),
        (Phase.SETUP, 60.0, True, True),
    ],
)
def test_who_hangs(phase: Phase, silence: float, stopped: bool, hangs: bool) -> None:
    seen = Seen(1, 4242, _beat(phase, silence), stopped, 1.1 if stopped else 0.0)
    waiting = Seen(0, 4241, _beat(Phase.PEERS, silence + 1))
    assert [each.rank for each, _ in hung([waiting, seen], {}, WATCHDOG)] == ([1] if hangs else [])


@pytest.mark.parametrize(
    ("other", "attempt", "stopped", "hung_ranks"),
    [
        (Phase.FORWARD, 7, False, [1]),  # the others wait for it inside of backward
        (Phase.DATA, 6, False, [1]),
        (Phase.BACKWARD, 7, False, [0, 1]),  # nobody can tell who waits for whom
        (Phase.OPTIMIZER, 7, False, [0]),
        (Phase.BACKWARD, 7, True, [1]),
    ],
)
def test_a_rank_that_waits_inside_of_backward_is_not_the_one_that_hangs(
    other: Phase, attempt: int, stopped: bool, hung_ranks: list[int]
) -> None:
    waits = Seen(0, 4241, replace(_beat(Phase.BACKWARD, 8.0), attempt=7))
    hangs = Seen(1, 4242, replace(_beat(other, 8.0), attempt=attempt), stopped, 1.1 if stopped else 0.0)
    assert [each.rank for each, _ in hung([waits, hangs], {}, WATCHDOG)] == hung_ranks


def test_a_job_that_was_stopped_as_a_whole_and_goes_on_has_no_hang() -> None:
    resumed = Seen(1, 4242, _beat(Phase.BACKWARD, 3600.0), stopped=True, stopped_s=0.1)
    assert hung([resumed], {}, WATCHDOG) == []


def test_a_rank_that_is_stopped_in_turns_goes_on() -> None:
    in_turns = Seen(1, 4242, _beat(Phase.BACKWARD, 0.04), stopped=True, stopped_s=1.2)
    assert hung([in_turns], {}, WATCHDOG) == []


def test_for_how_long_a_process_was_seen_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one. After a while without a look, the process that looks may have been stopped too: it counts anew."""
    clock = [1000.0]
    monkeypatch.setattr(rank_watch.time, "monotonic", lambda: clock[0])
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        job = Job(tmp_path)
        board = job.new_board(0)
        (path,) = job.boards().values()
        os.rename(path, tmp_path / f"board-0-{child.pid}")
        boards = Boards(job)
        assert [(each.stopped, each.stopped_s) for each in boards.look()] == [(False, 0.0)]
        os.kill(child.pid, signal.SIGSTOP)
        while (info := processes.inspect(child.pid)) is None or info.state != "T":
            pass
        seen = []
        for seconds in (0.1, 0.4, 0.4, 0.4, 3600.0, 0.4):
            clock[0] += seconds
            seen.append(round(boards.look()[0].stopped_s, 3))
        assert seen == [0.0, 0.4, 0.8, 1.2, 0.0, 0.4]
        boards.close()
        board.close(unlink=False)
    finally:
        child.kill()
        child.wait()


def test_a_process_that_cannot_be_killed_and_a_rank_that_begins_hide_no_hang() -> None:
    hangs = Seen(1, 4242, replace(_beat(Phase.FORWARD, 8.0), attempt=501))
    waits = Seen(2, 4243, replace(_beat(Phase.BACKWARD, 8.0), attempt=501))
    replaced = Seen(0, 4240, replace(_beat(Phase.FORWARD, 900.0), attempt=500))
    its_heir = Seen(0, 4244, replace(_beat(Phase.PEERS, 8.0), attempt=501))
    begins = Seen(3, 4245, replace(_beat(Phase.SETUP, 8.0), attempt=0))
    found = [each.pid for each, _ in hung([replaced, hangs, waits, its_heir, begins], {}, WATCHDOG)]
    assert found == [4240, 4242]
    late = Seen(3, 4245, replace(_beat(Phase.SETUP, 1e6), attempt=0))
    assert [each.pid for each, _ in hung([its_heir, late], {}, WATCHDOG)] == [4245]


def test_boards_of_living_ranks(tmp_path: Path) -> None:
    job = Job(tmp_path)
    board = job.new_board(3)
    board.enter(Phase.FORWARD)
    (tmp_path / "board-0-999999999").write_bytes(b"")
    boards = Boards(job)
    (seen,) = boards.look()
    assert (seen.rank, seen.pid, seen.beat.phase, seen.stopped) == (3, os.getpid(), Phase.FORWARD, False)
    boards.request_stop()
    assert board.stop_requested
    boards.close()


def test_a_board_may_go_while_it_is_looked_for(tmp_path: Path) -> None:
    """A rank that ends, or the launch, takes its board away at any moment: the one who watches goes on."""
    job, over = Job(tmp_path / "job"), threading.Event()
    job.path.mkdir()

    def come_and_go() -> None:
        while not over.is_set():
            paths = [job.path / f"board-{rank}-{os.getpid()}" for rank in range(50)]
            for path in paths:
                path.write_bytes(b"x")
            for path in paths:
                path.unlink()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        met, until = 0, time.monotonic() + 60
        while met < 100 and time.monotonic() < until:  # the other thread may begin late
            met += bool(job.boards())
    finally:
        over.set()
        other.join()
    assert met == 100, "they were met while they came and went"
    job.path.rmdir()
    assert job.boards() == {}


def test_the_first_word_about_the_end_counts(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.end({"state": "FAILED", "error": {"message": "rank 1"}})
    job.end({"state": "FINISHED"})
    assert (job.outcome or {})["state"] == "FAILED"


def test_what_killed_launches_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_place", lambda: tmp_path)
    ours, dead = Job.create(), Job.create()
    (dead.path / "owner.json").write_text('{"pid": 999999999, "started": 1}')
    Job.create()
    assert ours.path.is_dir() and not dead.path.exists()


def test_ranks_of_one_agent_find_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_place", lambda: tmp_path)
    found: list[Path] = []
    late = threading.Thread(target=lambda: found.append(Job.of_agent(os.getppid(), first=False).path))
    late.start()
    time.sleep(0.05)
    first = Job.of_agent(os.getppid(), first=True)
    late.join(100.0)
    assert found == [first.path] == [Job.of_agent(os.getppid(), first=True).path]


def test_the_command_of_torchrun() -> None:
    one = command_for(Wanted(2), ["train", "a.py"], "x")
    assert interpreter.module_of(one) == "torch.distributed.run" and "--standalone" in one
    assert one[-3:] == ["holdfast", "train", "a.py"]
    two = command_for(Wanted(8, nodes=2, node_rank=1, master="10.0.0.1:29400"), ["train", "a.py"], "x")
    assert two[two.index("--rdzv-endpoint") + 1] == "10.0.0.1:29400" and "--standalone" not in two


def test_a_rank_is_one_that_an_agent_started() -> None:
    assert Place.of({"RANK": "1", "WORLD_SIZE": "2"}) is None, "another program's variables"
    place = Place.of({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x"})
    assert place is not None and (place.rank, place.ranks, place.watched) == (1, 2, False)
    assert Place.of({"RANK": "one", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}) is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "which script?"),
        (["--nproc", "0", "x.py"], "--nproc is 0"),
        (["--nproc", "two", "x.py"], "--nproc is two"),
        (["--nproc", "2", "--min-ranks", "3", "x.py"], "--min-ranks 3 does not fit --nproc 2"),
        (["--nproc", "2", "--spares", "-1", "x.py"], "--spares is -1"),
        (["--nodes", "2", "--master", "a", "--min-ranks", "5", "--nproc", "2", "x.py"], "--nproc 2 on 2 machines"),
        (["--nodes", "2", "--master", "a:b", "x.py"], "`b` is no port"),
        (["--nodes", "2", "--master", "a", "--wait-for-machines", "soon", "x.py"], "--wait-for-machines soon"),
        (["--nodes", "2", "x.py"], "--nodes needs --master"),
        (["--devices", "gpu,cpu", "x.py"], "unknown device `gpu`"),
        (["--devices", "cuda:77,cpu", "x.py"], "`cuda:77`"),
        (["--devices", "cpu,cpu", "--nproc", "2", "x.py"], "--devices goes without --nproc"),
        (["--nproc", "2", "--shares", "fair", "x.py"], "run.shares"),
        (["--nproc", "2", "--shares", "3:2:1", "x.py"], "--shares 3:2:1 does not fit 2 processes"),
        (["--nproc", "2", "x.py", "run.devices=cpu"], "--devices cpu does not fit 2 processes"),
        (["--nodes", "2", "--master", "a", "--nproc", "1", "x.py", "run.devices=cpu,cpu"], "goes without --nodes"),
        (["--cloud", "--shares", "equal", "x.py"], "--cloud"),
        (["--nodes", "2", "--node-rank", "2", "--master", "a", "x.py"], "does not fit"),
        (["--nproc", "2", "nowhere.py"], "nowhere.py"),
        (["--nproc", "2", "--resume", "nobody"], "no run `nobody`"),
        (["--continue", "--resume", "nobody"], "--continue and --resume cannot be combined"),
        (["--continue", "--cloud", "x.py"], "--continue and --cloud cannot be combined"),
    ],
)
def test_bad_wishes(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("def train(session):\n    pass\n")
    assert main(["launch", *words]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "runs").exists(), "nothing was begun"
