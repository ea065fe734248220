"""The inventory of machines made of files, held as JSON; and what is behind single lines of it.

HOLDFAST_UPDATE_SNAPSHOTS=1 pytest tests/devices/test_survey.py      # write the snapshots anew, then read the diff
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.devices import inventory as candidates_of
from holdfast.devices import survey
from holdfast.devices.survey import amd, build, disk, intel, nvidia, windows
from holdfast.devices.survey.tools import Answer, run_tool, tool_name
from holdfast.runtime import process

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
    assert "no driver has taken this card" in found.gpus[0].notes


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may open everything")
def test_a_user_who_may_not_open_the_device(tmp_path: Path) -> None:
    there = machines.load("rx-7900-xtx", tmp_path)
    (tmp_path / "dev/kfd").chmod(0)
    found = there.inventory()
    assert found.visible == ["cpu"]
    assert found.gpus[0].notes == ["this user may not open /dev/kfd: join the groups render and video"]


# Tools ------------------------------------------------------------------------------------------------------------


def test_a_tool_that_is_not_installed_is_no_trouble() -> None:
    assert run_tool(["holdfast-no-such-tool"], 5.0) == Answer()


def test_a_tool_that_fails_says_why() -> None:
    answer = run_tool([sys.executable, "-c", "import sys; sys.exit('no driver here')"], 30.0)
    assert answer == Answer(None, f"{tool_name([sys.executable])} ended with code 1: no driver here")


def test_a_tool_that_answers() -> None:
    assert run_tool([sys.executable, "-c", "print('gfx1010')"], 30.0).text == "gfx1010\n"


@pytest.mark.skipif(not process.LINUX, reason="needs /proc to see that nothing is left")
def test_a_tool_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """One that ignores SIGTERM and has started another."""
    pids = tmp_path / "pids"
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    began = time.monotonic()
    answer = run_tool([sys.executable, "-c", code], 3.0)
    assert answer.text is None
    assert answer.trouble == f"{tool_name([sys.executable])} gave no answer in 3 s"
    assert time.monotonic() - began < 60
    for pid in map(int, pids.read_text().split()):
        deadline = time.monotonic() + 20
        while (info := process.inspect(pid)) is not None and info.state != "Z" and time.monotonic() < deadline:
            time.sleep(0.02)
        assert info is None or info.state == "Z"


def test_the_inventory_waits_for_no_tool_longer_than_it_says(tmp_path: Path) -> None:
    """Every question has a deadline."""
    asked: list[float] = []

    def run(words: Any, deadline: float) -> Answer:
        asked.append(deadline)
        return Answer()

    for name in machines.NAMES:
        there = machines.load(name, tmp_path / name)
        survey.take(there.root, run, {}, there.build, host=there.host)
    assert asked and max(asked) <= 20


# What torch was built for ------------------------------------------------------------------------------------------


def library(folder: Path, *strings: bytes) -> Path:
    (folder / "lib").mkdir()
    (folder / "lib/libtorch_python.so").write_bytes(b"\x7fELF" + b"\0".join([b"", b"compute_mesh", *strings, b"rest"]))
    return folder


@pytest.mark.parametrize(
    ("string", "found"),
    [
        (b"sm_80 sm_90 sm_100 compute_100", ["sm_80", "sm_90", "sm_100", "compute_100"]),
        (b"gfx900 gfx90a:xnack- gfx1010", ["gfx900", "gfx90a", "gfx1010"]),
        (b"sm_90a", ["sm_90a"]),
        (b"gfx1151;gfx1201", ["gfx1151", "gfx1201"]),
        (b"sm_ of something", None),
        (b"", None),
    ],
)
def test_architectures_are_read_from_the_library(string: bytes, found: list[str] | None, tmp_path: Path) -> None:
    assert build.built_for(library(tmp_path, string)) == found


def test_a_torch_without_its_library(tmp_path: Path) -> None:
    assert build.built_for(tmp_path) is None


def test_the_installed_torch_says_the_same_as_torch_itself() -> None:
    """What was found in the file against what torch answers from memory."""
    import torch

    said = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else None
    assert build.read_build().archs == (said.split() if said else None)
    assert build.read_build().version == torch.__version__


# The real machine -----------------------------------------------------------------------------------------------------


def test_this_machine(tmp_path: Path) -> None:
    """In a fresh process, without torch; every value that Python knows another way agrees."""
    code = (
        "import json, pathlib, sys\n"
        "from holdfast.devices import survey\n"
        f"found = survey.take(folder=pathlib.Path({str(tmp_path)!r}))\n"
        "assert 'torch' not in sys.modules\n"
        "print(json.dumps(found.to_json()))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["devices"][-1]["id"] == "cpu"
    assert found["cpu"]["threads_allowed"] >= 1
    assert found["system"]["machine"] == platform.machine()
    assert found["disk"]["free_bytes"] > 0
    if process.LINUX:
        assert found["cpu"]["threads"] >= found["cpu"]["threads_allowed"]
        assert found["cpu"]["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert found["system"]["kernel"] == platform.release()
        assert found["disk"]["filesystem"]
        assert isinstance(found["cpu"]["features"], list)
    ids = [device["id"] for device in found["devices"] if device["visible"]]
    assert ids == candidates_of.candidates()


def test_the_child_that_asks_cuda_ends_when_there_is_no_driver() -> None:
    words = [sys.executable, "-m", "holdfast.devices.survey.cuda_order"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode == 0:
        assert all(row["pci"] and row["name"] for row in json.loads(done.stdout))
    else:
        assert done.returncode > 0  # an error, no crash
        assert done.stderr


# Small readers ----------------------------------------------------------------------------------------------------


def test_the_words_of_nvidia_smi_for_unknown() -> None:
    text = "00000009:01:00.0, 0x2E1210DE, NVIDIA GB10, GPU-1, [N/A], 580.95.05, 12.1\n"
    found, versions = nvidia.look([], Path("/nowhere"), lambda words, deadline: Answer(text), [], always=True)
    (card,) = found
    assert (card.pci, card.arch, card.memory_bytes, card.integrated) == ("0009:01:00.0", "sm_121", None, None)
    assert versions == {"nvidia": "580.95.05"}


def test_sycl_ls_in_its_older_form() -> None:
    old = "[ext_oneapi_level_zero:gpu:0] Intel(R) Level-Zero, Intel(R) Arc(TM) A770 Graphics 1.3 [1.3.29138]\n"
    card = {"pci": "0000:03:00.0", "name": "DG2 [Arc A770]", "id": "8086:56a0", "driver": "xe", "memory_bytes": None}
    found, versions = intel.look([card], lambda words, _: Answer(old) if words[0] == "sycl-ls" else Answer(), [])
    assert (found[0].name, found[0].memory_bytes) == ("Intel Arc A770 Graphics", None)
    assert versions == {"level_zero": "1.3.29138"}


def test_a_remote_desktop_is_no_card() -> None:
    said = {"cards": [{"Name": "Microsoft Remote Display Adapter", "PNPDeviceID": "SWD\\REMOTEDISPLAYENUM\\1"}]}
    assert windows.ask(lambda words, deadline: Answer(json.dumps(said)), []).cards == []


MOUNTS = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
30 22 0:25 / /dev/shm rw,nosuid - tmpfs tmpfs rw
41 22 0:52 / /home/all\\040of\\040us rw - nfs4 server:/home rw
50 22 8:1 / /data rw - xfs /dev/sda1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "ext4"),
        ("/dev/shm/runs", "tmpfs"),
        ("/home/all of us/runs", "nfs4"),
        ("/data", "xfs"),
        ("/", "ext4"),
    ],
)
def test_the_file_system_that_holds_a_folder(path: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTS)
    assert disk.mounted(Path(path), tmp_path)[0] == kind


def test_a_disk_that_turns(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
    block = tmp_path / "sys/devices/ata/block/sda"
    (block / "sda1").mkdir(parents=True)
    (block / "queue").mkdir()
    (block / "queue/rotational").write_text("1\n")
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/8:1").symlink_to(block / "sda1")
    found = disk.look(Path("/runs/not/there/yet"), tmp_path)
    assert (found.filesystem, found.rotating, found.in_memory, found.over_network) == ("ext4", True, False, False)
    assert found.free_bytes and found.total_bytes
