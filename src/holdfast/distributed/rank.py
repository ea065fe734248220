"""The life of one rank: `holdfast train` below torch's elastic agent, from joining the others to its exit code.

    torchrun --nproc-per-node 2 -m holdfast train my_script.py
    holdfast launch --nproc 2 my_script.py                        # the same, with a run folder and somebody who watches

A rank that ends with a code other than 0 makes the agent start all of them again, so only what a new start may mend
does. What is over (done, stopped, the script's own error) is written down for those that come after.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.base import processes
from holdfast.base.errors import ExitCode, GaveUp, HoldfastError, ScriptFailed
from holdfast.distributed.job import Job
from holdfast.distributed.place import LAUNCHER, Place
from holdfast.distributed.rank_nursery import NESTED
from holdfast.run.events import utc_now
from holdfast.run.folder import RunFolder

if TYPE_CHECKING:
    from holdfast.base.board import Board
    from holdfast.console.order import Order
    from holdfast.distributed.rank_link import Follower, Writer

START_AGAIN = 76
"""The exit code that asks the agent for new ranks."""
_FATAL = ("non_finite", "wrong_numbers", "bad_data", "user_error", "unsupported")
"""What new ranks would only meet again."""
PR_SET_PDEATHSIG = 1


def live(order: Order, place: Place, make: Callable[[], RunFolder]) -> int:
    """Train as one of several; returns the exit code of this process. `make` makes the run folder, if nobody has."""
    job = Job(Path(place.job)) if place.job else Job.of_agent(place.agent, first=place.local_rank == 0)
    if job.outcome is not None:
        return _code_of(job.outcome, place)
    board = job.new_board(place.rank)
    _stop_politely(board)
    run = _run_folder(job, place, make)
    if place.watched and place.run:
        _speak_into(Path(place.run), place)
    try:
        _train(order, place, job, board, run)
    except HoldfastError as error:
        _end(job, error)
        if not place.watched:
            _print(error)
    except _StartAgain as again:
        if job.outcome is None:
            job.leave(place.rank, again.why, **again.more)
            return START_AGAIN
    if job.outcome is None:  # done, and it is for the rank that keeps the run folder to say so
        return 0
    if run is not None and not place.watched:
        settle(run, job.outcome)
    return _code_of(job.outcome, place)


def leave(code: int) -> NoReturn:
    """End this process at once: taking torch and its connections down in good order takes seconds, for nothing."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    from holdfast.worker import worker

    worker._end_children()
    os._exit(code)


class _StartAgain(Exception):
    """New ranks may mend it."""

    def __init__(self, why: str, **more: Any) -> None:
        super().__init__(why)
        self.why = why
        self.more = more


def _end(job: Job, error: HoldfastError) -> None:
    job.end({"state": "GAVE_UP" if isinstance(error, GaveUp) else "FAILED", "error": error.to_json()})


def settle(run: RunFolder, outcome: dict[str, Any]) -> None:
    """The last word in run.json."""
    code = int(outcome.get("code", _exit_code(outcome)))
    run.update_info(state=outcome["state"], exit_code=code, ended=utc_now())


def _exit_code(outcome: dict[str, Any]) -> int:
    error = outcome.get("error")
    if isinstance(error, dict):
        return int(error.get("exit_code", ExitCode.NO))
    return int(ExitCode.RESUME_ME if outcome.get("state") == "STOPPED" else ExitCode.OK)


def _code_of(outcome: dict[str, Any], place: Place) -> int:
    """For the agent: 0 where `holdfast launch` knows the outcome, since any other code means new ranks."""
    return 0 if place.watched else _exit_code(outcome)


# Before -----------------------------------------------------------------------------------------------------


