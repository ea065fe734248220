"""The watchdog's judgement: how long may a worker be silent, given what it is doing?

    limit = allowed_silence(beat, known, settings)      # pure: a board reading in, seconds out
    # supervisor.py compares it with the silence that worker_watch.py measures

It learns. A phase that has been seen may take `factor` times its slowest recent time, and at least `floor`.
What has not been seen yet gets an allowance by kind: first steps compile kernels, set-up reads files,
a first evaluation walks a whole data set. A worker that was replaced inherits what its predecessor taught.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.base.board import Beat, Phase, PhaseTimes
from holdfast.run.setting_groups import WatchdogSettings

EVALUATION_SEEN = 0.5
"""Seconds from which on an evaluation counts as one."""
Known = Mapping[Phase, PhaseTimes]
_SLOW = (Phase.LOOP, Phase.EVALUATE, Phase.REPLAY, Phase.SENTINEL)
"""What is not the same each time: your own code, and computing on the CPU."""
FIRST_TIMES = 3
"""So many times a phase counts as new: warm-up, autotuning and lazy initialisation come in the first few."""


def allowed_silence(beat: Beat, known: Known, settings: WatchdogSettings, *, stretch: float = 1.0) -> float:
    """Seconds this worker may stay silent in the phase it is in.

    `stretch` is above 1 when the step was once called hung: if it was only slow, it passes the second time.
    """
    times = beat.times[beat.phase]
    if beat.phase in (Phase.SETUP, Phase.COMPILE, Phase.SAVE):
        return max(_first_allowance(beat.phase, settings), settings.factor * times.slowest_s) * stretch
    floor = settings.loop if beat.phase in _SLOW else settings.floor
    if _has_learned(beat.phase, times):
        return max(floor, settings.factor * times.slowest_s) * stretch
    earlier = known.get(beat.phase)
    if earlier is not None and _has_learned(beat.phase, earlier):
        slowest = max(earlier.first_s, earlier.slowest_s, times.slowest_s)
        return max(floor, settings.factor * slowest) * stretch
    return _first_allowance(beat.phase, settings) * stretch


_OWN = (Phase.SETUP, Phase.LOOP, Phase.EVALUATE, Phase.SAVE, Phase.COMPILE)
"""Code of the user's, or of a compiler: it may download, upload, wait for a lock or ask somebody."""
_STEP = (Phase.DATA, Phase.TO_DEVICE, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.SNAPSHOT)


def may_take_any_time(beat: Beat, known: Known) -> bool:
    """May this phase take longer than anybody knows? The user's own code may, and what was never seen before."""
    if beat.phase in _OWN:
        return True
    earlier = known.get(beat.phase, PhaseTimes())
    learned = _has_learned(beat.phase, beat.times[beat.phase]) or _has_learned(beat.phase, earlier)
    return beat.phase in _STEP and not learned


def is_in_step(beat: Beat) -> bool:
    return beat.phase in _STEP


def _has_learned(phase: Phase, times: PhaseTimes) -> bool:
    """Three times make a habit; one evaluation does, if it was one: the phase is entered after every last batch."""
    if phase is Phase.EVALUATE:
        return times.slowest_s >= EVALUATION_SEEN
    return times.count >= FIRST_TIMES


def _first_allowance(phase: Phase, settings: WatchdogSettings) -> float:
    allowances = {
        Phase.SETUP: settings.setup,
        Phase.EVALUATE: settings.evaluate,
        Phase.COMPILE: settings.compile,
        Phase.SAVE: settings.setup,
    }
    return allowances.get(phase, settings.first_step)


def merge_known(known: Known, beat: Beat) -> dict[Phase, PhaseTimes]:
    """What a dead worker taught: its counts and slowest times, for the next one's first steps."""
    merged = dict(known)
    for phase, times in beat.times.items():
        if times.count == 0:
            continue
        before = merged.get(phase, PhaseTimes())
        settled = times.count >= FIRST_TIMES
        merged[phase] = PhaseTimes(
            # Workers that die young teach together what one of them could not.
            count=before.count + times.count,
            slowest_s=times.slowest_s if settled else max(before.slowest_s, times.slowest_s),
            first_s=max(before.first_s, times.first_s),
        )
    return merged
