"""Around the loop: what a script may do and ask beside its steps, evaluate, log, show progress, look at its run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast
from holdfast.worker.session import Session
from tests.worker.local_runs import equal, fingerprint, run
from tests.worker.small import dataset, deterministic, network


def test_evaluating_leaves_modes_and_generators_as_they_were(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        model = network()
        model[1].eval()  # a frozen BatchNorm must stay frozen
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        modes = [part.training for part in model.modules()]
        before = fingerprint(model=model)
        with session.evaluating():
            assert not any(part.training for part in model.modules())
            assert not torch.is_grad_enabled()
            torch.rand(100)
            model(dataset()[0])
        assert [part.training for part in model.modules()] == modes
        assert torch.is_grad_enabled()
        equal(fingerprint(model=model), before)
        with pytest.raises(KeyError), session.evaluating():
            raise KeyError
        assert [part.training for part in model.modules()] == modes

    run(tmp_path, train)


def test_a_compiled_model_is_evaluated_as_such(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        plain = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
        model = torch.compile(plain, backend="eager")
        session.protect(model=model, optimizer=torch.optim.SGD(plain.parameters(), lr=0.1))
        x = dataset()[0]
        with session.evaluating():
            assert torch.equal(model(x), model(x)), "dropout is off"
        assert not torch.equal(model(x), model(x)), "dropout is on again"

    run(tmp_path, train)


def test_numbers_that_are_logged_are_kept_with_their_place(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        objects = deterministic()
        session.protect(**objects)
        for epoch in session.epochs(2):
            session.step(lambda b: objects["model"](b).square().mean(), torch.ones(2, 6).double())
            session.log(valid_loss=1.0 - epoch / 4, tensor=torch.tensor(2.5), bad=float("inf"))
        with pytest.raises(holdfast.UserError, match="`name` is str"):
            session.log(name="text")  # type: ignore[arg-type]

    outcome = run(tmp_path, train)
    metrics = [{key: value for key, value in row.items() if key != "time"} for row in outcome.folder.metrics()]
    assert metrics == [
        {"step": 1, "epoch": 0, "valid_loss": 1.0, "tensor": 2.5, "bad": None},
        {"step": 2, "epoch": 1, "valid_loss": 0.75, "tensor": 2.5, "bad": None},
    ]
    assert (outcome.folder.path / "best.safetensors").exists()


def test_a_transaction_has_no_loss_to_show(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        model = nn.Linear(1, 1)
        session.protect(model=model)
        for _ in range(3):
            session.transaction(lambda: None)
            beat = session._board.read()
        assert beat.step >= 2 and beat.loss is None, beat.loss

    run(tmp_path, train)


def test_progress_is_on_the_board_and_a_sign_of_life(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        before = session._board.read().beats
        session.progress(3, 10, "decoding images")
        beat = session._board.read()
        assert (beat.done, beat.total, beat.label, beat.beats) == (3, 10, "decoding images", before + 1)

    run(tmp_path, train)


def test_what_a_script_may_ask_about_its_run(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        assert session.device == torch.device("cpu")
        assert (session.run.seed, session.run.generation, session.run.resumed) == (0, 0, False)
        assert session.run.folder.is_dir()
        assert session.run.name in session.run.folder.name
        assert (session.step_count, session.epoch) == (0, 0)

    run(tmp_path, train)