def _stop_politely(board: Board) -> None:
    """SIGTERM and Ctrl-C ask for a stop at the next boundary; so does the death of the agent."""

    parent, launcher = os.getppid(), int(os.environ.get(LAUNCHER) or 0)

    def asked(*_: object) -> None:
        if NESTED in os.environ and os.getppid() != parent and _runs(launcher):
            os._exit(START_AGAIN)  # only the nursery has died: there will be another
        board.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, asked)
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _runs(pid: int) -> bool:
    info = processes.inspect(pid)
    return processes.exists(pid) and (info is None or info.state != "Z")


def _run_folder(job: Job, place: Place, make: Callable[[], RunFolder]) -> RunFolder | None:
    """The run folder, for the rank that keeps it: of those on its machine, the first."""
    if place.watched:
        if place.run is None or place.local_rank:
            return None
        run = RunFolder.open(Path(place.run))
        run.share_lock()
        return run
    if place.rank:
        return None
    known = job.noted("run").get("path")
    run = RunFolder.open(Path(known)) if isinstance(known, str) else make()
    job.note("run", {"path": str(run.path.absolute())})
    run.lock(wait=10.0)
    return run


def _speak_into(run: Path, place: Place) -> None:
    """What this rank prints goes to a file of the run; the first one's is shown."""
    from holdfast.worker import worker

    worker._redirect_output(run / ("output.log" if place.local_rank == 0 else f"output-rank{place.rank}.log"))
    worker._prepare_stacks(run / f"stacks-rank{place.rank}.txt")


def device_for(asked: str, place: Place) -> str:
    """A card of its own for every rank of a machine that has enough, otherwise the CPU."""
    if asked == "auto":
        import torch

        return f"cuda:{place.local_rank}" if torch.cuda.device_count() >= place.local_ranks else "cpu"
    if asked == "cuda":
        return f"cuda:{place.local_rank}"
    return asked


# Training ---------------------------------------------------------------------------------------------------


def _train(order: Order, place: Place, job: Job, board: Board, run: RunFolder | None) -> None:
    """Everything that needs torch. Ends with an outcome in the job, or says nothing because another rank does."""
    import multiprocessing

    import torch

    from holdfast.distributed.group import Group, PeerLost
    from holdfast.distributed.rank_link import Follower, Writer
    from holdfast.worker import worker
    from holdfast.worker.session import LostWorker, StopRun

    if hasattr(os, "fork"):
        multiprocessing.set_start_method("fork", force=True)
    settings = order.settings.override({"sentinel.enabled": "never"}, "a run of several ranks")
    seed = settings.run.seed
    torch.set_num_threads(threads_for(order, place.local_ranks))
    device = worker.open_device(device_for(settings.run.device, place))
    worker.seed_everything(seed)
    link: Follower | Writer
    try:
        group = Group.join(place, board, device=device, seed=seed, patience=settings.watchdog.setup)
    except PeerLost as lost:
        raise _StartAgain("peer", text=str(lost)) from None
    if run is None:
        link = Follower(job, place, settings, board)
    else:
        link = Writer(job, place, settings, board, run)
        run.update_info(state="RUNNING", device=f"{place.ranks}x{device.type}", ranks=place.ranks)
    try:
        link.find_start(group)
        if isinstance(link, Writer):
            _check_progress(job, place, link.snapshots.step, settings.retry.without_progress)
        _run_script(order, place, link, group, settings, device, seed)
        _finish(link, job)
    except HoldfastError as error:  # said before this process ends: the others will ask why it has
        _end(job, error)
        raise
    except StopRun:
        _stopped(link, job)
    except PeerLost as lost:
        raise _StartAgain("peer", text=str(lost)) from None
    except LostWorker as lost:
        if lost.fault.kind.value in _FATAL:
            raise ScriptFailed(lost.fault.sentence(), cause=lost.fault.cause()) from None
        raise _StartAgain("lost", fault=lost.fault.to_json()) from None
    finally:
        if isinstance(link, Writer):
            _save_what_failed(link, job)
            link.teller.scalars.close()


