"""The parts of the inventory: tools in children, the installed torch, the disk, single readers; and this machine."""

from __future__ import annotations

import json
import os
import platform
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import processes
from holdfast.devices import inventory as candidates_of
from holdfast.devices import survey
from holdfast.devices.survey import build, disk, intel, nvidia, windows
from holdfast.devices.survey.tools import Answer, run_tool, tool_name

from . import machines

# Tools ------------------------------------------------------------------------------------------------------------


def test_a_tool_that_is_not_installed_is_no_trouble() -> None:
    assert run_tool(["holdfast-no-such-tool"], 5.0) == Answer()


def test_a_tool_that_fails_says_why() -> None:
    answer = run_tool([sys.executable, "-c", "import sys; sys.exit('no driver here')"], 30.0)
    assert answer == Answer(None, f"{tool_name([sys.executable])} ended with code 1: no driver here")


def test_a_tool_that_answers() -> None:
    assert run_tool([sys.executable, "-c", "print('gfx1010')"], 30.0).text == "gfx1010\n"


@pytest.mark.skipif(not processes.LINUX, reason="needs /proc to see that nothing is left")
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
        while (info := processes.inspect(pid)) is not None and info.state != "Z" and time.monotonic() < deadline:
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
    if processes.LINUX:
        assert found["cpu"]["threads"] >= found["cpu"]["threads_allowed"]
        assert found["cpu"]["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert found["system"]["kernel"] == platform.release()
        assert found["disk"]["filesystem"]
        assert isinstance(found["cpu"]["features"], list)
    ids = [device["id"] for device in found["devices"] if device["visible"]]
    assert ids == candidates_of.candidates()


@pytest.mark.skipif(not processes.LINUX, reason="only Linux has its devices in files")
def test_a_capture_of_this_machine_has_the_same_inventory(tmp_path: Path) -> None:
    """What is missing in the copy would be missing in every machine that a user passes on."""
    script = Path(__file__).parents[2] / "scripts/capture_machine.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    words = [sys.executable, str(script), "here", "--to", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False, env=env)
    assert done.returncode == 0, done.stderr
    copy = machines.load("here", tmp_path / "root", tmp_path).inventory().to_json()
    here = survey.take().to_json()
    for device in (*copy["devices"], *here["devices"]):
        device["uuid"] = None  # replaced in the copy
    assert copy == here


def test_a_capture_hides_what_names_a_card_or_a_person() -> None:
    path = Path(__file__).parents[2] / "scripts/capture_machine.py"
    hidden = runpy.run_path(str(path))["Hidden"]()
    first, second = (f"GPU-0309{n}2d6-a6fc-78ff-a6af-576cd1aa93d1" for n in (4, 5))
    text = f"{first} {second} {first}\nunique_id 8234567890\nunique_id 0\nLinux version 6.8 (me@home) (gcc 13)\n"
    made = [f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in (1, 2, 1)]
    assert hidden.without(text) == f"{' '.join(made)}\nunique_id 3\nunique_id 0\nLinux version 6.8 (gcc 13)\n"
    assert hidden.without(second) == made[1]


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


def test_a_driver_older_than_the_question() -> None:
    """It refuses a question with a field it does not know; the rest is asked again."""
    asked: list[str] = []

    def run(words: Any, deadline: float) -> Answer:
        asked.append(words[1])
        if "compute_cap" in words[1]:
            return Answer(None, 'nvidia-smi ended with code 2: Field "compute_cap" is not a valid field to query.')
        return Answer("00000000:01:00.0, 0x1B8010DE, GeForce GTX 1080, GPU-1, 8119, 470.256.02\n")

    troubles: list[str] = []
    (card,), _ = nvidia.look([], Path("/nowhere"), run, troubles, always=True)
    assert (card.name, card.arch, card.driver) == ("GeForce GTX 1080", None, "nvidia 470.256.02")
    assert len(asked) == 2 and troubles == []


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
