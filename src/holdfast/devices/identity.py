"""Which card is `cuda:0`? A name that survives reboots and renumbering, found without touching a driver.

    identify("cuda:0")      # DeviceId("cuda:0", "pci 0000:03:00.0 1002:744c", "Radeon RX 7900 XTX", ...)
    identify("cpu").key     # "cpu"
    machine_key()           # this machine, for a ledger in a home folder that many machines share

torch counts devices; the count changes with a card added, a variable set, a driver that lost one. The place of a
card on the bus and what it is do not. Where the kernel's files cannot tell which card a number means (unlike
cards in the order of their speed, slices of one card), the label stands for itself.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.run import machine

ROOT = Path("/")
_NVIDIA, _INTEL = "NVIDIA", "Intel"


@dataclass(frozen=True, slots=True)
class DeviceId:
    """A device as torch calls it and as the machine knows it."""

    label: str
    key: str
    """Stays the same when the label changes."""
    name: str | None = None
    pci: str | None = None
    """Its address, as kernel messages write it."""
    driver: str | None = None

    @property
    def on_cpu(self) -> bool:
        return self.key == "cpu"


def identify(
    label: str,
    *,
    root: Path = ROOT,
    env: Mapping[str, str] | None = None,
    build: Mapping[str, str | None] | None = None,
) -> DeviceId:
    """The device behind a label; where it cannot be told, the label is its key."""
    kind, _, number = label.partition(":")
    if kind == "cpu":
        return DeviceId(label, "cpu", machine.cpu_model(root))
    if kind not in ("cuda", "xpu"):
        return DeviceId(label, label)
    env = os.environ if env is None else env
    build = machine.torch_build() if build is None else build
    cards = {str(card["pci"]): card for card in machine.gpus(root) if card["pci"]}
    if kind == "xpu":
        listed: Sequence[str] | None = _intel(cards)
    elif build.get("hip"):
        listed = amd_order(root, env)
    else:
        listed = _nvidia(root, env, cards)
    index = int(number or 0) if (number or "0").isdigit() else -1
    if listed is None or not 0 <= index < len(listed):
        return DeviceId(label, label)
    return _known(label, listed[index], cards)


def _known(label: str, address: str, cards: Mapping[str, Mapping[str, Any]]) -> DeviceId:
    card = cards.get(address, {})
    ids = card.get("id")
    key = f"pci {address} {ids}" if ids else f"pci {address}"
    return DeviceId(label, key, card.get("name"), address, card.get("driver"))


def by_key(key: str, label: str, *, root: Path = ROOT) -> DeviceId:
    """A device that was identified before, perhaps under another label; its driver is that of today."""
    if not key.startswith("pci "):
        return DeviceId(label, key)
    address = key.split()[1]
    cards = {str(card["pci"]): card for card in machine.gpus(root)}
    found = _known(label, address, cards)
    return found if found.key == key else DeviceId(label, key, None, address)


# The order in which torch counts ---------------------------------------------------------------------------


def _nvidia(root: Path, env: Mapping[str, str], cards: Mapping[str, Mapping[str, Any]]) -> list[str] | None:
    """By place on the bus if so asked or if all are alike; the fastest first otherwise, which no file tells."""
    uuids = nvidia_cards(root)
    if not uuids:
        uuids = {address: "" for address, card in sorted(cards.items()) if card["vendor"] == _NVIDIA}
    kinds = {str(cards.get(address, {}).get("id")) for address in uuids}
    ordered = len(kinds) <= 1 or env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return visible(uuids, ordered, env.get("CUDA_VISIBLE_DEVICES"))


def nvidia_cards(root: Path) -> dict[str, str]:
    """Addresses of the cards this process may open, in order, with their UUIDs."""
    minors = {path.name.removeprefix("nvidia") for path in (root / "dev").glob("nvidia[0-9]*")}
    found = {}
    for folder in machine.children(root / "proc/driver/nvidia/gpus"):
        text = machine.read(folder / "information")
        uuid = re.search(r"^GPU UUID:\s*(\S+)", text, re.MULTILINE)
        minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
        if not minors or not minor or minor[1] in minors:
            found[folder.name] = uuid[1] if uuid else ""
    return dict(sorted(found.items()))


def amd_order(root: Path, env: Mapping[str, str]) -> list[str] | None:
    """In the order of the kernel's topology; ROCr hides cards first, HIP then counts what is left."""
    drawn = {path.name.removeprefix("renderD") for path in (root / "dev/dri").glob("renderD[0-9]*")}
    found = {}
    nodes = [node for node in machine.children(root / "sys/class/kfd/kfd/topology/nodes") if node.name.isdigit()]
    for node in sorted(nodes, key=lambda node: int(node.name)):
        values = {
            name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", machine.read(node / "properties"), re.M)
        }
        shown = str(values.get("drm_render_minor", "")) in drawn or not drawn
        if values.get("gfx_target_version") and shown:
            found[_address(values)] = f"GPU-{values.get('unique_id', 0):x}"
    left = visible(found, True, env.get("ROCR_VISIBLE_DEVICES"))
    if left is None:
        return None
    asked = env.get("HIP_VISIBLE_DEVICES", env.get("CUDA_VISIBLE_DEVICES"))
    return visible({address: found[address] for address in left}, True, asked)


def _address(values: Mapping[str, int]) -> str:
    place = values.get("location_id", 0)
    return f"{values.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7:x}"


def _intel(cards: Mapping[str, Mapping[str, Any]]) -> list[str] | None:
    """One is that one; of several, no file says which comes first."""
    found = [address for address, card in cards.items() if card["vendor"] == _INTEL]
    return found if len(found) == 1 else None


def visible(uuids: Mapping[str, str], ordered: bool, asked: str | None) -> list[str] | None:
    """The cards that a *_VISIBLE_DEVICES variable leaves, by number or by the beginning of a UUID."""
    every = list(uuids)
    if asked is None:
        return every if ordered else None
    found: list[str] = []
    for word in (word.strip() for word in asked.split(",")):
        named = [address for address, uuid in uuids.items() if uuid and word and uuid.startswith(word)]
        if word.isdigit() and not ordered:
            return None
        if word.isdigit() and int(word) < len(every):
            found.append(every[int(word)])
        elif len(named) == 1:
            found.append(named[0])
        elif word.startswith("MIG-"):
            return None  # a slice of a card: which one, only the driver knows
        else:
            break  # what follows an entry that names nothing is hidden
    return found


# The machine ----------------------------------------------------------------------------------------------


def machine_key(root: Path = ROOT) -> str:
    """This machine in 16 letters that say nothing about it.

    A container's own machine-id is often that of its image, the same on every machine: there the firmware is
    asked, which only root may, or else the host name has to do.
    """
    said = ""
    if sys.platform == "darwin" and root == ROOT:
        said = _mac_id()
    elif sys.platform == "win32":
        said = _windows_id()
    elif machine.container(root) is None:
        said = machine.read(root / "etc/machine-id").strip()
    else:
        said = machine.read(root / "sys/class/dmi/id/product_uuid").strip()
    return hashlib.sha256(f"holdfast {said or platform.node()}".encode()).hexdigest()[:16]


def _mac_id() -> str:
    try:
        words = ["ioreg", "-rd1", "-c", "IOPlatformExpertDevice"]
        told = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r'"IOPlatformUUID" = "([^"]+)"', told)
    return found[1] if found else ""


def _windows_id() -> str:
    if sys.platform != "win32":
        return ""
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\Microsoft\Cryptography") as key:
            return str(winreg.QueryValueEx(key, "MachineGuid")[0])
    except OSError:
        return ""
