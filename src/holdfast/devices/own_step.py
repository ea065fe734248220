"""One step of the user's own script on a device that may train; where it fails, remedies are searched for as well.

    seen = OwnStep(doctor, probe).add(seen, backend="rocm")     # the same, with what came of the script
    seen.script.status, seen.verdict.policy.env

A script that fails on the CPU too is not the device's fault, and no remedy is tried for it. What cures a step is kept
with the verdict and applied by `holdfast train`. A step that nothing cures refuses the device in this answer only: the
verdict that is kept is about the device, not about one script.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from holdfast.devices import diagnosis, flags, remedies
from holdfast.devices import findings as registry
from holdfast.devices.battery import Host
from holdfast.devices.examined import Examined, Listener
from holdfast.devices.findings import Finding
from holdfast.devices.probe_catalog import Probe
from holdfast.devices.remedies import BAD, Attempt, Cure, Found
from holdfast.devices.remedy_trials import RemedyTrials
from holdfast.devices.results import ProbeResult
from holdfast.devices.saved_verdicts import Verdicts
from holdfast.devices.verdict import CARE, REFUSED, TRUSTED, Policy, Verdict

EVERYWHERE = "own-script-fails-everywhere"
LESS = "no-low-precision"
_OFF = ("fp16-off", "bf16-off")


class Examiner(Protocol):
    """What a step of the script needs of the examination it is part of."""

    verdicts: Verdicts
    listener: Listener
    only: Sequence[str]
    budget_s: float
    make_host: Callable[[Mapping[str, str]], Host]

    def run(self, device: str, probes: Iterable[Probe], host: Host | None = None) -> Iterator[ProbeResult]: ...
    def trials(self, device: str, results: Sequence[ProbeResult]) -> RemedyTrials: ...


class OwnStep:
    """A script beside the probes of one examination."""

    def __init__(self, doctor: Examiner, probe: Probe) -> None:
        self.doctor = doctor
        self.probe = probe
        self.name = str(probe.options.get("name") or probe.name.removeprefix("script "))
        self._on_cpu: ProbeResult | None = None
        self._passed: ProbeResult | None = None

    def add(self, seen: Examined, backend: str | None) -> Examined:
        """What came of it on this device."""
        began = time.monotonic()
        device, verdict = seen.verdict.device, seen.verdict
        (result,) = self._step(device, verdict.policy.env)
        if device == "cpu":
            self._on_cpu = result
        found = Found()
        if result.status in BAD and self._works_on_the_cpu():
            found = self._search(result, device, backend, verdict.policy)
        if found.cures:
            verdict = self._with_cure(verdict, found)
            result = self._passed or result
        else:
            said = self._said(device, result)
            if any(each.about.slug != EVERYWHERE for each in said):
                verdict = replace(verdict, state=REFUSED, why=f"one step of {self.name} fails here")
            verdict = replace(verdict, findings=(*said, *verdict.findings))
        both = Found([*seen.found.cures, *found.cures], [*seen.found.attempts, *found.attempts])
        seconds = seen.seconds + time.monotonic() - began
        return replace(seen, verdict=verdict, script=result, found=both, seconds=seconds)

    def _step(self, device: str, env: Mapping[str, str]) -> Sequence[ProbeResult]:
        with contextlib.ExitStack() as stack:
            host = stack.enter_context(self.doctor.make_host(env)) if env else None
            return list(self.doctor.run(device, [self.probe], host))

    def _works_on_the_cpu(self) -> bool:
        """Asked once, and only if it matters."""
        if self._on_cpu is None:
            (self._on_cpu,) = self._step("cpu", {})
        return self._on_cpu.status not in BAD

    # -- remedies --------------------------------------------------------------------------------------------

    def _search(self, result: ProbeResult, device: str, backend: str | None, policy: Policy) -> Found:
        """Known cures one by one, on top of what the device needs anyway; in the end without half precision."""
        self._passed = None
        if device == "cpu" or result.evidence.get("abandoned"):
            return Found()
        with self.doctor.trials(device, [result]) as trials:

            def run(probe: str, env: Mapping[str, str]) -> ProbeResult:
                tried = trials.run(probe, merged(policy.env, env))
                self._passed = tried if tried.ok else self._passed
                return tried

            found = remedies.search(
                [result],
                backend=backend,
                run=run,
                budget_s=self.doctor.budget_s,
                tell=lambda remedy, probe: self.doctor.listener.tries(device, remedy, probe),
            )
            less = remedies.named(LESS)
            if not found.cures and not found.unsearched and less is not None:
                self.doctor.listener.tries(device, less, result.probe)
                attempt = Attempt(less, result.probe, run(result.probe, {flags.VARIABLE: ",".join(_OFF)}))
                found.attempts.append(attempt)
                if attempt.cured:
                    found.cures.append(Cure(less, (result.probe,), "fp16 and bf16"))
        return found

    def _with_cure(self, verdict: Verdict, found: Found) -> Verdict:
        """The device trains this script with what helped; that is kept, and every run on the device has it."""
        new = [cure.remedy for cure in found.cures]
        off = list(_OFF) if any(remedy.name == LESS for remedy in new) else []
        env = merged(verdict.policy.env, remedies.environment(new, off))
        names = tuple(dict.fromkeys([*verdict.policy.remedies, *(remedy.name for remedy in new)]))
        left = tuple(each for each in verdict.policy.precisions if f"{each}-off" not in off)
        policy = replace(verdict.policy, env=env, remedies=names, precisions=left)
        state = CARE if verdict.state == TRUSTED else verdict.state
        said = [self._helped(verdict.device, cure) for cure in found.cures]
        why = f"one step of {self.name} fails unless holdfast takes care"
        cured = replace(verdict, state=state, why=why, policy=policy, findings=(*said, *verdict.findings))
        return cured if self.doctor.only else self.doctor.verdicts.put(cured)

    # -- words -----------------------------------------------------------------------------------------------

    def _said(self, device: str, result: ProbeResult) -> list[Finding]:
        listed = diagnosis.of_results(device, [result])
        if listed and self._on_cpu is not None and self._on_cpu.status in BAD:
            why = self._on_cpu.evidence.get("why")
            return [registry.finding(EVERYWHERE, device, {"script": self.name, "why": why})]
        return [registry.finding(each.code, device, {**each.evidence, "script": self.name}) for each in listed]

    def _helped(self, device: str, cure: Cure) -> Finding:
        remedy = cure.remedy
        evidence = {
            "failed": f"one step of {self.name}",
            "remedy": f"fp32 instead of {cure.without}" if cure.without else remedy.text,
            "name": remedy.name,
            "cost": remedy.cost,
            "cured": [self.probe.name],
        }
        advice = registry.Cure(str(evidence["remedy"]), tuple(remedy.commands()), dict(remedy.env))
        return registry.finding("trains-with-a-remedy", device, evidence, advice)


def merged(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    """Both environments; switches, which share one variable, add up."""
    words = [word for env in (first, second) for word in env.get(flags.VARIABLE, "").split(",") if word]
    switched = {flags.VARIABLE: ",".join(dict.fromkeys(words))} if words else {}
    return {**first, **second, **switched}
