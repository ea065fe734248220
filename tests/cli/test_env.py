"""`holdfast env`: the block for another machine's files, held as text; and the real machine, in a process."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.env import block
from holdfast.run import machine

from .conftest import Command


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def card(root: Path, address: str, driver: str | None, **files: str) -> None:
    folder = f"sys/bus/pci/devices/{address}"
    tree(root, {f"{folder}/{name}": text for name, text in files.items()})
    if driver:
        (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (root / folder / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)


@pytest.fixture
def amd_laptop(tmp_path: Path) -> Path:
    """A laptop with a card and an integrated GPU of AMD, and an NVIDIA card nobody drives."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    root = tree(
        tmp_path,
        {
            "sys/module/amdgpu/version": "6.10.5\n",
            f"{nodes}/0/properties": "cpu_cores_count 32\ngfx_target_version 0\n",
            f"{nodes}/1/properties": "gfx_target_version 110000\nlocation_id 768\ndomain 0\n",
            f"{nodes}/2/properties": "gfx_target_version 90010\nlocation_id 3328\ndomain 0\n",
            "usr/share/misc/pci.ids": "1002  Advanced Micro Devices\n"
            "\t744c  Navi 31 [Radeon RX 7900 XT/XTX]\n"
            "\t\t1002 0e3b  a subsystem\n"
            "10de  NVIDIA Corporation\n"
            "\t2335  GH100 [H200 SXM 141GB]\n",
            "dev/kfd": "",
            "dev/dri/renderD128": "",
        },
    )
    card(root, "0000:03:00.0", "amdgpu", **{"class": "0x030000\n", "vendor": "0x1002\n", "device": "0x744c\n"})
    tree(root, {"sys/bus/pci/devices/0000:03:00.0/mem_info_vram_total": "25753026560\n"})
    card(root, "0000:0d:00.0", "amdgpu", **{"class": "0x038000\n", "vendor": "0x1002\n", "device": "0x15bf\n"})
    card(root, "0000:41:00.0", None, **{"class": "0x030200\n", "vendor": "0x10de\n", "device": "0x2335\n"})
    card(root, "0000:00:1f.3", None, **{"class": "0x040300\n", "vendor": "0x8086\n", "device": "0x51c8\n"})
    return root


def test_cards_are_read_from_the_kernel(amd_laptop: Path) -> None:
    assert machine.gpus(amd_laptop) == [
        {
            "name": "Navi 31 [Radeon RX 7900 XT/XTX]",
            "vendor": "AMD",
            "pci": "0000:03:00.0",
            "id": "1002:744c",
            "driver": "amdgpu 6.10.5",
            "memory_bytes": 25753026560,
            "gfx": "gfx1100",
        },
        {
            "name": None,
            "vendor": "AMD",
            "pci": "0000:0d:00.0",
            "id": "1002:15bf",
            "driver": "amdgpu 6.10.5",
            "memory_bytes": None,
            "gfx": "gfx90a",
        },
        {
            "name": "GH100 [H200 SXM 141GB]",
            "vendor": "NVIDIA",
            "pci": "0000:41:00.0",
            "id": "10de:2335",
            "driver": None,
            "memory_bytes": None,
            "gfx": None,
        },
    ]


def test_a_container_that_shows_only_the_nvidia_driver(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA H200\nIRQ: 5\n",
            "sys/module/nvidia/version": "570.86.15\n",
        },
    )
    assert machine.gpus(tmp_path) == [
        {
            "name": "NVIDIA H200",
            "vendor": "NVIDIA",
            "pci": "0000:01:00.0",
            "id": None,
            "driver": "nvidia 570.86.15",
            "memory_bytes": None,
            "gfx": None,
        }
    ]


