"""Keep this machine as a fixture: the files and tool output from which the inventory is made, and little else.

    python scripts/capture_machine.py my-rx-6600            # tests/devices/fixtures/my-rx-6600/
    python scripts/capture_machine.py my-rx-6600 --to DIR

Serial numbers, UUIDs and names of containers are replaced, host names left out, environment variables kept only where
they change what a device seems to be. Read the folder before you pass it on; tests/devices/fixtures/README.md says
what is in it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.devices import survey
from holdfast.devices.survey import Answer, Host, run_tool, tool_name
from holdfast.run import machine

FIXTURES = Path(__file__).parent.parent / "tests/devices/fixtures"
ROOT = Path("/")
WHOLE = (
    "etc/os-release",
    "proc/version",
    "proc/sys/kernel/osrelease",
    "proc/cpuinfo",
    "proc/self/cgroup",
    "proc/1/cgroup",
    "sys/firmware/devicetree/base/model",
    "sys/module/*/version",
    "opt/rocm/.info/version",
    "usr/local/cuda/version.json",
    "sys/class/kfd/kfd/topology/nodes/*/properties",
    "proc/driver/nvidia/gpus/*/information",
    "sys/devices/system/cpu/cpu[0-9]*/topology/core_id",
    "sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id",
)
MODULES = ("nvidia", "amdgpu", "i915", "xe")
LINES = {"proc/meminfo": r"^MemTotal:.*\n", "proc/self/status": r"^Cpus_allowed_list:.*\n"}
LIMITS = ("memory.max", "memory.limit_in_bytes", "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "pids.max")
CARD = ("class", "vendor", "device", "revision", "product_name", "mem_info_vram_total", "mem_info_gtt_total")
EMPTY = (".dockerenv", "run/.containerenv", "dev/kfd", "dev/dri/renderD*", "dev/nvidia[0-9]*", "dev/nvidiactl")
EMPTY += ("dev/nvidia-uvm", "dev/dxg", "dev/accel/accel*", "usr/lib/wsl/lib/libcuda.so*")
NAMES = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids", "usr/share/libdrm/amdgpu.ids")
NAMES += ("opt/amdgpu/share/libdrm/amdgpu.ids", "opt/rocm/share/libdrm/amdgpu.ids")
VARIABLES = re.compile(r"(CUDA|HIP|ROCR|NVIDIA)_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|HSA_OVERRIDE_GFX_VERSION(_\d+)?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--to", type=Path, default=FIXTURES)
    args = parser.parse_args()
    folder = args.to / args.name
    (folder / "tools").mkdir(parents=True)
    hidden = Hidden()

    def run(words: Sequence[str], deadline_s: float) -> Answer:
        answer = run_tool(words, deadline_s)
        said = f"!{answer.trouble}\n" if answer.trouble else answer.text
        if said is not None:
            (folder / "tools" / f"{tool_name(words)}.txt").write_text(hidden.without(said))
        return answer

    found = survey.take(run=run)
    host = Host.here()
    about = {"about": "", "host": {"platform": host.platform, "machine": host.machine, "release": host.release}}
    env = {name: value for name, value in sorted(os.environ.items()) if VARIABLES.fullmatch(name)}
    (folder / "machine.json").write_text(
        json.dumps({**about, "env": env, "build": found.to_json()["torch"]}, indent=2) + "\n"
    )
    (folder / "files.txt").write_text(hidden.without("".join(_files())))
    print(folder)


class Hidden:
    """Puts the same made-up number for the same UUID or serial number, so that what belongs together still does."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def without(self, text: str) -> str:
        text = re.sub(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", self._uuid, text)
        text = re.sub(r"^(unique_id) ([1-9]\d*)$", self._unique, text, flags=re.MULTILINE)
        text = re.sub(r'("asic_serial": )"[^"]*"', r'\1"N/A"', text)
        text = re.sub(r"\b[0-9a-f]{32,64}\b", self._long, text)
        return re.sub(r" \(\S+@\S+\)", "", text)

    def _number(self, said: str) -> int:
        return self._known.setdefault(said, len(self._known) + 1)

    def _uuid(self, match: re.Match[str]) -> str:
        return f"GPU-00000000-0000-0000-0000-{self._number(match[0]):012d}"

    def _long(self, match: re.Match[str]) -> str:
        """The name of a container, among the groups of processes."""
        return f"{self._number(match[0]):032x}"

    def _unique(self, match: re.Match[str]) -> str:
        return f"{match[1]} {self._number(match[2])}"


def _files() -> Iterator[str]:
    for pattern in WHOLE:
        for path in sorted(ROOT.glob(pattern)):
            if "/sys/module/" not in str(path) or path.parent.name in MODULES:
                yield _file(path, _text(path))
    for name, line in LINES.items():
        yield _file(ROOT / name, "".join(re.findall(line, _text(ROOT / name), re.MULTILINE)))
    limits = sorted({group / name for group in machine.cgroups(ROOT) for name in LIMITS})
    yield from (_file(path, _text(path)) for path in limits if path.exists())
    kind = re.search(r"(?:^|\0)(container=\w+)", _text(ROOT / "proc/1/environ"))
    if kind:
        yield _file(ROOT / "proc/1/environ", f"{kind[1]}\n")
    yield from (_file(path, "") for pattern in EMPTY for path in sorted(ROOT.glob(pattern)))
    cards = [ROOT / "sys/bus/pci/devices" / str(card["pci"]) for card in machine.gpus() if card["pci"]]
    for card in cards:
        yield from (_file(card / name, _text(card / name)) for name in CARD if (card / name).exists())
        if (card / "driver").exists():
            target = f"sys/bus/pci/drivers/{(card / 'driver').resolve().name}"
            yield f"-- {str(card / 'driver').lstrip('/')} -> {target} --\n"
    yield from _names(cards)


def _names(cards: Sequence[Path]) -> Iterator[str]:
    """Of the long lists of names, the lines about these cards."""
    vendors, devices = ({_text(card / name).strip()[2:] for card in cards} for name in ("vendor", "device"))
    for place in NAMES:
        kept = []
        mine = False
        for line in _text(ROOT / place).splitlines():
            if place.endswith("pci.ids"):
                mine = line[:4] in vendors if not line.startswith(("\t", "#")) else mine
                wanted = mine and (line[:4] in vendors or (line[:1] == "\t" and line[1:5] in devices))
            else:
                wanted = line[:4].lower() in devices
            kept += [line] if wanted else []
        if kept:
            yield _file(ROOT / place, "\n".join(kept) + "\n")


def _file(path: Path, text: str) -> str:
    text = text.replace("\0", "")
    return f"-- {str(path).lstrip('/')} --\n{text}" + ("\n" if text and not text.endswith("\n") else "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main()
