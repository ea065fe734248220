"""`holdfast run --exact`: unchanged scripts in real processes, killed with SIGKILL where a line says that they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.run.folder import list_runs
from tests.supervisor.scripts.driving import SCRIPTS, Ran, by_itself, environment, holdfast, same_weights, under_run

EPOCHS = "3"
PATIENCE = 900.0


def killed_at(folder: Path, lines: list[str], *words: object) -> Ran:
    """Under --exact, with SIGKILL to the script each time that its output comes to one of these lines."""
    folder.mkdir(parents=True)
    command = holdfast("run", "--exact", "--", sys.executable, *map(str, words))
    with open(folder / "err", "wb") as err:
        process = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=err)
        assert process.stdout is not None
        out, waiting = b"", list(lines)
        for line in process.stdout:
            out += line
            if waiting and line.startswith(waiting[0].encode()):
                waiting.pop(0)
                os.kill(int(list_runs(folder / "runs")[-1].info["script_pid"]), signal.SIGKILL)
        process.wait()
    run = list_runs(folder / "runs")[-1]
    assert not waiting
    return Ran(process.returncode, out, (folder / "err").read_bytes(), 0.0, folder, run, run.receipt() or {})


@pytest.mark.long  # make test-all has the same of `holdfast chaos -- COMMAND`: tests/cli/test_chaos_command.py
@pytest.mark.timeout(1800)
def test_a_killed_script_has_the_weights_the_log_and_the_files_of_the_undisturbed_one(tmp_path: Path) -> None:
    """The rehearsal is over after two seconds of steps, which take 0.1 s."""
    lines = ["epoch 3 batch 1", "epoch 3 batch 8"]
    script = SCRIPTS / "exact_script.py"
    alone = by_itself(tmp_path / "alone", script, "4", patience=PATIENCE)
    killed = killed_at(tmp_path / "killed", lines, script, "4")
    assert killed.code == 0, killed.story()
    assert killed.out.decode() == alone.out.decode(), killed.story()
    assert same_weights(tmp_path / "alone", tmp_path / "killed")
    assert (tmp_path / "killed" / "log.csv").read_text() == (tmp_path / "alone" / "log.csv").read_text()
    assert killed.receipt["exact"], killed.story()
    assert sum(killed.receipt["faults"].values()) == len(lines)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_script_that_cannot_be_led_back_is_found_out_and_runs_as_without(tmp_path: Path) -> None:
    script = SCRIPTS / "hidden_script.py"
    alone = by_itself(tmp_path / "alone", script, patience=PATIENCE)
    ran = under_run(tmp_path / "exact", script, settings=("--exact",), patience=PATIENCE)
    assert ran.code == 0, ran.story()
    assert ran.out == alone.out, ran.story()
    assert same_weights(tmp_path / "alone", tmp_path / "exact")
    assert not ran.receipt["exact"]
    assert "not exact" in ran.said and "the state of chain, a HASH, cannot be read" in ran.said, ran.said
    assert ran.receipt["exact_reason"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_script_that_is_left_alone_prints_and_computes_what_it_does_without(tmp_path: Path) -> None:
    script = SCRIPTS / "exact_script.py"
    alone = by_itself(tmp_path / "alone", script, EPOCHS, patience=PATIENCE)
    ran = under_run(tmp_path / "exact", script, EPOCHS, settings=("--exact", "--no-rehearsal"), patience=PATIENCE)
    assert (ran.code, ran.out, ran.err) == (0, alone.out, alone.err)
    assert same_weights(tmp_path / "alone", tmp_path / "exact")
    assert ran.receipt["exact"] and ran.receipt["exact_rehearsed"] is None


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_that_is_stopped_goes_on_at_the_same_batch(tmp_path: Path) -> None:
    script = SCRIPTS / "exact_script.py"
    alone = by_itself(tmp_path / "alone", script, EPOCHS, patience=PATIENCE)
    folder = tmp_path / "stopped"
    folder.mkdir()
    command = holdfast("run", "--exact", "--no-rehearsal", "--", sys.executable, str(script), EPOCHS)
    process = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE)
    assert process.stdout is not None
    out = b""
    for line in process.stdout:
        out += line
        if line.startswith(b"epoch 1 batch 3"):
            process.send_signal(signal.SIGTERM)
    assert process.wait() == 75
    resumed = subprocess.run(
        holdfast("resume", "latest"), cwd=folder, env=environment(folder), capture_output=True, check=False
    )
    assert resumed.returncode == 0, resumed.stderr.decode()
    assert (out + resumed.stdout).decode() == alone.out.decode()
    assert same_weights(tmp_path / "alone", folder)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_restart_in_a_later_loop_does_not_compute_the_earlier_ones_again(tmp_path: Path) -> None:
    script = SCRIPTS / "two_loops_script.py"
    alone = by_itself(tmp_path / "alone", script, patience=PATIENCE)
    killed = killed_at(tmp_path / "killed", ["finetune 20", "fold2 5"], script)
    assert killed.code == 0, killed.story()
    assert killed.out.decode() == alone.out.decode(), killed.story()
    assert same_weights(tmp_path / "alone", tmp_path / "killed")
    assert killed.run is not None and (killed.run.path / "milestones" / "0").exists()
    assert killed.receipt["exact"], killed.story()
