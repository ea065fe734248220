"""What a step takes and gives: a batch, whole or in pieces, and a loss that is a number when it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import holdfast
from holdfast.worker.session import Session
from tests.worker.local_runs import equal, fingerprint, run
from tests.worker.small import dataset, deterministic

# -- accumulation --------------------------------------------------------------------------------------------


def accumulated(tmp_path: Path, count: int, size: int, **options: Any) -> tuple[dict[str, Any], list[float]]:
    """The state and losses of a few epochs, each batch in so many pieces."""
    results: list[dict[str, Any]] = []
    losses: list[float] = []

    def train(session: Session) -> None:
        objects = deterministic()
        x, y = dataset()
        data = holdfast.Loader(torch.utils.data.TensorDataset(x.double(), y), size)
        session.protect(**objects, data=data)
        for _ in session.epochs(3):
            for batch in session.batches(data):
                fn = lambda b: cross_entropy(objects["model"](b[0]), b[1])  # noqa: E731
                losses.append(session.step(fn, batch, accumulate=count, **options).item())
        results.append(fingerprint(**objects))

    run(tmp_path, train)
    return results[-1], losses


@pytest.mark.parametrize("count", [2, 3, 4, 100])
def test_a_batch_in_pieces_is_the_whole_batch(count: int, tmp_path: Path) -> None:
    """Pieces of unequal size weigh by their samples: 22 samples in batches of 8 leave a last one of 6."""
    whole, losses = accumulated(tmp_path, 1, 8)
    pieces, their_losses = accumulated(tmp_path, count, 8)
    equal(pieces, whole, tolerance=1e-6)
    assert their_losses == pytest.approx(losses, rel=1e-6)


def test_clipping_sees_the_whole_gradient(tmp_path: Path) -> None:
    equal(accumulated(tmp_path, 4, 8, clip=0.05)[0], accumulated(tmp_path, 1, 8, clip=0.05)[0], tolerance=1e-6)


def test_a_split_of_ones_own(tmp_path: Path) -> None:
    """A batch that is not tensors with a common first dimension, cut by the function that knows how."""
    seen: list[int] = []

    def split(batch: Any, count: int) -> list[tuple[Any, float]]:
        rows = batch["rows"]
        seen.append(count)
        size = -(-len(rows) // count)
        cut = [rows[start : start + size] for start in range(0, len(rows), size)]
        return [({"rows": part}, len(part) / len(rows)) for part in cut]

    def final(count: int) -> dict[str, Any]:
        results: list[dict[str, Any]] = []

        def train(session: Session) -> None:
            objects = deterministic()
            x, y = dataset()
            data = holdfast.Loader(list(zip(x.double(), y, strict=True)), 8, collate_fn=lambda rows: {"rows": rows})
            session.protect(**objects, data=data)

            def fn(batch: Any) -> Tensor:
                inputs, targets = zip(*batch["rows"], strict=True)
                return cross_entropy(objects["model"](torch.stack(inputs)), torch.stack(targets))

            for _ in session.epochs(1):
                for batch in session.batches(data):
                    session.step(fn, batch, accumulate=count, split=split)
            results.append(fingerprint(**objects))

        run(tmp_path, train)
        return results[-1]

    equal(final(3), final(1), tolerance=1e-6)
    assert seen == [3, 3, 3]


def test_a_batch_that_cannot_be_split_says_how_to(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        objects = deterministic()
        session.protect(**objects)
        batch = [torch.zeros(4, 6, dtype=torch.float64), torch.zeros(5)]
        session.step(lambda b: objects["model"](b[0]).sum(), batch, accumulate=2)

    with pytest.raises(holdfast.UserError, match="this batch cannot be split") as caught:
        run(tmp_path, train)
    assert "split=" in caught.value.hints[0]


# -- the loss ------------------------------------------------------------------------------------------------


def one_step(tmp_path: Path, fn: Callable[[Any], Any], use: Callable[[Session, holdfast.Loss], None]) -> None:
    def train(session: Session) -> None:
        model = nn.Linear(2, 1)
        nn.init.constant_(model.weight, 0.5)
        nn.init.zeros_(model.bias)
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        use(session, session.step(lambda b: fn(model(b)), torch.ones(3, 2)))

    run(tmp_path, train)


def test_a_loss_is_a_number_when_it_is_read(tmp_path: Path) -> None:
    def use(session: Session, loss: holdfast.Loss) -> None:
        assert loss._value is None, "nothing has read it yet"
        assert f"{loss:.3f}" == "1.000"
        assert float(loss) == loss.item() == 1.0
        assert repr(loss) == "Loss(1.0)"
        assert not loss.tensor.requires_grad
        session.log(loss=loss)

    one_step(tmp_path, lambda out: mse_loss(out, torch.zeros(3, 1)), use)


def test_a_loss_keeps_its_value_when_training_goes_on_and_when_it_is_over(tmp_path: Path) -> None:
    kept: list[holdfast.Loss] = []
    then: list[float] = []

    def train(session: Session) -> None:
        objects = deterministic()
        session.protect(**objects)
        for _ in range(5):
            kept.append(session.step(lambda b: objects["model"](b).square().mean(), torch.ones(2, 6).double()))
            then.append(kept[-1].tensor.item())

    run(tmp_path, train)
    assert [loss.item() for loss in kept] == then
    assert len(set(then)) == 5


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda out: out, "must return the loss"),
        (lambda out: 0.5, "must return the loss"),
        (lambda out: None, "must return the loss"),
        (lambda out: {"loss": out.mean()}, "must return the loss"),
        (lambda out: out.mean().detach(), "has no gradient"),
        (lambda out: torch.tensor(1.0), "has no gradient"),
    ],
)
def test_what_is_not_a_loss(fn: Callable[[Any], Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(holdfast.UserError, match=words):
        one_step(tmp_path, fn, lambda session, loss: None)


def test_a_loss_with_one_element_will_do(tmp_path: Path) -> None:
    one_step(tmp_path, lambda out: out.mean().reshape(1, 1), lambda session, loss: float(loss))  # type: ignore[arg-type, return-value]


def test_the_users_own_error_comes_out_as_it_is(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        objects = deterministic()
        session.protect(**objects)
        session.step(lambda b: {}["missing"], torch.ones(1))

    with pytest.raises(KeyError, match="missing"):
        run(tmp_path, train)
