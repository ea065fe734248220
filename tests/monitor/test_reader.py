"""The reader: what a run folder says, read once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.monitor import reader
from holdfast.run.folder import write_json
from tests.monitor.folders import BEGAN, at, logged, make_run, plain, stamp

pytestmark = pytest.mark.usefixtures("cache")


def test_faults_have_their_blame_and_what_it_took(tmp_path: Path) -> None:
    run = reader.open(make_run(tmp_path).path)
    first, second = run.faults
    assert (first.code, first.blame, first.recovered_s, first.folder) == ("F005", "device", 17.0, "faults/01")
    assert (second.code, second.blame, second.recovered, second.lost_s) == ("F004", None, True, 9.5)
    assert run.faults_total == 2
    assert run.story.faults_by == {"F005 cuda:0": 1, "F004 cuda:0": 1}


def test_lanes_are_workers_on_devices(tmp_path: Path) -> None:
    run = reader.open(make_run(tmp_path).path)
    assert [(lane.device, lane.worker, lane.ended_by) for lane in run.lanes] == [
        ("cuda:0", 71, "F005"),
        ("cuda:0", 72, "F004"),
        ("cpu", 73, None),
    ]
    assert run.lanes[0].until == BEGAN + 600
    assert run.lanes[1].from_step == 399


@pytest.mark.parametrize("said", ["FINISHED", "STOPPED", "FAILED", "GAVE_UP", "CRASHED"])
def test_a_state_that_was_said_is_the_state(tmp_path: Path, said: str) -> None:
    assert reader.open(make_run(tmp_path, said).path).state == said


def test_who_holds_the_lock_lives(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "RECOVERING", boot_id=reader.boot_id())
    assert reader.open(folder.path).state == "CRASHED"
    folder.lock()
    run = reader.open(folder.path)
    assert run.state == "RECOVERING"
    folder.update_info(state="RUNNING", device="cuda:0")
    assert run.refresh() and run.state == "RUNNING"
    folder.update_info(device="cpu")
    assert run.refresh() and run.state == "MOVED"
    folder.close()
    assert run.refresh() and run.state == "CRASHED"


def test_a_run_on_another_machine_lives_while_it_beats(tmp_path: Path) -> None:
    folder = make_run(tmp_path, device="cuda:0")
    beat = json.loads((folder.path / "beat.json").read_text())
    write_json(folder.path / "beat.json", {**beat, "time": stamp(-100_000)})
    run = reader.open(folder.path)
    assert run.state == "CRASHED"  # the beat is old, by the clock
    write_json(folder.path / "beat.json", {**beat, "time": stamp(-99_999)})
    assert run.refresh()
    assert (run.state, run.elsewhere) == ("RUNNING", True)  # but it changed while we looked


def test_progress_settings_and_best(tmp_path: Path) -> None:
    best = {"name": "valid_bacc", "value": 0.86, "step": 1900, "epoch": 18}
    kept = {"watchdog": {"floor": 90.0}, "run": {"seed": 7}, "sources": {"watchdog.floor": "./holdfast.toml:7"}}
    run = reader.open(make_run(tmp_path, "FINISHED", best=best, settings=kept).path)
    assert run.best == {**best, "epoch": 19}
    assert [(each.key, each.shown, each.source) for each in run.settings] == [
        ("watchdog.floor", "90 s", "./holdfast.toml:7"),
        ("run.seed", "7", "default"),
    ]
    assert run.log_tail(2) == ["warning: channel Cz is flat", "epoch 2 done"]
    assert run.metrics["train_loss"].last == pytest.approx(0.69 * 0.965**18)


@pytest.mark.parametrize(
    ("state", "said", "shown"),
    [
        ("RUNNING", None, (0.25, 20, 2)),  # killed: nobody wrote down which was the best
        ("RUNNING", 0.5, (0.25, 20, 2)),  # resumed after a stop, and killed
        ("RUNNING", 0.125, (0.125, 10, 1)),
        ("STOPPED", 0.5, (0.5, 10, 1)),  # that was said when all was known
        ("STOPPED", None, None),
    ],
)
def test_the_best_of_a_run_that_has_not_said_it(
    tmp_path: Path, state: str, said: float | None, shown: tuple[float, int, int] | None
) -> None:
    best = None if said is None else {"name": "valid_loss", "value": said, "step": 10, "epoch": 0}
    path = plain(tmp_path / "run", state=state, best=best)
    logged(path, at(10, 0, valid_loss=said or 1.0), at(20, 1, valid_loss=0.25), at(30, 2, valid_loss=0.75))
    epochs = [{"epoch": number, "step": 10 * number + 10, "best": number < 2} for number in range(3)]
    (path / "journal.jsonl").write_text("".join(json.dumps({"event": "epoch", **each}) + "\n" for each in epochs))
    found = reader.open(path).best
    assert (found and (found["value"], found["step"], found["epoch"])) == shown


def test_a_glance_reads_no_journal(tmp_path: Path) -> None:
    run = reader.Run(make_run(tmp_path, "FINISHED").path)
    run.refresh(books=False)
    assert run.state == "FINISHED"
    assert run.books.journal.offset == 0


def test_it_needs_neither_torch_nor_the_runtime(tmp_path: Path) -> None:
    path = make_run(tmp_path).path
    code = f"""
import sys
from holdfast.monitor import reader, payload, report
report.html(reader.open({str(path)!r}))
other = ("holdfast.worker", "holdfast.supervisor", "holdfast.data")
found = [name for name in sys.modules if name.startswith(other) or name in ("torch", "numpy")]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True)
