"""What a pretend device suffers from: it fails so many times and heals, never heals, or flaps. No torch here.

    path = write(folder / "pretend.json", [
        Ailment("error", step=5, times=3),                  # at step 5, then in two probes; then it is well
        Ailment("crash", step=5, times=None),               # never heals: each probe dies as well
        Ailment("hang", step=5, after=4, times=None, probes=False),      # flaps: passes every probe, hangs soon after
    ])
    os.environ["HOLDFAST_PRETEND"] = str(path)              # for workers and probes

    patient = Patient(path, "pretend:0")
    ailment = patient.falls_ill(step=7, age=2)              # None, or what it is to suffer now: counted, on disk

A real device that is broken stays so when its process is replaced, and so does this one: each failure claims a file
before it happens, so that workers and probes, one after the other or at once, count together.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.base.errors import UserError
from holdfast.run.folder import read_json

VARIABLE = "HOLDFAST_PRETEND"
KINDS = ("crash", "hang", "error", "wrong")
"""A read of address zero; an endless wait in C; a sticky device error; gradients that are wrong."""
WRONG = ("scale", "zero", "bit", "nan")
"""All gradients 1000 times too large; one tensor's zero; a bit of every 32nd exponent in one; one tensor's NaN."""
repeating: list[str] = []
"""The parts of a step that this process computes again now: a pretended device may be wrong in one of them only."""


@dataclass(frozen=True, slots=True)
class Ailment:
    """One thing that is wrong with a pretend device."""

    kind: str
    step: int = 1
    """The first step at which it shows (the first of a run is 1). Before that the device is well."""
    after: int = 0
    """Steps a worker gets done before it shows in that worker."""
    phase: str = "backward"
    times: int | None = 1
    """How often it fails, in training and in probes together, before it works again. None: it never is."""
    probes: bool = True
    """Whether it fails probes too, once it has failed in training."""
    how: str = "scale"
    """For wrong numbers: which. They are wrong in `times` steps."""
    device: str = "pretend:0"

    def __post_init__(self) -> None:
        for value, known in ((self.kind, KINDS), (self.how, WRONG)):
            if value not in known:
                close = difflib.get_close_matches(str(value), known, n=1)
                hints = [f"did you mean `{close[0]}`?"] if close else []
                raise UserError(
                    f"no pretend device suffers from `{value}`", hints=[*hints, f"known: {', '.join(known)}"]
                )


def write(path: Path, ailments: Iterable[Ailment]) -> Path:
    """Where HOLDFAST_PRETEND points to. What was suffered before under this name is forgotten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"ailments": [asdict(each) for each in ailments]}), encoding="utf-8")
    for claim in _folder(path).glob("*/*"):
        claim.unlink()
    return path


def read(path: Path) -> list[Ailment]:
    data = read_json(path)
    listed = data.get("ailments") if data else None
    if not isinstance(listed, list):
        raise UserError(f"{path} holds no ailments of a pretend device", cause=f"{VARIABLE} names it")
    try:
        return [Ailment(**each) for each in listed]
    except TypeError as error:
        raise UserError(f"{path} cannot be understood", cause=str(error)) from None


def find(named: str | None = None) -> Path | None:
    """The file for this process: named by the supervisor, or by the environment."""
    named = named or os.environ.get(VARIABLE)
    return Path(named) if named else None


def _folder(path: Path) -> Path:
    return path.with_suffix(".suffered")


class Patient:
    """One pretend device, as every process that uses it sees it."""

    def __init__(self, path: Path, device: str) -> None:
        self.ailments = {number: each for number, each in enumerate(read(path)) if each.device == device}
        self._claims = _folder(path)

    def falls_ill(self, *, step: int, age: int, phase: str) -> Ailment | None:
        """What shows now, in a worker that has done `age` steps; it counts."""
        for number, ailment in self.ailments.items():
            due = step >= ailment.step and age >= ailment.after and phase == ailment.phase
            if due and self._claim(number, f"step {step} {phase}"):
                return ailment
        return None

    def fails_probe(self) -> Ailment | None:
        """What a probe meets: nothing before the first failure in training, and nothing that probes do not see."""
        for number, ailment in self.ailments.items():
            if ailment.probes and self.suffered(number) and self._claim(number, "probe"):
                return ailment
        return None

    def is_ill_with(self, kind: str) -> Ailment | None:
        """What has shown and is not over; asking does not count."""
        for number, ailment in self.ailments.items():
            over = ailment.times is not None and self.suffered(number) >= ailment.times
            if ailment.kind == kind and self.suffered(number) and not over:
                return ailment
        return None

    def suffered(self, number: int = 0) -> int:
        """How often it has failed so far."""
        return sum(1 for _ in (self._claims / str(number)).glob("*"))

    def _claim(self, number: int, where: str) -> bool:
        """Count one failure, before it happens; False if it is well by now."""
        folder, times = self._claims / str(number), self.ailments[number].times
        folder.mkdir(parents=True, exist_ok=True)
        turn = self.suffered(number)
        while times is None or turn < times:
            try:
                with open(folder / str(turn), "x", encoding="utf-8") as file:
                    file.write(f"{where}, process {os.getpid()}\n")
                return True
            except FileExistsError:  # another process was first
                turn += 1
        return False
