"""Trust in the devices of a run, as the supervisor keeps it: the ledger, probes, and the way back. No torch here.

    trusting.begin()                 # what an earlier boot left open is judged; where the run starts is decided
    trusting.entering()              # durable, before a worker touches the device
    trusting.lost(fault, move)       # the run leaves the device: it is tried again after a growing delay
    trusting.tick()                  # a probe when it is due; a return once it has passed
    trusting.agreed()                # a step on the device that the CPU computes in the same way

Each change of trust is an event the user can read. What the states are and how long the delays grow is pure and in
devices/trust_rules.py; what outlives the run is in devices/ledger.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.base import processes
from holdfast.base.board import Board
from holdfast.devices import trust_rules as rules
from holdfast.devices.guards import lost_when_ended
from holdfast.devices.ledger import Ledger, Opened
from holdfast.devices.ledger_summary import Decision, LedgerState
from holdfast.devices.trust_rules import DeviceTrust, State
from holdfast.faults.blame import Blame, Verdict
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import OFF_RECORD, Move, Rung
from holdfast.faults.terms import Action
from holdfast.run.messages import Suspicion
from holdfast.supervisor.run_context import OnLadder

if TYPE_CHECKING:
    from holdfast.devices.probe_process import ProbeProcess

_OF_THE_DEVICE = frozenset(
    {
        Kind.CRASH,
        Kind.DEVICE_LOST,
        Kind.TRANSIENT,
        Kind.HANG,
        Kind.EXIT,
        Kind.NON_FINITE,
        Kind.WRONG_NUMBERS,
        Kind.UNSUPPORTED,
        Kind.DRIVER,
    }
)
_INNOCENT = frozenset({Blame.DATA, Blame.CODE, Blame.PRECISION})


class Trusting:
    """Every device of the plan but the CPU, which is where a run goes when it trusts nothing else."""

    def __init__(
        self,
        context: OnLadder,
        board: Callable[[], Board | None],
        *,
        compares: bool = True,
        ledger: Ledger | None = None,
    ) -> None:
        """Several ranks of one machine share a ledger."""
        self.context = context
        self.ledger = ledger or Ledger()
        self.returning: int | None = None
        """The rung the run is going back to, while its worker comes to a boundary."""
        self.blind = False
        """The worker there is now cannot compare its device with the CPU."""
        self.compares = compares
        """False where no worker can: a script of somebody else."""
        self._board = board
        self._trust: dict[str, DeviceTrust] = {}
        self._home: dict[str, int] = {}
        """The rung each device was left on."""
        self._held: frozenset[int] = frozenset()
        """Rungs in quarantine, in whatever precision. The device may be free with another remedy."""
        self._before: dict[str, DeviceTrust] = {}
        """What was thought of a device before its last fault."""
        self._lost_when_ended: dict[str, str | None] = {}
        """By device, why it is not tried again after a hang; asked at the start, while the device still answers."""
        self._opened: Opened | None = None
        self._since = (0.0, 0)
        self._probe: tuple[str, ProbeProcess] | None = None

    # -- the start of a run --------------------------------------------------------------------------------

    def begin(self) -> None:
        """What was left open is judged. A device in quarantine is not started on; one on probation is probed first."""
        for settled in self.ledger.settle(processes.boot_id()):
            if settled.judgement.decision != Decision.KILLED:
                self.context.teller.emit("trust", device=settled.label, text=settled.sentence)
        now = time.monotonic()
        rungs = [(number, rung) for number, rung in enumerate(self.context.plan.rungs) if not rung.on_cpu]
        known = {number: self.ledger.trust(rung.device, rung.label) for number, rung in rungs}
        bad = {(rung.device, rung.env) for number, rung in rungs if known[number].state == LedgerState.QUARANTINED}
        self._held = frozenset(number for number, rung in rungs if (rung.device, rung.env) in bad)
        for number, rung in sorted(rungs, key=lambda each: each[0] in self._held):
            if rung.device in self._trust:
                continue
            state = LedgerState.QUARANTINED if number in self._held else known[number].state
            trust = rules.begin(rung.device, self._rules, state, known[number].why or "", now=now)
            self._trust[rung.device] = trust
            self._home[rung.device] = number
            self._lost_when_ended[rung.device] = lost_when_ended(rung.device)
            self._say(trust, rung.device)
        wanted = self.context.rung
        self.context.rung = self._first_usable(wanted)
        if self.context.rung != wanted:
            before, after = self.context.plan.rungs[wanted], self.rung
            text = f"training begins on {after.label}; `holdfast ledger --forget {before.device}` lifts it"
            self.context.teller.emit("trust", device=before.device, text=f"{text} against {before.device}")

    def _first_usable(self, start: int) -> int:
        rungs = self.context.plan.rungs
        barred = self.barred()
        return next((number for number in range(start, len(rungs)) if number not in barred), start)

    def barred(self) -> frozenset[int]:
        """Rungs no worker may be started on now: in quarantine themselves, or their device is not to be used."""
        rungs = enumerate(self.context.plan.rungs)
        unfit = {number for number, rung in rungs if not rung.on_cpu and not self._trust[rung.device].usable}
        return self._held | unfit

    @property
    def _rules(self) -> Any:
        return self.context.settings.probation

    # -- in use --------------------------------------------------------------------------------------------

    @property
    def rung(self) -> Rung:
        return self.context.plan.rungs[self.context.rung]

    @property
    def probation(self) -> int:
        """Steps the worker that starts now has to compute on the CPU as well."""
        trust = self._trust.get(self.rung.device)
        return trust.to_go if trust is not None and trust.checked else 0

    def entering(self) -> None:
        """A worker is about to be started: the ledger knows before the device does."""
        self.blind = False
        rung = self.rung
        if self._opened is not None and (self._opened.device.label, self._opened.rung) == (
            rung.device,
            rung.label.removeprefix(rung.device).strip(),
        ):
            return
        self.leaving("moved")
        self._opened = self.ledger.open(rung.device, rung.label, self.context.run_folder.name, processes.boot_id())
        self._since = (time.monotonic(), self.context.accounts.steps)

    def leaving(self, how: str) -> None:
        if self._opened is None:
            return
        began, steps = self._since
        done = max(0, self.context.accounts.steps - steps)
        self.ledger.close(self._opened, how, steps=done, seconds=time.monotonic() - began)
        self._opened = None

    def close(self, how: str) -> None:
        """The run is over."""
        if self._probe is not None:
            self._probe[1].close()
            self._probe = None
        self.leaving(how)
        self.ledger.leave()

    # -- losing it -----------------------------------------------------------------------------------------

    def lost(self, fault: Fault, move: Move) -> None:
        """A fault was answered. If the run leaves the device because of it, the device has to earn its way back."""
        device = self.rung.device
        trust = self._trust.get(device)
        after = self.context.plan.rungs[move.rung]
        if trust is None or fault.kind not in _OF_THE_DEVICE or _slow_cpu(fault):
            return
        if fault.blame is None:  # otherwise it was noted when it came, and judged since
            by = {name: fault.evidence[name] for name in ("method", "by") if name in fault.evidence}
            self.ledger.note(device, self.rung.label, "fault", code=fault.code, why=fault.sentence(), **by)
        if move.action is not Action.NEXT_RUNG or after.device == device:
            return
        self._home[device] = self.context.rung
        if fault.evidence.get("abandoned"):
            trust = rules.leave(trust, f"process {fault.evidence['abandoned']} holds it and cannot be killed")
        elif fault.evidence.get("lost_when_ended"):
            trust = rules.leave(trust, str(fault.evidence["lost_when_ended"]))
        else:
            self._before[device] = trust
            trust = rules.after_fault(trust, time.monotonic(), fault.sentence().removeprefix(f"{device} "))
        self._set(device, trust)

    def known_loss(self, fault: Fault) -> Fault:
        """A hang on a device of which it is known that ending the process loses it: the fault says so from here on."""
        why = self._lost_when_ended.get(self.rung.device) if fault.kind is Kind.HANG and not _slow_cpu(fault) else None
        return replace(fault, evidence={**fault.evidence, "lost_when_ended": why}) if why else fault

    def suspected(self, message: Suspicion) -> None:
        """An operator disagreed with the CPU. Without a confirmation nothing follows but a line, and more looks."""
        device, text, look = self.rung.device, message.text, message.look
        done = "confirmed" if look.get("confirmed") else "not confirmed"
        who = f"by {look['by']}" if look.get("by") else "it could not be tried again"
        told = f"{device} is suspected at step {message.step}: {text}; {done} ({who}: {look.get('why')})"
        self.context.teller.emit("trust", device=device, state="suspected", text=told, suspicion=message.told)
        facts = {"why": text, "confirmed": bool(look.get("confirmed")), "by": look.get("by") or "nobody"}
        self.ledger.note(device, self.rung.label, "suspicion", **facts, method=look.get("method"))

    def blamed(self, fault: Fault, verdict: Verdict) -> None:
        """A verdict was reached, perhaps long after the fault."""
        device = fault.device
        if device is None or device not in self._trust or fault.kind not in _OF_THE_DEVICE:
            return
        label = self._label(device)
        if verdict.blame is not Blame.UNKNOWN:
            self.ledger.note(device, label, "blame", verdict=verdict.blame.value, why=verdict.why)
        before = self._before.pop(device, None)
        if verdict.blame in _INNOCENT and before is not None and not self._trust[device].usable:
            self._set(device, rules.acquit(before, time.monotonic(), verdict.blame.value))
        once = verdict.blame is Blame.DEVICE and verdict.repeatable is False
        if once and self._trust[device].state is State.TRUSTED:  # it counts, and it is no reason to start elsewhere
            self.ledger.note(device, label, "trust", state=LedgerState.TRUSTED, why=verdict.why)

    def on_probation(self) -> bool:
        trust = self._trust.get(self.rung.device)
        return trust is not None and trust.checked

    # -- earning it back -----------------------------------------------------------------------------------

    @property
    def probing(self) -> bool:
        """A device is being tried, or the run is about to return to one."""
        return self._probe is not None or self.returning is not None

    def tick(self) -> None:
        """Is a probe due, has one ended, is there a device to return to?"""
        now = time.monotonic()
        if self._probe is not None:
            self._look_at_probe(now)
        elif self.returning is None:
            self._begin_probe(now)

    def _begin_probe(self, now: float) -> None:
        for device, trust in self._trust.items():
            better = self._home[device] < self.context.rung
            if better and rules.due(trust, now):
                from holdfast.devices.probe_process import ProbeProcess

                self._set(device, rules.begin_probe(trust))
                env = dict(self.context.plan.rungs[self._home[device]].env)
                env = {name: value for name, value in env.items() if not name.endswith("VISIBLE_DEVICES")}
                try:
                    self._probe = (device, ProbeProcess.start(device, deadline_s=self._rules.probe, env=env))
                except OSError as error:
                    self._set(device, rules.after_probe(self._trust[device], False, now, str(error)))
                return

    def _look_at_probe(self, now: float) -> None:
        assert self._probe is not None
        device, probe = self._probe
        result = probe.poll()
        if result is None:
            return
        self._probe = None
        self.ledger.note(device, self._label(device), "probe", ok=result.ok, why=result.why)
        trust = rules.after_probe(self._trust[device], result.ok, now, result.why or "", compared=self.compares)
        self._set(device, trust)
        if trust.state is State.PROBATION:
            self._go_back(self._home[device])

    def _go_back(self, rung: int) -> None:
        """At the next boundary: the worker commits and makes room."""
        self.returning = rung
        board = self._board()
        if board is not None:
            board.request_stop()

    def returned(self) -> int | None:
        """The worker has come to its boundary: the rung to go on with, once."""
        rung, self.returning = self.returning, None
        return rung

    def agreed(self, steps: int = 1) -> None:
        """Steps on the device that the CPU computes in the same way."""
        device = self.rung.device
        trust = self._trust.get(device)
        if trust is None or not trust.checked:
            return
        trust = rules.after_agreed_step(trust, steps, compared=not self.blind)
        self._set(device, trust)
        if trust.state is State.TRUSTED:
            self.ledger.note(device, self.rung.label, "trust", state=LedgerState.TRUSTED, why=trust.says)

    def committed(self, steps: int) -> None:
        device = self.rung.device
        if device in self._trust:
            self._trust[device] = rules.after_step(self._trust[device], steps)
            if self.blind and steps > 0:  # nothing can be compared: then getting through them has to do
                self.agreed(steps)

    # -- saying it -----------------------------------------------------------------------------------------

    def _set(self, device: str, trust: DeviceTrust) -> None:
        self._trust[device] = trust
        self._say(trust, device)

    def _say(self, trust: DeviceTrust, device: str) -> None:
        if trust.says:
            self.context.teller.emit("trust", device=device, state=trust.state.value, text=trust.says)

    def _label(self, device: str) -> str:
        return self.context.plan.rungs[self._home[device]].label


def _slow_cpu(fault: Fault) -> bool:
    """The worker was silent while the CPU computed beside the training."""
    return fault.kind is Kind.HANG and fault.phase in OFF_RECORD
