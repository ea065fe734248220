"""The fault itself: its sentence, its form as JSON, its code and the page that explains it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.faults.classification import CODES, Fault, Kind, classify_exception, classify_exit, explanations
from holdfast.faults.terms import Health
from tests.faults.ends import ended


def test_a_fault_travels_as_json() -> None:
    fault = classify_exit(exitcode=-11, last_words="x", oom_kills=0, device="cuda:0").at(step=3, phase="data")
    line = json.dumps(fault.to_json())
    assert Fault.from_json(json.loads(line)) == fault
    assert json.loads(line)["code"] == "F002"
    newer = {**fault.to_json(), "field_of_a_newer_version": 1}
    assert Fault.from_json(newer) == fault
    assert Fault.from_json({"kind": "hang"}) == Fault(Kind.HANG)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            Fault(Kind.OUT_OF_MEMORY, "cuda:0", 3862, "backward"),
            "cuda:0 ran out of memory at step 3 862 in backward",
        ),
        (Fault(Kind.HANG, "cuda:0", 3862), "cuda:0 stopped answering at step 3 862"),
        (
            Fault(Kind.CRASH, "cuda:1", evidence={"exitcode": -11, "signal": "SIGSEGV"}),
            "the worker on cuda:1 crashed (SIGSEGV)",
        ),
        (
            Fault(Kind.EXIT, "cpu", 0, evidence={"status": "exit status 7"}),
            "the worker on cpu ended without an error message (exit status 7) at step 0",
        ),
        (Fault(Kind.KEEPER_DIED), "the keeper ended"),
        (Fault(Kind.DEVICE_LOST), "the device was lost"),
    ],
)
def test_sentences(fault: Fault, sentence: str) -> None:
    assert fault.sentence() == sentence


def test_every_kind_has_a_sentence_and_a_health() -> None:
    for kind in Kind:
        fault = Fault(kind, "cuda:0", 1, "forward")
        assert fault.sentence().endswith(" at step 1 in forward")
        assert fault.health in Health


def test_the_cause_is_what_the_message_means() -> None:
    fault = classify_exception(RuntimeError("CUDA error: device-side assert triggered"), device="cuda:0")
    assert fault is not None
    assert fault.cause().startswith("a check inside a kernel failed")
    assert Fault(Kind.CRASH, message="first\nsecond").cause() == "first"


def test_at_adds_what_the_observer_knows_and_keeps_the_rest() -> None:
    fault = Fault(Kind.OUT_OF_MEMORY, "cuda:0", step=4, phase="forward", evidence={"a": 1})
    assert fault.at(phase="backward", pieces=2) == Fault(
        Kind.OUT_OF_MEMORY, "cuda:0", step=4, phase="backward", evidence={"a": 1, "pieces": 2}
    )
    assert fault.at() == fault


def test_codes_are_public_and_do_not_move() -> None:
    """If this fails you renumbered a code: logs, docs and dashboards of users depend on it."""
    assert {code: kind.value for kind, code in CODES.items()} == {
        "F001": "out_of_memory",
        "F002": "crash",
        "F003": "device_lost",
        "F004": "transient",
        "F005": "hang",
        "F006": "host_memory",
        "F007": "killed",
        "F008": "exit",
        "F009": "unsupported",
        "F010": "driver",
        "F011": "loader_died",
        "F012": "loader_stuck",
        "F013": "nursery_died",
        "F014": "keeper_died",
        "F015": "supervisor_died",
        "F016": "user_error",
        "F017": "non_finite",
        "F018": "wrong_numbers",
        "F019": "bad_data",
        "F020": "machine_down",
        "F021": "disk_full",
    }


def test_every_kind_is_explained_under_its_code() -> None:
    assert {row.kind: row.code for row in explanations()} == dict(CODES)
    assert len({row.slug for row in explanations()}) == len(CODES)
    for row in explanations():
        assert row.level in ("note", "warning", "error")
        for text in (row.seen, row.means, row.does, row.you_can):
            assert text.endswith((".", "…")), (row.code, text)
            assert "\n" not in text, row.code


def test_the_page_in_the_docs_is_up_to_date() -> None:
    root = Path(__file__).resolve().parents[2]
    done = _run_script(root / "scripts" / "make_fault_docs.py", "--check")
    assert done.returncode == 0, "run scripts/make_fault_docs.py"


def _run_script(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(path), *words], capture_output=True, text=True, timeout=60, check=False)


def test_importing_takes_no_torch_and_reads_no_table() -> None:
    done = ended(
        """
        import sys
        import holdfast.faults.classification as faults, holdfast.faults.ladder
        heavy = {"torch", "numpy", "json", "tomllib", "tomli", "rich", "argparse"} & set(sys.modules)
        assert not heavy, heavy
        assert faults.signatures.cache_info().currsize == 0
        """
    )
    assert done.returncode == 0, done.stderr
