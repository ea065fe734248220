"""What a machine has, as plain values: `to_json()` of each is what `doctor --json` and a report show.

    inventory.devices[0].arch            # "gfx1010", from the kernel
    inventory.devices[0].claimed_arch    # "gfx1030", what HSA_OVERRIDE_GFX_VERSION makes of it; None if nothing does
    inventory.device("cuda:0").visible   # would torch count it, with this build and in this environment?

Unknown is `None`, never a guess. Where a value could come from several places, the best of them is in a field
beside it (`arch_basis`), so that a finding can say why it believes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.base import dataclass_json


@dataclass(frozen=True, slots=True)
class Device:
    """One processor that may train: a card, an integrated GPU, the CPU."""

    id: str
    """As torch calls it; where torch does not see it, its place on the bus: `pci:0000:03:00.0`."""
    kind: str
    """nvidia, amd, intel, apple or cpu."""
    name: str | None = None
    arch: str | None = None
    """What it is, whatever the environment says: gfx1010, sm_90, m2."""
    arch_basis: str | None = None
    """Where that comes from: kernel, driver, pci id, name; `runtime` may be told a lie by the environment."""
    claimed_arch: str | None = None
    """What the environment or a runtime makes of it, where that was seen."""
    pci: str | None = None
    pci_id: str | None = None
    """Vendor and device: 1002:731f."""
    uuid: str | None = None
    memory_bytes: int | None = None
    """Its own memory; all of the machine's for a CPU and an Apple GPU."""
    shared_memory_bytes: int | None = None
    """How much of the machine's memory an integrated GPU may use beside its own."""
    driver: str | None = None
    integrated: bool | None = None
    visible: bool = True
    """torch would count it: this build serves it, its files are here, no variable hides it."""
    display: bool | None = None
    """A screen is connected to it; None where nothing tells: outside Linux, and in a container."""
    id_certain: bool = True
    """False where several unlike cards are counted in an order that no file tells."""
    notes: list[str] = field(default_factory=list)

    @property
    def masquerading(self) -> bool:
        """It is treated as an architecture that it is not."""
        return None not in (self.arch, self.claimed_arch) and self.arch != self.claimed_arch

    def to_json(self) -> dict[str, Any]:
        return {**dataclass_json.write(self), "masquerading": self.masquerading}


@dataclass(frozen=True, slots=True)
class Cpu:
    name: str | None
    cores: int | None
    """Physical ones."""
    threads: int | None
    threads_allowed: int | None
    """What affinity and control groups leave to this process."""
    quota_cpus: float | None
    """The control group's share of CPU time, in CPUs; None is no limit seen."""
    features: list[str] | None
    """What speeds up training: avx2, avx512, amx, bf16, neon, sve …; None where nothing tells."""
    memory_bytes: int | None
    memory_limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class Disk:
    """What holds the run folder."""

    folder: str
    free_bytes: int | None
    total_bytes: int | None
    filesystem: str | None
    rotating: bool | None
    in_memory: bool | None
    """A tmpfs: gone after a reboot."""
    over_network: bool | None


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch, from its files."""

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    rocm: str | None = None
    xpu: str | None = None
    archs: list[str] | None = None
    """The architectures it carries code for, as torch.cuda.get_arch_list() would say; None where it cannot be told."""
    device_packages: list[str] | None = None
    """Installed packages that bring code for one AMD architecture each."""


@dataclass(frozen=True, slots=True)
class System:
    os: str
    """linux, macos or windows."""
    name: str | None
    kernel: str | None
    machine: str | None
    container: bool | None
    """None where nothing can tell: outside Linux."""
    container_kind: str | None
    wsl: bool
    versions: dict[str, str] = field(default_factory=dict)
    """Drivers and runtimes by name: nvidia, cuda, amdgpu, rocm, level_zero, macos …"""
    device_files: dict[str, bool] = field(default_factory=dict)
    """The files through which devices are used, and whether this process may open them."""
    troubles: list[str] = field(default_factory=list)
    """Tools that were there and gave no answer: often the first sign of a driver that does not."""


@dataclass(frozen=True, slots=True)
class Inventory:
    devices: list[Device]
    cpu: Cpu
    disk: Disk | None
    torch: TorchBuild
    system: System

    def device(self, id: str) -> Device | None:
        return next((device for device in self.devices if device.id == id), None)

    @property
    def gpus(self) -> list[Device]:
        return [device for device in self.devices if device.kind != "cpu"]

    @property
    def visible(self) -> list[str]:
        """The devices torch would count, the CPU last."""
        return [device.id for device in self.devices if device.visible]

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)
