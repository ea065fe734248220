"""An examination: one device from its probes to its verdict. Nothing is printed here, and torch stays in children.

    with Doctor(listener=bar, full=False) as doctor:
        seen = doctor.examine(Patient("cuda:0", "Radeon RX 7900 XTX", "gfx1100", "rocm"))
        seen.verdict.state, seen.results, seen.remembered
        doctor.examine_all([Patient("cpu"), Patient("cuda:0"), Patient("cuda:1")])

A verdict that still holds is taken from the shelf. Otherwise the probes of the set run one after the other; for what
fails, first the simpler checks that the quick set left out (does it pass in fp32? alone?), then the remedies that suit,
each in fresh processes. What came out is judged and put on the shelf.

Accelerators are examined one after the other: when one of them takes the machine down, the ledger must name one device.
The CPU is examined beside them, in a thread of its own, where the machine has cores enough for both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from holdfast.base.errors import UserError
from holdfast.base.human import counted
from holdfast.devices import battery, diagnosis, guards, inventory, probe_catalog, remarks, remedies
from holdfast.devices import findings as registry
from holdfast.devices.battery import Host, ProbeResult
from holdfast.devices.examined import Examined, Listener, Patient
from holdfast.devices.findings import Finding
from holdfast.devices.ledger import Ledger
from holdfast.devices.ledger_summary import LedgerState
from holdfast.devices.own_step import OwnStep
from holdfast.devices.remedies import BAD, Found
from holdfast.devices.remedy_trials import RemedyTrials
from holdfast.devices.results import skipped
from holdfast.devices.saved_verdicts import Verdicts
from holdfast.devices.traits import easier
from holdfast.devices.verdict import TRUSTED, Case, Verdict, harmless, judge
from holdfast.run import machine

BUDGET = {False: 180.0, True: 900.0}
"""Seconds for the search for remedies on one device, quick and full."""
AVOIDS = ("precision", "channels_last", "batch", "shapes", "sdpa", "company", "compile")
ROUNDS = 3
"""Searches for remedies, each with what the last one made possible."""
WHOLE = "network fp32"
SHARED = ("cuda", "xpu", "mps")
"""Devices that take long to open: there the quick set is done in few processes, as long as nothing fails."""
CORES = 8
"""With so many, the CPU is examined beside an accelerator: the probes of each use four threads."""
NOT_TRIED, NOT_REACHED = "not tried", "not reached"
SIMPLER = 2
"""Probes that are added to find out what to do without, for each thing that could be."""


class Doctor:
    """Examines one device after the other."""

    def __init__(
        self,
        *,
        ledger: Ledger | None = None,
        verdicts: Verdicts | None = None,
        listener: Listener | None = None,
        full: bool = False,
        fresh: bool = False,
        again: bool = False,
        only: Sequence[str] = (),
        script: probe_catalog.Probe | None = None,
        host: Callable[[Mapping[str, str]], Host] = Host,
        budget_s: float | None = None,
        beside: bool | None = None,
    ) -> None:
        """`beside`: whether the CPU is examined while another device is; None: where that disturbs nothing."""
        self.ledger = Ledger() if ledger is None else ledger
        self.verdicts = Verdicts(ledger=self.ledger) if verdicts is None else verdicts
        self.listener = listener or Listener()
        self.full, self.fresh, self.again = full, fresh, again
        self.only = only
        self._own = OwnStep(self, script) if script is not None else None
        self.budget_s = BUDGET[full] if budget_s is None else budget_s
        self.make_host = host
        self._host: Host | None = None
        self._cpu: list[ProbeResult] = []
        # In the quick set no time decides, except that a check must answer within its deadline. The full one measures
        # loads, and a step of a script compares devices: those have the machine for themselves.
        self.beside = (machine.usable_cpus() or 1) >= CORES if beside is None else beside
        self.beside = self.beside and not full and script is None
        self._filling = threading.Lock()
        """Held by a probe that fills memory: two at a time would each find less than there is."""
        self._judging = threading.Lock()
        """Held for the ledger and the file of verdicts."""

    def __enter__(self) -> Doctor:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._host is not None:
            self._host.close()

    def warm(self) -> None:
        """Begin to import torch, in a child; meanwhile there are other things to do.

        The quick set keeps to what guards such cards; the full one does without, which is how a guard is lifted.
        """
        if self._host is None:
            self._host = self.make_host({} if self.full else guards.environment(inventory.candidates(), self.ledger))

    # -- one device ------------------------------------------------------------------------------------------

    def remembered(self, device: str) -> bool:
        """A verdict is there that makes probing needless."""
        kept = self.verdicts.get(device)
        return not self.fresh and kept.holds and kept.verdict is not None and (kept.verdict.full or not self.full)

    def examine_all(self, patients: Sequence[Patient]) -> list[Examined]:
        """One after the other, and the CPU beside the others; the listener hears of their ends in the given order."""
        apart = [patient for patient in patients if patient.device == "cpu" and not patient.unusable]
        if not self.beside or not apart or len(patients) == 1:
            return [self.examine(patient) for patient in patients]
        listener, self.listener = self.listener, InOrder(self.listener, [patient.device for patient in patients])
        seen: dict[str, Examined | BaseException] = {}

        def examine(patient: Patient) -> None:
            try:
                seen[patient.device] = self.examine(patient)
            except BaseException as error:  # raised again in the thread that asked
                seen[patient.device] = error

        self.warm()
        # A daemon: whoever interrupts the doctor does not wait for it, and closing the host ends its processes.
        thread = threading.Thread(target=examine, args=(apart[0],), name="holdfast-examine-cpu", daemon=True)
        thread.start()
        try:
            for patient in patients:
                if patient is not apart[0]:
                    seen[patient.device] = self.examine(patient)
            thread.join()
        finally:
            self.listener = listener
        found = [seen[patient.device] for patient in patients]
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return [each for each in found if isinstance(each, Examined)]

    def examine(self, patient: Patient) -> Examined:
        """Its verdict, and how it came about."""
        began = time.monotonic()
        with self._judging:
            kept = self.verdicts.get(patient.device)
        if kept.verdict is not None and self.remembered(patient.device) and not patient.unusable:
            verdict = replace(kept.verdict, name=patient.name or kept.verdict.name, arch=patient.arch)
            seen = self._with_script(Examined(verdict, remembered=True, age_s=kept.age_s), patient.backend)
            self.listener.ends(seen)
            return seen
        results: list[ProbeResult] = []
        found, unusable = Found(), patient.unusable
        if not unusable:
            try:
                for result in self._probe(patient.device):
                    results.append(result)
                    if patient.device == "cpu":  # an accelerator that is done sooner is compared with what there is
                        self._cpu.append(result)
                results += self._simpler(patient.device, results)
                results, found = self._treat(patient, results)
            except UserError as error:  # torch cannot be imported: the same for every device
                unusable = f"{error.message}: {error.cause}" if error.cause else error.message
        with self._judging:
            verdict = self._judge(patient, results, found, unusable)
        if self.full and not unusable and not self.only:
            guards.note(patient.device, verdict.state == TRUSTED, self.ledger)
        seconds = time.monotonic() - began
        seen = Examined(verdict, tuple(results), found, stale=kept.stale, seconds=seconds)
        seen = self._with_script(seen, patient.backend)
        self.listener.ends(seen)
        return seen

    def _with_script(self, seen: Examined, backend: str | None) -> Examined:
        """One step of the user's own script, on a device that may train."""
        if self._own is None or not seen.verdict.trainable:
            return seen
        return self._own.add(seen, backend)

    def _probe(self, device: str) -> Iterator[ProbeResult]:
        """The probes of the set. A device on which not one step can be done is not asked for more."""
        first, *others = probe_catalog.select(device, full=self.full, only=self.only)
        self.listener.begins(device, sum(len(probe.checks) for probe in (first, *others)))
        begun = list(self.run(device, [first]))
        yield from begun
        if any(each.status in BAD and not harmless(each) for each in begun):
            for probe in others:
                yield from skipped(probe, device, probe.checks, f"{NOT_TRIED}: {first.name} fails")
        else:
            yield from self.run(device, others)

    def run(
        self, device: str, probes: Iterable[probe_catalog.Probe], host: Host | None = None
    ) -> Iterator[ProbeResult]:
        """These probes, one after the other; in processes of this host, or of the one of this examination."""
        if host is None:
            self.warm()
            host = self._host
            assert host is not None
        results = battery.run(
            device,
            probes,
            host,
            ledger=self.ledger,
            full=self.full,
            again=self.again,
            announce=lambda name: self.listener.checks(device, name),
            share=not self.full and probe_catalog.kind_of(device) in SHARED,
            alone=self._alone,
        )
        for result in results:
            self.listener.result(result)
            yield result

    def _alone(self, probe: probe_catalog.Probe) -> AbstractContextManager[object]:
        return self._filling if probe.family == "memory" else nullcontext()

    def _simpler(self, device: str, results: Sequence[ProbeResult]) -> list[ProbeResult]:
        """What the quick set left out and a failure makes worth knowing: the same in fp32, alone, in one layout."""
        known = {each.probe for each in results}
        wanted: dict[str, probe_catalog.Probe] = {}
        for bad in (each for each in results if each.status in BAD):
            for avoid in AVOIDS:
                if easier(bad, results, avoid):
                    continue
                others = [each for each in every_check(device) if each.probe not in known]
                names = [probe_catalog.find(each.probe).name for each in easier(bad, others, avoid)]
                wanted |= {name: probe_catalog.find(name) for name in list(dict.fromkeys(names))[:SIMPLER]}
        if not wanted:
            return []
        return list(self.run(device, wanted.values()))

    def _treat(self, patient: Patient, results: list[ProbeResult]) -> tuple[list[ProbeResult], Found]:
        """Look for remedies; with those that help, do what was left out, and look again if something new fails."""
        found, until = Found(), time.monotonic() + self.budget_s
        for _ in range(ROUNDS):
            if not any(each.status in BAD for each in results) or _left_behind(results):
                break
            cures = len(found.cures)
            found = self._search(patient, results, found, until - time.monotonic())
            if not any(cure.remedy.tried for cure in found.cures[cures:]):
                break
            again = self._with_remedies(patient.device, results, found)
            results = [again.pop(each.probe, each) for each in results] + list(again.values())
        return results, found

    def _search(self, patient: Patient, results: Sequence[ProbeResult], before: Found, budget_s: float) -> Found:
        with self.trials(patient.device, results) as trials:
            return remedies.search(
                results,
                backend=patient.backend,
                run=trials.run,
                budget_s=budget_s,
                tell=lambda remedy, probe: self.listener.tries(patient.device, remedy, probe),
                before=before,
            )

    def trials(self, device: str, results: Sequence[ProbeResult]) -> RemedyTrials:
        """Probes of a device again, with remedies."""
        return RemedyTrials(device, results, host=self.make_host, ledger=self.ledger, full=self.full)

    def _with_remedies(self, device: str, results: Sequence[ProbeResult], found: Found) -> dict[str, ProbeResult]:
        """What was not tried or not reached, and a whole network: a cure must not be the end of something else."""
        missed = [each for each in results if each.status == "skipped" and _was_missed(each)]
        names = dict.fromkeys([*(probe_catalog.find(each.probe).name for each in missed), WHOLE])
        wanted = {each.probe for each in missed} | {each.probe for each in results if each.probe.startswith(WHOLE)}
        with self.make_host(remedies.environment(cure.remedy for cure in found.cures)) as host:
            again = list(self.run(device, [probe_catalog.find(name) for name in names], host))
        return {each.probe: each for each in again if each.probe in wanted}

    def _judge(self, patient: Patient, results: Sequence[ProbeResult], found: Found, unusable: str) -> Verdict:
        device = patient.device
        case = Case(results, found, self.ledger.trust(device, device), unusable)
        self._cpu = list(results) if device == "cpu" else self._cpu
        said = [*patient.findings, *diagnosis.of_results(device, results, found), *self._from_runs(device)]
        said += remarks.of_results(device, results, self._cpu)
        about = {"name": patient.name, "arch": patient.arch, "full": self.full}
        verdict = judge(device, case, said, **about)
        # One that could not be probed at all is not kept: whatever is in its way may be gone the next minute.
        return verdict if unusable or self.only else self.verdicts.put(verdict)

    def _from_runs(self, device: str) -> list[Finding]:
        """What runs have seen of it."""
        trust = self.ledger.trust(device, device)
        faults = self.ledger.history(device).faults
        if not faults or trust.state not in (LedgerState.PROBATION, LedgerState.QUARANTINED):
            return []
        evidence = {"faults": counted(faults, "fault"), "since": (trust.since or "")[:10] or None, "kinds": trust.why}
        return [registry.finding("faults-in-runs", device, evidence)]


