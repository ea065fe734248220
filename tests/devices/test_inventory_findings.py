"""What an inventory says before anything is run, and what is advised when no GPU can be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.devices import advice, knowledge
from holdfast.devices.findings import Finding
from holdfast.devices.inventory_findings import of_disk, of_inventory, overall
from holdfast.devices.survey.records import Cpu, Device, Disk, Inventory, System, TorchBuild

from . import machines

ROCM = TorchBuild(
    "2.5.1+rocm6.2",
    hip="6.2.41133",
    archs=["gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100"],
)
CUDA = TorchBuild("2.12.1+cu130", cuda="13.0", archs=["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"])
PLAIN = TorchBuild("2.12.1+cpu")
AMD_FILES = {"/dev/kfd": True, "/dev/dri/renderD128": True}
NAVI10 = Device("cuda:0", "amd", "Radeon RX 5600 XT", "gfx1010", "kernel", pci="0000:03:00.0", driver="amdgpu")
NAVI31 = replace(NAVI10, name="Radeon RX 7900 XTX", arch="gfx1100")
PASCAL = Device("cuda:0", "nvidia", "NVIDIA GeForce GTX 1060", "sm_61", pci="0000:01:00.0", driver="nvidia 580.1")
HOPPER = replace(PASCAL, name="NVIDIA H200", arch="sm_90")
OVERRIDE = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}


def machine(*cards: Device, torch: TorchBuild = PLAIN, cpu: Cpu | None = None, **system: Any) -> Inventory:
    healthy = Cpu("Ryzen 5 3600", 6, 12, 12, None, ["avx2"], 32_000_000_000, None)
    around = System("linux", "Ubuntu 24.04", "6.8.0", "x86_64", False, None, False)
    disk = Disk("./runs", 400_000_000_000, 1_000_000_000_000, "ext4", False, False, False)
    return Inventory(
        [*cards, Device("cpu", "cpu", "Ryzen 5 3600")], cpu or healthy, disk, torch, replace(around, **system)
    )


def codes(inventory: Inventory, env: dict[str, str] | None = None, **more: Any) -> list[str]:
    return [each.code for each in of_inventory(inventory, env or {}, **more)]


def one(slug: str, inventory: Inventory, env: dict[str, str] | None = None, **more: Any) -> Finding:
    (found,) = [each for each in of_inventory(inventory, env or {}, **more) if each.about.slug == slug]
    return found


# --- cards ------------------------------------------------------------------------------------------------------


def test_a_healthy_machine_has_nothing_to_say() -> None:
    assert codes(machine(HOPPER, torch=CUDA, device_files={"/dev/nvidia0": True}), {}, shm_bytes=16 << 30) == []
    assert codes(machine()) == []


def test_a_build_that_the_driver_cannot_run_is_not_advised() -> None:
    old = replace(PASCAL, name="NVIDIA GeForce RTX 3060", arch="sm_86", driver="nvidia 570.86.15")
    found = one("torch-for-other-cards", machine(old, torch=ROCM))
    assert found.remedy is not None
    assert found.remedy.commands == ("pip install torch --index-url https://download.pytorch.org/whl/cu126",)
    newest = one("torch-for-other-cards", machine(replace(old, arch="sm_120"), torch=ROCM)).remedy
    assert newest is not None and newest.commands == ("pip install torch",)
    assert newest.text == "update the driver to 580 or later, then install the build for sm_120 (PyPI, CUDA 13)"
    current = one("torch-for-other-cards", machine(replace(old, driver="nvidia 580.1"), torch=ROCM)).remedy
    assert current is not None and current.commands == ("pip install torch",)


def test_an_older_rocm_needs_a_variable_to_see_the_card_of_windows() -> None:
    card = replace(NAVI31, driver=None, pci=None, notes=["Windows has it; nothing inside WSL has confirmed it"])
    for rocm, more in (("7.2.1", ("export HSA_ENABLE_DXG_DETECTION=1",)), ("7.14.0", ()), ("10.0.0", ())):
        build = TorchBuild(f"2.13.0+rocm{rocm}", hip="7.2.1", rocm=rocm, archs=["gfx1100"])
        cure = one("wsl-runtime-sees-no-card", machine(card, torch=build, wsl=True)).remedy
        assert cure is not None and cure.commands == ("wsl --update", *more)
        assert "amdrocm-wsl" in cure.text and "libhsakmt1" in cure.text


def test_a_dangerous_masquerade_names_the_true_card_and_its_build() -> None:
    inventory = machine(replace(NAVI10, claimed_arch="gfx1030"), torch=ROCM, device_files=AMD_FILES)
    found = one("masquerade", inventory, OVERRIDE)
    assert found.sentence() == (
        "this is gfx1010, and HSA_OVERRIDE_GFX_VERSION makes it run as gfx1030: other instructions, other kernels"
    )
    assert found.remedy is not None
    assert found.remedy.commands == (
        "unset HSA_OVERRIDE_GFX_VERSION",
        'pip install --index-url https://stable.repo.amd.com/rocm/whl-next/ "torch[device-gfx1010]"',
    )
    assert one("no-kernels-for-this-card", inventory, OVERRIDE).evidence["arch"] == "gfx1010"
    reported = [each.evidence.get("id") for each in of_inventory(inventory, OVERRIDE) if each.code == "D050"]
    assert reported
    assert "gfx101x-as-gfx103x" not in reported  # it has a finding of its own


def test_a_masquerade_of_a_sibling_is_a_warning_and_its_kernels_are_not_missed() -> None:
    card = replace(NAVI10, name="RX 6700 XT", arch="gfx1031", claimed_arch="gfx1030")
    inventory = machine(card, torch=ROCM, device_files=AMD_FILES)
    assert one("masquerade-of-a-sibling", inventory, OVERRIDE).level == "warning"
    assert not {"D008", "D009"} & set(codes(inventory, OVERRIDE))
    assert "D009" in codes(machine(replace(card, claimed_arch=None), torch=ROCM, device_files=AMD_FILES))


def test_the_variable_of_one_node_is_the_one_that_is_named() -> None:
    env = {"HSA_OVERRIDE_GFX_VERSION_1": "10.3.0", "HSA_OVERRIDE_GFX_VERSION": ""}
    inventory = machine(replace(NAVI10, claimed_arch="gfx1030"), torch=ROCM, device_files=AMD_FILES)
    assert one("masquerade", inventory, env).evidence["variable"] == "HSA_OVERRIDE_GFX_VERSION_1"


def test_a_build_without_code_for_the_card() -> None:
    found = one("no-kernels-for-this-card", machine(PASCAL, torch=CUDA))
    assert found.sentence() == "sm_61 has no kernels in torch 2.12.1+cu130"
    assert found.evidence["archs"] == CUDA.archs
    assert found.remedy is not None
    assert found.remedy.commands == ("pip install torch --index-url https://download.pytorch.org/whl/cu126",)
    unknown = replace(CUDA, archs=None)
    assert "D009" not in codes(machine(PASCAL, torch=unknown))


def test_a_package_for_the_card_counts_as_code_for_it() -> None:
    native = replace(ROCM, device_packages=["rocm-sdk-device-gfx1010"])
    assert "D009" not in codes(machine(NAVI10, torch=native, device_files=AMD_FILES))
    other = replace(ROCM, device_packages=["rocm-sdk-device-gfx1012"])
    assert "D009" in codes(machine(NAVI10, torch=other, device_files=AMD_FILES))


def test_a_build_for_the_cpu_and_one_for_other_cards() -> None:
    found = one("torch-without-gpu-support", machine(NAVI31))
    assert (
        found.sentence() == "torch 2.12.1+cpu is a build for the CPU alone, and Radeon RX 7900 XTX is in this machine"
    )
    assert found.remedy is not None
    assert "device-gfx1100" in found.remedy.commands[0]
    other = one("torch-for-other-cards", machine(NAVI31, torch=CUDA))
    assert other.sentence() == "torch 2.12.1+cu130 is for NVIDIA cards, and Radeon RX 7900 XTX is not one"
    assert one("torch-for-other-cards", machine(HOPPER, torch=ROCM)).evidence["built_for"] == "AMD"


def test_a_card_that_is_out_of_reach() -> None:
    hidden = replace(NAVI31, id="pci:0000:03:00.0", visible=False)
    container = machine(hidden, torch=ROCM, container=True, device_files={"/dev/dri/renderD128": True})
    assert (
        one("no-device-file", container).sentence() == "Radeon RX 7900 XTX is in this machine, but there is no /dev/kfd"
    )
    closed = machine(hidden, torch=ROCM, device_files={**AMD_FILES, "/dev/kfd": False})
    assert one("no-access-to-device", closed).sentence() == "/dev/kfd may not be opened by this user"
    env = {"HIP_VISIBLE_DEVICES": ""}
    unseen = one("hidden-by-environment", machine(hidden, torch=ROCM, device_files=AMD_FILES), env)
    assert unseen.sentence() == 'HIP_VISIBLE_DEVICES="" hides Radeon RX 7900 XTX'
    assert one("no-driver", machine(replace(hidden, driver=None), torch=ROCM)).device == "pci:0000:03:00.0"


def test_drivers_of_nvidia() -> None:
    old = machine(HOPPER, torch=CUDA, versions={"nvidia": "535.1", "cuda": "12.2"})
    assert one("driver-too-old", old).sentence() == "driver nvidia 580.1 is older than torch 2.12.1+cu130 needs"
    minor = machine(HOPPER, torch=replace(CUDA, cuda="12.8"), versions={"cuda": "12.2"})
    assert codes(minor) == []
    odd = machine(HOPPER, torch=CUDA, versions={"cuda": "N/A"})
    assert "D014" not in codes(odd) or knowledge.numbers("N/A") != ()
    torn = machine(
        HOPPER, torch=CUDA, troubles=["nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"]
    )
    assert codes(torn) == ["D015"]
    silent = machine(HOPPER, torch=CUDA, troubles=["nvidia-smi gave no answer in 10 s"])
    assert one("tool-gives-no-answer", silent).sentence() == "nvidia-smi gave no answer in 10 s"
    assert codes(machine(HOPPER, torch=CUDA), {"NVIDIA_TF32_OVERRIDE": "1"}) == ["D031"]
    assert codes(machine(HOPPER, torch=CUDA), {"NVIDIA_TF32_OVERRIDE": "0"}) == []


def test_windows_wsl_and_an_integrated_gpu() -> None:
    card = Device("cuda:0", "amd", "AMD Radeon RX 9070 XT", "gfx1201", driver="32.0.1")
    found = of_inventory(machine(card, torch=replace(ROCM, archs=None), os="windows"), {})
    assert "D055" in [each.code for each in found]
    assert "gfx1201-windows-backward-hang" in [each.evidence.get("id") for each in found]
    assert codes(machine(wsl=True)) == ["D054"]
    assert codes(machine(wsl=True, device_files={"/dev/dxg": True})) == []
    apu = replace(NAVI31, arch="gfx1151", integrated=True, shared_memory_bytes=48_000_000_000)
    inventory = machine(apu, torch=replace(ROCM, archs=["gfx1151"]), device_files=AMD_FILES)
    said = one("integrated-gpu", inventory).sentence()
    assert said == "Radeon RX 7900 XTX is part of the CPU and shares its memory (48.0 GB of it)"
    assert [each.evidence["id"] for each in of_inventory(inventory, {}) if each.code == "D050"] == [
        "gfx1151-lost-completion",
        "gfx1151-old-rocm",
    ]


def test_what_the_maker_does_not_list() -> None:
    inventory = machine(NAVI10, torch=ROCM, device_files=AMD_FILES)
    assert one("not-supported-by-its-maker", inventory).sentence() == "gfx1010 is not on the list of ROCm 6.2"
    assert "D051" not in codes(machine(NAVI31, torch=ROCM, device_files=AMD_FILES))


# --- the machine ------------------------------------------------------------------------------------------------


def test_the_machine_itself() -> None:
    weak = Cpu("Celeron", 2, 4, 2, 2.0, ["sse4_2"], 32_000_000_000, 2_000_000_000)
    full = Disk("./runs", 1_000_000, 10**12, "ext4", False, False, False)
    inventory = replace(machine(cpu=weak), disk=full)
    found = of_inventory(inventory, {}, shm_bytes=64 << 20)
    assert [(each.device, each.code) for each in found] == [
        ("cpu", "D061"),
        ("cpu", "D062"),
        ("cpu", "D067"),
        ("system", "D063"),
        ("disk", "D064"),
    ]
    assert [each.sentence() for each in found] == [
        "Celeron has no AVX2",
        "2.0 GB of memory for this process (the limit of the container)",
        "2 of 4 CPUs may be used (a quota of the container)",
        "/dev/shm has 67.1 MB",
        "./runs has 1.0 MB left",
    ]


def test_what_is_unknown_is_no_finding() -> None:
    unknown = Cpu(None, None, None, None, None, None, None, None)
    inventory = replace(machine(Device("pci:0", "amd"), cpu=unknown), disk=None)
    assert codes(inventory) == ["D011"]


def test_a_gpu_that_no_build_serves_is_not_missed() -> None:
    assert codes(machine(Device("pci:0", "intel", "HD Graphics 630", driver="i915"))) == []
    assert codes(machine(Device("pci:0", "intel", "Arc A770", "arc", driver="xe"))) == ["D011"]


def test_an_arm_cpu_is_not_asked_for_avx2() -> None:
    arm = Cpu("Neoverse-N1", 64, 64, 64, None, ["neon"], 128_000_000_000, None)
    assert codes(machine(cpu=arm, machine="aarch64")) == []


def test_without_torch() -> None:
    assert (
        one("torch-does-not-import", machine(torch=TorchBuild())).sentence()
        == "import torch failed: it is not installed"
    )


def test_a_slow_disk() -> None:
    (found,) = of_disk("./runs", 3_400_000.0)
    assert found.sentence() == "./runs takes 3.4 MB/s until it is on the disk"
    assert of_disk("./runs", 500_000_000.0) == []


def test_all_in_all() -> None:
    assert overall(machine(HOPPER, torch=CUDA), ["cuda:0", "cpu"]) is None
    none = overall(machine(), ["cpu"])
    assert none is not None
    assert none.sentence() == "no GPU here can be trained on: there is no GPU that torch can use"
    failed = overall(machine(HOPPER, torch=CUDA), ["cpu"])
    assert failed is not None
    assert failed.sentence().endswith("what is here did not pass, or this torch cannot use it")
    nothing = overall(machine(torch=TorchBuild()), [])
    assert nothing is not None
    assert (nothing.code, nothing.sentence()) == ("D081", "nothing here can be trained on: torch is not installed")


# --- advice -----------------------------------------------------------------------------------------------------


def first_words(lines: list[str]) -> list[str]:
    return [line.partition(":")[0] for line in lines]


def test_no_advice_where_a_gpu_can_be_used() -> None:
    assert advice.advice(machine(HOPPER, torch=CUDA), ["cuda:0", "cpu"]) == []


def test_a_machine_without_a_gpu() -> None:
    lines = advice.advice(machine(), ["cpu"])
    assert first_words(lines)[:3] == ["Now", "Rent", "Smaller"]
    assert lines[0].startswith("Now: `holdfast train my_script.py --device cpu` trains on the CPU.")


def test_the_masquerading_card_of_our_user() -> None:
    inventory = machine(replace(NAVI10, claimed_arch="gfx1030"), torch=ROCM, device_files=AMD_FILES)
    lines = advice.advice(inventory, ["cpu"])
    assert first_words(lines)[:4] == ["Now", "Build", "Rent", "Smaller"]
    assert lines[1] == (
        "Build: for Radeon RX 5600 XT (gfx1010), `unset HSA_OVERRIDE_GFX_VERSION`, because it is no gfx1030, and then "
        '`pip install --index-url https://stable.repo.amd.com/rocm/whl-next/ "torch[device-gfx1010]"` in a virtual '
        "environment of its own, and run `holdfast doctor` again. AMD publishes it and does not test it on such a card "
        "(2026-08-22), so let the probes decide."
    )


def test_an_amd_card_under_windows_is_sent_to_linux() -> None:
    card = Device("pci:0", "amd", "AMD Radeon RX 9070 XT", "gfx1201")
    lines = advice.advice(machine(card, os="windows"), ["cpu"])
    assert first_words(lines)[:3] == ["Now", "Linux", "Build"]
    assert "Linux" not in first_words(advice.advice(machine(HOPPER, os="windows"), ["cpu"]))


def test_a_card_that_this_torch_serves_needs_no_other_build() -> None:
    assert "Build" not in first_words(advice.advice(machine(HOPPER, torch=CUDA), ["cpu"]))
    assert "Build" in first_words(advice.advice(machine(PASCAL, torch=CUDA), ["cpu"]))
    assert "Build" not in first_words(advice.advice(machine(Device("pci:0", "intel", "HD Graphics 630")), ["cpu"]))
    line = advice.advice(machine(Device("pci:0", "intel", "Arc A770", "arc")), ["cpu"])[1]
    assert line == (
        "Build: for Arc A770 (arc), `pip install torch --index-url https://download.pytorch.org/whl/xpu` in a virtual "
        "environment of its own, and run `holdfast doctor` again."
    )
    line = advice.advice(machine(Device("pci:0", "amd", "A card of tomorrow", "gfx9999")), ["cpu"])[1]
    assert "see https://pytorch.org/get-started for a build that serves it" in line


@pytest.mark.parametrize(("torch", "word"), [(PLAIN, "install torch anew"), (TorchBuild(), "`pip install torch`")])
def test_when_not_even_the_cpu_can_be_used(torch: TorchBuild, word: str) -> None:
    (line,) = advice.advice(machine(torch=torch), [])
    assert word in line


def test_a_plan_is_advised_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "find_spec", lambda name: object())
    assert first_words(advice.advice(machine(), ["cpu"]))[-1] == "Compare"
    monkeypatch.setattr(advice, "find_spec", lambda name: None)
    assert "Compare" not in first_words(advice.advice(machine(), ["cpu"]))


# --- whole machines ---------------------------------------------------------------------------------------------

MAC = ["D090", "D091", "D092", "D093"]
WINDOWS = [*MAC, "D094"]
MACHINES = {
    "container-without-kfd": ["D016", "D009", "D051", "D050", "D067"],
    "cpu-only": ["D019"],
    "gfx1151-apu": ["D019", "D050"],
    "gtx-1060": ["D009"],
    "h200": ["D050"],
    "intel-arc-a770": ["D047"],
    "m2": ["D047", "D050", *MAC],
    "mi300x": [],
    "mi300x-amd-smi": [],
    "rtx-3090": [],
    "rx-5600-xt": ["D009", "D051", "D050"],
    "rx-5600-xt-masquerading": ["D008", "D009", "D051", "D050"],
    "rx-7900-xtx": ["D050"],
    "two-amd-with-igpu": ["D050", "D009", "D019"],
    "two-nvidia-unlike": [],
    "two-vendors": ["D012"],
    "windows-rx-5700-xt": ["D055", "D050", *WINDOWS],
    "windows-rx-9070-xt": ["D055", "D050", *WINDOWS],
    "windows-two-amd": ["D019", "D055", "D050", *WINDOWS],
    "windows-with-hipinfo": ["D055", "D050", *WINDOWS],
    "wsl2-rtx-3090": [],
    "wsl2-rx-5700-xt-silent": ["D008", "D009", "D069", "D051", "D050", "D068"],
    "wsl2-rx-9070-xt": ["D050"],
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_said_of_a_machine(name: str, tmp_path: Path) -> None:
    """Before anything is run on it. D050 is said once here, however many reports there are."""
    there = machines.load(name, tmp_path)
    found = of_inventory(there.inventory(), there.env)
    assert list(dict.fromkeys(each.code for each in found)) == MACHINES[name]
    for each in found:
        assert each.code == "D019" or each.sentence() != each.title, each
