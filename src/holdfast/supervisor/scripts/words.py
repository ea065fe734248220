"""What is said about a script: its faults and its restarts, each in one line."""

from __future__ import annotations

import math
import re

from holdfast.base.human import count, counted, duration, size
from holdfast.faults.classification import Fault, Kind
from holdfast.supervisor.scripts.script_start import Script
from holdfast.supervisor.waits import Finding, Grade

LAST_LINES = 5
"""Of a program's last words, that are told."""


def fault_sentence(fault: Fault, script: Script, seconds: float) -> str:
    """ "pid 28573 was killed by SIGSEGV after 6m 12s at step 3 862"; what is not about the process says it itself."""
    where = f" at step {count(fault.step)}" if fault.step is not None else ""
    after = f" after {duration(seconds)}"
    pid = fault.evidence.get("process") or script.pid  # the one that trains, where another one has started it
    if fault.kind is Kind.HANG:
        said = fault.evidence.get("doing")
        doing = said if isinstance(said, str) else ""
        silence = fault.evidence.get("silence_s")
        known = f" for {duration(float(silence))}" if isinstance(silence, (int, float)) else ""
        doing = f"; {doing}" if doing and fault.phase is None else f" in {fault.phase}" if fault.phase else ""
        return f"pid {pid} made no step and printed nothing{known}{where}{doing}"
    if fault.kind in (Kind.CRASH, Kind.KILLED):
        how = fault.evidence.get("signal") or fault.evidence.get("status") or "a signal"
        verb = "crashed with" if fault.kind is Kind.CRASH else "was killed from outside by"
        return f"pid {pid} {verb} {how}{after}{where}"
    return fault.sentence()


def silent_sentence(finding: Finding, silence: float, limit: float) -> str:
    """What somebody hears of a long silence before anything is done about it."""
    head = f"no step and no output for {duration(silence)}; {finding.words}"
    if math.isinf(limit):
        return f"{head}; holdfast waits"
    if finding.grade is Grade.WAITS:
        return f"{head}; holdfast waits, and treats it as hung after {duration(limit)}"
    return f"{head}; holdfast will treat it as hung and end it after {duration(limit)}"


_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def last_lines(words: str, most: int = LAST_LINES) -> list[str]:
    """The last lines a program printed, without colours and empty ones: what a person reads first."""
    lines = [_CONTROL.sub("", line.rstrip("\r").rsplit("\r", 1)[-1]).rstrip() for line in words.split("\n")]
    return [line[:200] for line in lines if line.strip()][-most:]


def repeats_work(seconds: float, printed: int, epoch: int | None, about: str = "") -> str:
    """Where steps cannot be seen: the time, and what shows how far it was."""
    shown = [f"epoch {count(epoch)} was reached"] if epoch is not None else []
    shown += [f"{size(printed)} of output"] if printed else []
    told = f" ({', '.join(shown)})" if shown else ""
    return f"{about}{duration(seconds)} of work to repeat{told}"


def repeats(steps: int, about: str = "") -> str:
    return f"{about}{counted(steps, 'step')} to repeat" if steps > 0 else "nothing to repeat"