def test_system_and_memory(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu\n',
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD Ryzen 9 7950X 16-Core Processor\n",
            "proc/meminfo": "MemTotal:   64000000 kB\nMemAvailable: 32000000 kB\nSwapTotal:   0 kB\n",
        },
    )
    assert machine.system(tmp_path)["name"] == "Ubuntu 24.04.1 LTS"
    assert machine.cpu_model(tmp_path) == "AMD Ryzen 9 7950X 16-Core Processor"
    assert machine.memory(tmp_path) == {
        "total_bytes": 65536000000,
        "available_bytes": 32768000000,
        "swap_bytes": 0,
        "shm_bytes": None,
        "shm_free_bytes": None,
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"proc/1/cgroup": "0::/kubepods/burstable/pod1\n"}, "kubernetes"),
        ({"proc/self/cgroup": "4:memory:/docker/abc\n"}, "docker"),
        ({"proc/1/environ": "HOME=/\0container=lxc\0"}, "lxc"),
    ],
)
def test_containers(tmp_path: Path, files: dict[str, str], expected: str | None) -> None:
    assert machine.container(tree(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("Linux version 6.8.0-45-generic", None),
        ("Linux version 5.15.153.1-microsoft-standard-WSL2", 2),
        ("Linux version 4.4.0-19041-Microsoft", 1),
    ],
)
def test_wsl(tmp_path: Path, version: str, expected: int | None) -> None:
    assert machine.wsl(tree(tmp_path, {"proc/version": version})) == expected


def test_limits_of_version_2_are_the_strictest_on_the_way_up(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job\n",
            "sys/fs/cgroup/user.slice/job/memory.max": "max\n",
            "sys/fs/cgroup/user.slice/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/user.slice/memory.max": "8589934592\n",
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/pids.max": "1024\n",
        },
    )
    assert machine.limits(tmp_path) == {"memory_bytes": 8589934592, "cpus": 1.5, "processes": 1024}


def test_limits_of_version_1(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n2:cpu,cpuacct:/\n0::/\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4294967296\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert machine.limits(tmp_path) == {"memory_bytes": 4294967296, "cpus": 2.0, "processes": None}


def test_no_limit_is_none(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n2:cpu:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert machine.limits(tmp_path) == {"memory_bytes": None, "cpus": None, "processes": None}


def test_an_arm_cpu_gets_its_name(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n",
            "sys/firmware/devicetree/base/model": "Raspberry Pi 5 Model B\0",
        },
    )
    assert machine.cpu_model(tmp_path) == "Cortex-A76, Raspberry Pi 5 Model B"


def test_variables_come_from_the_allow_list_and_secrets_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    env = {
        "CUDA_VISIBLE_DEVICES": "0",
        "HSA_OVERRIDE_GFX_VERSION": "11.0.0",
        "LD_LIBRARY_PATH": "/opt/rocm/lib:/home/ann/lib",
        "HOLDFAST_RUN_SEED": "7",
        "HOLDFAST_NOTIFY_URL": "webhook",
        "TORCH_HUB_TOKEN": "abc",
        "NCCL_SECRET_SHARED": "abc",
        "TORCH_HOME": "https://ann:pw@cache.example/x",
        "PYTORCH_X": "hf_abcdefghijklmnop",
        "AWS_SECRET_ACCESS_KEY": "abc",
        "USER": "ann",
        "PATH": "/bin",
        "SSH_AUTH_SOCK": "/tmp/x",
    }
    assert machine.environment(env) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "HOLDFAST_RUN_SEED": "7",
        "HSA_OVERRIDE_GFX_VERSION": "11.0.0",
        "LD_LIBRARY_PATH": "/opt/rocm/lib:~/lib",
        "PYTORCH_X": "(left out)",
        "TORCH_HOME": "(left out)",
    }


BLOCK = """\
```text
holdfast     0.1.0
Python       3.12.4 (CPython), ~/env/bin/python
system       Ubuntu 24.04.1 LTS, Linux 6.8.0-45, x86_64, WSL 2, in a container (docker)
CPU          AMD Ryzen 9 7950X 16-Core Processor, 32 cores, 16 usable
memory       65.5 GB, 32.8 GB available, swap 0 B, /dev/shm 60.0 MB free of 67.1 MB
limits       memory 8.6 GB, 1.5 CPUs, 1 024 processes
torch        2.8.0+rocm6.4 (HIP 6.4.43)
packages     numpy 2.4.6, rich 15.0.0
GPU          AMD Navi 31 [Radeon RX 7900 XT/XTX], gfx1100, 25.8 GB, 1002:744c, at 0000:03:00.0, amdgpu 6.10.5
             AMD unknown card, gfx90a, 1002:15bf, at 0000:0d:00.0, amdgpu 6.10.5
             NVIDIA GH100 [H200 SXM 141GB], 10de:2335, at 0000:41:00.0, no driver
files        /dev/kfd (no access) /dev/dri/renderD128
environment  HIP_VISIBLE_DEVICES=0
             OMP_NUM_THREADS=8
```"""


