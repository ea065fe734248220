"""What happened to people: the finding, the sentence and the commands that holdfast gives for each.

Each case is a file of `cases/`: cards, system, torch and environment, what was printed and how it ended, its source,
what is expected, and what must not be printed because it makes that case worse. `"user": true`: the first user's own.
`engineer` is what a person advised who had the thread and had not seen what the program says: the advice in words,
and what of it has to be in the sentence and among the commands. The `heldout-` cases were sought when all others
were right, and mended afterwards: the next ones have to be sought anew.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from holdfast.devices import advice as advising
from holdfast.devices import crash_advice, recorded
from holdfast.devices.findings import explained
from holdfast.faults.kinds import CODES

FOLDER = Path(__file__).parent / "cases"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
HARMFUL = (
    r"export HSA_OVERRIDE_GFX_VERSION",
    r"\bsudo\b",
    r"\brm -",
    r"--gpureset|--gpu-reset",
    r"\bkill\b",
    r"TdrDelay|TdrLevel",
    r"HIGH_WATERMARK_RATIO=0(\.0)?$",
    r"gpu_recovery|noretry|cwsr_enable",
    r"--break-system-packages",
    r"http://",
)
"""What we tell nobody to type, whatever the case: it can freeze or damage a machine, or hides what is wrong."""


def read(name: str) -> dict[str, Any]:
    case: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return case


def test_there_are_thirty_of_which_ten_are_the_users_and_five_that_were_looked_at_last() -> None:
    assert sum(not name.startswith("heldout-") for name in NAMES) == 30
    assert sum(name.startswith("heldout-") for name in NAMES) == 5
    assert sum(read(name)["user"] for name in NAMES) == 10


def test_a_message_without_a_word_of_a_report_speaks_against_the_report() -> None:
    there = recorded.load(FOLDER / "heldout-9070xt-grouped-mm.json")
    told = crash_advice.consult(there.inventory(), there.env, there.message, there.ended)
    other = crash_advice.consult(
        there.inventory(), there.env, "RuntimeError: nothing that any report tells", there.ended
    )
    assert told is not None and "_grouped_mm" in told.sentence
    assert other is None or not re.search(r"_grouped_mm|hipBLASLt", other.sentence)


@pytest.mark.parametrize("name", NAMES)
def test_a_case(name: str) -> None:
    case = read(name)
    there = recorded.load(FOLDER / f"{name}.json")
    said = crash_advice.consult(there.inventory(), there.env, there.message, there.ended)
    assert said is not None
    assert {"code": said.code, "sentence": said.sentence, "commands": [*said.commands]} == case["expect"]
    assert said.code in CODES.values() or explained(said.code).code == said.code
    assert len(case["source"]) > 10 and case["title"]


@pytest.mark.parametrize("name", NAMES)
def test_the_program_says_what_an_engineer_said_without_it(name: str) -> None:
    advice = read(name)["engineer"]
    there = recorded.load(FOLDER / f"{name}.json")
    said = crash_advice.consult(there.inventory(), there.env, there.message, there.ended)
    assert said is not None
    assert advice["advice"].endswith(".") and advice["sentence"]
    assert [each for each in advice["sentence"] if not re.search(each, said.sentence)] == []
    assert [each for each in advice["commands"] if not any(re.search(each, it) for it in said.commands)] == []
    assert advice["commands"] or not said.commands, "the engineer had nothing to type here"


@pytest.mark.parametrize("name", NAMES)
def test_no_command_makes_it_worse(name: str) -> None:
    case = read(name)
    there = recorded.load(FOLDER / f"{name}.json")
    said = crash_advice.consult(there.inventory(), there.env, there.message, there.ended)
    assert said is not None
    steps = advising.today(there.inventory(), there.env)
    typed = [*said.commands, *re.findall(r"`([^`]+)`", " ".join([*steps, said.sentence]))]
    allowed = {"unset HSA_OVERRIDE_GFX_VERSION", "HSA_OVERRIDE_GFX_VERSION"}
    for command in typed:
        assert not any(re.search(pattern, command) for pattern in HARMFUL), command
        if command not in allowed and command in said.commands:
            assert not any(word in command for word in case["harmful"]), (command, case["harmful"])
    if case["machine"]["os"] == "windows":
        assert not [each for each in said.commands if each.startswith(("export", "unset"))]


def steps(name: str) -> list[str]:
    there = recorded.load(FOLDER / f"{name}.json")
    return advising.today(there.inventory(), there.env)


def test_a_card_that_a_hang_loses_is_probed_after_a_reboot() -> None:
    """Ending a hung probe would lose it once more; a card that comes back is probed at once."""
    assert "after a reboot and with your work saved" in steps("r9700-lost-until-reboot")[-1]
    assert not [line for line in steps("linux-7-ring-timeout") if "work saved" in line]


def test_two_cards_of_a_kind_are_told_about_once() -> None:
    said = steps("user-two-cards-one-screen")
    assert len(said) == len(set(said))
    assert [line for line in said if "--device cuda:1" in line] and [line for line in said if "--device cuda:0" in line]


def test_a_case_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    case = FOLDER / "r9700-page-fault.json"
    assert main.main(["doctor", "--recorded", str(case), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["opinion"]["code"] == "D050"
    assert data["opinion"]["commands"] == ["export TORCH_BLAS_PREFER_HIPBLASLT=0"]
    assert data["knowledge"]["sha256"]


def test_the_harmful_would_be_noticed() -> None:
    """The list is no decoration: what people were told in those threads is on it."""
    told = ("export HSA_OVERRIDE_GFX_VERSION=10.3.0", "sudo rocm-smi --gpureset -d 0", "kill -9 1234")
    assert all(any(re.search(pattern, each) for pattern in HARMFUL) for each in told)
