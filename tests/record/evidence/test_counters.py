"""What the system counts, in control groups of both versions and on this machine."""

from __future__ import annotations

from pathlib import Path

from holdfast.record.evidence import counters


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_control_groups_of_version_2(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/user.slice/job"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job\n",
            f"{group}/memory.events": "low 0\nhigh 0\nmax 17\noom 2\noom_kill 1\noom_group_kill 0\n",
            f"{group}/memory.current": "3221225472\n",
            f"{group}/memory.peak": "4294967296\n",
            f"{group}/memory.max": "max\n",
            "sys/fs/cgroup/user.slice/memory.max": "8589934592\n",
            f"{group}/cpu.stat": "usage_usec 1\nnr_periods 10\nnr_throttled 4\nthrottled_usec 1234\n",
            f"{group}/pids.current": "12\n",
            "proc/pressure/memory": "some avg10=1.50 avg60=0.20 avg300=0.00 total=220325\n"
            "full avg10=0.10 avg60=0.00 avg300=0.00 total=1\n",
        },
    )
    seen = counters.read(root)
    assert seen["counts"] == {
        "memory.at_limit": 17,
        "memory.oom": 2,
        "memory.oom_kill": 1,
        "cpu.throttled": 4,
        "cpu.throttled_us": 1234,
    }
    assert seen["levels"]["memory.current_bytes"] == 3221225472
    assert seen["levels"]["memory.peak_bytes"] == 4294967296
    assert seen["levels"]["pids.current"] == 12
    assert seen["pressure"]["memory.some"] == {"avg10": 1.5, "avg60": 0.2, "avg300": 0.0}


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n1:cpu,cpuacct:/\n0::/\n",
            "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1024\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 0\nnr_throttled 5\nthrottled_time 99\n",
        },
    )
    seen = counters.read(root)
    assert seen["counts"] == {"memory.oom_kill": 3, "cpu.throttled": 5, "cpu.throttled_ns": 99}
    assert seen["levels"]["memory.current_bytes"] == 1024
    assert "memory.limit_bytes" not in seen["levels"]  # none is written as a very large one


def test_errors_on_the_bus_and_in_memory(tmp_path: Path) -> None:
    card, disk = "sys/bus/pci/devices/0000:65:00.0", "sys/bus/pci/devices/0000:01:00.0"
    root = tree(
        tmp_path,
        {
            f"{card}/class": "0x030200\n",
            f"{card}/aer_dev_fatal": "Undefined 0\nDLP 2\nTOTAL_ERR_FATAL 2\n",
            f"{card}/aer_dev_correctable": "RxErr 41\nTOTAL_ERR_COR 41\n",
            f"{disk}/class": "0x010802\n",
            f"{disk}/aer_dev_fatal": "TOTAL_ERR_FATAL 9\n",
            "sys/devices/system/edac/mc/mc0/ce_count": "7\n",
            "sys/devices/system/edac/mc/mc0/ue_count": "1\n",
        },
    )
    assert counters.read(root)["counts"] == {
        "pci.0000:65:00.0.correctable": 41,
        "pci.0000:65:00.0.fatal": 2,
        "edac.mc0.corrected": 7,
        "edac.mc0.uncorrected": 1,
    }


def test_only_what_grew_is_told() -> None:
    before = {"counts": {"memory.oom_kill": 1, "cpu.throttled": 5}}
    after = {"counts": {"memory.oom_kill": 2, "cpu.throttled": 5, "pci.0000:65:00.0.fatal": 2}}
    assert counters.rose(before, after) == {"memory.oom_kill": 1}
    assert counters.rose({}, after) == {}


def test_an_empty_machine_and_this_one(tmp_path: Path) -> None:
    empty = counters.read(tmp_path)
    assert (empty["counts"], empty["pressure"]) == ({}, {})
    here = counters.read()
    assert here["levels"]["machine.total_bytes"] > 0
    assert all(isinstance(value, int) and value >= 0 for value in here["counts"].values())
