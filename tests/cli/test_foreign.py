"""A run folder may come from somebody else: what it names is not run, and nothing it says can break a command."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.files import number, whole
from holdfast.cli import resume, resume_trust, run_facts
from holdfast.run.folder import RunFolder

from .conftest import Finished
from .driving import holdfast, said

WRONG: dict[str, Any] = {
    "text": "many",
    "negative": -1,
    "fraction": 3.5,
    "truth": True,
    "nothing": None,
    "list": [1, 2],
    "object": {"a": 1},
    "huge": 10**30,
    "beyond a float": 10**400,
    "no number": float("nan"),
    "infinite": float("-inf"),
}


def copy(finished: Finished, to: Path, **info: object) -> RunFolder:
    """A run of one's own that was stopped, with other words in its run.json."""
    folder = to / "runs" / finished.path.name
    shutil.copytree(finished.path, folder)
    change(folder, "run.json", state="STOPPED", exit_code=None, **info)
    return RunFolder(folder)


def change(folder: Path, name: str, **words: object) -> None:
    path = folder / name
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **words}))


def refusal(cwd: Path) -> str:
    done = said("resume", "latest", cwd=cwd)
    assert (done.out, done.code) == ("", 2), done
    return done.err


# Whose it is ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_run_of_another_user(finished: Finished, tmp_path: Path) -> None:
    if not hasattr(os, "getuid") or os.getuid() != 0:
        pytest.skip("only root can give a file away")
    run = copy(finished, tmp_path)
    os.chown(run.path / "run.json", 4242, -1)
    assert refusal(tmp_path) == (
        f"error: {run.name} belongs to another user\n"
        "  cause: its run.json is owned by uid 4242, and resuming runs the script it names\n\n"
        "hint: copy the folder if you trust it: the copy is yours\n"
    )


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no users as on Unix")
@pytest.mark.parametrize(("folder", "file"), [(0o777, 0o600), (0o755, 0o666)], ids=["replaced", "written"])
def test_a_run_that_anybody_can_change(finished: Finished, tmp_path: Path, folder: int, file: int) -> None:
    run = copy(finished, tmp_path)
    run.path.chmod(folder)
    (run.path / "run.json").chmod(file)
    assert refusal(tmp_path) == (
        f"error: {run.name} can be changed by anybody\n"
        "  cause: every user of this machine can change its run.json, and resuming runs the script it names\n\n"
        f"hint: if it still says what you started: `chmod -R go-w runs/{run.path.name}`\n"
    )
    assert RunFolder(run.path).info["state"] == "STOPPED"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no users as on Unix")
@pytest.mark.parametrize(
    ("folder", "file"), [(0o700, 0o666), (0o1777, 0o644), (0o755, 0o644)], ids=["behind a door", "sticky", "readable"]
)
def test_a_run_that_only_its_owner_can_change(tmp_path: Path, folder: int, file: int) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "run").chmod(folder)
    (tmp_path / "run" / "run.json").chmod(file)
    assert resume_trust.open_to(tmp_path / "run") is None


@pytest.mark.parametrize("script", ["{run}/job.py", "job.py", "{run}/../{name}/job.py"])
def test_a_script_inside_of_the_run(finished: Finished, tmp_path: Path, script: str) -> None:
    """It came with the folder. Neither is it run when it is there, nor by a way around, nor relative to anything."""
    run = copy(finished, tmp_path)
    shutil.copy(finished.cwd / "job.py", run.path / "job.py")
    named = script.format(run=run.path, name=run.path.name)
    change(run.path, "run.json", script=named)
    assert refusal(tmp_path) == (
        f"error: {run.name} names a script inside its own folder\n"
        f"  cause: {named}: a run folder may come from somebody else, and nothing in it is executed\n\n"
        "hint: copy the script out and start a new run with it\n"
    )


# What it says -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_run_with_nonsense_in_its_books_resumes(finished: Finished, tmp_path: Path) -> None:
    """Every number is a wrong one: it goes on from what was saved, and counts anew."""
    nonsense = {
        "generations": "many",
        "accounts": [1, 2],
        "threads": "all",
        "device": ["cpu"],
        "pid": "somebody",
        "best": "the first",
        "script_sha256": 7,
        "argv": "none",
    }
    run = copy(finished, tmp_path, **nonsense)
    run.vouch({**run.info, "state": "RUNNING"})
    change(run.path, "beat.json", attempts="some", step=[24], phase=1, time=2)
    change(run.path, "last.json", attempts="some", step=-3, commit_ns=10**30)
    for words in (("status",), ("show", "latest"), ("list",)):
        done = holdfast(*words, cwd=tmp_path)
        assert done.code in (0, 1) and "Traceback" not in done.err, done
    done = holdfast("resume", "latest", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    receipt = done.json["receipt"]
    assert (done.json["state"], receipt["steps"]) == ("FINISHED", 24)
    assert receipt["weights_sha256"] == finished.done.json["receipt"]["weights_sha256"]
    assert receipt["faults"] == {"supervisor_died": 1}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_the_books_of_somebody_else(finished: Finished, tmp_path: Path, wrong: object) -> None:
    """Wrong as a whole, or in every number: what is not a count counts nothing."""
    run = copy(finished, tmp_path)
    for accounts in (wrong, dict.fromkeys(run.info["accounts"], wrong)):
        change(run.path, "run.json", state="RUNNING", accounts=accounts, best=dict.fromkeys(run.info["best"], wrong))
        change(run.path, "last.json", **dict.fromkeys(("attempts", "attempt", "step", "phase", "commit_ns"), wrong))
        again = RunFolder(run.path)
        since = resume._account(again, None)
        assert since is None or 0 < since < 1 << 63
        kept = again.info["accounts"]
        assert kept["attempts"] >= 0 and kept["steps"] == 0
        json.dumps(kept, allow_nan=False)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_wrong_numbers(wrong: Any) -> None:
    assert whole(wrong, 7) == 7
    amount = float(wrong) if wrong in (-1, 3.5, 10**30) else None
    assert number(wrong, 7.0) == (7.0 if amount is None else amount)
    assert run_facts.number(wrong) == amount
