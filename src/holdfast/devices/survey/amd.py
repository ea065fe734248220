"""AMD cards: from the kernel's topology and PCI files, then from rocminfo or amd-smi in a process of its own.

    cards, versions = look(found, root, env, run, troubles)
    cards[0].arch            # "gfx1010": the kernel's word, which HSA_OVERRIDE_GFX_VERSION does not reach
    cards[0].claimed_arch    # "gfx1030": what the variable, or the runtime, makes of it

The ROCm runtime believes HSA_OVERRIDE_GFX_VERSION_<node> first, then HSA_OVERRIDE_GFX_VERSION; every library above it
sees the false name only. The kernel's files and the PCI id stay true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.devices.survey import amdsmi
from holdfast.devices.survey.kernel_files import children, number, read
from holdfast.devices.survey.records import Device
from holdfast.devices.survey.tools import Run

OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
_DEADLINE_S = 15.0
_INTEGRATED = {
    *("gfx902", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037", "gfx1103"),
    *("gfx1150", "gfx1151", "gfx1152", "gfx1153"),
}
"""Architectures that exist only as part of a processor."""
_EITHER = {"gfx942", "gfx940"}
"""An MI300A is a processor with both, an MI300X a card."""
_NAMES = ("opt/amdgpu/share/libdrm/amdgpu.ids", "usr/share/libdrm/amdgpu.ids", "opt/rocm/share/libdrm/amdgpu.ids")


@dataclass(frozen=True, slots=True)
class Node:
    """A GPU in the kernel's topology."""

    number: int
    gfx: str | None
    pci: str
    unique: int


@dataclass(frozen=True, slots=True)
class Agent:
    """A GPU as rocminfo tells it: through the runtime, with whatever the environment makes of it."""

    gfx: str
    name: str | None
    node: int | None
    bdf: int | None
    chip: int | None
    integrated: bool | None


def look(
    found: Sequence[Mapping[str, Any]], root: Path, env: Mapping[str, str], run: Run, troubles: list[str]
) -> tuple[list[Device], dict[str, str]]:
    """The cards, in the order of the bus."""
    nodes = {node.pci: node for node in topology(root)}
    places = {str(card["pci"]): card for card in found}
    cards = {place: _card(place, places.get(place), nodes.get(place), root, env) for place in {*nodes, *places}}
    # rocminfo opens /dev/kfd (in WSL /dev/dxg): without them it can tell nothing.
    reachable = any((root / path).exists() for path in ("dev/kfd", "dev/dxg"))
    agents, versions = _ask_rocminfo(run, troubles) if reachable else ([], {})
    for place, told in (amdsmi.ask(run, troubles) if reachable and not agents else {}).items():
        if place in cards:
            cards[place] = amdsmi.merged(cards[place], told)
    for agent in agents:
        where = _place_of(agent, nodes, cards)
        if where is not None:
            cards[where] = _with_runtime(cards[where], agent)
        elif (root / "dev/dxg").exists():  # WSL shows its cards to nobody else
            cards[f"node {agent.node}"] = _with_runtime(Device("", "amd"), agent)
    return [cards[place] for place in sorted(cards)], versions


