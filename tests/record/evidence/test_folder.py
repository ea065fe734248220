"""The folder of a fault: what a person reads first, what a program reads, and what is added later."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from holdfast.faults.classification import Fault, Kind
from holdfast.record import evidence
from holdfast.record.evidence.folder import readme

from .places import AGAIN, LOST, new_run, read

README = """\
cuda:0 was lost at step 3 862 in backward.

code      F003; `holdfast explain F003` says what it means
when      TIME
cause     CUDA error: unspecified launch failure
then      new worker on cuda:0 fp32, try 1 of 3
blame     not known

files
  fault.json         the fault, what was done about it and the board, for programs
  stderr.txt         the last lines the worker printed
  stacks-python.txt  where its Python code was
  counters.json      memory kills, throttling, bus and memory errors, pressure
  environment.json   versions, hardware and variables; secrets are left out
"""


def kept(tmp_path: Path, fault: Fault = LOST) -> Path:
    run = new_run(tmp_path, script="train.py")
    return evidence.collect(run, fault, AGAIN, None, "the last line", {"python": "File train.py, line 3"}, "")


def timeless(text: str) -> str:
    return re.sub(r"(?m)^when      \S+$", "when      TIME", text)


def test_what_a_person_reads(tmp_path: Path) -> None:
    folder = kept(tmp_path)
    assert timeless((folder / "README.txt").read_text()) == README
    assert (folder / "stderr.txt").read_text() == "the last line\n"
    assert (folder / "stacks-python.txt").read_text() == "File train.py, line 3\n"


def test_what_a_program_reads(tmp_path: Path) -> None:
    folder = kept(tmp_path)
    record = read(folder / "fault.json")
    assert record["sentence"] == "cuda:0 was lost at step 3 862 in backward"
    assert record["fault"]["code"] == "F003"
    assert record["move"]["action"] == "replace"
    assert read(folder / "environment.json")["run"]["script"] == "train.py"
    assert "levels" in read(folder / "counters.json")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    folder = kept(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_verdict_that_comes_later(tmp_path: Path) -> None:
    folder = kept(tmp_path)
    before = read(folder / "fault.json")
    evidence.add_verdict(folder, {"blame": "data", "why": "label 12 of 10 classes", "samples": [{"index": 4711}]})
    after = read(folder / "fault.json")
    assert after.pop("verdict")["samples"] == [{"index": 4711}]
    assert after == before
    assert "\nblame     data: label 12 of 10 classes\n" in (folder / "README.txt").read_text()
    evidence.add_verdict(folder, {"blame": "device", "sentence": "the device is at fault, once"})
    text = (folder / "README.txt").read_text()
    assert "\nblame     the device is at fault, once\n" in text
    assert "label 12" not in text
    assert not list(folder.glob(".*"))  # nothing half-written is left


def test_a_verdict_the_fault_brought_along(tmp_path: Path) -> None:
    folder = kept(tmp_path, LOST.at(verdict={"blame": "code", "why": "it fails on the CPU too"}))
    assert "\nblame     code: it fails on the CPU too\n" in (folder / "README.txt").read_text()


@pytest.mark.parametrize("text", ["", "null", "[1]", '{"sentence": 3, "fault": [], "move": 7}', "{" * 5000, "\0"])
def test_a_folder_of_somebody_else(tmp_path: Path, text: str) -> None:
    """It may hold anything; there is a page nevertheless."""
    for name in ("fault.json", "kernel.json", "counters.json"):
        (tmp_path / name).write_text(text)
    assert readme(tmp_path).startswith(("A fault whose record cannot be read.", "3."))
    evidence.add_verdict(tmp_path, {"blame": "unknown"})
    assert read(tmp_path / "fault.json")["verdict"] == {"blame": "unknown"}


@pytest.mark.parametrize(
    "kernel",
    [
        {"entries": [None, 3, {"sentence": None}], "worst": 3},
        {"entries": "many", "unreadable": ["no"]},
        {"entries": [], "unreadable": {}},
    ],
)
def test_a_kernel_record_of_somebody_else(tmp_path: Path, kernel: object) -> None:
    (tmp_path / "kernel.json").write_text(json.dumps(kernel))
    assert "kernel    " in readme(tmp_path)


def test_where_nothing_can_be_written_the_run_goes_on(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    (run.path / "faults").rmdir()
    (run.path / "faults").write_text("in the way")
    assert evidence.collect(run, LOST, AGAIN, None, "", {}, "") == run.path / "faults"
    evidence.add_verdict(run.path / "none", {"blame": "device"})


def test_a_sentence_for_every_kind(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for kind in Kind:
        folder = evidence.collect(run, Fault(kind, "cuda:0", step=1), AGAIN, None, "", {}, "")
        first = (folder / "README.txt").read_text().splitlines()[0]
        assert first.endswith("at step 1.") and (first[0].isupper() or first.startswith("cuda:0 "))
