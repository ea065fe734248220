"""What a run does by itself about a known danger of a card, before anything has failed. No torch here.

    for guard in guards_of("cuda:0"):       # hipBLASLt off on an RX 9070 with ROCm 7.2 or later …
        guard.env, guard.says               # (("TORCH_BLAS_PREFER_HIPBLASLT", "0"), …), one line for the screen
    lost_when_ended("cuda:0")               # "ending a hung process loses …", or None

A guard is a remedy that a row of knowledge.json names (`guard`). It is lifted for a card that has passed every probe
without it, under the same software: `passed` writes that down in the ledger, and `lifted` reads it. Only AMD's cards
have guards so far, so that nothing is asked on other machines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.devices import inventory_findings, remedies
from holdfast.devices.ledger import Ledger, software
from holdfast.devices.ledger_summary import same_software
from holdfast.devices.survey.records import Cpu, Device, Inventory, System, TorchBuild
from holdfast.run import machine
from holdfast.run.folder import read_json

if TYPE_CHECKING:
    from holdfast.devices.facts import Bug

NOTE = "guard"
"""What a line of the ledger is about: a card passed its probes without a guard."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A remedy that workers on a device have from the start."""

    device: str
    name: str
    env: tuple[tuple[str, str], ...]
    says: str
    """One line, with the reason and the way to lift it."""


def guards_of(label: str, ledger: Ledger | None = None) -> list[Guard]:
    """Those that hold for a device now: known of such a card, and not lifted by a probe of it."""
    found = []
    for bug in bugs_of(label):
        remedy = remedies.named(bug.guard) if bug.guard else None
        if remedy is None or lifted(label, bug.guard, ledger):
            continue
        says = (
            f"{label}: {remedy.text}, because {bug.title[0].lower()}{bug.title[1:]} ({bug.sources[0].title}); "
            f"`holdfast doctor --full --fresh --device {label}` lifts it if the card passes"
        )
        found.append(Guard(label, bug.guard, remedy.env, says))
    return found


def environment(labels: Iterable[str], ledger: Ledger | None = None) -> dict[str, str]:
    """The variables of every guard that holds for these devices."""
    return dict(pair for label in labels for guard in guards_of(label, ledger) for pair in guard.env)


def lost_when_ended(label: str) -> str | None:
    """Why a device is not tried again after a process that hung on it was ended; None where nothing is known."""
    bug = next((bug for bug in bugs_of(label) if bug.lost_when_ended), None)
    return f"{bug.title[0].lower()}{bug.title[1:]} ({bug.sources[0].title})" if bug else None


def bugs_of(label: str) -> list[Bug]:
    """What is known of the card behind a label, with the torch that is installed."""
    found = _seen(label, os.environ.get("HOLDFAST_PRETEND"), os.environ.get("HOLDFAST_KNOWLEDGE"))
    if found is None:
        return []
    card, inventory = found
    return inventory_findings.bugs_of(card, inventory, os.environ)


@lru_cache(maxsize=16)
def _seen(label: str, pretend: str | None, knowledge: str | None) -> tuple[Device, Inventory] | None:
    """The card and its machine, looked up once: while a run is on, a tool may hang on a card that is lost."""
    if label.startswith("pretend"):
        return _pretended(label, pretend)
    if label.partition(":")[0] != "cuda" or not machine.torch_build()["hip"]:
        return None
    from holdfast.devices import survey

    inventory = survey.take()
    card = inventory.device(label)
    return (card, inventory) if card is not None else None


def _pretended(label: str, path: str | None) -> tuple[Device, Inventory] | None:
    """A pretend device whose file says which card it stands for: {"card": {…}, "torch": {…}, "os": "linux"}."""
    said: Mapping[str, Any] = (read_json(Path(path)) if path else None) or {}
    if not isinstance(said.get("card"), dict):
        return None
    card = Device(id=label, **said["card"])
    system = System(str(said.get("os", "linux")), None, said.get("kernel"), None, None, None, False)
    cpu = Cpu(None, None, None, None, None, None, None, None)
    return card, Inventory([card], cpu, None, TorchBuild(**said.get("torch", {})), system)


# Lifting ------------------------------------------------------------------------------------------------------------


def lifted(label: str, name: str, ledger: Ledger | None = None) -> bool:
    """This very card has passed without the guard, under the software there is now."""
    book = Ledger() if ledger is None else ledger
    device = book.identify(label)
    now = dict(software(device))
    said = None
    for line in book.lines():
        facts = line.facts()
        mine = line.machine == book.machine and line.device == device.key
        if mine and line.kind == "note" and line.text("what") == NOTE and facts.get("guard") == name:
            said = facts
    return said is not None and said.get("ok") is True and same_software(said.get("software"), now)


def note(label: str, results_ok: bool, ledger: Ledger) -> list[str]:
    """After a full examination without guards: what was learned about each that is known; their names."""
    names = sorted({bug.guard for bug in bugs_of(label) if bug.guard})
    device = ledger.identify(label) if names else None
    for name in names:
        assert device is not None
        ledger.note(device, label, NOTE, guard=name, ok=results_ok, software=dict(software(device)))
    return names