def example(cards: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "holdfast": "0.1.0",
        "python": {"version": "3.12.4", "implementation": "CPython", "executable": "~/env/bin/python"},
        "system": {
            "name": "Ubuntu 24.04.1 LTS",
            "kernel": "Linux 6.8.0-45",
            "machine": "x86_64",
            "container": "docker",
            "wsl": 2,
        },
        "cpu": {"model": "AMD Ryzen 9 7950X 16-Core Processor", "count": 32, "usable": 16},
        "memory": {
            "total_bytes": 65536000000,
            "available_bytes": 32768000000,
            "swap_bytes": 0,
            "shm_bytes": 67108864,
            "shm_free_bytes": 60000000,
        },
        "limits": {"memory_bytes": 8589934592, "cpus": 1.5, "processes": 1024},
        "torch": {
            "version": "2.8.0+rocm6.4",
            "cuda": None,
            "hip": "6.4.43",
            "rocm": None,
            "xpu": None,
            "git": "abc",
        },
        "packages": {"numpy": "2.4.6", "rich": "15.0.0", "py-spy": None},
        "gpus": cards,
        "device_files": {"/dev/kfd": False, "/dev/dri/renderD128": True},
        "environment": {"HIP_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "8"},
    }


def test_the_block_of_a_full_machine(amd_laptop: Path) -> None:
    assert "\n".join(block(example(machine.gpus(amd_laptop)))) == BLOCK


def test_the_block_of_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    facts = example([]) | {
        "holdfast": None,
        "cpu": {"model": None, "count": None, "usable": None},
        "memory": dict.fromkeys(("total_bytes", "available_bytes", "swap_bytes", "shm_bytes", "shm_free_bytes")),
        "limits": machine.limits(tmp_path),
        "torch": dict.fromkeys(("version", "cuda", "hip", "rocm", "xpu", "git")),
        "packages": {"numpy": None},
        "device_files": machine.device_files(tmp_path),
        "environment": {},
    }
    text = "\n".join(block(facts))
    assert "holdfast  not installed" in text
    assert "CPU       unknown, unknown cores" in text
    assert "memory    -, - available, swap -, /dev/shm - free of -" in text
    assert "limits    none seen" in text
    assert "torch     not installed" in text
    assert "GPU       none seen by the kernel" in text
    assert "environment" not in text
    assert "files" not in text


def test_device_files_and_whether_we_may_open_them(amd_laptop: Path) -> None:
    (amd_laptop / "dev/kfd").chmod(0o000)
    allowed = os.geteuid() == 0  # root may open anything
    assert machine.device_files(amd_laptop) == {"/dev/kfd": allowed, "/dev/dri/renderD128": True}


# The real machine -----------------------------------------------------------------------------------------


def test_the_real_machine_without_importing_torch(command: Command) -> None:
    done = command("env", env={"OMP_NUM_THREADS": "2", "HF_TOKEN": "hf_secret"})
    assert (done.err, done.code) == ("", 0)
    lines = done.out.splitlines()
    assert (lines[0], lines[-1]) == ("```text", "```")
    assert [line.split(" ")[0] for line in lines[1:9]] == [
        "holdfast",
        "Python",
        "system",
        "CPU",
        "memory",
        "limits",
        "torch",
        "packages",
    ]
    assert platform.python_version() in lines[2]
    assert "OMP_NUM_THREADS=2" in done.out
    assert "hf_secret" not in done.out


def test_the_real_machine_as_json(command: Command) -> None:
    done = command("env", "--json")
    assert (done.err, done.code) == ("", 0)
    facts = json.loads(done.out)
    assert facts["schema"] == 1
    assert facts["cpu"]["count"] == os.cpu_count()
    assert facts["memory"]["total_bytes"] > 2**28


def test_the_version_of_torch_is_the_one_that_imports() -> None:
    torch = pytest.importorskip("torch")
    build = machine.torch_build()
    assert build["version"] == torch.__version__
    assert (build["cuda"], build["hip"]) == (torch.version.cuda, torch.version.hip)


def test_a_torch_that_is_broken_is_still_reported(command: Command, here: Path) -> None:
    tree(
        here,
        {
            "torch/__init__.py": "raise RuntimeError('broken')\n",
            "torch/version.py": "__version__ = '9.9.9+broken'\ncuda: str | None = '77.7'\nhip = None\n",
        },
    )
    done = command("env", env={"PYTHONPATH": os.pathsep.join([str(here), *sys.path])})
    assert "torch        9.9.9+broken (CUDA 77.7)" in done.out
    assert done.code == 0
