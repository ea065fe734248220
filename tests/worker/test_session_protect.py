"""Protecting: objects get names, and a loop with something that was not protected is told what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

import holdfast
from holdfast.worker.session import Session
from tests.worker.local_runs import run


def protected_names(tmp_path: Path, *positional: Any, **named: Any) -> list[str]:
    names: list[str] = []

    def train(session: Session) -> None:
        session.protect(*positional, **named)
        names.extend(name for name in session._named if name != "session")  # what it keeps itself

    run(tmp_path, train)
    return names


def test_the_name_of_what_the_session_keeps_is_taken(tmp_path: Path) -> None:
    with pytest.raises(holdfast.UserError, match="the session itself keeps"):
        protected_names(tmp_path, session=nn.Linear(2, 2))


def test_positional_objects_are_named_by_what_they_are(tmp_path: Path) -> None:
    class World:
        def state_dict(self) -> dict[str, Any]:
            return {"tick": 1}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    model, other = nn.Linear(2, 2), torch.compile(nn.Linear(2, 2), backend="eager")
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    data = holdfast.Loader([torch.ones(2)])
    scheduler, scaler = StepLR(optimizer, 1), torch.amp.GradScaler("cpu")
    assert protected_names(tmp_path, model, other, optimizer, scheduler, scaler, data, World()) == [
        "model", "model2", "optimizer", "scheduler", "scaler", "data", "world",
    ]  # fmt: skip
    assert protected_names(tmp_path, model, other, optimizer, model2=nn.Linear(1, 1)) == [
        "model", "model3", "optimizer", "model2",
    ]  # fmt: skip


def refused(tmp_path: Path, train: Callable[[Session], None]) -> holdfast.UserError:
    with pytest.raises(holdfast.UserError) as caught:
        run(tmp_path, train)
    return caught.value


def test_protecting_twice(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        session.protect(model=nn.Linear(1, 1))
        session.protect(other=nn.Linear(1, 1))

    assert refused(tmp_path, train).message == "session.protect was called twice"


@pytest.mark.parametrize("use", ["step", "transaction", "epochs", "batches"])
def test_a_loop_without_protection(use: str, tmp_path: Path) -> None:
    def train(session: Session) -> None:
        if use == "step":
            session.step(lambda b: b, torch.ones(1), optimizer=[])
        elif use == "transaction":
            session.transaction(lambda: None)
        elif use == "epochs":
            list(session.epochs(2))
        else:
            list(session.batches(holdfast.Loader([torch.ones(1)])))

    error = refused(tmp_path, train)
    assert error.message in ("nothing is protected", "this Loader was not protected")
    assert "session.protect" in error.hints[0]


def test_an_optimizer_that_was_not_protected(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        model = nn.Linear(1, 1)
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        session.step(lambda b: model(b).sum(), torch.ones(1, 1), optimizer=torch.optim.Adam(model.parameters()))

    assert refused(tmp_path, train).message == "the Adam given to session.step was not protected"


def test_which_of_two_optimizers(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        model = nn.Linear(1, 1)
        session.protect(
            model=model,
            one=torch.optim.SGD([model.weight], lr=0.1),
            two=torch.optim.SGD([model.bias], lr=0.1),
        )
        session.step(lambda b: model(b).sum(), torch.ones(1, 1))

    error = refused(tmp_path, train)
    assert (error.message, error.cause) == ("session.step needs one optimizer", "2 are protected")


def test_a_loader_of_torch_is_told_apart(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        session.protect(model=nn.Linear(1, 1))
        list(session.batches(torch.utils.data.DataLoader([1, 2])))

    assert refused(tmp_path, train).message == "this DataLoader was not protected"
