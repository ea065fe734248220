"""How a rank ends: what it leaves on disk, what it writes down for the others, and its exit code.

rank_end.finish(link, job)                   # the result is saved, and everybody hears that it is over
rank_end.check_progress(job, 40, 0, 5)       # GaveUp if new ranks come and come, and none commits a step
rank_end.leave(rank_end.code_of(outcome, place))
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import Any, NoReturn

from holdfast.base.errors import ExitCode, GaveUp, HoldfastError
from holdfast.distributed.job import Job
from holdfast.distributed.place import Place
from holdfast.run.events import utc_now
from holdfast.run.folder import RunFolder
from holdfast.run.states import RunState


def write_down(job: Job, error: HoldfastError) -> None:
    job.end({"state": RunState.GAVE_UP if isinstance(error, GaveUp) else RunState.FAILED, "error": error.to_json()})


def save_what_failed(link: Any, job: Job) -> None:
    """It is over and not done: what is in memory is kept on disk, and the books are closed."""
    outcome = job.outcome
    if outcome is not None and outcome["state"] in (RunState.FAILED, RunState.GAVE_UP):
        if outcome["state"] == RunState.GAVE_UP:
            link.set_doubtful_aside()
        link.save()
        _close_books(link, job, str(outcome["state"]), None)


def finish(link: Any, job: Job) -> None:
    """The result on disk, then the word that it is over: a rank lost in between is replaced and does this again."""
    if hasattr(link, "run"):
        digest = link.finish()
        _close_books(link, job, RunState.FINISHED, digest)


def stop(link: Any, job: Job) -> None:
    if hasattr(link, "run"):
        link.save()
        _close_books(link, job, RunState.STOPPED, None)
    # the others know that the state is saved, or will be by whoever is asked to go on


def _close_books(link: Any, job: Job, state: str, digest: str | None) -> None:
    from holdfast.worker import local_run

    link.count_attempts()
    receipt = local_run.receipt_of(link, survived=state == RunState.FINISHED, digest=digest)
    link.run.put("receipt.json", receipt)
    link.run.update_info(accounts=link.accounts.to_json(), best=link.teller.best.known)
    job.end({"state": state, "saved": None if link.saved is None else str(link.saved.path)})


def check_progress(job: Job, step: int, left_out: int, most: int) -> None:
    """New ranks again and again, and not one step committed: there is no point in going on.

    Ranks also begin anew to leave out samples, which is progress.
    """
    known = job.noted("progress")
    stalls = known and int(known.get("step", -1)) >= step and int(known.get("left_out", 0)) >= left_out
    without = int(known.get("without", 0)) + 1 if stalls else 0
    job.note("progress", {"step": step, "left_out": left_out, "without": without})
    if without > most:
        raise GaveUp(
            f"the ranks were started {without} times without one committed step",
            cause=f"each time one of them was lost before step {step + 1} was done",
            hints=["`holdfast show` lists what happened to them"],
        )


def settle(run: RunFolder, outcome: dict[str, Any]) -> None:
    """The last word in run.json."""
    code = int(outcome.get("code", exit_code(outcome)))
    run.update_info(state=outcome["state"], exit_code=code, ended=utc_now())


def exit_code(outcome: dict[str, Any]) -> int:
    error = outcome.get("error")
    if isinstance(error, dict):
        return int(error.get("exit_code", ExitCode.NO))
    return int(ExitCode.RESUME_ME if outcome.get("state") == RunState.STOPPED else ExitCode.OK)


def code_of(outcome: dict[str, Any], place: Place) -> int:
    """For the agent: 0 where `holdfast launch` knows the outcome, since any other code means new ranks."""
    return 0 if place.watched else exit_code(outcome)


def show(error: HoldfastError) -> None:
    from holdfast.console.output import print_error

    with contextlib.suppress(Exception):
        print_error(error)
        if error.__cause__ is not None and "-v" in sys.argv:
            traceback.print_exception(error.__cause__)


def leave(code: int) -> NoReturn:
    """End this process at once: taking torch and its connections down in good order takes seconds, for nothing."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    from holdfast.worker import worker

    worker._end_children()
    os._exit(code)
