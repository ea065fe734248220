"""The closing summary of a run, as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import summary
from holdfast.cli.run_facts import Look
from holdfast.run.folder import RunFolder, write_json


def test_samples_that_were_left_out_are_in_the_closing_words() -> None:
    receipt: dict[str, object] = {"steps": 3, "samples_skipped": 0, "samples_repeated": 0, "samples_quarantined": 2}
    assert summary.receipt_words(receipt).endswith("samples: 0 skipped, 0 seen twice, 2 left out")
    assert summary.receipt_words({**receipt, "samples_quarantined": 0}).endswith("0 seen twice")
    assert summary.fault_words({"bad_data": 1}) == "1 error in the data"


def make_run(root: Path, state: str, **info: Any) -> RunFolder:
    path = root / "eeg-20261115-0912-calm-heron"
    for part in ("checkpoints/000024", "faults/01"):
        (path / part).mkdir(parents=True)
    write_json(path / "checkpoints/000024/digest.json", {"step": 24, "bytes": 1000})
    write_json(path / "run.json", {"schema": 1, "format": 1, "workload": "eeg", "state": state, **info})
    events = [
        {"time": "2026-11-15T09:00:00Z", "event": "start"},
        {"time": "2026-11-15T09:10:00Z", "event": "fault", "kind": "hang", "code": "F005"},
        {"time": "2026-11-15T09:59:00Z", "event": "epoch", "epoch": 2},
        {"time": "2026-11-15T10:00:00Z", "event": "end", "state": state},
    ]
    (path / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"torn')
    metrics = [
        {"step": 8 * (n + 1), "epoch": n, "train_loss": 0.7 - 0.2 * n, "valid_bacc": 0.5 + 0.1 * n} for n in range(3)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in metrics))
    write_json(path / "beat.json", {"epochs": 3, "step": 24, "steps_total": 24})
    receipt = {
        "steps": 24,
        "faults": {"hang": 2, "out_of_memory": 1},
        "survived": state == "FINISHED",
        "recoveries": 3,
        "steps_repeated": 4,
        "steps_lost": 0,
        "samples_skipped": 0,
        "samples_repeated": 0,
        "seconds_lost": 170.0,
        "weights_sha256": "3f" * 32 if state == "FINISHED" else None,
    }
    write_json(path / "receipt.json", receipt)
    return RunFolder(path)


BOOKS = {
    "accounts": {"timeline": [{"device": "cuda:0", "from_step": 0, "to_step": 12}, {"device": "cpu", "from_step": 12}]},
    "best": {"name": "valid_bacc", "value": 0.7, "step": 24, "epoch": 2},
}

CLOSING = """\
✓ finished 3 epochs, 24 steps, in 1h 00m on cuda:0, then cpu
  best valid_bacc 0.7000 at epoch 3

  train_loss  █▅▁   0.7000 → 0.3000
  valid_bacc  ▁▅█   0.5000 → 0.7000

  faults   2 hangs, 1 out-of-memory fault; all recovered; 2m 50s lost (4.7 %)
  receipt  24 steps: 4 repeated, 0 lost; samples: 0 skipped, 0 seen twice
  weights  sha256 3f3f3f3f3f3f3f3f…

  best     eeg-20261115-0912-calm-heron/best.safetensors
  final    eeg-20261115-0912-calm-heron/final.safetensors

  holdfast show calm-heron        everything about this run
  holdfast report calm-heron      the same as one page, to keep or to send
"""

STOPPED = """\
• stopped at step 24 in 1h 00m on cuda:0, then cpu · best valid_bacc 0.7000 at epoch 3

  train_loss  █▅▁   0.7000 → 0.3000
  valid_bacc  ▁▅█   0.5000 → 0.7000

  faults   2 hangs, 1 out-of-memory fault; 2m 50s lost (4.7 %)
  receipt  24 steps: 4 repeated, 0 lost; samples: 0 skipped, 0 seen twice

  saved    step 24 in eeg-20261115-0912-calm-heron/checkpoints/000024

  holdfast resume calm-heron      continue from what was saved
  holdfast show calm-heron        everything about this run
"""


def test_the_closing_of_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_RUN_FOLDER", ".")
    run = make_run(tmp_path, "FINISHED", exit_code=0, **BOOKS)
    for name in ("best", "final"):
        (run.path / f"{name}.safetensors").write_bytes(b"")
    assert "\n".join(summary.closing(Look(run), 80)) + "\n" == CLOSING


def test_the_closing_says_what_it_cost_what_bound_it_and_what_the_plan_said(tmp_path: Path) -> None:
    plan = {"time_s": 11400, "time_low_s": 10200, "time_high_s": 12600, "cost_usd": 0.22, "usd_per_kwh": 0.17}
    run = make_run(tmp_path, "FINISHED", exit_code=0, threads=1, plan=plan, **BOOKS)
    beat = {"device": "cuda:0", "energy_wh": {"cuda:0": 1210.4, "cpu": 140.0}, "loaders": 0}
    beat |= {"phases_s": {"data": 1800.0, "forward": 900.0, "backward": 700.0, "loop": 30.0}}
    write_json(run.path / "beat.json", beat)
    lines = summary.accounts(Look(run), 100)
    text = " ".join(" ".join(lines).split())
    assert "cost 1.35 kWh (cuda:0 1.21, cpu 0.14), $0.23; the plan said 3h 10m ±20m and $0.22, it took 1h" in text
    assert "bound by input: 52 % reading data, 47 % computing; most worth changing: Loader(num_workers=" in text
    write_json(run.path / "run.json", {**run.info, "plan": ["a", "list"]})
    write_json(run.path / "beat.json", {"energy_wh": {"cpu": "much"}, "phases_s": 3})
    assert not any("cost" in line or "bound" in line for line in summary.accounts(Look(run), 100))


def test_a_plan_by_its_option_is_told_too(tmp_path: Path) -> None:
    plan = {"seconds": 11400, "low": 11000, "high": 14400, "option": "cuda:0 fp32"}
    run = make_run(tmp_path, "FINISHED", exit_code=0, plan=plan, **BOOKS)
    cost = next(line for line in summary.accounts(Look(run), 140) if "cost" in line)
    assert "the plan said 3h 10m ±28m 20s for cuda:0 fp32, it took 1h" in cost


def test_the_closing_of_a_stopped_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path, "STOPPED", exit_code=75, **BOOKS)
    assert "\n".join(summary.closing(Look(run), 100)) + "\n" == STOPPED.replace(
        "holdfast resume calm-heron ", f"holdfast resume {run.path.name} "
    ).replace("holdfast show calm-heron ", f"holdfast show {run.path.name} "), "not where runs usually are"
    monkeypatch.setenv("HOLDFAST_RUN_FOLDER", ".")
    assert "\n".join(summary.closing(Look(run), 100)) + "\n" == STOPPED


def test_a_folder_full_of_nonsense_can_still_be_closed(tmp_path: Path) -> None:
    """A run folder may come from somebody else."""
    run = make_run(tmp_path, "FINISHED", accounts=["no"], best="no", exit_code="no", settings=3)
    (run.path / "beat.json").write_text('{"epochs": "many", "step": [], "steps_total": {}, "recoveries": null}')
    (run.path / "metrics.jsonl").write_text('{"step": "x", "epoch": null, "loss": "low"}\n[1]\nno\n')
    (run.path / "receipt.json").write_text('{"faults": [1], "steps": "x", "seconds_lost": "long"}')
    assert summary.closing(Look(run), 80)
    assert Look(run).row()["run"] == "calm-heron"