class InOrder(Listener):
    """Hands on what it hears, from one thread at a time, and the ends of examinations in the order of `devices`."""

    def __init__(self, listener: Listener, devices: Sequence[str]) -> None:
        self._listener = listener
        self._waiting = list(devices)
        self._ended: dict[str, Examined] = {}
        self._lock = threading.Lock()

    def begins(self, device: str, checks: int) -> None:
        with self._lock:
            self._listener.begins(device, checks)

    def checks(self, device: str, name: str) -> None:
        with self._lock:
            self._listener.checks(device, name)

    def result(self, result: ProbeResult) -> None:
        with self._lock:
            self._listener.result(result)

    def tries(self, device: str, remedy: remedies.Remedy, probe: str) -> None:
        with self._lock:
            self._listener.tries(device, remedy, probe)

    def ends(self, seen: Examined) -> None:
        with self._lock:
            self._ended[seen.verdict.device] = seen
            while self._waiting and self._waiting[0] in self._ended:
                self._listener.ends(self._ended.pop(self._waiting.pop(0)))


def every_check(device: str) -> list[ProbeResult]:
    """All checks there are, as results of nothing: for comparing what they are about."""
    probes = probe_catalog.select(device, full=True)
    return [
        ProbeResult(probe.named(check), device, "skipped", evidence=probe.traits(check))
        for probe in probes
        for check in probe.checks
    ]


def _was_missed(result: ProbeResult) -> bool:
    """Left out because something before it failed, not because it makes no sense here."""
    return str(result.evidence.get("why") or "").startswith((NOT_TRIED, NOT_REACHED))


def _left_behind(results: Sequence[ProbeResult]) -> bool:
    """A process that cannot be killed holds the device: nothing can be tried."""
    return any("abandoned" in each.evidence for each in results)


def summary(results: Sequence[ProbeResult]) -> dict[str, Any]:
    """Results as in --json: what was measured, without what a probe is about."""
    return {
        each.probe: {"status": each.status, "error": each.error, "bound": each.bound, "seconds": each.seconds}
        for each in results
    }
