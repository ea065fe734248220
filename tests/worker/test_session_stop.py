"""A run that ends early, asked to or by an error of its own, loses nothing that was committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.state import checkpoint
from holdfast.worker.session import Session
from tests.worker.local_runs import equal, fingerprint, new_folder, run
from tests.worker.resuming import BATCHES, Stage, outcome_of


@pytest.mark.parametrize("where", ["body", "head", "tail", "free"])
def test_a_stop_is_honoured_at_the_next_boundary_and_nothing_is_lost(where: str, tmp_path: Path) -> None:
    asked: list[bool] = []

    def ask(session: Session, here: str) -> None:
        if asked == [True] and here == where and session.step_count in (0, 4, BATCHES):
            asked.append(True)
            session._board.request_stop()

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        if where == "free":
            while session.step_count < 6:
                ask(session, "free")
                stage.draw()
                session.step(lambda b: stage.model(b).square().mean(), torch.rand(2, 4))
            return
        for _ in session.epochs(2):
            ask(session, "head")
            for batch in session.batches(stage.data):
                stage.step(session, batch)
                ask(session, "body")
            stage.draw()
            ask(session, "tail")

    expected, diary, _ = outcome_of(tmp_path, script, [])
    asked.append(True)
    results: list[tuple[dict[str, Any], list[Any]]] = []

    def train(session: Session) -> None:
        stage = Stage()
        script(session, stage)
        state = {name: value for name, value in stage.objects.items() if name != "diary"}
        results.append((fingerprint(**state), stage.diary.lines))

    folder = new_folder(tmp_path)
    with pytest.raises(holdfast.Stopped) as caught:
        run(tmp_path, train, folder=folder)
    assert caught.value.saved is not None
    assert folder.info["state"] == "STOPPED"
    steps = folder.receipt()
    assert steps is not None and steps["steps"] <= BATCHES
    run(tmp_path, train, folder=folder)
    equal(results[-1][0], expected)
    assert results[-1][1] == diary


def test_a_free_loop_that_is_stopped_logs_the_step_it_did(tmp_path: Path) -> None:
    """The step is committed inside of `session.step`, and its number is logged behind it."""

    def train(session: Session) -> None:
        stage = Stage()
        session.protect(**stage.objects)
        while session.step_count < 6:
            if session.step_count == 3 and not asked:
                asked.append(True)
                session._board.request_stop()
            loss = session.step(lambda b: stage.model(b).square().mean(), torch.rand(2, 4))
            session.log(loss=loss)

    asked: list[bool] = []
    folder = new_folder(tmp_path)
    with pytest.raises(holdfast.Stopped):
        run(tmp_path, train, folder=folder)
    run(tmp_path, train, folder=folder)
    records = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]


def test_a_script_that_swallows_everything_cannot_go_on_after_a_stop(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        stage = Stage()
        session.protect(**stage.objects)
        session._board.request_stop()
        for _ in range(3):
            try:
                stage.step(session, (torch.rand(2, 4), torch.tensor([0])))
            except BaseException:
                continue
        stage.step(session, (torch.rand(2, 4), torch.tensor([0])))

    with pytest.raises(holdfast.Stopped):
        run(tmp_path, train)


def test_an_own_error_without_a_supervisor_loses_no_committed_step(tmp_path: Path) -> None:
    """The only copy of the state is in this process: it is saved before the error goes on its way."""

    def script(session: Session) -> None:
        model = torch.nn.Linear(2, 1)
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        while session.step_count < 4:
            session.step(lambda batch: model(batch).mean(), torch.ones(1, 2))
        raise KeyError("mine")

    with pytest.raises(KeyError):
        run(tmp_path, script, checkpoint__every="1h")
    [folder] = tmp_path.iterdir()
    good, _ = checkpoint.newest_good(folder / "checkpoints")
    assert good is not None and good.step == 4