def topology(root: Path) -> list[Node]:
    """The GPUs of the kernel's topology, counted as numbers are."""
    folders = [path for path in children(root / "sys/class/kfd/kfd/topology/nodes") if path.name.isdigit()]
    found = []
    for folder in sorted(folders, key=lambda path: int(path.name)):
        text = read(folder / "properties")
        values = {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
        if values.get("gfx_target_version") or (values.get("simd_count") and values.get("vendor_id") == 0x1002):
            gfx = gfx_name(values.get("gfx_target_version", 0))
            found.append(Node(int(folder.name), gfx, _address(values), values.get("unique_id", 0)))
    return found


def gfx_name(version: int) -> str | None:
    """100100 is gfx1010, 90010 is gfx90a."""
    if version < 10000:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def overridden(env: Mapping[str, str], node: int | None) -> tuple[str, str | None] | None:
    """(the variable, the architecture it asks for or None if it makes no sense) for a node of the topology."""
    for name in (*([f"{OVERRIDE}_{node}"] if node is not None else []), OVERRIDE):
        asked = env.get(name)
        if asked:
            match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", asked.strip())
            return name, f"gfx{int(match[1])}{int(match[2]):x}{int(match[3]):x}" if match else None
    return None


def _card(place: str, card: Mapping[str, Any] | None, node: Node | None, root: Path, env: Mapping[str, str]) -> Device:
    folder = root / "sys/bus/pci/devices" / place
    gfx = node.gfx if node else None
    notes = []
    if card is not None and not card["driver"]:
        notes.append("no driver has taken this card")
    elif node is None:
        notes.append("the kernel's compute driver (kfd) does not list it")
    asked = overridden(env, node.number if node else None)
    if asked and asked[1] is None:
        notes.append(f"{asked[0]} is {env[asked[0]]!r}, which is no version like 10.3.0")
    return Device(
        id="",
        kind="amd",
        name=_name(folder, root) or (card["name"] if card else None),
        arch=gfx,
        arch_basis="kernel" if gfx else None,
        claimed_arch=asked[1] if asked else None,
        pci=place,
        pci_id=card["id"] if card else None,
        uuid=f"GPU-{node.unique:x}" if node and node.unique else None,
        memory_bytes=card["memory_bytes"] if card else None,
        shared_memory_bytes=number(read(folder / "mem_info_gtt_total")) if gfx in _INTEGRATED else None,
        driver=card["driver"] if card else None,
        integrated=is_integrated(gfx),
        notes=notes,
    )


def is_integrated(gfx: str | None) -> bool | None:
    return None if gfx is None or gfx in _EITHER else gfx in _INTEGRATED


def _name(folder: Path, root: Path) -> str | None:
    """The name on the box: one PCI id stands for many cards, which differ in their revision."""
    product = read(folder / "product_name").strip()
    if product:
        return product
    device, revision = (read(folder / name).strip().removeprefix("0x").upper() for name in ("device", "revision"))
    if not device or not revision:
        return None
    line = re.compile(rf"^{re.escape(device)},\s*{re.escape(revision)},\s*(\S.*)$", re.MULTILINE | re.IGNORECASE)
    for place in _NAMES:
        named = line.search(read(root / place))
        if named:
            return named[1].strip()
    return None


def _address(values: Mapping[str, int]) -> str:
    place = values.get("location_id", 0)
    return f"{values.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7:x}"


# rocminfo --------------------------------------------------------------------------------------------------------


def _ask_rocminfo(run: Run, troubles: list[str]) -> tuple[list[Agent], dict[str, str]]:
    answer = run(["rocminfo"], _DEADLINE_S)
    if answer.trouble:
        troubles.append(answer.trouble)
    text = answer.text or ""
    version = re.search(r"^Runtime Version:\s*([\d.]+)", text, re.MULTILINE)
    return agents_of(text), {"hsa": version[1]} if version else {}


def agents_of(text: str) -> list[Agent]:
    """The GPUs among the agents that rocminfo lists."""
    found = []
    for part in re.split(r"^\*+\s*\nAgent \d+\s*\n\*+\s*$", text, flags=re.MULTILINE)[1:]:
        values = {name: value.strip() for name, value in re.findall(r"^  (\w[\w .()]*?):\s*(.*)$", part, re.MULTILINE)}
        gfx = re.fullmatch(r"gfx[0-9a-f]+", values.get("Name", ""))
        if values.get("Device Type") == "GPU" and gfx:
            found.append(
                Agent(
                    gfx[0],
                    values.get("Marketing Name") or None,
                    number(values.get("Node")),
                    number(values.get("BDFID")),
                    number(values.get("Chip ID", "").partition("(")[0]),
                    "APU" in values["Memory Properties"] if "Memory Properties" in values else None,
                )
            )
    return found


def _place_of(agent: Agent, nodes: Mapping[str, Node], cards: Mapping[str, Device]) -> str | None:
    by_node = [place for place, node in nodes.items() if node.number == agent.node]
    if by_node:
        return by_node[0]
    place = _address({"location_id": agent.bdf or 0})
    return place if agent.bdf and place in cards else None


def _with_runtime(card: Device, agent: Agent) -> Device:
    """What the runtime says of it. Its architecture is a claim; it counts as the truth only if nothing better does."""
    alone = card.arch is None and card.claimed_arch is None
    return replace(
        card,
        name=card.name if card.name and "[" not in card.name else agent.name or card.name,
        arch=agent.gfx if alone else card.arch,
        arch_basis="runtime" if alone else card.arch_basis,
        claimed_arch=agent.gfx if card.claimed_arch or (card.arch and agent.gfx != card.arch) else None,
        pci_id=card.pci_id or (f"1002:{agent.chip:04x}" if agent.chip else None),
        integrated=is_integrated(card.arch or agent.gfx) if agent.integrated is None else agent.integrated,
    )
