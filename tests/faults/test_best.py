"""`best.safetensors` holds the weights of the best epoch, however fast training goes on meanwhile."""

from __future__ import annotations

from safetensors.numpy import load_file

from tests.faults.conftest import Drive
from tests.faults.driving import JOBS


def test_the_best_weights_are_those_of_the_best_epoch(drive: Drive) -> None:
    run = drive(JOBS / "best.py")
    assert run.outcome.state == "FINISHED"
    saved = load_file(run.folder / "best.safetensors")["weight"]
    assert saved.tobytes() == (run.folder / "mine.bin").read_bytes()
    assert load_file(run.folder / "final.safetensors")["weight"].tobytes() != saved.tobytes()


def test_also_when_the_worker_dies_right_after_it(drive: Drive) -> None:
    run = drive(JOBS / "best.py", faults="sigkill@265:forward,sigkill@266:forward")
    assert run.outcome.state == "FINISHED"
    saved = load_file(run.folder / "best.safetensors")["weight"]
    assert saved.tobytes() == (run.folder / "mine.bin").read_bytes()