def threads_for(order: Order, ranks: int) -> int:
    """As many as were asked for, for each rank as with torchrun, or a rank's part of those there are."""
    from holdfast.console.order import threads_said

    asked = isinstance(order.settings.run.threads, int) or threads_said(os.environ) is not None
    return order.threads if asked else max(1, order.threads // ranks)


def _save_what_failed(link: Any, job: Job) -> None:
    """It is over and not done: what is in memory is kept on disk, and the books are closed."""
    outcome = job.outcome
    if outcome is not None and outcome["state"] in ("FAILED", "GAVE_UP"):
        link.save()
        _close_books(link, job, str(outcome["state"]), None)


def _run_script(order: Order, place: Place, link: Any, group: Any, settings: Any, device: Any, seed: int) -> None:
    from holdfast.data import sample_marks
    from holdfast.faults.ladder import Rung
    from holdfast.worker import worker
    from holdfast.worker.session import Run, Session

    folder = link.run.path if hasattr(link, "run") else Path(place.run or os.curdir)
    described = Run(order.facts.path.stem, folder, seed, place.restarts, link.newest() is not None)
    session = Session(
        link, run=described, rungs=[Rung(str(device))], rung=0, settings=settings, device=device, peers=group
    )
    sample_marks.begin(folder, policy=sample_marks.Policy.of(settings.data), beat=link.board.beat, tell=link.send)
    try:
        train = worker.load_train(order.facts.path, order.argv)
        link.send("worker", generation=place.restarts, rank=place.rank, pid=os.getpid())
        train(session, **worker.bind(train, order.arguments))
        session._finish()
    except HoldfastError:
        raise
    except Exception as error:  # the script's own
        print(worker._own_traceback(error), file=sys.stderr, flush=True)
        raise ScriptFailed(
            worker._summary(error), cause=_where(worker._place(error), place), hints=["fix it, then resume the run"]
        ) from error
    finally:
        sample_marks.end()


def _where(place_in_script: str | None, place: Place) -> str:
    return f"{place_in_script} (rank {place.rank})" if place_in_script else f"in rank {place.rank}"


def _check_progress(job: Job, place: Place, step: int, most: int) -> None:
    """New ranks again and again, and not one step committed: there is no point in going on."""
    known = job.noted("progress")
    without = int(known.get("without", 0)) + 1 if known and int(known.get("step", -1)) >= step else 0
    job.note("progress", {"step": step, "without": without})
    if without > most:
        raise GaveUp(
            f"the ranks were started {without} times without one committed step",
            cause=f"each time one of them was lost before step {step + 1} was done",
            hints=["`holdfast show` lists what happened to them"],
        )


# After ------------------------------------------------------------------------------------------------------


def _finish(link: Any, job: Job) -> None:
    """The result on disk, then the word that it is over: a rank lost in between is replaced and does this again."""
    if hasattr(link, "run"):
        digest = link.finish()
        _close_books(link, job, "FINISHED", digest)


def _stopped(link: Any, job: Job) -> None:
    if hasattr(link, "run"):
        link.save()
        _close_books(link, job, "STOPPED", None)
    # the others know that the state is saved, or will be by whoever is asked to go on


def _close_books(link: Any, job: Job, state: str, digest: str | None) -> None:
    from holdfast.worker import local_run

    link.accounts.attempts += link.board.read().attempts
    receipt = local_run._receipt(link, survived=state == "FINISHED", digest=digest)
    link.run.put("receipt.json", receipt)
    link.run.update_info(accounts=link.accounts.to_json(), best=link.teller.best.known)
    job.end({"state": state, "saved": None if link.saved is None else str(link.saved.path)})


def _print(error: HoldfastError) -> None:
    from holdfast.console.output import print_error

    with contextlib.suppress(Exception):
        print_error(error)
        if error.__cause__ is not None and "-v" in sys.argv:
            traceback.print_exception(error.__cause__)
