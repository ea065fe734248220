"""What to do when no GPU here can be trained on: the CPU now, Linux, the right build, a rented card, a smaller job.

    for line in advice(inventory, usable=["cpu"]):
        print(line)             # "Now: `holdfast train my_script.py --device cpu` trains on the CPU. …"

Each line begins with a word for the way and is a few sentences long. What it says of times and prices was put down by
people who went that way, and is in knowledge.json with its source. No torch here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast.devices import facts, knowledge
from holdfast.devices.inventory_findings import bugs_of, builds, could_train, rocm_of, served

if TYPE_CHECKING:
    from holdfast.devices.survey.records import Device, Inventory

SCRIPT = "my_script.py"
_PAGE = "https://pytorch.org/get-started"


def advice(inventory: Inventory, usable: Collection[str]) -> list[str]:
    """The ways out, the nearest first; none where a GPU can be used. `usable` are the devices that may train."""
    if any(device != "cpu" for device in usable):
        return []
    if not usable:
        return [_repair(inventory)]
    lines = [f"Now: `holdfast train {SCRIPT} --device cpu` trains on the CPU. {_way('cpu')}"]
    if inventory.system.os == "windows" and any(card.kind == "amd" for card in inventory.gpus):
        lines.append(f"Linux: {_way('linux')} Then run `holdfast doctor` there.")
    # A GPU inside the processor is worth a build of its own only where there is no other.
    own = [card for card in inventory.gpus if not card.integrated] or inventory.gpus
    lines += [line for card in own for line in _build(card, inventory)]
    lines.append(f"Rent: {_way('cloud')}")
    lines.append(f"Smaller: {_way('smaller')}")
    if find_spec("holdfast.cli.plan") is not None:
        lines.append(f"Compare: `holdfast plan {SCRIPT}` measures what it takes here and puts the ways side by side.")
    return lines


def today(inventory: Inventory, env: Mapping[str, str]) -> list[str]:
    """What to do about each card, step by step, and the probe that decides; for cards that something is known about."""
    own = [card for card in inventory.gpus if not card.integrated] or inventory.gpus
    return list(dict.fromkeys(line for card in own for line in _steps(card, inventory, env)))


def _steps(card: Device, inventory: Inventory, env: Mapping[str, str]) -> list[str]:
    name = f"{card.name or 'the card'} ({card.arch})" if card.arch else card.name or "the card"
    lines = []
    said = knowledge.override(card.arch, card.claimed_arch) if card.arch and card.claimed_arch else None
    if said is not None:
        lines.append(f"`unset HSA_OVERRIDE_GFX_VERSION`: {name} is no {card.claimed_arch}. {said.text}")
    cure = builds(card, inventory)
    about = knowledge.about(card.arch)
    notes = [note.text for note in (about.notes if about else ()) if "report" in note.text]
    if cure and (said is not None or not _has_code(card, inventory) or _outdated(card, inventory)):
        caveat = "" if notes else _caveat(card, inventory)
        lines.append(f"{cure.text[0].upper()}{cure.text[1:]}: `{cure.commands[0]}`.{caveat}")
    bugs = [bug for bug in bugs_of(card, inventory, env) if not bug.quiet] if served(card, inventory) else []
    lines += notes
    for bug in bugs:
        if bug.cure is not None and "no-masquerade" not in bug.remedies:  # of a masquerade was spoken already
            lines.append(f"{bug.title} ({bug.known}, {bug.sources[0].date}): {bug.cure.text}.")
    lines += _under_linux(card, inventory)
    if lines:
        first = "Then the probes decide"
        if any(bug.lost_when_ended for bug in bugs):
            first += ", after a reboot and with your work saved (one that hangs loses the card again)"
        lines.append(
            f"{first}: `holdfast doctor --full --fresh --device {_future_id(card)}`. If they pass, "
            f"train on it; if not, `holdfast train {SCRIPT} --device cpu` works now."
        )
    return lines


def _outdated(card: Device, inventory: Inventory) -> bool:
    """The build for it that comes first today is of a later ROCm than the one that is installed."""
    os = "linux" if inventory.system.wsl else inventory.system.os
    wheels = knowledge.wheels_for(card.arch or "", os, inventory.system.machine or "x86_64")
    installed = knowledge.numbers(rocm_of(inventory) or "")
    first = knowledge.numbers(wheels[0].since) if wheels and card.kind == "amd" else ()
    return bool(installed and first) and installed[:2] < first[:2]


def _future_id(card: Device) -> str:
    """What torch will call it once it serves it."""
    return card.id if card.visible else {"intel": "xpu:0"}.get(card.kind, "cuda:0")


def _under_linux(card: Device, inventory: Inventory) -> list[str]:
    """AMD tests the card under Linux and not under Windows."""
    if inventory.system.os != "windows" or card.kind != "amd" or not card.arch:
        return []
    there, here = (knowledge.newest_support(card.arch, os) for os in ("linux", "windows"))
    if there is None or there.status != "yes" or (here is not None and here.status == "yes"):
        return []
    return [f"AMD tests {card.arch} under Linux and not under Windows ({there.source.date}). {_way('linux')}"]


def _way(name: str) -> str:
    return next(str(row["text"]) for row in facts.data()["ways_out"] if row["id"] == name)


def _build(card: Device, inventory: Inventory) -> Iterator[str]:
    """Another build of torch, for a card that this one does not serve; a masquerade is ended first."""
    name = f"{card.name or 'the card'} ({card.arch})" if card.arch else card.name or "the card"
    cure = builds(card, inventory)
    said = knowledge.override(card.arch, card.claimed_arch) if card.arch and card.claimed_arch else None
    if said is None and (not could_train(card) or _has_code(card, inventory)):
        return
    first = f"`unset HSA_OVERRIDE_GFX_VERSION`, because it is no {card.claimed_arch}, and then " if said else ""
    if cure is None:
        yield f"Build: for {name}, {first}see {_PAGE} for a build that serves it, and run `holdfast doctor` again."
        return
    yield (
        f"Build: for {name}, {first}`{cure.commands[0]}` in a virtual environment of its own, and run "
        f"`holdfast doctor` again.{_caveat(card, inventory)}"
    )


def _has_code(card: Device, inventory: Inventory) -> bool:
    """This torch serves the card, as far as can be told: what fails then is not the build's lack of code."""
    torch = inventory.torch
    served = {"nvidia": torch.cuda, "amd": torch.hip, "intel": torch.xpu}.get(card.kind)
    return bool(served) and (card.arch is None or knowledge.in_build(card.arch, torch.archs) is not False)


def _caveat(card: Device, inventory: Inventory) -> str:
    """Where AMD publishes a build that nobody there runs, it is said; and where others run it, too."""
    os = "linux" if inventory.system.wsl else inventory.system.os
    said = knowledge.newest_support(card.arch, os) if card.arch and card.kind == "amd" else None
    if said is None or said.status not in ("untested", "built"):
        return ""
    return f" AMD publishes it and does not test it on such a card ({said.source.date}), so let the probes decide."


def _repair(inventory: Inventory) -> str:
    if inventory.torch.version is None:
        return "torch is not installed here: `pip install torch`, then run `holdfast doctor` again."
    return (
        f"Not even the CPU can be trained on with torch {inventory.torch.version}: install torch anew in a fresh "
        "virtual environment and run `holdfast doctor` again. If the CPU still gives wrong results, test the machine's "
        "memory."
    )
