"""What sensors say: from files of a pretended kernel, from a pretended driver library, and from this machine."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.devices import nvidia
from holdfast.monitor import devices
from holdfast.monitor.devices import Sensors

LIBRARY = r"""
#include <string.h>
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned long long total, free, used; } Memory;
static int cards[2] = {0, 1};
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = &cards[i]; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, Memory *m) { m->total = 24000; m->used = *(int *)h ? 100 : 18100; return 0; }
int nvmlDeviceGetUtilizationRates(void *h, Rates *r) { if (*(int *)h) return 3; r->gpu = 94; return 0; }
int nvmlDeviceGetTemperature(void *h, int which, unsigned *t) { if (*(int *)h) return 3; *t = 78; return 0; }
int nvmlDeviceGetPowerUsage(void *h, unsigned *p) { if (*(int *)h) return 3; *p = 288400; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *h, unsigned *p) { if (*(int *)h) return 3; *p = 350000; return 0; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) { strncpy(s, *(int *)h ? "Old Card" : "RTX 4090", n); return 0; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) { strncpy(s, *(int *)h ? "GPU-b1" : "GPU-a0", n); return 0; }
typedef struct { char old[16]; unsigned domain, bus, device, id, subsystem; char place[32]; } Place;
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "580.95.05", n); return 0; }
int nvmlDeviceGetPciInfo_v3(void *h, Place *p) {
  if (*(int *)h) return 3; p->id = 0x268410DE; strcpy(p->place, "00000000:65:00.0"); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *h, int *a, int *b) { if (*(int *)h) return 3; *a = 8; *b = 9; return 0; }
