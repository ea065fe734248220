"""From the inventory to findings: what can be said about a machine before anything is run on it. Pure, no torch.

    found = of_inventory(inventory, os.environ)        # [Finding("D008", "cuda:0", …), Finding("D063", "system", …)]
    [each for each in found if each.device == "cuda:0"]

Nothing here decides: a card that should not work is probed all the same where torch can see it; what passes is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.devices import knowledge
from holdfast.devices.facts import Bug, plain
from holdfast.devices.findings import Cure, Finding, finding

if TYPE_CHECKING:
    from holdfast.devices.survey.records import Device, Inventory

SYSTEM, DISK, CPU = "system", "disk", "cpu"
LITTLE_MEMORY = 4_000_000_000
"""Below this, torch, a model, loader processes and snapshots do not all fit."""
SMALL_SHM = 1_000_000_000
"""Containers get 64 MB unless told otherwise; loader processes pass batches through it."""
LITTLE_DISK = 5_000_000_000
"""A few checkpoints of a model that fits into a small card."""
SLOW_DISK = 20_000_000
"""Bytes a second, flushed: a checkpoint of 1 GB takes most of a minute then."""
_MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
_SERVED_BY = {"nvidia": "cuda", "amd": "hip", "intel": "xpu"}
_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
UNCONFIRMED = "Windows has it; nothing inside WSL has confirmed it"
"""The note of a card that the runtime in WSL2 did not name."""
_HIDING = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "intel": ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"),
}
_FILES = {"nvidia": ("/dev/nvidia",), "amd": ("/dev/kfd", "/dev/dri"), "intel": ("/dev/dri",)}
_NO_FLOAT64 = {"apple": "Apple's GPUs have none", "intel": "Intel's Arc cards have none"}
_ELSEWHERE = {"windows": "Windows", "macos": "macOS"}
_BOTH = ("workers-are-started-afresh", "snapshots-are-files", "kernel-log-is-not-read", "memory-kills-are-not-told")
LESS_WELL = {"windows": (*_BOTH, "processes-end-at-once"), "macos": _BOTH}
"""What the runtime does in another way there, because the system lacks what it uses on Linux."""
_TF32 = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE")


def of_inventory(inventory: Inventory, env: Mapping[str, str], *, shm_bytes: int | None = None) -> list[Finding]:
    """Everything, device by device, then the machine."""
    found = [each for card in inventory.gpus for each in _of_card(card, inventory, env)]
    return [*found, *_of_cpu(inventory), *_of_system(inventory, shm_bytes)]


def of_disk(folder: str, bytes_s: float) -> list[Finding]:
    """What a disk's speed says, once it was measured."""
    return [finding("slow-disk", DISK, {"folder": folder, "bytes_s": bytes_s})] if bytes_s < SLOW_DISK else []


def overall(inventory: Inventory, usable: Collection[str]) -> Finding | None:
    """When all is said: no GPU to train on, or nothing at all. `usable` are the devices that may train."""
    if not usable:
        why = "torch is not installed" if inventory.torch.version is None else "even the CPU did not pass its tests"
        return finding("nothing-to-train-on", SYSTEM, {"why": why})
    if any(device != CPU for device in usable):
        return None
    seen = any(could_train(card) or card.kind == "apple" for card in inventory.gpus)
    why = "what is here did not pass, or this torch cannot use it" if seen else "there is no GPU that torch can use"
    return finding("no-usable-gpu", SYSTEM, {"why": why})


def where(inventory: Inventory) -> str:
    """The system as `knowledge` calls it: linux, wsl2, windows or macos."""
    return "wsl2" if inventory.system.wsl else inventory.system.os


def rocm_of(inventory: Inventory) -> str | None:
    """The version of ROCm that this torch was built with; None where only HIP's is known, which is another number."""
    torch = inventory.torch
    return knowledge.rocm_of(torch.version, torch.rocm, torch.hip)


def bugs_of(card: Device, inventory: Inventory, env: Mapping[str, str]) -> list[Bug]:
    """What others have reported about such a card, with this torch, driver, kernel and environment."""
    system = inventory.system
    return knowledge.known_bugs(
        card.arch,
        inventory.torch.version,
        card.driver,
        where(inventory),
        name=card.name,
        claimed=card.claimed_arch,
        env=env,
        rocm=rocm_of(inventory),
        kernel=system.kernel if system.os == "linux" else None,
    )


