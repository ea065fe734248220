"""The accounts of a run: what was repeated, lost and waited for, counted from what was observed.

    accounts.fault(kind)                           # something happened
    accounts.receipt(...)                          # what the user gets at the end, and chaos compares

Nothing here is derived from a promise: attempts are counted by the workers' boards, commits by the slots,
samples by the loader's own comparison at the end of each epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.base import dataclass_json
from holdfast.base.dataclass_json import Count
from holdfast.base.human import duration
from holdfast.run.folder import number, whole
from holdfast.run.messages import CadenceTold


def cadence_words(receipt: Mapping[str, Any]) -> str:
    """every 68 steps (1 s), 2.9 ms per commit: a fault may cost 1 s. Empty where nobody wrote it down."""
    said = receipt.get("cadence")
    if not isinstance(said, dict) or not whole(said.get("every_steps")):
        return ""
    steps, seconds, commit = whole(said.get("every_steps")), number(said.get("every_s")), number(said.get("commit_ms"))
    often = "every step" if steps == 1 else f"every {steps} steps"
    often += f" ({duration(seconds)})" if seconds and steps > 1 else ""
    if seconds and steps > whole(receipt.get("steps")) > 0:  # so many steps at a time never came
        often = f"every {duration(seconds)}"
    often += f", {commit:.3g} ms per commit" if commit else ""
    return f"{often}: {str(said.get('why', ''))[:200]}"


@dataclass(slots=True)
class Accounts:
    """Running totals, saved in run.json so that a resume goes on counting."""

    attempts: Count = 0
    """Steps begun, by all workers that have ended."""
    steps: Count = 0
    """Steps committed."""
    lost: Count = 0
    """Committed steps that a later worker did not start from: must stay 0."""
    undone: Count = 0
    """Committed steps that were taken back, because the device had computed them wrongly."""
    seconds_lost: float = 0.0
    recoveries: Count = 0
    faults: Counter[str] = field(default_factory=Counter)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    cadence: dict[str, Any] | None = None
    """How often the newest worker commits, and why."""
    recovery_s: list[float] = field(default_factory=list)
    """From a fault's detection to the next commit, each time."""

    def fault(self, kind: str) -> None:
        self.faults[kind] += 1

    def recovered(self, seconds: float, lost_s: float) -> None:
        self.recoveries += 1
        self.seconds_lost += max(0.0, lost_s)
        self.recovery_s = [*self.recovery_s[-9999:], round(seconds, 4)]

    def heard_cadence(self, message: CadenceTold, emit: Callable[..., None]) -> None:
        """A worker says how often it commits. What is only measured anew is no event."""
        self.cadence = message.cadence
        if not message.again:
            emit("cadence", **message.cadence)

    def on_device(self, device: str, step: int) -> None:
        """The run is on `device` from this step on."""
        if self.timeline and self.timeline[-1]["device"] == device:
            return
        if self.timeline:
            self.timeline[-1]["to_step"] = step
        self.timeline.append({"device": device, "from_step": step, "to_step": None})

    def restored(self, committed: int, step: int) -> None:
        """A new worker starts at `step`; the last one had committed `committed`."""
        self.lost += max(0, committed - step)

    def undo(self, step: int) -> None:
        """Steps after this one are not believed; they are computed again."""
        self.undone += max(0, self.steps - step)
        self.steps = min(self.steps, step)

    def receipt(
        self, *, survived: bool, sha256: str | None, session: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """`session`: what it wrote beside its last snapshot; without it nobody has counted samples."""
        said = session or {}
        steps, out = self.steps, said.get("quarantined")
        out = out if isinstance(out, dict) else {}
        samples = out.get("samples")
        return {
            "schema": 1,
            "steps": steps,
            "faults": dict(sorted(self.faults.items())),
            "survived": survived,
            "recoveries": self.recoveries,
            "steps_repeated": max(0, self.attempts - steps),
            "steps_lost": self.lost,
            "steps_undone": self.undone,
            "samples_skipped": whole(said.get("skipped")),
            "samples_repeated": whole(said.get("repeated")),
            "samples_quarantined": whole(out.get("count")),
            "quarantined": samples if isinstance(samples, list) else [],
            "seconds_lost": round(self.seconds_lost, 3),
            "recovery_s": self._spread(),
            "cadence": self.cadence,
            "weights_sha256": sha256,
        }

    def _spread(self) -> dict[str, float] | None:
        if not self.recovery_s:
            return None
        ordered = sorted(self.recovery_s)
        return {"p50": ordered[len(ordered) // 2], "max": ordered[-1]}

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)

    @classmethod
    def from_json(cls, data: object) -> Accounts:
        """What `to_json` gave; the file may be somebody else's, so what is not a count counts nothing."""
        found = dataclass_json.read(cls, data) or cls()
        found.timeline = [row for row in found.timeline if "device" in row]
        return found
