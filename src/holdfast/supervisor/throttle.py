"""Holds a run back: what the sensors say, held against the limits, becomes rest for the worker. No torch here.

    throttle = Throttle(context, workers)
    throttle.tick()          # now and then: a reading for the beat, events when a limit is passed, a word on the board
    throttle.close()

The judgement is pure and in limits.py, the sensors are a child (sensors.py), the resting is the worker's own
(rest.py), between two of its steps. Here they meet.
"""

from __future__ import annotations

import time

from holdfast.run.states import RunState
from holdfast.supervisor.limits import Limits
from holdfast.supervisor.run_context import RunContext
from holdfast.supervisor.sensors import Sensing
from holdfast.supervisor.workers import Workers

EVERY = 0.5
"""Seconds between two looks."""
BEGIN_AFTER = 3.0
"""Seconds before the sensors are started: a run that is over by then needs none, unless it has limits."""


class Throttle:
    """The sensors and limits of one run."""

    def __init__(self, context: RunContext, workers: Workers) -> None:
        self.context = context
        self.workers = workers
        self.limits = Limits(context.settings.limits)
        self.sensing = Sensing(context.run_folder)
        self._began = time.monotonic()
        self._started = False
        self._looked = 0.0

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._looked < EVERY:
            return
        self._looked = now
        if not self._started and (self.limits.any or now - self._began >= BEGIN_AFTER):
            self._started = True
            self.sensing.start()
        teller = self.context.teller
        teller.readings = self.sensing.poll() if self._started else None
        teller.energy_j = self.sensing.energy_j
        for change in self.limits.look(teller.readings, self.context.device, now):
            teller.emit("limit", **change, step=self.context.accounts.steps)
        self._pass_on()

    def _pass_on(self) -> None:
        """What the limits ask for, to the worker there is now; a new one begins without it."""
        worker = self.workers.worker
        if worker is None or worker.gone:
            return
        if worker.board.rest != self.limits.rest:
            worker.board.request_rest(self.limits.rest)
            self.context.teller.rate.forget()
        # Held against what run.json says, not against what was said before: the end of a recovery says RUNNING too.
        state = self.context.run_folder.info.get("state")
        if self.limits.paused and state == RunState.RUNNING:
            self.context.set_state(RunState.PAUSED)
        elif not self.limits.paused and state == RunState.PAUSED:
            self.context.set_state(RunState.RUNNING)

    def close(self) -> None:
        self.sensing.close()
