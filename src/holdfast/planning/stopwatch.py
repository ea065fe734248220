"""Takes the times of a trial and decides how far it goes. No torch, no session: it is told what happens.

    watch = Watch(say, seconds=20.0, window_s=0.0, wait=lambda: None)
    watch.loop_begins(); watch.batches_begin(390)
    watch.tick()                         # a step is over; True if this epoch has shown enough
    watch.epoch_ends(); watch.another_epoch(12)

What it finds out it says at once, a few words at a time: `setup`, `steps`, `between`, `epoch`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

WARM = 2
"""Steps and epochs at the start that do not count: memory is new, kernels are chosen, caches are cold."""
LEAST, MOST = 6, 2000
"""Steps of an epoch that are measured, if the time allows; and never more than this."""
SURE = 0.02
"""The standard error of a step's time, as a part of it, at which more steps are not worth their time."""
WINDOW_S = 0.25
"""On an accelerator, steps are timed in groups of at least so long: to wait after each one would slow them down."""
IN_STEPS, IN_EPOCHS = 0.3, 0.75
"""Of the time for a trial: how much one epoch's steps may take, and when no other epoch is begun."""

Say = Callable[..., None]


class Watch:
    """Takes the times of a trial and decides how far it goes. Knows nothing of torch or sessions."""

    def __init__(self, say: Say, seconds: float, *, window_s: float, wait: Callable[[], None]) -> None:
        self.say, self.seconds, self.window_s, self.wait = say, seconds, window_s, wait
        self.began = time.perf_counter()
        self.looping = False
        self.in_batches = False
        """Steps are taken one by one, not as one transaction."""
        self.epochs_done = 0
        self._seen: list[float] = []
        self._warm = 0
        self._pending = 0
        self._since = self.began
        self._epoch_began = self._loop_began = self.began
        self._loop_s = 0.0
        self._in_loop = 0

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def loop_begins(self) -> None:
        """The first batch, step or epoch is about to begin: what came before was set-up."""
        if not self.looping:
            self.looping = True
            self.say(setup=self.elapsed)

    def batches_begin(self, total: int) -> None:
        self.in_batches = True
        self.say(batches=total)
        self._in_loop = 0
        self._loop_began = self._since = time.perf_counter()

    def tick(self) -> bool:
        """A step is over; True if this epoch has shown enough."""
        self._pending += 1
        self._in_loop += 1
        now = time.perf_counter()
        if now - self._since >= self.window_s:
            self._close_window()
        spent = time.perf_counter() - self._loop_began
        if self._in_loop < 3:
            return False
        if self.elapsed > self.seconds or self._in_loop >= MOST:
            return True
        if self._in_loop < LEAST + WARM or (self.window_s and len(self._seen) < LEAST):
            return spent > self.seconds * IN_STEPS and len(self._seen) >= 1
        return self._sure() or spent > self.seconds * IN_STEPS

    def _close_window(self) -> None:
        self.wait()
        now = time.perf_counter()
        steps, took = self._pending, now - self._since
        self._pending, self._since = 0, now
        if not steps:
            return
        if self._warm < WARM:
            self._warm += steps
            self.say(warm=[steps, took])
            return
        self._seen.append(took / steps)
        self.say(steps=[steps, took])

    def _sure(self) -> bool:
        count = len(self._seen)
        if count < LEAST:
            return False
        mean = sum(self._seen) / count
        spread = math.sqrt(sum((each - mean) ** 2 for each in self._seen) / (count - 1))
        return spread / math.sqrt(count) < SURE * mean

    def batches_end(self) -> None:
        if self._pending:
            self._close_window()
        self._loop_s += time.perf_counter() - self._loop_began

    def epoch_begins(self) -> None:
        self._epoch_began, self._loop_s = time.perf_counter(), 0.0

    def epoch_ends(self) -> None:
        """Its steps are over, and whatever the script does between the last one and the next epoch."""
        self.wait()
        took = time.perf_counter() - self._epoch_began
        self.epochs_done += 1
        if self._loop_s:
            self.say(between=took - self._loop_s)
        else:
            self.say(**({"warm_epoch": took} if self.epochs_done == 1 else {"epoch": took}))

    def another_epoch(self, total: int) -> bool:
        most = 2 if self._loop_s else 6
        return self.epochs_done < min(total, most) and self.elapsed < self.seconds * IN_EPOCHS
