"""`holdfast chaos -- COMMAND`: an unchanged script, killed under `run --exact`, and what is compared of it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from holdfast.base.errors import UserError
from holdfast.cli.chaos_command import exit_code, verdict
from holdfast.testing import printed, written
from holdfast.testing.script_copy import Copies, Written
from holdfast.testing.script_signals import draw, parse
from tests.supervisor.scripts.driving import SCRIPTS

from .driving import holdfast


@pytest.mark.all
@pytest.mark.timeout(1800)
def test_an_unchanged_script_that_is_killed_is_compared_with_itself(tmp_path: Path) -> None:
    """The folder it is started in is left as it was: each run has a copy."""
    folder = tmp_path / "job"
    folder.mkdir()
    shutil.copy(SCRIPTS / "exact_script.py", folder / "train.py")
    words = ["--references", "1", "--faults", "sigkill@32", "--json", "--", sys.executable, "train.py", "4"]
    done = holdfast("chaos", *words, cwd=folder, timeout=1700.0)
    assert done.code == 0, done.err + done.out
    receipt = done.json["receipt"]
    assert (receipt["faults_planned"], receipt["faults_injected"], receipt["survived"]) == (1, 1, True)
    assert receipt["exact"] and receipt["exact_rehearsed"] and receipt["steps"] == 40
    assert (receipt["weights_equal"], receipt["lines_equal"], receipt["files_equal"]) == (True, True, True), receipt
    assert receipt["lines_why"].startswith("44 lines, each as") and receipt["files_why"].startswith("2 files, each as")
    assert sorted(path.name for path in folder.iterdir()) == ["runs", "train.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job"], "the copy is removed"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_script_that_cannot_be_exact_is_told_why(tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / "hidden_script.py", tmp_path / "train.py")
    words = ["--references", "1", "--random", "1", "--", sys.executable, "train.py"]
    done = holdfast("chaos", *words, cwd=tmp_path, timeout=1700.0)
    assert done.code == 1, done.err
    assert "✗" in done.out and "the state of chain, a HASH, cannot be read" in done.out


def test_numbers_that_are_times_are_not_compared_and_all_others_are() -> None:
    first = ["epoch 1 loss 0.52 took 3.1 s", "epoch 2 loss 0.41 took 3.4 s", "done"]
    second = ["epoch 1 loss 0.52 took 2.9 s", "epoch 2 loss 0.41 took 3.4 s", "done"]
    assert printed.compare([first, second], [*first[:1], "epoch 2 loss 0.41  took 17.0 s", "done"])[0] is True
    wrong, why = printed.compare([first, second], [*first[:1], "epoch 2 loss 0.42 took 3.4 s", "done"])
    assert wrong is False and why.startswith("line 2 is 'epoch 2 loss 0.42")
    assert printed.compare([first, second], [*first, "done"]) == (False, "4 lines, undisturbed 3")
    assert printed.compare([first, second], first[:2])[0] is False
    assert printed.compare([first], second)[0] is None, "one undisturbed run does not tell what is a time"
    assert printed.compare([first], [*first[:2], "over"])[0] is False
    assert printed.compare([first], second[:2])[0] is False, "a line is missing, whatever the numbers are"
    assert printed.compare([first, first[:2]], first)[0] is None


def test_files_are_compared_as_bytes_or_as_lines() -> None:
    weights, log = Written("a1", None), Written("b1", ("step 1 loss 0.5 at 12:01",))
    other_log = Written("b2", ("step 1 loss 0.5 at 12:07",))
    first = {"ckpt.pt": weights, "log.txt": log, "events.171": Written("c1", None)}
    second = {"ckpt.pt": weights, "log.txt": other_log, "events.185": Written("c2", None)}
    ours = {"ckpt.pt": weights, "log.txt": Written("b3", ("step 1 loss 0.5 at 13:00",)), "events.9": weights}
    same, why = written.compare([first, second], ours)
    assert same is True and why == (
        "2 files, each as in the undisturbed runs; 1 left out, because undisturbed runs differ there"
    )
    assert written.compare([first, second], {**ours, "ckpt.pt": Written("a2", None)})[0] is False
    assert written.compare([first, second], {"ckpt.pt": weights}) == (False, "log.txt is missing")
    assert (
        written.compare([first, second], {**ours, "log.txt": Written("b4", ("step 1 loss 0.6 at 13:00",))})[0] is False
    )
    assert "1 more file, like left.tmp" in written.compare([first, second], {**ours, "left.tmp": weights})[1]
    assert written.compare([{}], {})[0] is None


def test_each_run_begins_with_a_copy_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    for name in ("train.py", "out/old.pt", "runs/x/run.json", ".git/HEAD", "env/pyvenv.cfg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("before")
    os.symlink("../data", folder / "data")
    copies = Copies(folder, leave=folder / "runs")
    with copies.one() as place:
        assert place.parent == tmp_path and sorted(os.listdir(place)) == ["data", "env", "out", "train.py"]
        assert os.readlink(place / "data") == "../data" and os.readlink(place / "env") == str(folder / "env")
        assert copies.command(["python", f"{folder}/train.py", f"--out={folder}/out", "a=b"]) == [
            "python", f"{place}/train.py", f"--out={place}/out", "a=b",
        ]  # fmt: skip
        (place / "out" / "old.pt").write_text("after!")
        (place / "new.csv").write_text("1\n2\n")
        found = copies.written(place)
        assert sorted(found) == ["new.csv", "out/old.pt"] and found["new.csv"].lines == ("1", "2")
    assert not place.exists() and (folder / "out" / "old.pt").read_text() == "before"


def test_the_plan_and_the_verdict() -> None:
    assert [(each.kind, each.step) for each in parse("sigstop@30,sigkill@4,abort")] == [
        ("sigkill", 4), ("abort", 9), ("sigstop", 30),
    ]  # fmt: skip
    with pytest.raises(UserError, match="oom@3"):
        parse("oom@3")
    drawn = [each.step for each in draw(10, steps=400, seed=3)]
    assert (
        drawn == sorted(set(drawn))
        and len(drawn) == 10
        and drawn != [each.step for each in draw(10, steps=400, seed=4)]
    )
    good = {"survived": True, "exact": True, "faults_planned": 2, "faults_injected": 2}
    good |= {"weights_equal": True, "lines_equal": True, "files_equal": None, "why": "equal", "faults": {"killed": 2}}
    assert exit_code(good) == 0 and verdict({"receipt": good})[0] == "✓ exact through 2 faults"
    nothing = {"weights_equal": None, "lines_equal": None, "files_equal": None}
    for change in ({"lines_equal": False}, {"exact": False}, {"faults_injected": 1}, {"survived": False}, nothing):
        assert exit_code({**good, **change}) == 1, change


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    none = holdfast("chaos", cwd=tmp_path)
    assert none.code == 2 and none.err.startswith("error: no script was given\n")
    both = holdfast("chaos", "job.py", "--", "python", "train.py", cwd=tmp_path)
    assert both.code == 2 and both.err.startswith("error: a script and a command after `--` were given\n")