def builds(card: Device, inventory: Inventory) -> Cure | None:
    """The build of torch to install for a card, as advice; None where none is known."""
    if not card.arch:
        return None
    system = inventory.system
    place = (card.arch, "linux" if system.wsl else system.os, system.machine or "x86_64")
    fit = knowledge.wheels_for(*place, driver=card.driver if card.kind == "nvidia" else None)
    for wheel in fit or knowledge.wheels_for(*place):
        command = wheel.install(card.arch)
        if command:
            first = "" if wheel in fit else f"update the driver to {wheel.driver} or later, then "
            return Cure(f"{first}install the build for {card.arch} ({wheel.name})", (command,))
    return None


# One card -----------------------------------------------------------------------------------------------------------


def _of_card(card: Device, inventory: Inventory, env: Mapping[str, str]) -> Iterator[Finding]:
    ours = served(card, inventory)
    yield from _driver(card, inventory)
    if ours and not card.visible:
        yield from _out_of_reach(card, inventory, env)
    renamed = list(_masquerade(card, inventory, env)) if ours else []
    yield from renamed
    yield from _build(card, inventory)
    if ours and card.kind == "nvidia":
        forced = [f"{name}=1" for name in _TF32 if env.get(name) == "1"]
        yield from (finding("tf32-in-use", card.id, {"source": each}) for each in forced[:1])
    if card.integrated and card.kind != "apple":
        memory = card.shared_memory_bytes or card.memory_bytes
        yield finding("integrated-gpu", card.id, {"name": _name(card), "memory_bytes": memory})
    if ours and card.visible and card.kind in _NO_FLOAT64 and knowledge.about(card.arch) is not None:
        yield finding("no-float64", card.id, {"why": _NO_FLOAT64[card.kind]})
    yield from _screen(card, inventory)
    if ours and card.kind == "amd" and any(note.startswith(UNCONFIRMED) for note in card.notes):
        yield finding("wsl-runtime-sees-no-card", card.id, {"name": _name(card)}, _into_wsl(inventory))
    if card.kind == "amd" and inventory.system.os == "windows":
        yield finding("rocm-on-windows", card.id, {"name": _name(card)})
    yield from _reports(card, inventory, env, renamed=bool(renamed))


def could_train(card: Device) -> bool:
    """Builds of torch exist for such a card. Of Intel's GPUs that holds for some alone, and those have a name here."""
    return card.kind in ("nvidia", "amd") or (card.kind == "intel" and knowledge.about(card.arch) is not None)


def served(card: Device, inventory: Inventory) -> bool:
    """Was this torch made for cards of this maker?"""
    name = _SERVED_BY.get(card.kind)
    return name is None or bool(getattr(inventory.torch, name))


def _build(card: Device, inventory: Inventory) -> Iterator[Finding]:
    torch = inventory.torch
    if torch.version is None or not could_train(card):
        return
    about = {"torch": torch.version, "name": _name(card)}
    others = [_MAKERS[kind] for kind, name in _SERVED_BY.items() if kind != card.kind and getattr(torch, name)]
    if not served(card, inventory):
        slug = "torch-for-other-cards" if others else "torch-without-gpu-support"
        if others:
            about["built_for"] = others[0]
        yield finding(slug, card.id, about, builds(card, inventory))
    elif card.arch and _carries(card.arch, inventory) is False and not _tolerated(card):
        evidence = {"arch": card.arch, "torch": torch.version, "archs": list(torch.archs or ())}
        yield finding("no-kernels-for-this-card", card.id, evidence, _hide(card, inventory) or builds(card, inventory))


def _hide(card: Device, inventory: Inventory) -> Cure | None:
    """Graphics that are part of the CPU, beside a card that can do more: programs are better off without them."""
    others = [each for each in inventory.gpus if each.visible and each.kind == card.kind and not each.integrated]
    better = [each for each in others if each.arch and _carries(each.arch, inventory) is not False]
    if not card.integrated or card.kind != "amd" or not better or not all(each.id_certain for each in better):
        return None
    numbers = ",".join(each.id.partition(":")[2] for each in better)
    if inventory.system.os == "windows":
        return Cure("hides it from every program", (f"$env:HIP_VISIBLE_DEVICES = '{numbers}'",))
    return Cure("hides it from every program", (f"export ROCR_VISIBLE_DEVICES={numbers}",))


def _carries(arch: str, inventory: Inventory) -> bool | None:
    """A package for one architecture that is installed beside torch counts."""
    packages = inventory.torch.device_packages or ()
    if any(each.lower().endswith(plain(arch)) for each in packages):
        return True
    return knowledge.in_build(arch, inventory.torch.archs)


def _tolerated(card: Device) -> bool:
    said = knowledge.override(card.arch, card.claimed_arch) if card.arch and card.claimed_arch else None
    return said is not None and said.means == "tolerated"


