"""Where the next process of a script begins: at what it handed out, at its newest checkpoint, or at the beginning.

going_on = GoingOn(supervisor)
start = going_on.where(history)              # a Start: command, environment, step, and how to say it
going_on.failed()                            # it could not begin there: another checkpoint then
going_on.newer_than(began_ns)                # has it written one since? Then it may be moved to another device
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.faults.ladder import Past
from holdfast.run.folder import whole
from holdfast.supervisor.scripts import batches, frameworks
from holdfast.supervisor.scripts.frameworks import Way
from holdfast.supervisor.scripts.own_checkpoints import Found, newest_whole, search
from holdfast.supervisor.scripts.words import repeats, repeats_work

if TYPE_CHECKING:
    from holdfast.supervisor.scripts.script_parts import ScriptRun


@dataclass(slots=True)
class Start:
    """How a process begins."""

    command: list[str]
    env: dict[str, str]
    step: int
    text: str


@dataclass(frozen=True, slots=True)
class Life:
    """What a process did, where its steps cannot be seen."""

    began_ns: int
    ended_ns: int
    printed: int = 0
    epoch: int | None = None


class GoingOn:
    """What is known about how this script goes on."""

    def __init__(self, supervisor: ScriptRun) -> None:
        self.supervisor = supervisor
        self.pieces = 1
        """Into how many its batch is divided, where it has an argument for that."""
        self.life: Life | None = None
        """Of the process that ended last."""
        self.repeated_s = 0.0
        """Seconds of work that were done again, of processes whose steps nobody saw."""
        self.repeated_bytes = 0
        """What those had printed, where they began again from nothing."""
        self.at_most = False
        """One of them may have gone on by itself: then it was that much or less."""
        self._began_from: Path | None = None
        """The checkpoint the process that runs now was told to begin at."""
        self._unfit: set[Path] = set()
        """Checkpoints the script could not begin at."""

    def where(self, history: Sequence[Past]) -> Start:
        """The newest state there is."""
        start = self._newest_state(history)
        if self.pieces > 1:
            start.command, env = batches.divide(start.command, self.pieces)
            start.env |= env
            start.text += f"; each batch in {self.pieces} pieces"
        return start

    def _newest_state(self, history: Sequence[Past]) -> Start:
        supervisor, context = self.supervisor, self.supervisor.context
        command, steps = list(supervisor.order.command), context.accounts.steps
        reached = max(steps, history[-1].fault.step - 1 if history and history[-1].fault.step else 0)
        if supervisor.attached.exact:
            step = context.newest_step
            return Start(command, {}, step, f"from step {step}; {repeats(max(0, reached - step) + 1)}")
        way, found = self._newest_checkpoint()
        self._began_from = found.path if way is not None and found is not None and not way.chooses else None
        if way is None:  # it may find its own way, as scripts do that look for their file themselves
            again = self._again(reached, 0, "up to ")
            return Start(
                command, {}, 0, f"from the beginning (holdfast does not know how this script resumes); {again}"
            )
        if found is None:
            return Start(command, {}, 0, f"from the beginning (no checkpoint was found); {self._again(reached, 0)}")
        step, sure = supervisor.steps.of(found, supervisor.notes)
        again = self._again(reached, step, "" if sure else "about ", since_ns=found.time_ns)
        return Start(*way.begin(command, found.path), step, f"from {short(found.path)} by {way.name}; {again}")

    def _again(self, reached: int, step: int, about: str = "", since_ns: int = 0) -> str:
        """What is repeated: steps where they are counted, else the time since the checkpoint or the beginning."""
        life = self.life
        if reached > 0 or life is None:
            return repeats(max(0, reached - step), about)
        seconds = max(0.0, (life.ended_ns - max(life.began_ns, since_ns)) / 1e9)
        printed = life.printed if since_ns <= life.began_ns else 0
        self.repeated_s += seconds
        self.at_most = self.at_most or about.startswith("up to")
        self.repeated_bytes += printed
        return repeats_work(seconds, printed, life.epoch, about)

    def _newest_checkpoint(self, since_ns: int | None = None) -> tuple[Way | None, Found | None]:
        supervisor = self.supervisor
        order, way = supervisor.order, self._way()
        if way is None:
            return None, None
        places = frameworks.places(order.command, order.cwd)
        found = search(places, way.patterns, since_ns or order.since_ns)
        newest, passed = newest_whole([each for each in found if each.path not in self._unfit])
        for each, why in passed:
            supervisor.context.teller.emit("note", text=f"{short(each.path)} is skipped: {why}")
        if way.chooses and passed:
            return way, None
        return way, newest

    def _way(self) -> Way | None:
        """How it goes on, by what its process was seen to use; of a run that was resumed, its last process."""
        order, seen, info = self.supervisor.order, self.supervisor.notes, self.supervisor.run_folder.info
        fitted, fits = str(info.get("fitted") or ""), whole(info.get("fits"))
        if seen is not None:
            fitted, fits = seen.fitted, seen.fits
        return frameworks.find_way(order.command, fitted=fitted, fits=fits, resume_with=order.resume_with)

    def newer_than(self, began_ns: int) -> bool:
        """Has the process that runs now written a checkpoint that is whole?"""
        _, found = self._newest_checkpoint(began_ns)
        return found is not None

    def newest_time(self) -> int | None:
        """When the newest checkpoint it could go on from was written, without a look inside; None if there is none."""
        order, way = self.supervisor.order, self._way()
        if way is None:
            return None
        found = search(frameworks.places(order.command, order.cwd), way.patterns, order.since_ns)
        return max((each.time_ns for each in found if each.path not in self._unfit), default=None)

    @property
    def chose(self) -> Path | None:
        """The checkpoint we chose for the process there is."""
        return self._began_from

    def failed(self) -> Path:
        """It did not begin there: it may be none it can go on from."""
        assert self._began_from is not None
        self._unfit.add(self._began_from)
        return self._began_from


def short(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path)
