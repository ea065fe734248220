"""The inventory of machines made of files, held as JSON; and what is behind single lines of it.

HOLDFAST_UPDATE_SNAPSHOTS=1 pytest tests/devices/test_survey.py      # write the snapshots anew, then read the diff
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.devices import inventory as candidates_of
from holdfast.devices import survey
from holdfast.devices.survey import amd
from holdfast.devices.survey.tools import Answer, tool_name

from . import machines

LISTED = {
    "rx-5600-xt",
    "rx-5600-xt-masquerading",
    "rx-7900-xtx",
    "gfx1151-apu",
    "mi300x",
    "gtx-1060",
    "rtx-3090",
    "h200",
    "two-nvidia-unlike",
    "intel-arc-a770",
    "m2",
    "wsl2-rx-9070-xt",
    "container-without-kfd",
    "windows-rx-9070-xt",
}
"""The machines the doctor has to know; there are more."""


# Whole machines --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", machines.NAMES)
def test_the_inventory_of_a_machine(name: str, tmp_path: Path) -> None:
    found = machines.load(name, tmp_path).inventory().to_json()
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    path = machines.FIXTURES / name / "inventory.json"
    if os.environ.get("HOLDFAST_UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert str(tmp_path) not in text
    assert found == json.loads(path.read_text())


def test_every_machine_of_the_list_is_here() -> None:
    assert set(machines.NAMES) >= LISTED


@pytest.mark.parametrize("name", machines.NAMES)
def test_a_run_tries_what_the_inventory_shows(name: str, tmp_path: Path) -> None:
    """Two ways to the same list: the short one, which asks no tool, is what a run starts with."""
    there = machines.load(name, tmp_path)
    if there.host.os != "linux":
        pytest.skip(f"the short way asks Python which system this is, and this is no {there.host.os}")
    short = candidates_of.candidates(root=there.root, build=there.build, env=there.env)
    assert short == there.inventory().visible


@pytest.mark.parametrize("name", machines.NAMES)
def test_a_machine_whose_tools_are_all_missing(name: str, tmp_path: Path) -> None:
    """What files tell stays; what only tools tell is unknown, and nothing breaks."""
    there = machines.load(name, tmp_path)
    full = {device.id: device for device in there.inventory().devices}
    bare = survey.take(there.root, lambda words, deadline: Answer(), there.env, there.build, host=there.host)
    assert bare.devices[-1].id == "cpu"
    for device in bare.devices:
        told = full.get(device.id)
        if told and device.id_certain:
            assert device.arch in (None, told.arch)
            assert device.memory_bytes in (None, told.memory_bytes)


@pytest.mark.parametrize(
    "noise", ["", "\0\xff", "[]", "{}", "null", "a, b\n", "Agent 1\n", "*" * 9, '{"cards": [[1], {"Name": 3}]}']
)
@pytest.mark.parametrize(
    "name", ["rx-5600-xt", "rtx-3090", "intel-arc-a770", "m2", "wsl2-rx-9070-xt", "windows-rx-9070-xt"]
)
def test_tools_that_talk_nonsense(name: str, noise: str, tmp_path: Path) -> None:
    there = machines.load(name, tmp_path)
    found = survey.take(there.root, lambda words, deadline: Answer(noise), there.env, there.build, host=there.host)
    assert found.devices[-1].id == "cpu"
    json.dumps(found.to_json())


def test_files_that_hold_nonsense(tmp_path: Path) -> None:
    there = machines.load("rx-5600-xt", tmp_path)
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(b"\xff\x00 gfx_target_version x\n:::\n-1 0x\n")
    assert there.inventory().visible == ["cpu"]


# The card under a false name ----------------------------------------------------------------------------------------


def test_a_card_keeps_its_true_name_when_the_environment_lies(tmp_path: Path) -> None:
    there = machines.load("rx-5600-xt-masquerading", tmp_path)
    card = there.inventory().devices[0]
    assert (card.arch, card.arch_basis, card.claimed_arch, card.masquerading) == ("gfx1010", "kernel", "gfx1030", True)
    assert card.notes == ["HSA_OVERRIDE_GFX_VERSION=10.3.0 makes it gfx1030; it is gfx1010"]


def test_the_variable_alone_tells_where_rocminfo_is_missing(tmp_path: Path) -> None:
    there = machines.load("rx-5600-xt", tmp_path)
    env = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}
    found = survey.take(there.root, lambda words, deadline: Answer(), env, there.build, host=there.host)
    assert found.devices[0].claimed_arch == "gfx1030"


def test_the_runtime_alone_tells_where_the_variable_is_not_in_our_environment(tmp_path: Path) -> None:
    there = machines.load("rx-5600-xt-masquerading", tmp_path)
    found = survey.take(there.root, there.run, {}, there.build, host=there.host)
    assert found.devices[0].masquerading
    assert found.devices[0].notes == ["the ROCm runtime makes it gfx1030; it is gfx1010"]


@pytest.mark.parametrize(
    ("env", "claims"),
    [
        ({"HSA_OVERRIDE_GFX_VERSION_2": "10.3.0"}, [None, "gfx1030"]),
        ({"HSA_OVERRIDE_GFX_VERSION_1": "11.0.1", "HSA_OVERRIDE_GFX_VERSION": "10.3.0"}, ["gfx1101", "gfx1030"]),
        ({"HSA_OVERRIDE_GFX_VERSION": "9.0.10"}, ["gfx90a", "gfx90a"]),
        ({"HSA_OVERRIDE_GFX_VERSION": "gfx1030"}, [None, None]),
        ({"HSA_OVERRIDE_GFX_VERSION": ""}, [None, None]),
    ],
)
def test_an_override_may_mean_one_node(env: dict[str, str], claims: list[str | None], tmp_path: Path) -> None:
    there = machines.load("two-amd-with-igpu", tmp_path)
    found = survey.take(there.root, lambda words, deadline: Answer(), env, there.build, host=there.host)
    assert [card.claimed_arch for card in found.gpus] == claims
    if env.get("HSA_OVERRIDE_GFX_VERSION") == "gfx1030":
        assert found.gpus[0].notes == ["HSA_OVERRIDE_GFX_VERSION is 'gfx1030', which is no version like 10.3.0"]


@pytest.mark.parametrize(
    ("version", "name"),
    [(100100, "gfx1010"), (90010, "gfx90a"), (90012, "gfx90c"), (90402, "gfx942"), (110501, "gfx1151"), (0, None)],
)
def test_the_kernels_number_as_a_name(version: int, name: str | None) -> None:
    assert amd.gfx_name(version) == name


# What torch counts ----------------------------------------------------------------------------------------------------


def test_unlike_cards_are_counted_as_cuda_says(tmp_path: Path) -> None:
    there = machines.load("two-nvidia-unlike", tmp_path)
    fast, slow = there.inventory().gpus
    assert (fast.id, fast.arch, fast.pci) == ("cuda:0", "sm_86", "0000:41:00.0")
    assert (slow.id, slow.arch, slow.id_certain) == ("cuda:1", "sm_61", True)
    by_bus = there.inventory(CUDA_DEVICE_ORDER="PCI_BUS_ID").gpus
    assert [card.arch for card in by_bus] == ["sm_61", "sm_86"]


def test_unlike_cards_whose_order_nobody_tells(tmp_path: Path) -> None:
    there = machines.load("two-nvidia-unlike", tmp_path)

    def run(words: Any, deadline: float) -> Answer:
        return (
            Answer(None, "cuda_order ended with code 1")
            if tool_name(words) == "cuda_order"
            else there.run(words, deadline)
        )

    found = survey.take(there.root, run, there.env, there.build, host=there.host)
    assert [(card.id, card.id_certain) for card in found.gpus] == [("cuda:0", False), ("cuda:1", False)]
    assert found.gpus[0].notes == ["which of the 2 cards torch calls cuda:0 is not known before torch is asked"]
    assert found.system.troubles == ["cuda_order ended with code 1"]


@pytest.mark.parametrize(
    ("name", "env", "visible", "note"),
    [
        ("rtx-3090", {"CUDA_VISIBLE_DEVICES": ""}, ["cpu"], "hidden by CUDA_VISIBLE_DEVICES="),
        ("rx-7900-xtx", {"HIP_VISIBLE_DEVICES": "-1"}, ["cpu"], "hidden by HIP_VISIBLE_DEVICES=-1"),
        ("two-amd-with-igpu", {"ROCR_VISIBLE_DEVICES": "1"}, ["cuda:0", "cpu"], "hidden by ROCR_VISIBLE_DEVICES=1"),
        (
            "two-nvidia-unlike",
            {"CUDA_VISIBLE_DEVICES": "GPU-00000000-1060"},
            ["cuda:0", "cpu"],
            "hidden by CUDA_VISIBLE_",
        ),
    ],
)
def test_a_hidden_card_says_what_hides_it(
    name: str, env: dict[str, str], visible: list[str], note: str, tmp_path: Path
) -> None:
    found = machines.load(name, tmp_path).inventory(**env)
    assert found.visible == visible
    hidden = [card for card in found.gpus if not card.visible]
    assert len(hidden) == 1
    assert hidden[0].id == f"pci:{hidden[0].pci}"
    assert hidden[0].notes[-1].startswith(note)


def test_no_torch_at_all(tmp_path: Path) -> None:
    there = machines.load("rtx-3090", tmp_path)
    found = survey.take(there.root, there.run, there.env, {}, host=there.host)
    assert found.visible == ["cpu"]
    assert found.gpus[0].notes == ["torch is not installed"]
    assert found.gpus[0].arch == "sm_86"


def test_a_card_that_no_driver_has_taken(tmp_path: Path) -> None:
    there = machines.load("rtx-3090", tmp_path)
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0/driver").unlink()
    for folder in ("proc/driver/nvidia/gpus/0000:01:00.0/information", "dev/nvidia0", "dev/nvidiactl"):
        (tmp_path / folder).unlink()
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").rmdir()
    found = survey.take(there.root, lambda words, deadline: Answer(), there.env, there.build, host=there.host)
    assert found.visible == ["cpu"]
    assert found.gpus[0].notes[0] == "no driver has taken this card"


@pytest.mark.parametrize(("name", "place"), [("rtx-3090", "0000:01:00.0"), ("intel-arc-a770", "0000:03:00.0")])
def test_a_card_given_to_a_virtual_machine_is_not_ours(name: str, place: str, tmp_path: Path) -> None:
    there = machines.load(name, tmp_path)
    for path in [*tmp_path.glob("dev/nvidia*"), *tmp_path.glob("proc/driver/nvidia/gpus/*/*")]:
        path.unlink()
    for path in tmp_path.glob("proc/driver/nvidia/gpus/*"):
        path.rmdir()
    driver = tmp_path / "sys/bus/pci/devices" / place / "driver"
    driver.unlink()
    (tmp_path / "sys/bus/pci/drivers/vfio-pci").mkdir()
    driver.symlink_to(tmp_path / "sys/bus/pci/drivers/vfio-pci")
    found = survey.take(there.root, lambda words, deadline: Answer(), there.env, there.build, host=there.host)
    assert found.visible == ["cpu"] == candidates_of.candidates(root=there.root, build=there.build, env=there.env)
    assert found.gpus[0].driver == "vfio-pci"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may open everything")
def test_a_user_who_may_not_open_the_device(tmp_path: Path) -> None:
    there = machines.load("rx-7900-xtx", tmp_path)
    (tmp_path / "dev/kfd").chmod(0)
    found = there.inventory()
    assert found.visible == ["cpu"]
    assert found.gpus[0].notes == ["this user may not open /dev/kfd: join the groups render and video"]


def test_windows_counts_the_gpu_inside_the_processor_first(tmp_path: Path) -> None:
    found = machines.load("windows-two-amd", tmp_path).inventory()
    assert [(card.id, card.arch, card.integrated) for card in found.gpus] == [
        ("cuda:0", "gfx1036", True),
        ("cuda:1", "gfx1100", False),
    ]
