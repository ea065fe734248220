"""Which of the cards torch would count, and as what: `cuda:0`, `cuda:1`, `xpu:0`, `mps`.

A card torch would not count keeps its place on the bus as its id and says why: a build without support for it, a
variable that hides it, a file that a container was not given. Those are the reasons behind most "no GPU found".
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.devices import identity
from holdfast.devices.survey import amd, intel, nvidia
from holdfast.devices.survey.host import Host
from holdfast.devices.survey.records import Device, TorchBuild
from holdfast.devices.survey.tools import Run

_TOOLKITS = {"nvidia": "CUDA", "amd": "ROCm", "intel": "XPU"}
_HIDING = {
    "nvidia": ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "intel": ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"),
}
OVERRIDE_ON_WINDOWS = f"{amd.OVERRIDE} is set; Windows does not go through HSA and nothing there reads it"


@dataclass(frozen=True, slots=True)
class Machine:
    """What the rules look at beside the cards."""

    host: Host
    root: Path
    env: Mapping[str, str]
    build: TorchBuild
    wsl: bool
    hip_order: Sequence[str] | None = None
    """The places of AMD's cards as HIP on Windows counts them, where it was asked."""


def label(cards: Sequence[Device], here: Machine, run: Run, troubles: list[str]) -> list[Device]:
    """The cards with their ids, those torch counts first and in its order."""
    found: list[Device] = []
    for kind in ("nvidia", "amd", "intel", "apple"):
        mine = [card for card in cards if card.kind == kind]
        found += _labelled(kind, mine, here, run, troubles) if mine else []
    return [*(card for card in found if card.visible), *(card for card in found if not card.visible)]


def _labelled(kind: str, cards: list[Device], here: Machine, run: Run, troubles: list[str]) -> list[Device]:
    if kind == "apple":
        return [replace(card, id="mps") for card in cards]
    why = _not_served(kind, here)
    if why:
        return [_unlabelled(card, number, why) for number, card in enumerate(cards)]
    keys = {card.pci or f"#{number}": card for number, card in enumerate(cards)}
    name = "xpu" if kind == "intel" else "cuda"
    listed = _order(kind, keys, here, run, troubles)
    if listed is None:
        shown = enumerate(keys.values())
        return [_uncertain(card, f"{name}:{number}", len(cards)) for number, card in shown]
    counted = [key for key in dict.fromkeys(listed) if key in keys]
    left = [(number, card) for number, (key, card) in enumerate(keys.items()) if key not in counted]
    return [
        *(replace(keys[key], id=f"{name}:{number}") for number, key in enumerate(counted)),
        *(_unlabelled(card, number, _hidden_by(kind, card, here)) for number, card in left),
    ]


def _not_served(kind: str, here: Machine) -> str | None:
    """Why torch would count none of this kind."""
    build, version = here.build, here.build.version
    serves = {"nvidia": build.cuda, "amd": build.hip, "intel": build.xpu}[kind]
    if version is None:
        return "torch is not installed"
    if not serves:
        return f"this torch ({version}) was built without {_TOOLKITS[kind]}"
    if kind == "amd" and here.host.os == "linux" and not here.wsl:
        return _no_access(here.root / "dev/kfd", "/dev/kfd", "--device /dev/kfd --device /dev/dri")
    return None


def _no_access(path: Path, name: str, flags: str) -> str | None:
    if not path.exists():
        return f"{name} is not here: load the amdgpu driver, or start the container with {flags}"
    if not os.access(path, os.R_OK | os.W_OK):
        return f"this user may not open {name}: join the groups render and video"
    return None


def _order(kind: str, keys: Mapping[str, Device], here: Machine, run: Run, troubles: list[str]) -> Sequence[str] | None:
    cards = list(keys.values())
    if kind == "nvidia":
        if any(card.pci is None for card in cards):
            return identity.visible(_uuids(keys), len(cards) == 1, here.env.get("CUDA_VISIBLE_DEVICES"))
        return nvidia.order(cards, here.root, here.env, run, troubles)
    if kind == "intel":
        return list(keys) if here.host.os != "linux" and len(keys) == 1 else intel.order(cards, here.root)
    if here.host.os == "linux" and not here.wsl:
        return identity.amd_order(here.root, here.env)
    if here.hip_order is not None:
        return here.hip_order  # it has read the variables already
    asked = here.env.get("HIP_VISIBLE_DEVICES", here.env.get("CUDA_VISIBLE_DEVICES"))
    return identity.visible(_uuids(keys), len(cards) == 1, asked)


def _uuids(keys: Mapping[str, Device]) -> dict[str, str]:
    return {key: card.uuid or "" for key, card in keys.items()}


def _uncertain(card: Device, id: str, count: int) -> Device:
    note = f"which of the {count} cards torch calls {id} is not known before torch is asked"
    return replace(card, id=id, id_certain=False, notes=[*card.notes, note])


def _unlabelled(card: Device, number: int, why: str) -> Device:
    id = f"pci:{card.pci}" if card.pci else f"{card.kind}#{number}"
    return replace(card, id=id, visible=False, notes=[*card.notes, why])


def _hidden_by(kind: str, card: Device, here: Machine) -> str:
    """A variable that hides it, where one is set; else the file it would be used through is not here."""
    for name in _HIDING[kind]:
        if name in here.env:
            return f"hidden by {name}={here.env[name]}"
    if kind == "amd" and card.arch is None:
        return "ROCm does not count it"
    return "its device file is not here, or its driver does not serve it"


def masquerade_note(card: Device, here: Machine) -> str | None:
    """The sentence for a card that is treated as another."""
    if not card.masquerading:
        return None
    node = next((node.number for node in amd.topology(here.root) if node.pci == card.pci), None)
    asked = amd.overridden(here.env, node)
    who = f"{asked[0]}={here.env[asked[0]]}" if asked else "the ROCm runtime"
    return f"{who} makes it {card.claimed_arch}; it is {card.arch}"
