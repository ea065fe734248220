"""A run in sentences: the top of its page and of its report.

sentence(run)      "Running on cuda:0, 32 %, done about 12:22. Two faults, both recovered."
verdict(run)       one paragraph for a report: how it went, what it cost, what the weights are
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from holdfast.base.human import count, counted, duration, metric, percent
from holdfast.monitor.reader import Run
from holdfast.monitor.tail import LONGEST
from holdfast.record.receipt import cadence_words
from holdfast.run.states import RunKind, RunState

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def sentence(run: Run, now: float | None = None) -> str:
    """Where it stands, then what happened to it; old data says so in words."""
    now = time.time() if now is None else now
    parts = [_standing(run, now), faults_sentence(run)]
    if run.stale:
        parts.append(f"The last beat was {duration(run.beat_age_s)} ago: what you see is how it was then.")
    if run.elsewhere:
        parts.append("It runs on another machine.")
    return " ".join(part for part in parts if part)


def _standing(run: Run, now: float) -> str:
    teller = _STANDINGS.get(run.state)
    return teller(run, now) if teller else f"{run.state.capitalize()} at step {count(run.step)}."


def _running(run: Run, now: float) -> str:
    where = f"on {run.device}" if run.device else ""
    if run.state == RunState.MOVED:
        where = f"on {run.device} now, {run.first_device} was left"
    words = [f"Running {where}".strip()]
    progress = run.progress
    if progress.setup:
        done, of, what = progress.setup
        return f"{words[0]}, preparing: {what} {count(done)} of {count(of)}."
    if progress.share is not None:
        words.append(percent(progress.share))
    elif progress.step:
        words.append(f"step {count(progress.step)}")
    if progress.time_left_s is not None:
        words.append(f"done about {_clock(now + progress.time_left_s, now)}")
    return f"{', '.join(words)}."


def _recovering(run: Run, now: float) -> str:
    last = run.faults[-1] if run.faults else None
    what = f" from {last.code or 'a fault'} at step {count(last.step)}" if last else ""
    return f"Recovering{what} on {run.device or 'its device'}."


def _finished(run: Run, now: float) -> str:
    epochs, steps = run.story.epochs_done, counted(run.step or 0, "step")
    done = f"{counted(epochs, 'epoch')}, {steps}," if epochs else steps
    if not run.step and run.info.get("kind") == RunKind.SCRIPT:  # a program that makes no steps
        done = ""
    devices = list(dict.fromkeys(str(row.get("device")) for row in run.device_timeline))
    where = f" on {', then '.join(devices)}" if devices else ""
    best = run.best
    at = "" if best is None else f" at epoch {best['epoch']}" if best["epoch"] else f" at step {count(best['step'])}"
    good = f"; best {best['name']} {metric(best['value'])}{at}" if best else ""
    return f"Finished {done + ' ' if done else ''}in {duration(run.lasted_s)}{where}{good}."


def _stopped(run: Run, now: float) -> str:
    return f"Stopped at step {_of(run)} after {duration(run.lasted_s)}; its state is saved."


def _failed(run: Run, now: float) -> str:
    return f"Failed at step {_of(run)}: {error_of(run) or 'the script raised an error of its own'}."


def _gave_up(run: Run, now: float) -> str:
    why = error_of(run)
    return f"Gave up at step {_of(run)}: {why or 'nothing was left to try'}; its state is saved."


def _crashed(run: Run, now: float) -> str:
    seen = f", last seen {_clock(run.last_seen, now)}" if run.last_seen else ""
    return f"Crashed at step {_of(run)}{seen}: its supervisor is gone and said nothing."


def _starting(run: Run, now: float) -> str:
    return f"Starting on {run.device or 'its device'}: importing torch."


def _paused(run: Run, now: float) -> str:
    return f"Paused at step {_of(run)}: a limit holds it back."


_STANDINGS: dict[str, Callable[[Run, float], str]] = {
    RunState.STARTING: _starting,
    RunState.RUNNING: _running,
    RunState.MOVED: _running,
    RunState.PAUSED: _paused,
    RunState.RECOVERING: _recovering,
    RunState.FINISHED: _finished,
    RunState.STOPPED: _stopped,
    RunState.FAILED: _failed,
    RunState.GAVE_UP: _gave_up,
    RunState.CRASHED: _crashed,
}


def _of(run: Run) -> str:
    of = run.progress.of
    return f"{count(run.step or 0)} of {count(of)}" if of and of > (run.step or 0) else count(run.step or 0)


def faults_sentence(run: Run) -> str:
    """ "Two faults, both recovered." """
    total = run.faults_total
    if run.books.journal.behind > LONGEST:
        return "Its journal is still being read."
    if not total:
        return "No faults."
    known = run.faults
    open_ones = sum(not fault.recovered for fault in known)
    word = _WORDS[total].capitalize() if total < len(_WORDS) else count(total)
    noun = "fault" if total == 1 else "faults"
    if not open_ones:
        tail = {1: "recovered", 2: "both recovered"}.get(total, "all recovered")
    elif open_ones == total:
        tail = "not recovered" if total <= 2 else "none recovered"
    else:
        tail = f"{count(total - open_ones)} recovered"
    return f"{word} {noun}, {tail}."


def error_of(run: Run) -> str:
    """The message the run ended with, from the last word of its journal."""
    ends = run.events(last=1, kinds={"end"})
    error: Any = ends[0].data.get("error") if ends else None
    message = error.get("message") if isinstance(error, dict) else None
    return message[:500] if isinstance(message, str) else ""


def verdict(run: Run) -> str:
    """What faults have cost, from the receipt, and what the plan had said; nothing while there is neither."""
    parts: list[str] = []
    receipt, plan = run.receipt or {}, run.planned
    lost, lasted = receipt.get("seconds_lost"), run.lasted_s
    if isinstance(lost, (int, float)) and lost > 0:
        share = f" ({percent(lost / lasted)} of the time)" if lasted and lost <= lasted else ""
        parts.append(f"Faults cost {duration(lost)}{share}.")
    keys = ("steps_repeated", "steps_lost", "samples_skipped", "samples_repeated")
    if all(isinstance(receipt.get(key), int) for key in keys):
        repeated, gone, skipped, twice = (receipt[key] for key in keys)
        text = f"{counted(repeated, 'step was', 'steps were')} repeated and {count(gone)} lost"
        parts.append(f"{text}; {counted(skipped, 'sample was', 'samples were')} skipped and {count(twice)} seen twice.")
    elif isinstance(receipt.get("steps_repeated"), int) and run.step:  # of a foreign script nobody knows the samples
        parts.append(f"{counted(receipt['steps_repeated'], 'step was', 'steps were')} repeated.")
    if commits := cadence_words(receipt):
        parts.append(f"It committed {commits}.")
    if plan is not None and not run.live:
        said = plan.beside(run.lasted_s) if run.state == RunState.FINISHED else plan.words
        parts.append(f"{said[0].upper()}{said[1:]}.")
    return " ".join(parts)


def _clock(when: float, now: float) -> str:
    """12:22, and with its day where that is not today."""
    there, here = time.localtime(when), time.localtime(now)
    if there[:3] == here[:3]:
        return time.strftime("%H:%M", there)
    near = abs(when - now) < 6 * 86400
    return time.strftime("%a %H:%M" if near else "%Y-%m-%d %H:%M", there)
