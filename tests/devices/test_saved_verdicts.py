"""Verdicts that are kept: what ends them, what makes them stale, and that no file can break anything."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.devices.identity import DeviceId
from holdfast.devices.ledger import Ledger
from holdfast.devices.saved_verdicts import Verdicts, conditions
from holdfast.devices.verdict import Policy, Verdict

CARD = DeviceId("cuda:0", "pci 0000:03:00.0 1002:744c", "Radeon RX 7900 XTX", "0000:03:00.0", "amdgpu 6.10.5")
GOOD = Verdict("cuda:0", "trusted", policy=Policy(("fp32", "fp16")), probes={"passed": 31})
CARE = Verdict("cuda:0", "use_with_care", policy=Policy(("fp32",), env={"HSA_ENABLE_SDMA": "0"}))


class World:
    """A machine whose software and clock can be changed."""

    def __init__(self, folder: Path) -> None:
        self.software: dict[str, Any] = {"driver": "6.10.5", "torch": "2.8.0", "kernel": "6.8.0"}
        self.env: dict[str, str] = {}
        self.later = 0.0
        self.ledger = Ledger(folder, machine="here", software=lambda device: self.software)
        self.ledger._known["cuda:0"] = CARD

    def verdicts(self) -> Verdicts:
        def under(device: DeviceId, env: Mapping[str, str] | None) -> dict[str, Any]:
            return {**self.software, "environment": dict(env or {})}

        now = lambda: time.time() + self.later  # noqa: E731
        return Verdicts(ledger=self.ledger, env=self.env, now=now, conditions=under)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state")


def test_a_verdict_is_kept(world: World) -> None:
    assert world.verdicts().get("cuda:0").verdict is None
    put = world.verdicts().put(GOOD)
    assert put.valid_while == {"driver": "6.10.5", "torch": "2.8.0", "kernel": "6.8.0", "environment": {}}
    kept = world.verdicts().get("cuda:0")
    assert kept.holds
    assert kept.verdict is not None and kept.verdict.to_json() == put.to_json()
    if os.name == "posix":
        assert stat.S_IMODE(world.verdicts().path.stat().st_mode) == 0o600


def test_the_new_one_takes_the_place_of_the_old(world: World) -> None:
    world.verdicts().put(GOOD)
    world.verdicts().put(CARE)
    assert world.verdicts().get("cuda:0").verdict.state == "use_with_care"  # type: ignore[union-attr]
    assert len(json.loads(world.verdicts().path.read_text())["verdicts"]) == 1


CHANGES: dict[str, Callable[[World], Any]] = {
    "driver": lambda world: world.software.update(driver="6.12"),
    "torch": lambda world: world.software.update(torch="2.9.0"),
    "kernel": lambda world: world.software.update(kernel="6.9"),
    "variable": lambda world: world.env.update(HSA_OVERRIDE_GFX_VERSION="10.3.0"),
    "time": lambda world: setattr(world, "later", 31 * 86400.0),
    "a clock set back": lambda world: setattr(world, "later", -86400.0),
    "card": lambda world: world.ledger._known.update({"cuda:0": DeviceId("cuda:0", "pci 0000:0a:00.0 1002:744c")}),
    "machine": lambda world: setattr(world.ledger, "machine", "there"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_ends_it(world: World, what: str) -> None:
    world.verdicts().put(GOOD)
    CHANGES[what](world)
    assert world.verdicts().get("cuda:0").verdict is None


def test_it_is_still_there_after_a_change_and_back(world: World) -> None:
    world.verdicts().put(GOOD)
    world.software["torch"] = "2.9.0"
    world.verdicts().put(CARE)
    world.software["torch"] = "2.8.0"
    assert world.verdicts().get("cuda:0").verdict.state == "trusted"  # type: ignore[union-attr]


def test_it_lasts_for_thirty_days(world: World) -> None:
    world.verdicts().put(GOOD)
    world.later = 29.9 * 86400
    assert world.verdicts().get("cuda:0").holds


# Faults in runs -----------------------------------------------------------------------------------------------------


def test_a_fault_in_a_run_makes_it_stale_and_keeps_its_remedies(world: World) -> None:
    world.verdicts().put(CARE)
    world.ledger.note(CARD, "cuda:0", "fault", code="F010")
    kept = world.verdicts().get("cuda:0")
    assert not kept.holds
    assert kept.stale == "it failed in a run since (F010)"
    assert kept.verdict is not None and kept.verdict.policy.env == {"HSA_ENABLE_SDMA": "0"}
    world.later = 1.0
    world.verdicts().put(CARE)
    assert world.verdicts().get("cuda:0").holds


def test_a_fault_of_the_data_or_of_the_code_is_none_of_its(world: World) -> None:
    world.verdicts().put(GOOD)
    world.ledger.note(CARD, "cuda:0", "fault", code="F016", blame="data")
    assert world.verdicts().get("cuda:0").holds
    world.ledger.note(CARD, "cuda:0", "fault", code="F002")
    assert not world.verdicts().get("cuda:0").holds
    world.ledger.note(CARD, "cuda:0", "blame", verdict="code")
    assert world.verdicts().get("cuda:0").holds


def test_a_refusal_needs_no_further_fault(world: World) -> None:
    world.verdicts().put(Verdict("cuda:0", "refused", "conv2d fp32 forward kills its process"))
    world.ledger.note(CARD, "cuda:0", "fault", code="F002")
    assert world.verdicts().get("cuda:0").holds


@pytest.mark.parametrize("state", ["refused", "use_with_care"])
def test_what_is_forgotten_on_request_is_probed_again(world: World, state: str) -> None:
    world.verdicts().put(Verdict("cuda:0", state, "the machine went down 2 times"))
    world.ledger.forget(CARD)
    assert world.verdicts().get("cuda:0").verdict is None


def test_the_fault_of_another_card_does_not_matter(world: World) -> None:
    world.verdicts().put(GOOD)
    world.ledger.note(DeviceId("cuda:1", "pci 0000:0a:00.0"), "cuda:1", "fault", code="F010")
    assert world.verdicts().get("cuda:0").holds


# The file -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"verdicts": 3}',
        '{"verdicts": [3, null, {}]}',
        '{"verdicts": [{"machine": "here", "device": 4, "verdict": []}]}',
        "\x00\xff",
    ],
)
def test_a_file_that_is_none_of_ours_is_passed_over(world: World, text: str) -> None:
    path = world.verdicts().path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    assert world.verdicts().get("cuda:0").verdict is None
    world.verdicts().put(GOOD)
    assert world.verdicts().get("cuda:0").holds


def test_a_disk_that_cannot_be_written_is_said(world: World) -> None:
    world.ledger.folder.parent.mkdir(parents=True, exist_ok=True)
    world.ledger.folder.write_text("a file where the folder should be")
    kept = world.verdicts()
    assert kept.put(GOOD).state == "trusted"
    assert kept.problem is not None and "verdicts.json cannot be written" in kept.problem


def test_what_it_depends_on() -> None:
    env = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0", "HOME": "/root", "PYTORCH_ALLOC_CONF": "x", "API_KEY": "y"}
    found = conditions(DeviceId("cpu", "cpu"), env)
    assert found["environment"] == {"HSA_OVERRIDE_GFX_VERSION": "10.3.0", "PYTORCH_ALLOC_CONF": "x"}
    assert {"driver", "torch", "kernel", "holdfast"} <= set(found)
