"""Whether the run folder takes what is written to it: said once when it does not, and once when it does again.

    storage = Storage(run_folder, teller.emit, lambda: saved_step)
    storage.failed("No space left on device", "time")      # a save did not work: the run goes on in memory
    storage.saved()                                        # one did
    storage.look()                                         # once a second: do the records get through?

A disk that is full stays full for hours. Whoever watches wants one line about it, and not one a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.base.human import counted
from holdfast.run.folder import RunFolder

LOOK_EVERY = 1.0


class Storage:
    """The trouble there is with the disk, from its first sign until both saves and records work again."""

    def __init__(self, run: RunFolder, say: Callable[..., None], saved_step: Callable[[], int | None]) -> None:
        self._run = run
        self._say = say
        self._saved_step = saved_step
        self._save_problem: str | None = None
        self.record_problem: str | None = None
        """Why journal, metrics or run.json wait in memory."""
        self._since: float | None = None
        self._told: set[str] = set()
        """Reasons that were given since then."""
        self._looked = 0.0
        self._dropped = 0

    @property
    def problem(self) -> str | None:
        return self._save_problem or self.record_problem

    def failed(self, why: str, reason: str) -> None:
        """A save was refused by the disk."""
        self._save_problem = why
        self._tell(reason)

    def saved(self) -> None:
        self._save_problem = None
        self._tell("")

    def look(self, *, now: bool = False) -> None:
        """Try again what waits in memory."""
        if not now and time.monotonic() - self._looked < LOOK_EVERY:
            return
        self._looked = time.monotonic()
        self._run.flush()
        problem = self._run.problem
        self.record_problem = None if problem is None else str(problem.strerror or problem)
        self._tell("records")

    def _tell(self, reason: str) -> None:
        why = self.problem
        if why is not None and why not in self._told:
            self._since = self._since or time.monotonic()
            self._told.add(why)
            self._say("not_saved", text=why, reason=reason, step=self._saved_step(), memory_only=True)
        elif why is None and self._since is not None:
            seconds = time.monotonic() - self._since
            self._since, self._told = None, set()
            self._say("saved_again", seconds=round(seconds, 3))
            self._tell_dropped()

    def _tell_dropped(self) -> None:
        lost, self._dropped = self._run.dropped - self._dropped, self._run.dropped
        if lost > 0:
            self._say("note", text=f"{counted(lost, 'line')} of journal and metrics were too many to keep meanwhile")
