"""What the lines of a ledger add up to: histories in, trust out. No file."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.devices.ledger import condensed
from holdfast.devices.ledger_summary import FORGIVEN_AFTER, KINDS, LedgerState, Line, Trust, fold, history_of, trust_of

HERE, CARD = "machine-1", "pci 0000:03:00.0 1002:744c"
SOFTWARE = {"driver": "amdgpu", "torch": "2.8.0", "kernel": "6.8.0"}
NEWER = {**SOFTWARE, "torch": "2.9.0"}
_count = itertools.count()


def line(kind: str, *, rung: str = "fp32", boot: str | None = "boot-1", device: str = CARD, **data: Any) -> Line:
    number = next(_count)
    moment = f"2026-11-15T09:{number // 60 % 60:02d}:{number % 60:02d}.000Z"
    return Line(kind, str(number), moment, data.pop("machine", HERE), device, "cuda:0", rung, boot, data)


def opened(**more: Any) -> Line:
    return line("open", run="calm-heron", software=more.pop("software", SOFTWARE), **more)


def closed(how: str = "finished", steps: int = 100, seconds: float = 3600.0, **more: Any) -> Line:
    return line("close", how=how, steps=steps, seconds=seconds, **more)


def froze(boot: str, decision: str = "probation", **more: Any) -> Line:
    software = more.pop("software", SOFTWARE)
    return line("settled", boot=boot, decision=decision, why="it went down", software=software, **more)


def note(what: str, **facts: Any) -> Line:
    return line("note", what=what, facts=facts)


def trust(*lines: Line, rung: str = "fp32", software: dict[str, str] = SOFTWARE, device: str = CARD) -> Trust:
    """What they say; the same must come out of the lines made few."""
    found = trust_of(fold(lines, HERE), device, rung, software)
    assert trust_of(fold(condensed(lines), HERE), device, rung, software) == found
    return found


HISTORIES: dict[str, tuple[list[Line], str]] = {
    "nothing is known": ([], "unknown"),
    "it is in use for the first time": ([opened()], "unknown"),
    "it was used and worked": ([opened(), closed()], "trusted"),
    "it was opened and not used": ([opened(), closed(steps=0)], "unknown"),
    "it failed": ([opened(), note("fault", code="F006"), closed("fault")], "probation"),
    "it failed and nobody wrote why": ([opened(), closed("fault")], "probation"),
    "a fault that is known to be the data's": (
        [opened(), closed(), opened(), note("fault", code="F006", blame="data"), closed("fault")],
        "trusted",
    ),
    "a fault that turned out to be the script's": (
        [opened(), closed(), opened(), note("fault", code="F006"), note("blame", verdict="code"), closed("fault")],
        "trusted",
    ),
    "a fault that turned out to be its own": (
        [opened(), closed(), note("fault", code="F006"), note("blame", verdict="device", why="it failed on replay")],
        "probation",
    ),
    "two faults, and both are the script's": (
        [
            opened(),
            closed(),
            note("fault"),
            note("fault"),
            note("blame", verdict="code"),
            note("blame", verdict="code"),
        ],
        "trusted",
    ),
    "two faults, and one is its own": (
        [
            opened(),
            closed(),
            note("fault"),
            note("fault"),
            note("blame", verdict="device"),
            note("blame", verdict="data"),
        ],
        "probation",
    ),
    "a number format that is too small": (
        [opened(), closed(), note("fault"), note("blame", verdict="precision")],
        "trusted",
    ),
    "a verdict without a fault": ([opened(), closed(), note("blame", verdict="data")], "trusted"),
    "its probe failed": ([opened(), closed(), note("probe", ok=False, why="SIGSEGV")], "probation"),
    "its probe passed": ([opened(), closed(), note("probe", ok=True)], "trusted"),
    "it came back": ([note("fault"), note("probe", ok=True), note("trust", state="trusted")], "trusted"),
    "it was put in quarantine": ([note("trust", state="quarantined", why="wrong numbers")], "quarantined"),
    "a state nobody knows": ([opened(), closed(), note("trust", state="splendid")], "trusted"),
    "it froze the machine once": ([opened(), froze("boot-1")], "probation"),
    "one boot counts once": ([opened(), opened(), froze("boot-1"), froze("boot-1")], "probation"),
    "it froze the machine twice": ([froze("boot-1"), froze("boot-2", "quarantine")], "quarantined"),
    "trusted in between": ([froze("boot-1"), note("trust", state="trusted"), froze("boot-2")], "quarantined"),
    "trusted after once": ([froze("boot-1"), note("trust", state="trusted")], "trusted"),
    "a day of use in between": ([froze("boot-1"), closed(seconds=FORGIVEN_AFTER), froze("boot-2")], "probation"),
    "less than a day": ([froze("boot-1"), closed(seconds=FORGIVEN_AFTER - 1), froze("boot-2")], "quarantined"),
    "a day of use since": (
        [froze("boot-1"), froze("boot-2"), note("trust", state="trusted"), closed(seconds=FORGIVEN_AFTER)],
        "trusted",
    ),
    "forgotten by its user": ([froze("boot-1"), froze("boot-2"), line("forget", rung="")], "unknown"),
    "and once more after that": (
        [froze("boot-1"), froze("boot-2"), line("forget", rung=""), froze("boot-3")],
        "probation",
    ),
    "a power cut": ([opened(), closed(), opened(), froze("boot-1", "power")], "trusted"),
    "a clean shutdown": ([opened(), closed(), opened(), froze("boot-1", "clean")], "trusted"),
    "a killed supervisor": ([opened(), closed(), opened(), froze("boot-1", "killed")], "trusted"),
    "another machine's trouble": ([opened(), closed(), froze("boot-1", machine="machine-2")], "trusted"),
    "another card's trouble": ([opened(), closed(), froze("boot-1", device="pci 0000:04:00.0")], "trusted"),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_histories(name: str) -> None:
    lines, state = HISTORIES[name]
    assert trust(*lines).state == state


def test_what_is_forgiven_is_not_forgotten() -> None:
    lines = [froze("a"), closed(seconds=FORGIVEN_AFTER), froze("b")]
    assert history_of(fold(lines, HERE), CARD).freezes == 2


def test_a_quarantine_ends_with_a_new_driver_torch_or_kernel() -> None:
    twice = [froze("boot-1"), froze("boot-2")]
    assert trust(*twice).until == "driver, torch or kernel changes, or `holdfast ledger --forget cuda:0`"
    assert trust(*twice).why == "the machine went down 2 times while it was in use"
    for name in SOFTWARE:
        assert trust(*twice, software={**SOFTWARE, name: "another"}).state == "probation", "and is then used with care"
    assert trust(*twice, software={"torch": "2.8.0"}).state == "quarantined", "what is not known has not changed"
    again = [*twice, froze("boot-3", software=NEWER)]
    assert trust(*again, software=NEWER).state == "probation", "the first time with the new one"
    asked = [opened(), note("trust", state="quarantined", why="wrong numbers")]
    assert trust(*asked, software=NEWER).state == "probation"
    assert trust(*asked, software=NEWER).why == "the software has changed since its quarantine: wrong numbers"


def test_a_freeze_of_one_rung_makes_the_others_of_its_card_suspect() -> None:
    lines = [opened(rung="bf16"), closed(rung="bf16"), froze("boot-1"), froze("boot-2")]
    assert trust(*lines).state == "quarantined"
    assert trust(*lines, rung="bf16").state == "probation"
    assert trust(*lines, rung="bf16").why == "the machine went down while it was in use with fp32"
    assert trust(*lines, rung="never used").state == "probation"
    cleared = [*lines, line("note", rung="bf16", what="trust", facts={"state": "trusted"}), line("forget", rung="")]
    assert trust(*cleared, rung="bf16").state == "unknown"


def test_the_cpu_is_always_trusted() -> None:
    lines = [froze(f"boot-{number}", "down", device="cpu") for number in range(5)]
    assert trust(*lines, device="cpu").state == "trusted"


def test_hours_and_faults() -> None:
    lines = [
        *(opened(), note("fault", code="F006"), closed("fault", steps=10, seconds=5400.0)),
        *(opened(rung="bf16"), closed("moved", steps=5, seconds=1800.0, rung="bf16")),
        *(opened(), froze("boot-1")),
    ]
    history = history_of(fold(lines, HERE), CARD)
    assert (history.uses, history.hours, history.steps, history.faults, history.freezes) == (3, 2.0, 15, 1, 1)
    assert history.faults_per_hour == 0.5
    assert history_of(fold(condensed(lines), HERE), CARD) == history
    assert (trust(*lines).faults, trust(*lines).hours) == (1, 1.5)
    assert history_of({}, CARD).faults_per_hour is None


# Whatever is in the file -----------------------------------------------------------------------------------------

JSON = st.sampled_from([None, True, 0, -1, 7, 2**70, 1.5, float("inf"), "", "x", [], ["x", 3], {}, {"boot": 1}])
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from([*LedgerState, "x"]) | JSON,
        "ok": st.booleans() | JSON,
        "verdict": st.sampled_from(["data", "device", "code"]) | JSON,
        "blame": st.sampled_from(["data", "device"]) | JSON,
        "why": JSON,
    },
)
RECORDS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([*KINDS, "still", "fault", "set", "__init__"]),
        "id": st.sampled_from(list("abcdefgh")),
        "time": st.just("2026-11-15T09:00:00Z"),
        "machine": st.sampled_from([HERE, "machine-2"]),
        "device": st.sampled_from([CARD, "cpu"]),
        "label": st.just("cuda:0"),
        "rung": st.sampled_from(["", "fp32", "bf16"]),
        "boot": st.sampled_from([None, "boot-1", "boot-2", "boot-3"]),
    },
    optional={
        "of": st.sampled_from(list("abcdefgh")) | JSON,
        "what": st.sampled_from(["fault", "blame", "probe", "trust"]) | JSON,
        "facts": FACTS | JSON,
        "how": st.sampled_from(["finished", "fault"]) | JSON,
        "steps": st.integers(0, 9) | JSON,
        "seconds": st.floats(0, 1e5) | JSON,
        "decision": st.sampled_from(["probation", "quarantine", "power", "down"]) | JSON,
        "software": st.sampled_from([SOFTWARE, NEWER]) | JSON,
        "standing": st.dictionaries(
            st.sampled_from(["freezes", "state", "seconds", "downs", "before", "software"]), JSON, max_size=3
        ),
    },
)


@given(st.lists(RECORDS, max_size=25))
def test_any_lines_give_an_answer_and_few_lines_give_the_same(records: list[dict[str, Any]]) -> None:
    lines = [made for record in records if (made := Line.of(record)) is not None]
    whole = fold(lines, HERE)
    written = [json.loads(json.dumps(each.to_json())) for each in condensed(lines)]
    few = fold([made for record in written if (made := Line.of(record)) is not None], HERE)
    for key, rung in {*whole, (CARD, "fp32")}:
        for software in (SOFTWARE, NEWER):
            found = trust_of(whole, key, rung, software)
            assert found.state in tuple(LedgerState)
            assert repr(trust_of(few, key, rung, software)) == repr(found)
        assert repr(history_of(few, key)) == repr(history_of(whole, key))


@given(st.dictionaries(st.sampled_from(["kind", "id", "time", "machine", "device", "label", "rung", "boot"]), JSON))
def test_a_record_that_is_no_line_is_none(record: dict[str, Any]) -> None:
    made = Line.of(record)
    assert made is None or all(isinstance(value, (str, type(None))) for value in list(made.to_json().values())[:8])