def _masquerade(card: Device, inventory: Inventory, env: Mapping[str, str]) -> Iterator[Finding]:
    said = knowledge.override(card.arch, card.claimed_arch) if card.arch and card.claimed_arch else None
    if said is None:
        return
    variable = next((name for name in sorted(env, reverse=True) if name.startswith(_OVERRIDE) and env[name]), _OVERRIDE)
    evidence = {
        "arch": card.arch,
        "claimed": card.claimed_arch,
        "variable": variable,
        "value": env.get(variable),
        "arch_basis": card.arch_basis,
        "sources": [each.cite() for each in said.sources],
    }
    native = builds(card, inventory)
    text = f"remove {variable}" + (f" and {native.text}" if native else "")
    cure = Cure(text, (f"unset {variable}", *(native.commands if native else ())))
    yield finding("masquerade-of-a-sibling" if _tolerated(card) else "masquerade", card.id, evidence, cure)


def _driver(card: Device, inventory: Inventory) -> Iterator[Finding]:
    system = inventory.system
    if system.os == "linux" and not system.wsl and card.pci and not card.driver:
        yield finding("no-driver", card.id, {"name": _name(card)})
        return
    if card.kind != "nvidia":
        return
    said = next(filter(_mismatched, system.troubles), None)
    if said:
        yield finding("driver-mismatch", card.id, {"loaded": system.versions.get("nvidia"), "why": said})
    able, needed = system.versions.get("cuda", ""), inventory.torch.cuda or ""
    # Within one major version, a build runs on older drivers too.
    if knowledge.numbers(able) and knowledge.numbers(able)[:1] < knowledge.numbers(needed)[:1]:
        evidence = {"driver": card.driver, "torch": inventory.torch.version, "driver_cuda": able, "torch_cuda": needed}
        yield finding("driver-too-old", card.id, evidence)


def _mismatched(trouble: str) -> bool:
    return "driver/library version mismatch" in trouble.lower()


def _out_of_reach(card: Device, inventory: Inventory, env: Mapping[str, str]) -> Iterator[Finding]:
    """torch was made for it, and will not see it: a file is missing or closed, or a variable hides it."""
    system = inventory.system
    starts = _FILES.get(card.kind, ())
    if system.os == "linux" and not system.wsl and card.driver:
        missing = [start for start in starts if not any(name.startswith(start) for name in system.device_files)]
        closed = [name for name, open_ in system.device_files.items() if name.startswith(starts) and not open_]
        if missing:
            evidence = {"name": _name(card), "missing": missing}
            yield finding("no-device-file", card.id, evidence, _into_container(card, inventory, missing))
            return
        if closed:
            groups = Cure("then log in again", ("sudo usermod -aG render,video $USER",))
            yield finding("no-access-to-device", card.id, {"files": closed}, groups if card.kind != "nvidia" else None)
            return
    for variable in _HIDING.get(card.kind, ()):
        if variable in env:
            evidence = {"variable": variable, "value": env[variable] or '""', "name": _name(card)}
            cure = Cure("shows it again", (f"unset {variable}",)) if system.os != "windows" else None
            yield finding("hidden-by-environment", card.id, evidence, cure)
            return


def _into_container(card: Device, inventory: Inventory, missing: Sequence[str]) -> Cure | None:
    """How a container is given a card; outside of one, the files come with the driver."""
    if not inventory.system.container:
        return None
    flags = "--gpus all" if card.kind == "nvidia" else " ".join(f"--device {name}" for name in missing)
    return Cure("when the container is started", (f"docker run {flags} …",))


def _reports(card: Device, inventory: Inventory, env: Mapping[str, str], *, renamed: bool) -> Iterator[Finding]:
    rocm = rocm_of(inventory)
    os = where(inventory)
    if card.arch and rocm and card.kind == "amd":
        said = knowledge.support(card.arch, rocm, os)
        if said is not None and knowledge.supported(card.arch, rocm, os) is False:
            short = ".".join(rocm.split(".")[:2])
            evidence = {"arch": card.arch, "toolkit": f"ROCm {short}", "source": said.source.cite()}
            yield finding("not-supported-by-its-maker", card.id, evidence)
    for bug in bugs_of(card, inventory, env):
        # A masquerade has a finding of its own, and a build without the card's maker runs none of its kernels.
        if bug.quiet or not served(card, inventory) or (renamed and "no-masquerade" in bug.remedies):
            continue
        yield known_bug(card, bug, inventory, env)


