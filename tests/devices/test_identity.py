"""Which card a label means, on machines made of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.devices.identity import identify, machine_key

CUDA, HIP, XPU = {"cuda": "12.8"}, {"hip": "6.4"}, {"xpu": "2025"}


def add_card(root: Path, address: str, vendor: str, device: str, *, kind: str = "0x030000") -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "class").write_text(f"{kind}\n")
    (folder / "vendor").write_text(f"0x{vendor}\n")
    (folder / "device").write_text(f"0x{device}\n")


def add_nvidia(root: Path, address: str, device: str, minor: int, uuid: str, *, given: bool = True) -> None:
    add_card(root, address, "10de", device)
    folder = root / "proc/driver/nvidia/gpus" / address
    folder.mkdir(parents=True)
    (folder / "information").write_text(f"Model: \t\t NVIDIA {device}\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    (root / "dev").mkdir(exist_ok=True)
    if given:
        (root / "dev" / f"nvidia{minor}").touch()


def add_amd(root: Path, node: int, address: str, device: str, unique: int, *, gfx: int = 110000) -> None:
    bus, slot = address.split(":")[1], address.split(":")[2].split(".")[0]
    folder = root / f"sys/class/kfd/kfd/topology/nodes/{node}"
    folder.mkdir(parents=True)
    place = int(bus, 16) << 8 | int(slot, 16) << 3
    (folder / "properties").write_text(
        f"simd_count 192\ngfx_target_version {gfx}\nlocation_id {place}\ndomain 0\nunique_id {unique}\n"
        f"drm_render_minor {128 + node}\n"
    )
    if gfx:
        add_card(root, address, "1002", device)


def keys(root: Path, count: int, build: dict[str, str], **env: str) -> list[str]:
    return [identify(f"cuda:{number}", root=root, env=env, build=build).key for number in range(count)]


# NVIDIA -------------------------------------------------------------------------------------------------------

A, B = "pci 0000:1b:00.0 10de:2335", "pci 0000:65:00.0 10de:2335"


@pytest.fixture
def twins(tmp_path: Path) -> Path:
    add_nvidia(tmp_path, "0000:65:00.0", "2335", 1, "GPU-bbbb-2")
    add_nvidia(tmp_path, "0000:1b:00.0", "2335", 0, "GPU-aaaa-1")
    return tmp_path


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({}, [A, B]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, [B, A]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [B, "cuda:1"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, [B, "cuda:1"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, ["cuda:0", "cuda:1"]),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, [A, "cuda:1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, ["cuda:0", "cuda:1"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1234"}, ["cuda:0", "cuda:1"]),
    ],
)
def test_two_cards_of_one_kind(twins: Path, env: dict[str, str], found: list[str]) -> None:
    assert keys(twins, 2, CUDA, **env) == found


def test_the_name_and_address_come_along(twins: Path) -> None:
    here = identify("cuda:1", root=twins, env={}, build=CUDA)
    assert (here.label, here.name, here.pci, here.driver) == ("cuda:1", "NVIDIA 2335", "0000:65:00.0", "nvidia")


def test_a_container_that_was_given_the_second_card_only(tmp_path: Path) -> None:
    add_nvidia(tmp_path, "0000:1b:00.0", "2335", 0, "GPU-a", given=False)
    add_nvidia(tmp_path, "0000:65:00.0", "2335", 1, "GPU-b")
    assert keys(tmp_path, 2, CUDA) == [B, "cuda:1"]


def test_unlike_cards_are_told_apart_only_if_the_order_is_known(tmp_path: Path) -> None:
    """CUDA counts the fastest first, and no file says which that is."""
    add_nvidia(tmp_path, "0000:01:00.0", "1b80", 0, "GPU-old")
    add_nvidia(tmp_path, "0000:02:00.0", "2684", 1, "GPU-new")
    old, new = "pci 0000:01:00.0 10de:1b80", "pci 0000:02:00.0 10de:2684"
    assert keys(tmp_path, 2, CUDA) == ["cuda:0", "cuda:1"]
    assert keys(tmp_path, 2, CUDA, CUDA_VISIBLE_DEVICES="1,0") == ["cuda:0", "cuda:1"]
    assert keys(tmp_path, 2, CUDA, CUDA_DEVICE_ORDER="PCI_BUS_ID") == [old, new]
    assert keys(tmp_path, 1, CUDA, CUDA_VISIBLE_DEVICES="GPU-new") == [new]


def test_a_card_keeps_its_key_when_another_is_added_before_it(tmp_path: Path) -> None:
    add_nvidia(tmp_path, "0000:65:00.0", "2335", 0, "GPU-b")
    assert keys(tmp_path, 1, CUDA) == [B]
    add_nvidia(tmp_path, "0000:1b:00.0", "2335", 1, "GPU-a")
    assert keys(tmp_path, 2, CUDA) == [A, B]


# AMD and others ----------------------------------------------------------------------------------------------

R, S = "pci 0000:03:00.0 1002:744c", "pci 0000:c4:00.0 1002:15bf"


@pytest.fixture
def amd(tmp_path: Path) -> Path:
    """A card and an APU; the topology is counted as numbers are, not as words."""
    add_amd(tmp_path, 0, "0000:00:00.0", "0", 0, gfx=0)
    add_amd(tmp_path, 2, "0000:03:00.0", "744c", 0xABC)
    add_amd(tmp_path, 10, "0000:c4:00.0", "15bf", 0xDEF)
    return tmp_path


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({}, [R, S]),
        ({"HIP_VISIBLE_DEVICES": "1"}, [S, "cuda:1"]),
        ({"ROCR_VISIBLE_DEVICES": "1"}, [S, "cuda:1"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-def,GPU-abc"}, [S, R]),
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "1"}, [R, "cuda:1"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [S, "cuda:1"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, [R, "cuda:1"]),
    ],
)
def test_amd_cards(amd: Path, env: dict[str, str], found: list[str]) -> None:
    assert keys(amd, 2, HIP, **env) == found


def test_a_container_without_the_first_cards_file(amd: Path) -> None:
    (amd / "dev/dri").mkdir(parents=True)
    (amd / "dev/dri/renderD138").touch()
    assert keys(amd, 2, HIP) == [S, "cuda:1"]


def test_one_intel_card_is_that_one_and_two_are_none(tmp_path: Path) -> None:
    add_card(tmp_path, "0000:00:02.0", "8086", "56a0")
    assert identify("xpu:0", root=tmp_path, env={}, build=XPU).key == "pci 0000:00:02.0 8086:56a0"
    add_card(tmp_path, "0000:03:00.0", "8086", "56a0")
    assert identify("xpu:0", root=tmp_path, env={}, build=XPU).key == "xpu:0"


@pytest.mark.parametrize("label", ["cuda:0", "cuda:7", "xpu:0", "mps", "pretend:0", "cuda:x", "strange"])
def test_what_cannot_be_found_stands_for_itself(tmp_path: Path, label: str) -> None:
    here = identify(label, root=tmp_path, env={}, build={})
    assert (here.label, here.key, here.on_cpu) == (label, label, False)


def test_the_cpu_is_the_cpu(tmp_path: Path) -> None:
    assert identify("cpu", root=tmp_path).on_cpu


# Machines --------------------------------------------------------------------------------------------------------


def test_machines_are_told_apart(tmp_path: Path) -> None:
    """By machine-id; in a container, whose machine-id may be its image's, by the firmware."""
    found = set()
    for number in (1, 2):
        root = tmp_path / str(number)
        (root / "etc").mkdir(parents=True)
        (root / "etc/machine-id").write_text(f"{number}" * 32)
        found.add(machine_key(root))
        (root / ".dockerenv").touch()
        (root / "etc/machine-id").write_text("0" * 32)
        (root / "sys/class/dmi/id").mkdir(parents=True)
        (root / "sys/class/dmi/id/product_uuid").write_text(f"uuid-{number}")
        found.add(machine_key(root))
    assert len(found) == 4
    assert all(len(key) == 16 for key in found)
    assert machine_key() == machine_key()
