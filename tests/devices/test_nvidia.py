"""What NVIDIA's driver said of an H200, recorded after an error there; and what a sick one may say instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.devices import nvidia

SAID = (Path(__file__).parents[1] / "record/evidence/nvidia-smi.xml").read_text()


def test_a_healthy_card() -> None:
    cards = nvidia.report(SAID)
    assert not isinstance(cards, str)
    (card,) = cards
    assert card["device"] == "0000:00:06.0"
    assert card["name"] == "NVIDIA H200"
    assert card["recovery_action"] == "None"
    assert nvidia.needs(card) is None
    assert card["ecc"]["dram_uncorrectable"] == 0
    assert card["remapped_rows"] == {
        "corr": 0,
        "corr_inactive": 0,
        "unc": 0,
        "unc_inactive": 0,
        "pending": "No",
        "failure": "No",
    }
    assert card["slowed_by"] == []
    assert isinstance(card["temperature_c"], int)
    assert "retired_pages" not in card  # this card remaps rows instead


def test_a_card_that_needs_something() -> None:
    text = SAID.replace(
        "<gpu_recovery_action>None</gpu_recovery_action>", "<gpu_recovery_action>Reboot</gpu_recovery_action>"
    ).replace(
        "<clocks_event_reason_hw_thermal_slowdown>Not Active<", "<clocks_event_reason_hw_thermal_slowdown>Active<"
    )
    cards = nvidia.report(text)
    assert not isinstance(cards, str)
    assert nvidia.needs(cards[0]) == "Reboot"
    assert cards[0]["slowed_by"] == ["hw_thermal_slowdown"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("No devices were found\n", "No devices were found"),
        (
            "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error\n",
            "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error",
        ),
        ("", "it said nothing"),
        (SAID[:2000], '<?xml version="1.0" ?>'),
    ],
)
def test_a_driver_that_says_nothing_useful(text: str, why: str) -> None:
    assert nvidia.report(text) == why


def test_there_may_be_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.report_command() is None
