"""`holdfast resume`: after kill -9 of the supervisor, over a damaged checkpoint, and when there is nothing to do."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.cli.resume import end_line, with_last_word
from holdfast.record.receipt import Accounts
from holdfast.run.folder import RunFolder
from tests.waiting import wait_until

from .conftest import Finished, job_folder
from .driving import Done, holdfast, run_folder, said


@dataclass(frozen=True)
class Crashed:
    cwd: Path
    path: Path
    keeper_step: int
    """The step that the keeper saved after the supervisor was gone."""

    def copy(self, to: Path) -> Path:
        """The same run once more, in a folder of its own."""
        shutil.copy(self.cwd / "job.py", to / "job.py")
        copy = to / "runs" / self.path.name
        shutil.copytree(self.path, copy)
        RunFolder(copy).vouch({**RunFolder(copy).info, "script": str(to / "job.py")})
        return copy


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    """A run whose supervisor was killed -9 in the middle; its keeper saved what was committed."""
    cwd = job_folder(tmp_path_factory)
    words = ("train", "job.py", "lr=0.1", "epochs=3", "nap=0.3", "run.threads=1", "--detach")
    started = holdfast(*words, cwd=cwd)
    assert started.code == 0, started.err
    run = RunFolder(run_folder(cwd))
    assert wait_until(lambda: (json.loads((run.path / "beat.json").read_text())["step"] or 0) >= 5), "5 steps"
    os.kill(int(run.info["pid"]), signal.SIGKILL)
    assert wait_until(lambda: not run.in_use()), "the keeper to let go"
    saved = sorted(int(path.name) for path in (run.path / "checkpoints").iterdir())
    return Crashed(cwd, run.path, saved[-1])


@pytest.mark.long
@pytest.mark.timeout(300)
def test_kill_9_of_the_supervisor_costs_nothing(crashed: Crashed, finished: Finished, tmp_path: Path) -> None:
    copy = crashed.copy(tmp_path)
    assert RunFolder(copy).state() == "CRASHED"
    beat = json.loads((copy / "beat.json").read_text())
    assert crashed.keeper_step >= beat["step"] >= 5
    done = holdfast("resume", RunFolder(copy).name, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    receipt = done.json["receipt"]
    assert done.json["state"] == "FINISHED"
    assert receipt["weights_sha256"] == finished.done.json["receipt"]["weights_sha256"], "the same bits"
    assert (receipt["steps"], receipt["steps_lost"], receipt["faults"]) == (24, 0, {"supervisor_died": 1})
    assert receipt["steps_repeated"] <= 2
    assert receipt["recoveries"] == 1
    assert receipt["seconds_lost"] > 0
    assert receipt["samples_skipped"] == receipt["samples_repeated"] == 0
    assert f" resumed_from={crashed.keeper_step}\n" in done.err
    fault = said("show", "latest", "--json", cwd=tmp_path).json["faults"][0]
    assert (fault["code"], fault["kind"], fault["sentence"]) == ("F015", "supervisor_died", "the supervisor ended")
    assert (Path(fault["folder"]) if os.path.isabs(fault["folder"]) else tmp_path / fault["folder"]).is_dir()
    events = [json.loads(line)["event"] for line in (copy / "journal.jsonl").read_text().splitlines()]
    assert events.count("start") == 2


@pytest.mark.long
@pytest.mark.timeout(300)
def test_damaged_checkpoints_are_passed_over_and_the_loss_is_told(
    crashed: Crashed, finished: Finished, tmp_path: Path
) -> None:
    """Every checkpoint is damaged, each in its own way: the run starts again, and says what that cost."""
    copy = crashed.copy(tmp_path)
    newest, *older = sorted((copy / "checkpoints").iterdir(), reverse=True)
    state = bytearray((newest / "state.safetensors").read_bytes())
    state[-1] ^= 1
    (newest / "state.safetensors").write_bytes(state)
    for path in older:
        (path / "digest.json").write_text("{")
    with open(copy / "journal.jsonl", "a") as file:
        file.write('{"time": "2026-11-15T09:00:00.000Z", "event": "rec')
    done = holdfast("resume", str(copy), "run.device=cpu", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    notes = done.err.splitlines()
    assert notes[0] == f"! checkpoint {newest.name} is skipped: its bytes are not the ones written: holdfast.meta"
    for path, note in zip(older, notes[1:], strict=False):
        assert (
            note == f"! checkpoint {path.name} is skipped: its digest.json was not written by holdfast, or is cut short"
        )
    assert f"• no checkpoint of {RunFolder(copy).name} can be used: starting from the beginning" in notes
    receipt = done.json["receipt"]
    assert receipt["weights_sha256"] == finished.done.json["receipt"]["weights_sha256"]
    committed = (crashed_steps(crashed), crashed.keeper_step)  # the keeper may have seen one more than the journal
    assert receipt["steps_lost"] in committed, "what was committed and could not be kept is told"
    assert said("show", "latest", "--json", cwd=tmp_path).json["faults"], "the torn line took no other with it"


def crashed_steps(crashed: Crashed) -> int:
    return int(json.loads((crashed.path / "beat.json").read_text())["step"])


def test_a_finished_run_needs_no_resume(finished: Finished) -> None:
    done = said("resume", "latest", cwd=finished.cwd)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        f"✓ {finished.name} is finished: 24 steps\n  holdfast show {finished.name}      everything about this run\n"
    )
    data = said("resume", "latest", "--json", cwd=finished.cwd).json
    assert (data["state"], data["exit_code"]) == ("FINISHED", 0)


# Bad input ------------------------------------------------------------------------------------------------


def stopped(finished: Finished, tmp_path: Path, **info: object) -> Path:
    copy = tmp_path / "runs" / finished.path.name
    shutil.copytree(finished.path, copy)
    RunFolder(copy).vouch({**RunFolder(copy).info, "state": "STOPPED", **info})
    return copy


def refused(done: Done) -> str:
    assert (done.out, done.code) == ("", 2), done
    return done.err


def test_the_script_is_gone(finished: Finished, tmp_path: Path) -> None:
    stopped(finished, tmp_path, script=str(tmp_path / "gone.py"))
    text = refused(said("resume", "latest", cwd=tmp_path))
    assert text == f"error: no script `{tmp_path}/gone.py`\n  cause: the file does not exist\n"


def test_arguments_of_the_script_stay(finished: Finished, tmp_path: Path) -> None:
    stopped(finished, tmp_path)
    text = refused(said("resume", "latest", "lr=1", cwd=tmp_path))
    assert text == (
        "error: `lr=1` is not a setting\n"
        "  cause: a run keeps the arguments of its script; a setting is written as section.key=value\n\n"
        "  tip: start a new run to train with other arguments\n\n"
        "For more information, try `holdfast resume --help`\n"
    )


def test_a_secret_must_be_given_again(finished: Finished, tmp_path: Path) -> None:
    stopped(finished, tmp_path, argv=["--token", "***"])
    text = refused(said("resume", "latest", cwd=tmp_path))
    assert text == (
        "error: this run was started with a secret, and secrets are not stored\n"
        "  cause: run.json holds *** in its place\n\n"
        f"hint: give the script's arguments again: `holdfast resume {finished.name} -- …`\n"
    )


def test_settings_of_another_version(finished: Finished, tmp_path: Path) -> None:
    stopped(finished, tmp_path, settings={"run": {"colour": "blue"}})
    assert refused(said("resume", "latest", cwd=tmp_path)).startswith("error: unknown setting `run.colour`\n")


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refused(said("resume", "empty", cwd=tmp_path)).startswith("error: no run `empty` in runs\n")
    (tmp_path / "empty" / "run.json").write_text("{")
    text = refused(said("resume", "empty", cwd=tmp_path))
    assert text == "error: empty is not a run folder\n  cause: it has no readable run.json\n"


# The books ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "saved", "attempts", "steps"),
    [
        ({"attempts": 9, "step": 10}, 10, 12, 10),  # the step in flight was begun
        ({"attempts": 9, "step": 10}, 14, 16, 14),  # the keeper saved what came after the last beat
        ({"attempts": 9, "step": 10}, 6, 12, 10),  # the keeper died too: an older checkpoint
        ({}, 6, 3, 2),  # killed before its first beat
        ({"attempts": "x", "step": None}, 6, 3, 2),
    ],
)
def test_the_accounts_of_a_dead_supervisor(last: dict[str, object], saved: int, attempts: int, steps: int) -> None:
    accounts = with_last_word(Accounts(attempts=3, steps=2), last, saved)
    assert (accounts.attempts, accounts.steps) == (attempts, steps)


def test_a_torn_line_gets_its_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for before, after in ((b"", b""), (b"a\n", b"a\n"), (b"a\nb", b"a\nb\n")):
        path.write_bytes(before)
        end_line(path)
        assert path.read_bytes() == after
    end_line(tmp_path / "not there")
