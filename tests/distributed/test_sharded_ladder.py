"""Ranks that hold parts of a model (FSDP2), and a device that fails: another card, without that rank, or a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from holdfast.base import processes
from holdfast.devices.ledger import Ledger
from holdfast.distributed import rank_devices
from holdfast.injection import ailments
from holdfast.injection.ailments import Ailment
from holdfast.run.folder import RunFolder, list_runs
from holdfast.run.settings import Settings
from holdfast.worker.local_run import run_local
from tests.distributed import sharded_job
from tests.distributed.driving import SHARDED
from tests.distributed.launched import ROOT
from tests.distributed.test_rank_ladder import SOON

pytestmark = [
    pytest.mark.skipif(processes.portable() or not Path("/dev/shm").is_dir(), reason="needs fork and /dev/shm"),
    pytest.mark.timeout(600),
]
ILL = Ailment("error", step=4, times=None, device="pretend:1")
"""An error of the device from which no process recovers, as an assert is, whenever it comes to that step."""


def whole_alone(folder: Path, **job: Any) -> dict[str, torch.Tensor]:
    """The weights after the same job in one process, this one, with the model in one piece."""
    run = RunFolder.create(folder, "alone", {})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run_local(sharded_job.train, run, Settings.load({}), arguments={**job, "whole": True})
    finally:
        torch.set_num_threads(threads)
    return load_file(run.path / "final.safetensors")


def launched(
    folder: Path, ill: Ailment | None, *words: str, cards: int = 0, ranks: int = 2, **job: Any
) -> tuple[int, dict[str, Any], RunFolder]:
    """Ranks with a part each, on pretended cards: the exit code, what is printed, the run."""
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, rank_devices.PRETEND_CARDS: str(cards)}
    env[ailments.VARIABLE] = str(ailments.write(folder / "ailments" / "pretend.json", [ill] if ill else []))
    given = {"seen": folder, "run.folder": folder, "run.threads": 1, "snapshot.every": 1, **job}
    how = ["--nproc", str(ranks), "--device", "pretend", *words]
    command = [sys.executable, "-m", "holdfast", "launch", *how, str(SHARDED)]
    done = subprocess.run(
        [*command, "--json", "-q", *(f"{key}={value}" for key, value in given.items())],
        env=env,
        cwd=folder,
        timeout=500,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    (run,) = list_runs(folder)
    return done.returncode, json.loads(done.stdout), run


def of(run: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [event.data for event in run.events() if event.kind == kind]


def check_weights(run: RunFolder, folder: Path, **job: Any) -> None:
    found = load_file(run.path / "final.safetensors")
    for name, values in whole_alone(folder / "alone", **job).items():
        assert (found[name] - values).abs().max() < 1e-6, name


@pytest.mark.all
def test_a_rank_with_a_part_moves_to_a_free_card(tmp_path: Path) -> None:
    code, _, run = launched(tmp_path, ILL, cards=3)
    assert code == 0
    assert [fault["action"] for fault in of(run, "fault")] == ["replace", "next_rung"]
    assert any("rank 1 moved from pretend:1 to pretend:2 (" in str(note["text"]) for note in of(run, "note"))
    assert [(each["blame"], each["device"]) for each in of(run, "verdict")] == [
        ("unknown", "pretend:1"),
        ("device", "pretend:1"),
    ]
    assert Ledger().history("pretend:1").faults == 2
    check_weights(run, tmp_path)


@pytest.mark.all
def test_without_a_free_card_the_run_ends_with_one_sentence_and_its_state_saved(tmp_path: Path) -> None:
    """It was given up after eleven starts, with no word of the device."""
    code, printed, run = launched(tmp_path, ILL)
    error = printed["error"]
    assert code == 4 and printed["state"] == "GAVE_UP"
    assert error["message"].startswith("rank 1 was lost at step 4 in backward, each time, and there is no other card")
    assert "it is on pretend:1" in error["cause"] and any("--min-ranks" in hint for hint in error["hints"])
    assert len(of(run, "fault")) == 3, "the fourth is the sentence"
    assert [path.name for path in sorted((run.path / "checkpoints").glob("[0-9]*"))][-1] == "000003"


@pytest.mark.long
def test_the_others_share_out_the_part_of_a_rank_whose_device_fails(tmp_path: Path) -> None:
    code, _, run = launched(tmp_path, ILL, "--min-ranks", "1")
    assert code == 0
    assert {note["away"] for note in of(run, "note") if "away" in note} == {1}
    check_weights(run, tmp_path)


@pytest.mark.long
def test_a_rank_with_a_part_comes_back_to_its_card(tmp_path: Path) -> None:
    """On probation every step is compared with the CPU, in the parts of that rank."""
    ill = Ailment("error", step=4, times=2, probes=False, device="pretend:1")
    code, printed, run = launched(tmp_path, ill, cards=3, epochs=60, pause=0.05, **SOON)
    assert code == 0 and printed["receipt"]["steps"] == 300
    notes = [str(note["text"]) for note in of(run, "note")]
    assert any("rank 1 moved from pretend:1 to pretend:2 (" in note for note in notes)
    assert "rank 1 is back on pretend:1" in notes
    assert Ledger().trust("pretend:1", "pretend:1").state == "trusted"
