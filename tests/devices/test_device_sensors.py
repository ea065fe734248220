"""Sensors: what files and one tool say about a device under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.devices import device_sensors

PCI = "0000:03:00.0"


@pytest.fixture(autouse=True)
def one_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_sensors, "_address", lambda device: PCI if device == "cuda:0" else None)


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_an_amd_card_shows_its_sensors_in_files(tmp_path: Path) -> None:
    card = f"sys/bus/pci/devices/{PCI}"
    tree(
        tmp_path,
        **{
            f"{card}/vendor": "0x1002\n",
            f"{card}/hwmon/hwmon3/temp1_input": "61000\n",
            f"{card}/hwmon/hwmon3/temp2_input": "77000\n",
            f"{card}/hwmon/hwmon3/power1_average": "100000000\n",
            f"{card}/hwmon/hwmon3/freq1_input": "1750000000\n",
            f"{card}/ras/umc_err_count": "ue: 2\nce: 5\n",
            f"{card}/aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 1\n",
            f"{card}/aer_dev_correctable": "RxErr 9\nTOTAL_ERR_COR 9\n",
        },
    )
    seen = device_sensors.read("cuda:0", root=tmp_path)
    assert seen == {
        "temperature_c": 77.0,
        "power_w": 100.0,
        "clock_mhz": 1750.0,
        "errors": 2.0,
        "link_errors": 1.0,
        "link_corrected": 9.0,
    }
    assert device_sensors.errors(seen) == 3, "what was corrected is no error"


def test_an_nvidia_card_is_asked_by_its_tool(tmp_path: Path) -> None:
    tree(tmp_path, **{f"sys/bus/pci/devices/{PCI}/vendor": "0x10de\n"})
    asked: list[list[str]] = []

    def tool(words: list[str]) -> str | None:
        asked.append(words)
        return "34, 119.52, 1980, [N/A]\n"

    assert device_sensors.read("cuda:0", root=tmp_path, run=tool) == {
        "temperature_c": 34.0,
        "power_w": 119.52,
        "clock_mhz": 1980.0,
    }
    assert asked[0][0] == "nvidia-smi" and asked[0][-1] == PCI


@pytest.mark.parametrize("said", [None, "", "No devices were found", "[N/A], [N/A]"])
def test_a_tool_that_says_nothing_gives_nothing(tmp_path: Path, said: str | None) -> None:
    tree(tmp_path, **{f"sys/bus/pci/devices/{PCI}/vendor": "0x10de\n"})
    assert device_sensors.read("cuda:0", root=tmp_path, run=lambda words: said) == {}


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    assert device_sensors.read("cuda:0", root=tmp_path) == {} == device_sensors.read("cuda:1", root=tmp_path)
    assert device_sensors.read("cpu", root=tmp_path) == {} and device_sensors.errors({}) == 0
    hwmon = "sys/class/hwmon/hwmon0"
    tree(tmp_path, **{f"{hwmon}/name": "k10temp\n", f"{hwmon}/temp1_input": "48500\n"})
    assert device_sensors.read("cpu", root=tmp_path) == {"temperature_c": 48.5}


def test_the_larger_of_each_is_kept() -> None:
    assert device_sensors.hotter({"temperature_c": 50.0}, {"temperature_c": 71.0, "power_w": 90.0}) == {
        "temperature_c": 71.0,
        "power_w": 90.0,
    }
    assert device_sensors.ask(["holdfast-no-such-tool"]) is None