def known_bug(card: Device, bug: Bug, inventory: Inventory, env: Mapping[str, str]) -> Finding:
    """A report about such a card, as a finding; its commands are those of the system."""
    os = where(inventory)
    evidence = {"bug": bug.title, "id": bug.id, "text": bug.text, "source": bug.sources[0].cite(), "known": bug.known}
    more: dict[str, Any] = {"dtypes": list(bug.dtypes)} if bug.dtypes else {}
    cure = bug.cure
    native = builds(card, inventory) if bug.rebuild else None
    if cure is not None and native is not None:
        cure = replace(cure, commands=native.commands)
    if cure is not None and not cure.commands:  # a variable that is set is what it is about
        cure = replace(cure, commands=tuple(f"unset {name}" for name in bug.when.get("env", ()) if name in env))
    cure = replace(cure, commands=tuple(typed(each, os) for each in cure.commands)) if cure else None
    return finding("known-bug", card.id, {**evidence, **more, "remedies": list(bug.remedies)}, cure)


def typed(command: str, os: str) -> str:
    """A command as one types it there: Windows' shell has no `export` and no `unset`."""
    word, _, rest = command.partition(" ")
    name, sign, value = rest.partition("=")
    if os == "windows" and word == "export" and sign:
        return f"$env:{name} = '{value}'"
    return f"Remove-Item Env:{rest}" if os == "windows" and word == "unset" else command


def _into_wsl(inventory: Inventory) -> Cure:
    """What brings a card of Windows into WSL2: a library, none of Ubuntu before it, for an older ROCm a variable."""
    rocm = knowledge.numbers(rocm_of(inventory) or "")
    older = ("export HSA_ENABLE_DXG_DETECTION=1",) if rocm and rocm < (7, 13) else ()
    text = (
        "install librocdxg (AMD's package amdrocm-wsl) inside WSL2, remove Ubuntu's libhsa-runtime64-1 and libhsakmt1"
    )
    return Cure(f"{text} where they are installed, and update WSL and the driver of Windows", ("wsl --update", *older))


def _screen(card: Device, inventory: Inventory) -> Iterator[Finding]:
    """It shows the screen, and another card of the same maker does not: a hang would freeze the desktop."""
    others = [each for each in inventory.gpus if each.kind == card.kind and each.visible and each.display is False]
    free = next((each for each in others if not each.integrated), None)
    if card.display and card.visible and not card.integrated and free is not None:
        cure = Cure("train on the card that shows no screen", (f"holdfast train my_script.py --device {free.id}",))
        yield finding("shows-the-screen", card.id, {"name": _name(card), "other": free.id}, cure)


def _name(card: Device) -> str:
    return card.name or card.arch or f"a card of {_MAKERS.get(card.kind, card.kind)}"


# The machine --------------------------------------------------------------------------------------------------------


def _of_cpu(inventory: Inventory) -> Iterator[Finding]:
    cpu = inventory.cpu
    intel = (inventory.system.machine or "").lower() in ("x86_64", "amd64", "i686")
    if intel and cpu.features is not None and "avx2" not in cpu.features:
        yield finding("cpu-without-avx2", CPU, {"name": cpu.name or "the CPU", "features": cpu.features})
    limit, total = cpu.memory_limit_bytes, cpu.memory_bytes
    least = min((each for each in (limit, total) if each is not None), default=None)
    if least is not None and least < LITTLE_MEMORY:
        why = "the limit of the container" if least == limit and least != total else "all that the machine has"
        yield finding("little-memory", CPU, {"available_bytes": least, "why": why})
    if cpu.threads and cpu.threads_allowed and cpu.threads_allowed < cpu.threads:
        why = "a quota of the container" if cpu.quota_cpus else "the CPUs given to this process"
        yield finding("few-cpus", CPU, {"usable": cpu.threads_allowed, "cores": cpu.threads, "why": why})


def _of_system(inventory: Inventory, shm_bytes: int | None) -> Iterator[Finding]:
    system, disk = inventory.system, inventory.disk
    if inventory.torch.version is None:
        yield finding("torch-does-not-import", SYSTEM, {"why": "it is not installed"})
    for trouble in system.troubles:
        if not _mismatched(trouble):
            yield finding("tool-gives-no-answer", SYSTEM, {"why": trouble})
    if system.wsl and "/dev/dxg" not in system.device_files:
        yield finding("wsl-without-gpu", SYSTEM, {"missing": "/dev/dxg"})
    if shm_bytes is not None and shm_bytes < SMALL_SHM:
        yield finding("small-shared-memory", SYSTEM, {"shm_bytes": shm_bytes})
    name = _ELSEWHERE.get(system.os)
    if name:
        yield from (finding(slug, SYSTEM, {"system": name}) for slug in LESS_WELL[system.os])
    if disk is not None and disk.free_bytes is not None and disk.free_bytes < LITTLE_DISK:
        yield finding("disk-nearly-full", DISK, {"folder": disk.folder, "free_bytes": disk.free_bytes})
