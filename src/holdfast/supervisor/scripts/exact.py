"""The supervisor's side of `holdfast run --exact`: what was printed is not printed twice, and the rehearsal.

    exact = Exact(supervisor)
    exact.environment()                      # of the next process of the script
    exact.told()                             # what that process is told when it attaches itself
    exact.heed(message)                      # a message of its engine; returns the answer, or None
    exact.tick()                             # replaces the process where the rehearsal asks for it

The rehearsal: the first process commits, makes a few more steps and tells a checksum of its weights after each. Then
it is killed. The second process is led back to the commit and makes the same steps. Equal checksums: the run is exact,
and the second process goes on. Other ones: the run begins again without --exact, and a line says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.base.files import read_json
from holdfast.faults.ladder import Move
from holdfast.faults.terms import Action
from holdfast.run.messages import ExactCost, ExactOff, Mark, OfExact, Reached, Rehearse, Rehearsed
from holdfast.supervisor.scripts.exact_files import Asides
from holdfast.supervisor.scripts.exact_output import Gate
from holdfast.supervisor.scripts.script_order import exact_environment

if TYPE_CHECKING:
    from holdfast.supervisor.scripts.hook_notes import Notes
    from holdfast.supervisor.scripts.script_parts import ScriptRun
    from holdfast.supervisor.scripts.streams import Streams

STEPS, SECONDS = 3, 1.0
"""How long the first process goes on after the commit of the rehearsal, at least."""
NOT_LED = 75


class Exact:
    """Of one run."""

    def __init__(self, supervisor: ScriptRun, *, wanted: bool, rehearse: bool) -> None:
        self.supervisor = supervisor
        self.wanted = wanted
        """Whether processes of the script hand out everything; False once it is known that it cannot be exact."""
        self.reason = ""
        """Why the run is not exact."""
        self.rehearsed: bool | None = None
        """Whether the rehearsal has shown it; None before."""
        self.unsaved: dict[str, str] = {}
        self.cost: dict[str, Any] | None = None
        """What commits took of the last process: how many, their seconds, and the seconds that it trained."""
        self._rehearse = rehearse
        self._asides = Asides(supervisor.run_folder.path / "written")
        self._trail: list[Any] = []
        self._next: str = ""

    @property
    def gate(self) -> Gate | None:
        return self.supervisor.setup.gate

    def environment(self) -> dict[str, str]:
        return exact_environment(self.supervisor.order.hash_seed) if self.wanted else {}

    def process_begins(self) -> None:
        """The gate is shut for a process that repeats what was printed."""
        gate = self.gate
        if gate is None:
            return
        newest = self.supervisor.context.memory.newest()
        if self.wanted and newest is not None:
            gate.shut()
            self._asides.put(newest.sequence)
        elif self.wanted and self.supervisor.order.resume is not None:
            gate.shut()
        else:
            gate.repeat_all()

    def process_ended(self, streams: Streams, code: int) -> None:
        """A process that failed by itself on its way back is heard: what it printed there says why."""
        if self.gate is not None and code >= 0 and not self.reason:
            for target, data in self.gate.opened().items():
                streams.show(target, data)

    def told(self) -> dict[str, Any] | None:
        if not self.wanted:
            return None
        if self._trail:
            return {"trail": self._trail, "files": self._asides.found}
        wanted = self._rehearse and self.rehearsed is None and self.supervisor.context.memory.newest() is None
        rehearse = {"rehearse": {"steps": STEPS, "seconds": SECONDS}} if wanted else {}
        return {"files": self._asides.found, **rehearse}

    def look(self, notes: Notes) -> None:
        """The hook could not start the engine: it wrote down why."""
        said = read_json(notes.folder / "exact.json") if self.wanted else None
        if not said:
            return
        if self.supervisor.context.memory.newest() is not None:
            self._fall_back(str(said.get("reason")))
        else:
            self._off(str(said.get("reason")), led=True)

    # -- messages ------------------------------------------------------------------------------------------

    def heed(self, message: OfExact) -> dict[str, Any] | None:
        streams, gate = self.supervisor.streams, self.gate
        if isinstance(message, Mark | Reached):
            if streams is not None and gate is not None:
                streams.take_all()
                if isinstance(message, Mark):
                    gate.mark(message.mark)
                    self._asides.note(message.sequence, message.files)
                else:
                    self._asides.used()
                    gate.reached(message.mark)
            return {"ok": True}
        if isinstance(message, Rehearse):  # it waits until it is ended
            self._trail = list(message.trail)
            self.unsaved = message.unsaved
            self._next = "replace"
        elif isinstance(message, Rehearsed):
            self._heard(message.equal, message.step)
        elif isinstance(message, ExactCost):
            self.cost = message.told
        elif isinstance(message, ExactOff):
            self._off(message.reason, led=message.led)
        return None

    def _heard(self, equal: bool, step: int) -> None:
        self.rehearsed = equal
        steps, self._trail = len(self._trail), []
        teller = self.supervisor.context.teller
        if equal:
            text = f"rehearsal: the script was killed and led back; {steps} steps were repeated with equal weights"
            teller.emit("exact", exact=True, text=text, steps=steps)
            return
        why = f"step {step} had other weights when it was repeated"
        if self.unsaved:
            name, kind = next(iter(self.unsaved.items()))
            why += f" (the state of {name}, a {kind}, cannot be read)"
        self._fall_back(why)

    def _off(self, reason: str, *, led: bool) -> None:
        self.wanted = False
        self.reason = reason
        text = f"not exact: {reason}; after a fault the script goes on as without --exact"
        self.supervisor.context.teller.emit("exact", exact=False, text=text, reason=reason)
        if led:
            self.supervisor.attached.forget()

    def _fall_back(self, reason: str) -> None:
        self._off(reason, led=False)
        self._next = "fall back"

    def receipt(self) -> dict[str, Any]:
        """What the receipt says beside `exact`; nothing for a run without --exact."""
        if not self.supervisor.order.exact:
            return {}
        return {"exact_rehearsed": self.rehearsed, "exact_reason": self.reason or None, "exact_cost": self.cost}

    # -- replacing the process -----------------------------------------------------------------------------

    def tick(self) -> None:
        step, self._next = self._next, ""
        if not step or self.supervisor.script is None or self.supervisor.stopping is not None:
            return
        self.supervisor.end_process(term=0.0)
        self.supervisor.drop()
        if step == "fall back":
            self.supervisor.attached.forget()
        reason = "rehearsal" if step == "replace" else "not exact"
        self.supervisor.answering.replace(
            Move(Action.REPLACE, self.supervisor.context.rung, reason=reason, new_worker=True)
        )

    def not_led(self, code: int) -> bool:
        """Whether the process that ended could not be led back: it has said why, and a new one begins without us."""
        if code != NOT_LED or self.wanted or not self.reason or not self.supervisor.attached.exact:
            return False
        self.supervisor.attached.forget()
        return True
