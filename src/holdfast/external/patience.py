"""How long a script may be silent, given what is known about it: pure, a few numbers in, seconds out.

    limit = allowed(stepping=True, longest_gap=0.8, busy=False, settings=settings.watchdog)
    if silence > limit: ...                          # it hangs

Silent is a script that makes no step and prints nothing. Nobody knows what it is doing then: an evaluation, a download,
or nothing for ever. So the limits are long, and a script that computes gets more than one that does nothing:

    makes steps, idle      watchdog.loop (1 minute), or 4 times its longest pause between two steps
    makes steps, busy      watchdog.evaluate (10 minutes), or the same 4 times: an evaluation looks like this
    no step yet, idle      watchdog.setup (30 minutes)
    no step yet, busy      not called hung: it may compute in silence for as long as it likes, as any program

With the integrations the phases are known, and the limits are those of `holdfast train`.
"""

from __future__ import annotations

import math

from holdfast.settinggroups import WatchdogSettings


def allowed(
    *,
    stepping: bool,
    longest_gap: float,
    busy: bool | None,
    settings: WatchdogSettings,
    stretch: float = 1.0,
    waiting: bool = False,
) -> float:
    """Seconds of silence before it is called hung; infinite where it never is.

    `busy` is None where nobody can tell: then it counts as busy. `stretch` is above 1 when the script was once called
    hung here: if it was only slow, it passes the second time. `waiting`: somebody does not read what it prints.
    """
    if waiting:
        return math.inf
    if not stepping:
        return settings.setup * stretch if busy is False else math.inf
    floor = settings.loop if busy is False else settings.evaluate
    return max(floor, settings.factor * longest_gap) * stretch
