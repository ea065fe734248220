"""`list`, `status`, `show`, `stop`: what they say of a live, a finished, a crashed and a copied run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.cli.runs import supervisor_pid
from holdfast.run.folder import RunFolder, write_json
from tests.waiting import wait_until

from .conftest import Finished, job_folder
from .driving import Terminal, holdfast, run_folder, said

LIST_FIELDS = {"run", "workload", "state", "device", "step", "steps_total", "time_left_s", "recoveries"}
SHOW_FIELDS = {"run", "folder", "state", "exit_code", "device_timeline", "metrics", "best", "receipt"}


@dataclass(frozen=True)
class Background:
    cwd: Path
    path: Path
    pid: int
    said: str

    @property
    def name(self) -> str:
        return RunFolder(self.path).name

    @property
    def step(self) -> int:
        return int(json.loads((self.path / "beat.json").read_text())["step"])


@pytest.fixture(scope="module")
def background(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    """A detached run whose terminal has been closed and whose supervisor was sent SIGHUP on top."""
    cwd = job_folder(tmp_path_factory)
    terminal = Terminal("train", "job.py", "epochs=5000", "nap=0.05", "--detach", cwd=cwd)
    assert terminal.wait() == 0, terminal.text
    said = terminal.text
    terminal.end()
    path = run_folder(cwd)
    pid = int(json.loads((path / "run.json").read_text())["pid"])
    os.kill(pid, signal.SIGHUP)
    live = Background(cwd, path, pid, said)
    assert wait_until(lambda: (path / "beat.json").exists() and live.step >= 20), "20 steps"
    yield live
    holdfast("stop", live.name, "--now", "-q", cwd=cwd)


# A live run -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_detach_says_where_the_run_is_and_how_to_reach_it(background: Background) -> None:
    name = background.name
    first, *rest = background.said.splitlines()
    assert re.fullmatch(rf"{name} is (running|starting) in the background, pid {background.pid}", first)
    assert rest == [
        f"  folder  runs/{background.path.name}",
        f"  log     runs/{background.path.name}/supervisor.log",
        f"  status  holdfast status {name}",
        f"  stop    holdfast stop {name}",
    ]


def test_status_of_a_live_run(background: Background) -> None:
    done = said("status", cwd=background.cwd)
    first, second, *rest = done.out.splitlines()
    assert re.fullmatch(rf"{background.name} · job · RUNNING [\d.m s]+ · cpu", first)
    assert re.match(r"  epoch \d+/5000  step \d+/40 000  .* steps/s  .* left$", second)
    assert rest[-1].startswith("  no faults")


def test_json_of_a_live_run(background: Background) -> None:
    row = said("status", background.name, "--json", cwd=background.cwd).json["runs"][0]
    assert row.keys() >= LIST_FIELDS
    assert (row["run"], row["workload"], row["state"]) == (background.name, "job", "RUNNING")
    assert row["step"] >= 20 and row["steps_total"] == 40_000 and row["time_left_s"] > 0
    shown = said("show", "latest", "--json", cwd=background.cwd).json
    assert shown.keys() >= SHOW_FIELDS
    assert (shown["state"], shown["exit_code"], shown["receipt"]) == ("RUNNING", None, None)


def test_a_run_in_use_names_its_holder(background: Background) -> None:
    done = said("resume", background.name, cwd=background.cwd)
    assert (done.out, done.code) == ("", 2)
    assert done.err == (
        f"error: {background.name} is in use\n  cause: it is held by pid {background.pid}\n\n"
        f"hint: watch it with `holdfast status {background.name}`\n"
        f"hint: stop it with `holdfast stop {background.name}`\n"
    )


def test_only_the_process_that_holds_the_lock_is_signalled(background: Background, tmp_path: Path) -> None:
    """Process numbers are used again, and folders are copied: neither may get a stranger killed."""
    assert supervisor_pid(RunFolder(background.path)) == background.pid
    copy = tmp_path / background.path.name
    shutil.copytree(background.path, copy)
    assert supervisor_pid(RunFolder(copy)) is None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (copy / "lock").write_text(f"pid {stranger.pid}\n")
        write_json(copy / "run.json", {**RunFolder(copy).info, "pid": stranger.pid})
        done = holdfast("stop", str(copy), cwd=tmp_path)
        assert (done.code, stranger.poll()) == (0, None)
        stranger.kill()
    assert " is not running: it is CRASHED at step " in done.out


def test_stop_saves_and_says_where(background: Background) -> None:
    done = holdfast("stop", background.name, cwd=background.cwd)
    assert done.code == 0
    assert done.err == f"asked {background.name} (pid {background.pid}) to save and stop\n"
    receipt = json.loads((background.path / "receipt.json").read_text())
    lines = done.out.splitlines()
    assert lines[0] == f"✓ {background.name} stopped at step {receipt['steps']:,}".replace(",", " ")
    assert re.match(rf"  saved    step [\d ]+ in runs/.*/checkpoints/{receipt['steps']:06d}$", lines[-2])
    assert lines[-1] == f"  continue with `holdfast resume {background.name}`"
    info = json.loads((background.path / "run.json").read_text())
    assert (info["state"], info["exit_code"]) == ("STOPPED", 75)
    assert receipt["samples_skipped"] == 0
    # The last batch of an epoch is kept with its epoch: a stop there repeats it, with the steps since the last commit.
    assert receipt["steps_repeated"] <= 1 + (receipt["cadence"] or {}).get("every_steps", 0)
    again = holdfast("stop", background.name, cwd=background.cwd)
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith(f"{background.name} is not running: it is STOPPED at step ")


def test_nothing_is_left_of_a_stopped_run(background: Background) -> None:
    holdfast("stop", background.name, cwd=background.cwd)
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(background.path) not in processes
    assert not (background.path / "slots").exists()


# Finished, crashed, copied --------------------------------------------------------------------------------


def test_list_of_a_finished_run(finished: Finished) -> None:
    best = finished.done.json["best"]
    done = holdfast("list", cwd=finished.cwd)
    header, line = done.out.splitlines()
    assert header.split() == ["RUN", "WORKLOAD", "STATE", "DEVICE", "STEP", "BEST", "RECOVERED", "TIME", "LEFT"]
    assert line.split()[:7] == [finished.name, "job", "FINISHED", "cpu", "24/24", "valid_loss", f"{best['value']:.4f}"]
    row = said("list", "--json", cwd=finished.cwd).json["runs"][0]
    assert row.keys() >= LIST_FIELDS
    assert (row["step"], row["steps_total"], row["time_left_s"], row["recoveries"]) == (24, 24, None, 0)
    plain = said("list", "--plain", cwd=finished.cwd)
    assert plain.out.split("\t")[:5] == [finished.name, "job", "FINISHED", "cpu", "24"]


def test_show_of_a_finished_run(finished: Finished) -> None:
    done = said("show", finished.name, cwd=finished.cwd)
    assert (done.code, done.err) == (0, "")
    for part in (
        f"{finished.name} · job · FINISHED\n",
        "\n  ✓ finished 3 epochs, 24 steps, in ",
        "\n  receipt  24 steps: 0 repeated, 0 lost; samples: 0 skipped, 0 seen twice\n",
        "\n  script     job.py\n  arguments  lr=0.1 epochs=3\n  seed       0, 1 threads\n",
        "\n  settings   run.threads 1\n",
        "\nDevices\n  cpu  step 0 to 24\n",
        f"\n  folder   runs/{finished.path.name}\n",
    ):
        assert part in done.out, part
    data = said("show", finished.name, "--json", cwd=finished.cwd).json
    same = {key: value for key, value in finished.done.json.items() if key != "error"}
    assert {key: data[key] for key in same} == same


@pytest.mark.parametrize(
    ("state", "epoch", "faults", "last"),
    [("FINISHED", "epoch 6/6", "all recovered", True), ("GAVE_UP", "epoch 5/6", "1 recovered", False)],
)
def test_status_the_page_and_show_agree(
    tmp_path: Path, state: str, epoch: str, faults: str, last: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two loops of three epochs, two faults, and a beat of the first second: the journal has the rest."""
    from holdfast.cli.main import main
    from holdfast.monitor import payload, reader

    info = {"schema": 1, "format": 1, "created": "2026-11-17T08:58:00Z", "workload": "loops", "state": state}
    path = RunFolder.create(tmp_path / "runs", "loops", info).path
    total = 3 if last else 6  # the second loop had begun when the beat of the run that gave up was written
    beat = {"time": "2026-11-17T08:58:01Z", "step": 4, "epoch": 1, "epochs": total, "recoveries": 0}
    write_json(path / "beat.json", beat)
    done = 6 if last else 5
    rows: list[dict[str, object]] = [{"event": "epoch", "epoch": each, "step": 4 * each + 4} for each in range(done)]
    rows[1:1] = [{"event": "fault", "code": "F001", "step": 6}, {"event": "recovered", "step": 6, "seconds": 0.2}]
    rows += [{"event": "fault", "code": "F002", "step": 4 * done}]
    rows += [{"event": "recovered", "step": 4 * done}] if last else []
    (path / "journal.jsonl").write_text("".join(json.dumps({"time": beat["time"], **row}) + "\n" for row in rows))
    receipt = {"schema": 1, "steps": 4 * done, "recoveries": 1, "survived": last, "faults": {"killed": 1, "hang": 1}}
    write_json(path / "receipt.json", receipt)
    write_json(path / "run.json", {**RunFolder(path).info, "accounts": receipt})

    assert main(["status", str(path)]) == 0
    status = capsys.readouterr().out
    assert f"  {epoch}  step {4 * done}" in status and f"\n  2 faults, {faults}" in status
    assert main(["show", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert main(["show", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"faults   1 killed worker, 1 hang; {faults}" in text
    assert not last or "✓ finished 6 epochs, 24 steps," in text
    run = reader.open(path)
    page = payload.head(run, "x")
    assert f"epoch {page['progress']['epoch']}/{page['progress']['epochs']}" == epoch
    assert (shown["epochs_done"], shown["faults_recovered"]) == (done, 2 if last else 1)
    assert page["all_recovered"] is last and page["faults_total"] == 2
    assert f"Two faults, {'both' if last else '1'} recovered." in f"{page['sentence']} {page['verdict']}"
    row = json.loads((main(["list", "--json", "--folder", str(tmp_path / "runs")]), capsys.readouterr().out)[1])[
        "runs"
    ][0]
    assert (row["epoch"], row["epochs"], row["faults"], row["faults_recovered"]) == (done - 1, 6, 2, 2 if last else 1)


def test_a_copied_run_is_read_where_it_is(finished: Finished, tmp_path: Path) -> None:
    copy = tmp_path / "from-elsewhere"
    shutil.copytree(finished.path, copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    data = said("show", str(copy), "--json", cwd=tmp_path).json
    assert (data["state"], data["folder"], data["receipt"]["steps"]) == ("FINISHED", str(copy), 24)
    assert data["weights"]["final"] == str(copy / "final.safetensors")
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)


def test_a_crashed_run_is_called_crashed(finished: Finished, tmp_path: Path) -> None:
    """Its run.json says RUNNING, and nobody holds its lock: the power went, or everything was killed."""
    copy = tmp_path / "runs" / finished.path.name
    shutil.copytree(finished.path, copy)
    write_json(copy / "run.json", {**RunFolder(copy).info, "state": "RUNNING"})
    (copy / "receipt.json").unlink()
    shown = said("status", cwd=tmp_path)
    assert shown.out.startswith(f"{finished.name} · job · CRASHED ")
    assert shown.out.endswith(f"\n  continue with `holdfast resume {finished.name}`\n")
    assert said("show", "latest", "--json", cwd=tmp_path).json["state"] == "CRASHED"


def test_a_folder_from_a_newer_holdfast(finished: Finished, tmp_path: Path) -> None:
    copy = tmp_path / "runs" / finished.path.name
    shutil.copytree(finished.path, copy)
    write_json(copy / "run.json", {**RunFolder(copy).info, "format": 99})
    done = said("show", finished.name, cwd=tmp_path)
    assert (done.out, done.code) == ("", 2)
    assert done.err == (
        f"error: runs/{copy.name} was written by a newer holdfast\n"
        "  cause: its format is 99, this holdfast reads up to 1\n\n"
        "hint: update holdfast: `pip install -U holdfast`\n"
    )


def test_a_folder_that_was_made_to_harm(finished: Finished, tmp_path: Path) -> None:
    """Words from a foreign folder reach the terminal without the codes that would drive it."""
    copy = tmp_path / "runs" / finished.path.name
    shutil.copytree(finished.path, copy)
    info = {**RunFolder(copy).info, "workload": "\x1b]0;owned\x07job\x1b[2J", "device": "\x1b[31mcpu"}
    write_json(copy / "run.json", {**info, "accounts": [], "settings": {"sources": {"run.seed": 1, "x": 2}}})
    with open(copy / "journal.jsonl", "a") as file:
        file.write('{"event": "fault", "time": "\x1b[5m", "sentence": "\\u001b[2Jgone", "code": ["F"]}\n[]\n{"torn')
    for command in ("list", "status", "show"):
        words = [finished.name] if command == "show" else []
        done = said(command, *words, "-v", cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        assert "\x1b" not in done.out


def test_a_name_that_is_nearly_right(finished: Finished) -> None:
    done = said("show", finished.name[:-1], cwd=finished.cwd)
    assert done.code == 2
    assert done.err.endswith(f"\n\nhint: a similar run exists: `{finished.name}`\n")


def test_no_runs_at_all(tmp_path: Path) -> None:
    for command in ("list", "status"):
        done = said(command, cwd=tmp_path)
        assert (done.out, done.err, done.code) == ("", "no runs in runs\n", 0)
