"""The whole inventory of a machine, put together from its kernel's files and its vendors' tools.

    inventory = take()                                   # this machine
    inventory = take(root=tree, run=tools, env={}, build={"hip": "6.4"}, host=Host("linux", "x86_64"))    # another

Nothing here talks to a driver in this process: files are read, and whatever may hang is asked in a child with a
deadline. What could not be learned is None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.devices.survey import amd, apple, cpu, disk, intel, nvidia, screens, windows
from holdfast.devices.survey.build import read_build
from holdfast.devices.survey.host import Host, describe, kernel_versions
from holdfast.devices.survey.labels import OVERRIDE_ON_WINDOWS, Machine, label, masquerade_note
from holdfast.devices.survey.records import Cpu, Device, Inventory, System, TorchBuild
from holdfast.devices.survey.tools import Run, run_tool
from holdfast.run import machine

ROOT = Path("/")
PciArch = Callable[[str, str], str | None]
"""(vendor, device) -> architecture: 1002, 731f -> gfx1010."""


def take(
    root: Path = ROOT,
    run: Run = run_tool,
    env: Mapping[str, str] | None = None,
    build: Mapping[str, Any] | TorchBuild | None = None,
    *,
    host: Host | None = None,
    folder: Path | None = None,
    pci_arch: PciArch | None = None,
) -> Inventory:
    """What is here. `folder` is where runs are kept: its disk is described if it is given."""
    host = Host.here() if host is None else host
    env = os.environ if env is None else env
    torch = build if isinstance(build, TorchBuild) else read_build(build)
    troubles: list[str] = []
    wsl = host.os == "linux" and machine.wsl(root) is not None
    mac = apple.ask(run, troubles) if host.os == "macos" else apple.Told()
    win = windows.ask(run, troubles) if host.os == "windows" or wsl else windows.Told()
    order = None
    if host.os == "linux":
        cards, versions = _on_linux(root, env, run, troubles, win.cards)
    elif host.os == "windows":
        cards, versions, order = _on_windows(win.cards, root, run, troubles)
    else:
        cards, versions = apple.look(mac, host.machine), {}
    if host.os == "linux" and not wsl:
        cards = [replace(card, display=screens.shown_by(root, card.pci)) for card in cards]
    here = Machine(host, root, env, torch, wsl, order)
    cards = [_explained(_by_pci(card, pci_arch or known_arch), here) for card in cards]
    processor = cpu.look(host, root, mac, win)
    if mac.version:
        versions["macos"] = mac.version
    said = describe(host, root, win.os_name or (f"macOS {mac.version}" if mac.version else None))
    return Inventory(
        devices=[*label(cards, here, run, troubles), _cpu_device(processor, host)],
        cpu=processor,
        disk=disk.look(folder, root) if folder else None,
        torch=torch,
        system=System(
            **said,
            versions=dict(sorted({**(kernel_versions(root) if host.os == "linux" else {}), **versions}.items())),
            device_files=machine.device_files(root) if host.os == "linux" else {},
            troubles=troubles,
        ),
    )


def _on_linux(
    root: Path, env: Mapping[str, str], run: Run, troubles: list[str], windows_cards: Sequence[Device]
) -> tuple[list[Device], dict[str, str]]:
    found = machine.gpus(root)
    mine = {vendor: [card for card in found if card["vendor"] == vendor] for vendor in ("NVIDIA", "AMD", "Intel")}
    cards, versions = [], {}
    for told, words in (
        nvidia.look(mine["NVIDIA"], root, run, troubles),
        amd.look(mine["AMD"], root, env, run, troubles),
        intel.look(mine["Intel"], run, troubles),
    ):
        cards += told
        versions.update(words)
    return _with_windows(cards, windows_cards, env), versions


def _on_windows(
    told: Sequence[Device], root: Path, run: Run, troubles: list[str]
) -> tuple[list[Device], dict[str, str], list[str] | None]:
    driven, versions = nvidia.look([], root, run, troubles, always=any(card.kind == "nvidia" for card in told))
    others, order = [card for card in told if card.kind != "nvidia" or not driven], None
    if any(card.kind == "amd" for card in others):
        others, order = windows.with_hip(others, run, troubles)
    return [*driven, *others], versions, order


def _with_windows(cards: Sequence[Device], told: Sequence[Device], env: Mapping[str, str]) -> list[Device]:
    """Inside WSL: what Windows knows of the cards Linux was shown, and the cards that only Windows knows."""
    found, left = [], list(told)
    for card in cards:
        same = next((each for each in left if each.kind == card.kind and _alike(each, card)), None)
        if same is not None:
            left.remove(same)
            found.append(_merged(card, same))
        else:
            found.append(card)
    return [*found, *(_unconfirmed(card, env) for card in left)]


def _unconfirmed(card: Device, env: Mapping[str, str]) -> Device:
    asked = amd.overridden(env, None) if card.kind == "amd" else None
    note = "Windows has it; nothing inside WSL has confirmed it"
    return replace(card, claimed_arch=asked[1] if asked else None, notes=[*card.notes, note])


def _alike(one: Device, other: Device) -> bool:
    same_chip = None not in (one.pci_id, other.pci_id) and one.pci_id == other.pci_id
    return same_chip or (one.name is not None and one.name == other.name)


def _merged(card: Device, told: Device) -> Device:
    names = ("name", "pci_id", "memory_bytes", "driver")
    return replace(card, **{name: getattr(card, name) or getattr(told, name) for name in names})


def _by_pci(card: Device, pci_arch: PciArch) -> Device:
    """The PCI id tells an architecture where nothing better does, and corrects a runtime that was told a false one."""
    if card.kind == "intel":
        return replace(card, arch="arc", arch_basis="name") if "Arc" in (card.name or "").split() else card
    if card.arch is not None and card.arch_basis != "runtime":
        return card
    vendor, _, device = (card.pci_id or "").partition(":")
    true = pci_arch(vendor, device) if device else None
    if true is None:
        return card
    claimed = card.claimed_arch or (card.arch if card.arch != true else None)
    integrated = card.integrated if card.integrated is not None else amd.is_integrated(true)
    return replace(card, arch=true, arch_basis="pci id", claimed_arch=claimed, integrated=integrated)


def known_arch(vendor: str, device: str) -> str | None:
    """From the knowledge base; its list is short, since most ids need no list where the kernel tells."""
    from holdfast.devices import knowledge

    card = knowledge.card_by_pci(vendor, device)
    return card.arch if card else None


def _explained(card: Device, here: Machine) -> Device:
    notes = [masquerade_note(card, here)]
    if card.kind == "amd" and here.host.os == "windows" and here.env.get(amd.OVERRIDE):
        notes.append(OVERRIDE_ON_WINDOWS)
    return replace(card, notes=[*card.notes, *(note for note in notes if note)])


def _cpu_device(processor: Cpu, host: Host) -> Device:
    return Device(
        id="cpu",
        kind="cpu",
        name=processor.name,
        arch=host.machine,
        arch_basis="kernel",
        # A limit may be larger than what is there.
        memory_bytes=min(filter(None, (processor.memory_limit_bytes, processor.memory_bytes)), default=None),
    )
