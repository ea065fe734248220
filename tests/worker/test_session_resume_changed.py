"""A run that goes on with another script: longer than before, or with objects that do not fit what was saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.worker.session import Session
from tests.worker.local_runs import Died, Raise, equal, fingerprint, new_folder, run, survive
from tests.worker.resuming import BATCHES, Stage, usual


def test_a_resumed_script_is_told_so(tmp_path: Path) -> None:
    told: list[tuple[bool, int, int]] = []

    def train(session: Session) -> None:
        resumed = session.run.resumed
        stage = Stage()
        session.protect(**stage.objects)
        told.append((resumed, session.step_count, session.epoch))
        for _ in session.epochs(2):
            for batch in session.batches(stage.data):
                stage.step(session, batch)

    survive(tmp_path, train, [f"forward {BATCHES + 3}"])
    assert told == [(False, 0, 0), (True, BATCHES + 2, 1)]


@pytest.mark.all
def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    def trainer(epochs: int, results: list[Any]) -> Callable[[Session], None]:
        def train(session: Session) -> None:
            stage = Stage()
            session.protect(**stage.objects)
            torch.rand(3)
            for _ in session.epochs(epochs):
                for batch in session.batches(stage.data):
                    stage.step(session, batch)
                stage.draw()
            results.append((fingerprint(model=stage.model, optimizer=stage.optimizer), stage.diary.lines))

        return train

    results: list[Any] = []
    run(tmp_path, trainer(3, results))
    folder = new_folder(tmp_path)
    run(tmp_path, trainer(2, results), folder=folder)
    run(tmp_path, trainer(3, results), folder=folder)
    equal(results[-1][0], results[0][0])
    assert results[-1][1] == results[0][1]


def test_other_objects_than_before(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    with pytest.raises(Died):
        run(tmp_path, lambda s: usual(s, Stage()), hooks=[Raise(Died, "loop", 4)], folder=folder)

    def train(session: Session) -> None:
        stage = Stage()
        session.protect(model=stage.model, optim=stage.optimizer, data=stage.data, diary=stage.diary)

    with pytest.raises(holdfast.UserError, match="protects other objects") as caught:
        run(tmp_path, train, folder=folder)
    assert caught.value.cause == "saved: data, diary, model, optimizer; protected now: data, diary, model, optim"


def test_another_model_than_before(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    with pytest.raises(Died):
        run(tmp_path, lambda s: usual(s, Stage()), hooks=[Raise(Died, "loop", 4)], folder=folder)

    def train(session: Session) -> None:
        stage = Stage()
        stage.model = nn.Sequential(nn.Linear(4, 7), nn.Dropout(0.3), nn.Linear(7, 1))
        stage.optimizer = torch.optim.Adam(stage.model.parameters(), lr=0.01)
        session.protect(**stage.objects)

    with pytest.raises(holdfast.UserError):
        run(tmp_path, train, folder=folder)