"""


def put(root: Path, path: str, text: object) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def machine(root: Path) -> None:
    put(root, "proc/cpuinfo", "model name\t: AMD Ryzen 9 7950X 16-Core Processor")
    put(root, "proc/meminfo", "MemTotal:       64000 kB\nMemAvailable:   48000 kB\nSwapTotal:      0 kB")
    put(root, "proc/stat", "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3")
    put(root, "sys/class/hwmon/hwmon0/name", "nvme")
    put(root, "sys/class/hwmon/hwmon0/temp1_input", 99000)
    put(root, "sys/class/hwmon/hwmon1/name", "k10temp")
    put(root, "sys/class/hwmon/hwmon1/temp1_input", 61250)
    put(root, "sys/class/hwmon/hwmon1/temp3_input", 58000)
    put(root, "sys/class/powercap/intel-rapl:0/energy_uj", 1_000_000)
    put(root, "sys/class/powercap/intel-rapl:0:0/energy_uj", 77)


def amd_card(root: Path, number: int = 1) -> None:
    card = f"sys/class/drm/card{number}/device"
    put(root, f"{card}/vendor", "0x1002")
    put(root, f"{card}/product_name", "Radeon RX 7900 XTX")
    put(root, f"{card}/gpu_busy_percent", 94)
    put(root, f"{card}/mem_info_vram_used", 18_100_000_000)
    put(root, f"{card}/mem_info_vram_total", 24_000_000_000)
    put(root, f"{card}/hwmon/hwmon4/temp1_input", 78000)
    put(root, f"{card}/hwmon/hwmon4/power1_average", 288_000_000)
    put(root, f"sys/class/drm/card{number}-HDMI-A-1/device/vendor", "0x1002")


def test_the_cpu_from_the_files_of_the_kernel(tmp_path: Path) -> None:
    machine(tmp_path)
    sensors = Sensors(tmp_path)
    first = sensors.read()["devices"][-1]
    assert (first["load_pct"], first["power_w"]) == (None, None), "both are differences: unknown at the first look"
    put(tmp_path, "proc/stat", "cpu  175 0 100 825 0 0 0 0 0 0")
    put(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", 31_000_000)
    time.sleep(0.1)
    row = sensors.read()["devices"][-1]
    assert row["device"] == "cpu" and row["load_pct"] == 75.0
    assert (row["memory_total_bytes"], row["memory_used_bytes"]) == (64000 * 1024, 16000 * 1024)
    assert row["temperature_c"] == 61.2 or row["temperature_c"] == 61.3
    assert row["power_w"] is not None and 50 < row["power_w"] < 310, "30 J in a little over 0.1 s"


def test_no_sensor_is_unknown_and_not_cold(tmp_path: Path) -> None:
    row = Sensors(tmp_path).read()["devices"][-1]
    assert row["temperature_c"] is None and row["power_w"] is None and row["load_pct"] is None


def test_an_amd_card_from_the_files_of_the_kernel(tmp_path: Path) -> None:
    machine(tmp_path)
    amd_card(tmp_path)
    card, _cpu = Sensors(tmp_path).read()["devices"]
    assert card == {
        "device": "cuda:0",
        "vendor": "AMD",
        "name": "Radeon RX 7900 XTX",
        "load_pct": 94.0,
        "memory_used_bytes": 18_100_000_000,
        "memory_total_bytes": 24_000_000_000,
        "temperature_c": 78.0,
        "power_w": 288.0,
        "power_limit_w": None,
    }


def test_a_container_has_the_memory_its_limit_leaves(tmp_path: Path) -> None:
    machine(tmp_path)
    put(tmp_path, "proc/self/cgroup", "0::/box")
    for name, value in (("memory.max", 20_000_000), ("memory.current", 15_000_000)):
        put(tmp_path, f"sys/fs/cgroup/box/{name}", value)
    put(tmp_path, "sys/fs/cgroup/box/memory.stat", "anon 9\ninactive_file 5000000")
    row = Sensors(tmp_path).read()["devices"][-1]
    assert (row["memory_total_bytes"], row["memory_used_bytes"]) == (20_000_000, 10_000_000)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library with the functions of NVIDIA's, in front of which ours stands as in front of the real one."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    (tmp_path / "nvml.c").write_text(LIBRARY)
    made = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(tmp_path / "nvml.c")], check=True)
    real = ctypes.CDLL
    monkeypatch.setattr(nvidia.ctypes, "CDLL", lambda name, **more: real(str(made) if "nvidia" in str(name) else name))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


def test_nvidia_cards_through_the_library_of_the_driver(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, cpu = Sensors().read()["devices"]
    assert (first["device"], first["name"], first["load_pct"]) == ("cuda:0", "RTX 4090", 94.0)
    assert (first["memory_used_bytes"], first["memory_total_bytes"]) == (18100, 24000)
    assert (first["temperature_c"], first["power_w"], first["power_limit_w"]) == (78.0, 288.4, 350.0)
    assert (second["device"], second["name"], second["memory_used_bytes"]) == ("cuda:1", "Old Card", 100)
    assert second["load_pct"] is second["temperature_c"] is second["power_w"] is None, "unknown, not 0"
    assert cpu["device"] == "cpu"
    for visible, names in (("1", ["Old Card"]), ("GPU-b1,0", ["Old Card", "RTX 4090"]), ("", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        rows = Sensors().read()["devices"][:-1]
        assert [row["name"] for row in rows] == names
        assert [row["device"] for row in rows] == [f"cuda:{number}" for number in range(len(names))]


def test_nvidia_cards_where_nvidia_smi_is_missing(driver: Path) -> None:
    """In the words that nvidia-smi has for the same; what a card does not say is left out."""
    first, second = nvidia.Nvml().described()
    assert tuple(first) == (*nvidia.CARD[:5], "compute_cap", "driver_version")
    assert (first["pci.bus_id"], first["pci.device_id"]) == ("00000000:65:00.0", "0x268410DE")
    assert (first["name"], first["compute_cap"], first["driver_version"]) == ("RTX 4090", "8.9", "580.95.05")
    assert second == {"name": "Old Card", "uuid": "GPU-b1", "memory.total": "0", "driver_version": "580.95.05"}


def test_a_pretended_file_replaces_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sensors.json"
    wanted = {"devices": [{"device": "cpu", "temperature_c": 95.0}, {"device": "cuda:0", "power_w": 500.0}]}
    file.write_text(json.dumps({**wanted, "disk_free_bytes": 7}))
    monkeypatch.setenv(devices.VARIABLE, str(file))
    readings = Sensors(tmp_path, disk=tmp_path).read()
    assert [row["device"] for row in readings["devices"]] == ["cuda:0", "cpu"]
    assert (readings["devices"][0]["power_w"], readings["devices"][1]["temperature_c"]) == (500.0, 95.0)
    assert readings["disk_free_bytes"] == 7
    for nonsense in ("", "[1]", "{"):
        file.write_text(nonsense)
        assert Sensors(tmp_path).read()["devices"]


def test_the_child_ends_with_whoever_started_it(tmp_path: Path) -> None:
    start = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'holdfast.monitor.devices', '--every', '0.2',\n"
        "                          '--parent', str(os.getpid())], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while _alive(child):
        assert time.monotonic() < deadline, "the sensors outlived their run"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_this_machine_can_be_read() -> None:
    done = subprocess.run([sys.executable, "-m", "holdfast.monitor.devices", "-1"], capture_output=True, timeout=60)
    readings = json.loads(done.stdout)
    assert readings["devices"][-1]["device"] == "cpu"
    assert readings["devices"][-1]["memory_total_bytes"] > 0


@pytest.mark.hardware
def test_a_real_card_says_how_warm_it_is_and_what_it_draws() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no accelerator here")
    done = subprocess.run([sys.executable, "-m", "holdfast.monitor.devices", "-1"], capture_output=True, timeout=60)
    card = json.loads(done.stdout)["devices"][0]
    assert card["device"] == "cuda:0" and card["name"]
    assert card["memory_total_bytes"] == pytest.approx(torch.cuda.get_device_properties(0).total_memory, rel=0.1)
    assert card["temperature_c"] is not None and 10 < card["temperature_c"] < 110
    assert card["power_w"] is not None and card["power_w"] > 1
