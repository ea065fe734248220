"""Which value is the best so far, and what a run that goes on believes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

from holdfast import Loader
from holdfast.record.best_weights import FILE, Best
from holdfast.record.reporter import Face, Teller
from holdfast.run.folder import RunFolder
from holdfast.run.messages import EpochEnded
from holdfast.state.protected import Protected
from holdfast.state.weights_file import read_said, write_weights
from tests.state.saving import CPU, save
from tests.worker.local_runs import new_folder, survive

KNOWN = {"name": "valid_loss", "value": 0.25, "step": 8, "epoch": 1}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return new_folder(tmp_path)


def saved(run: RunFolder, best: dict[str, Any] | None) -> Path:
    path = run.path / FILE
    payload = memoryview(save(Protected({"model": nn.Linear(2, 2)}, CPU)))
    write_weights(path, payload, step=8, best=best)
    return path


def logged(run: RunFolder, *records: dict[str, Any]) -> None:
    for record in records:
        run.append_metrics(record)


def test_the_file_says_what_it_holds(run: RunFolder) -> None:
    assert json.loads(read_said(saved(run, KNOWN))["best"]) == KNOWN
    best = Best(RunFolder.open(run.path), "auto")
    assert best.known == KNOWN
    best.consider(16, 2, {"valid_loss": 0.5})
    assert best.known == KNOWN and not best.taken(16)
    best.consider(24, 3, {"valid_loss": 0.125})
    assert not best.taken(23), "these weights are older than the value"
    assert best.taken(24) and not best.taken(24), "once"


def test_the_file_counts_more_than_what_was_said_at_the_end(run: RunFolder) -> None:
    """Stopped between a better value and the end of its epoch: the weights of that value were never saved."""
    run.update_info(best={**KNOWN, "value": 0.1, "step": 12})
    saved(run, KNOWN)
    assert Best(run, "auto").known == KNOWN


def test_a_file_that_does_not_say_it_holds_what_was_said_at_the_end(run: RunFolder) -> None:
    run.update_info(best=KNOWN)
    saved(run, None)
    assert Best(run, "auto").known == KNOWN


def test_without_the_file_there_is_no_best(run: RunFolder) -> None:
    """Stopped in the epoch of the first value: its weights were never saved, so it may become the best again."""
    run.update_info(best=KNOWN)
    logged(run, {"step": 8, "epoch": 1, "valid_loss": 0.25})
    best = Best(run, "auto")
    assert best.known is None
    best.go_on(10, 1, ended=False)
    assert best.known == KNOWN and best.taken(16)


@pytest.mark.parametrize(
    "best", [{}, {"name": 3, "value": 1}, {"name": "x", "value": "low"}, {"name": "x", "value": 1e308}]
)
def test_what_is_no_best_is_none(run: RunFolder, best: dict[str, Any]) -> None:
    saved(run, best)
    assert Best(run, "auto").known is None


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * 8, (2**40).to_bytes(8, "little") + b"{}"])
def test_a_file_that_is_none(run: RunFolder, content: bytes) -> None:
    (run.path / FILE).write_bytes(content)
    assert read_said(run.path / FILE) == {}
    assert Best(run, "auto").known is None


def test_the_file_of_another_run(run: RunFolder, tmp_path: Path) -> None:
    other = saved(new_folder(tmp_path), KNOWN)
    (run.path / FILE).write_bytes(other.read_bytes())
    assert Best(run, "auto").known is None


def test_another_metric_begins_anew(run: RunFolder) -> None:
    saved(run, KNOWN)
    best = Best(run, "accuracy")
    assert best.known is None
    best.consider(16, 2, {"valid_loss": 0.1, "accuracy": 0.75})
    assert best.known == {"name": "accuracy", "value": 0.75, "step": 16, "epoch": 2}


def test_going_on_looks_at_this_epoch_and_at_these_weights(run: RunFolder) -> None:
    saved(run, {**KNOWN, "value": 0.9})
    logged(
        run,
        {"step": 10, "epoch": 2, "valid_loss": 0.1},  # its epoch is over, its weights were not saved and are gone
        {"step": 20, "epoch": 4, "valid_loss": 0.2},  # computed again after a fault: the second one counts
        {"step": 20, "epoch": 4, "valid_loss": 0.5},
        {"step": 30, "epoch": 4, "valid_loss": 0.3},  # after the state that is gone on from: it comes again
    )
    best = Best(run, "auto")
    best.go_on(24, 4, ended=False)
    assert best.known == {"name": "valid_loss", "value": 0.5, "step": 20, "epoch": 4} and best.due
    at_its_end = Best(run, "auto")
    at_its_end.go_on(30, 5, ended=True)
    assert at_its_end.known == {"name": "valid_loss", "value": 0.3, "step": 30, "epoch": 4} and at_its_end.due


def test_these_weights_without_the_end_of_an_epoch_are_nothing_to_save(run: RunFolder) -> None:
    logged(run, {"step": 30, "epoch": 4, "valid_loss": 0.3})
    best = Best(run, "auto")
    best.go_on(30, 5, ended=False)
    assert best.known is None and not best.due


def test_a_value_of_steps_that_were_lost_comes_again(run: RunFolder) -> None:
    """The worker died between a better value and the commit of its step: what is restored is older."""
    saved(run, KNOWN)
    best = Best(run, "auto")
    best.consider(21, 5, {"valid_loss": 0.125})
    best.go_on(20, 5, ended=True)
    assert best.known == KNOWN and not best.taken(20)
    best.consider(21, 5, {"valid_loss": 0.125})
    assert best.taken(21)


def test_a_value_of_steps_that_were_committed_stays(run: RunFolder) -> None:
    """Of two values since the last epoch one was lost with its step: the other one is in the file of metrics."""
    best = Best(run, "auto")
    for step, value in ((18, 0.5), (21, 0.125)):
        best.consider(step, 5, {"valid_loss": value})
        logged(run, {"step": step, "epoch": 5, "valid_loss": value})
    best.go_on(21, 5, ended=False)
    assert best.known is not None and best.known["value"] == 0.125 and best.due
    best.go_on(20, 5, ended=False)
    assert best.known["value"] == 0.5 and best.taken(24)


def test_a_long_epoch_is_looked_through_to_its_beginning(run: RunFolder) -> None:
    logged(run, {"step": 1, "epoch": 3, "valid_loss": 0.1}, {"step": 2, "epoch": 4, "valid_loss": 0.5})
    logged(run, *({"step": step, "epoch": 4, "train_loss": 1.0, "note": "x" * 200} for step in range(3, 2000)))
    best = Best(run, "auto")
    best.go_on(2000, 4, ended=False)
    assert best.known == {"name": "valid_loss", "value": 0.5, "step": 2, "epoch": 4}


def test_numbers_that_are_none(run: RunFolder) -> None:
    strange: list[Any] = [10**400, True, None, "0.1", [], float("nan"), float("-inf")]
    best = Best(run, "auto")
    for each in strange:
        best.consider(8, 1, {"valid_loss": each})
    (run.path / "metrics.jsonl").write_text(
        "".join(f'{{"step": 8, "epoch": 1, "valid_loss": {json.dumps(each)}}}\n' for each in strange)
        + '{"step": null, "epoch": 1, "valid_loss": 0.1}\n[]\n{"step": [], "valid_loss": 1}\n'
    )
    best.go_on(8, 1, ended=True)
    assert best.known is None


def test_weights_that_are_doubtful_are_no_longer_the_best(run: RunFolder) -> None:
    """By the step of the weights: the value may be older, from the middle of the epoch."""
    best = Best(run, "auto")
    best.consider(18, 2, {"valid_loss": 0.5})
    assert best.taken(20)
    assert best.undo(19) and best.known is None
    best.consider(18, 2, {"valid_loss": 0.5})
    assert best.taken(20)
    assert not best.undo(20)


def test_a_doubtful_value_costs_no_good_weights(run: RunFolder) -> None:
    saved(run, KNOWN)
    best = Best(run, "auto")
    best.consider(25, 3, {"valid_loss": 0.1})
    assert not best.undo(20)
    assert best.known == KNOWN and not best.due


def test_of_epochs_that_are_told_again_only_the_last_can_be_the_best(run: RunFolder) -> None:
    teller = Teller(run, Face(), "auto")
    teller.log(20, 4, {"valid_loss": 0.5})
    earlier = EpochEnded(epoch=3, step=15, loss=None, sequence=None, again=True)
    last = EpochEnded(epoch=4, step=20, loss=0.25, sequence=9, again=True)
    assert not teller.epoch(earlier)
    assert teller.epoch(last)
    assert not teller.epoch(last), "and once"
    told = [(event.data["epoch"], event.data["best"]) for event in run.events() if event.kind == "epoch"]
    assert told == [(3, False), (4, True)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("death", ["backward 7", "optimizer 8", "snapshot 9", "snapshot 10", "snapshot 12"])
def test_a_run_without_a_supervisor_that_dies(tmp_path: Path, death: str) -> None:
    """The values get worse after the second epoch: whenever it died, the weights are those of the second."""
    kept: dict[str, torch.Tensor] = {}

    def train(session: Any) -> None:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = Loader(TensorDataset(torch.randn(6, 4)), batch_size=2)
        session.protect(model=model, optimizer=optimizer, data=data)
        for epoch in session.epochs(4):
            for batch in session.batches(data):
                session.step(lambda part: model(part[0]).square().mean(), batch)
            if epoch == 1:
                kept["weight"] = model.weight.detach().clone()
            session.log(valid_loss=[3.0, 1.0, 2.0, 4.0][epoch])

    outcome = survive(tmp_path, train, [death])
    assert torch.equal(load_file(outcome.folder.path / FILE)["weight"], kept["weight"])
    assert [data["epoch"] for data in outcome.kinds("epoch")] == [0, 1, 2, 3]
