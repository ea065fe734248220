"""What is said about a script: its faults and its restarts, each in one line."""

from __future__ import annotations

import math

from holdfast.external.launching import Script
from holdfast.human import count, counted, duration
from holdfast.runtime.faults import Fault, Kind
from holdfast.runtime.waits import Finding, Grade


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
        return f"pid {pid} made no step and said nothing{known}{where}{doing}"
    if fault.kind in (Kind.CRASH, Kind.KILLED):
        how = fault.evidence.get("signal") or fault.evidence.get("status") or "a signal"
        verb = "crashed with" if fault.kind is Kind.CRASH else "was killed from outside by"
        return f"pid {pid} {verb} {how}{after}{where}"
    return fault.sentence()


def silent_sentence(finding: Finding, silence: float, limit: float) -> str:
    """What somebody hears of a long silence before anything is done about it."""
    head = f"no step and no output for {duration(silence)}; {finding.words}"
    if math.isinf(limit):
        return f"{head}; it is left alone"
    if finding.grade is Grade.WAITS:
        return f"{head}; it is left alone, and called hung after {duration(limit)}"
    return f"{head}; it is called hung and ended after {duration(limit)}"


def repeats(steps: int, about: str = "") -> str:
    return f"{about}{counted(steps, 'step')} to repeat" if steps > 0 else "nothing to repeat"
