"""How long a script may be silent, given what is known about it: pure, a few numbers in, seconds out.

    limit = allowed(stepping=True, longest_gap=0.8, finding=finding, settings=settings.watchdog)
    if silence > limit: ...                          # it hangs

Silent is a script that makes no step and prints nothing. What it waits for decides (holdfast.supervisor.waits):

    makes steps, stuck     watchdog.loop (1 minute), or 4 times its longest pause between two steps
    makes steps, unclear   watchdog.evaluate (10 minutes), or the same 4 times: an evaluation looks like this
    makes steps, waits     watchdog.wait (1 hour), or until its deadline; for a person or a debugger without end
    no step yet, stuck     watchdog.setup (30 minutes)
    no step yet, computes  not called hung: it may compute in silence for as long as it likes, as any program
    no step yet, waits     the same; a script that has imported torch gets watchdog.wait

Only what is stuck for sure costs nothing to end. Else patience is at least as long as the work that would be repeated.
With the integrations the phases are known, and the limits are those of `holdfast train`.
"""

from __future__ import annotations

import math

from holdfast.run.setting_groups import WatchdogSettings
from holdfast.supervisor.waits import Finding, Grade


def allowed(
    *,
    stepping: bool,
    longest_gap: float,
    finding: Finding,
    settings: WatchdogSettings,
    silence: float = 0.0,
    lost: float = 0.0,
    trains: bool = False,
    stretch: float = 1.0,
    waiting: bool = False,
) -> float:
    """Seconds of silence before it is called hung; infinite where it never is.

    `lost` are the seconds of work a restart would repeat. `stretch` is above 1 when the script was once called hung
    here: if it was only slow, it passes the second time. `waiting`: somebody does not read what it prints.
    """
    if waiting or finding.endless:
        return math.inf
    stuck, waits = finding.grade is Grade.STUCK, finding.grade is Grade.WAITS
    if not stepping and (finding.kind in ("computes", "unseen") or (waits and not trains)):
        return math.inf
    if waits:
        ends = silence + finding.until + settings.loop if finding.until is not None else 0.0
        return max(settings.wait, settings.factor * longest_gap, lost, ends) * stretch
    floor = settings.setup if not stepping else settings.loop if stuck else settings.evaluate
    return max(floor, settings.factor * longest_gap, 0.0 if stuck else lost) * stretch
