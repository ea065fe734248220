"""Batches: moved to a device and cut into pieces, whatever they are made of."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.base.board import Phase
from holdfast.base.errors import UserError
from holdfast.data.batch import batch_size, split_batch, to_device
from holdfast.worker.step import Work, mixes_samples, perform, pieces_of

Pair = namedtuple("Pair", "x y")
META, CPU = torch.device("meta"), torch.device("cpu")


def rows(count: int, width: int = 2) -> Tensor:
    return torch.arange(count * width, dtype=torch.float32).reshape(count, width)


# -- to the device -------------------------------------------------------------------------------------------


class Own(dict):  # type: ignore[type-arg]
    """A dict of the user's with something of its own."""

    def __init__(self, note: str) -> None:
        super().__init__()
        self.note = note


def test_every_nest_is_followed() -> None:
    batch = {"a": [rows(2), (rows(3), "text", 5)], "b": Pair(rows(1), None)}
    moved = to_device(batch, META)
    assert moved["a"][0].device == moved["a"][1][0].device == moved["b"].x.device == META
    assert moved["a"][1][1:] == ("text", 5)
    assert type(moved["b"]) is Pair
    assert batch["a"][0].device == CPU, "the batch itself is left alone"


def test_kinds_of_dicts_are_kept() -> None:
    default: defaultdict[str, Any] = defaultdict(list, x=rows(2))
    moved = to_device(default, META)
    assert moved["x"].device == META and moved["new"] == []
    assert default["x"].device == CPU
    ordered = to_device(OrderedDict(b=rows(1), a=rows(1)), META)
    assert type(ordered) is OrderedDict and list(ordered) == ["b", "a"]
    own = Own("kept")
    own["x"] = rows(2)
    assert to_device(own, META).note == "kept"


def test_what_is_there_already_is_not_copied() -> None:
    tensor = rows(2)
    assert to_device(tensor, CPU) is tensor


def test_anything_with_to_is_asked() -> None:
    class Graph:
        def __init__(self, device: torch.device = CPU) -> None:
            self.device = device

        def to(self, device: torch.device) -> Graph:
            return Graph(device)

    assert to_device([Graph()], META)[0].device == META
    assert to_device(Graph, META) is Graph


# -- pieces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (rows(5), 5),
        ([rows(4), torch.zeros(4)], 4),
        ({"x": rows(4), "scale": torch.tensor(2.0)}, 4),
        ((rows(4), rows(5)), None),
        (torch.tensor(1.0), None),
        (["a", "b"], None),
        (None, None),
    ],
)
def test_the_number_of_samples(batch: Any, size: int | None) -> None:
    assert batch_size(batch) == size


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 100])
def test_pieces_are_the_batch_and_their_weights_one(count: int) -> None:
    x, y = rows(7), torch.arange(7)
    pieces = split_batch([x, y], count)
    assert len(pieces) == min(count, 7)
    assert torch.equal(torch.cat([piece[0] for piece, _ in pieces]), x)
    assert torch.equal(torch.cat([piece[1] for piece, _ in pieces]), y)
    assert sum(weight for _, weight in pieces) == pytest.approx(1.0)
    sizes = [len(piece[0]) for piece, _ in pieces]
    assert [weight for _, weight in pieces] == [size / 7 for size in sizes]
    assert max(sizes) - min(sizes) <= 1


def test_everything_that_has_one_thing_a_sample_is_cut() -> None:
    batch = {
        "x": rows(4),
        "names": ["a", "b", "c", "d"],
        "ids": (1, 2, 3, 4),
        "array": np.arange(4),
        "pair": Pair(rows(4), "both"),
        "scale": torch.tensor(3.0),
        "classes": ["cat", "dog"],
        "table": np.zeros((3, 3)),
        "number": 7,
    }
    (first, _), (second, _) = split_batch(batch, 2)
    assert (first["names"], first["ids"], first["array"].tolist()) == (["a", "b"], (1, 2), [0, 1])
    assert (second["names"], second["ids"], second["array"].tolist()) == (["c", "d"], (3, 4), [2, 3])
    assert torch.equal(second["pair"].x, rows(4)[2:]) and second["pair"].y == "both"
    assert second["scale"] == 3.0 and second["classes"] == ["cat", "dog"] and second["number"] == 7
    assert second["table"].shape == (3, 3)


def test_an_empty_split_is_an_error() -> None:
    work = Work(lambda b: b, rows(2), [], None, None, 2, lambda batch, count: [])
    with pytest.raises(UserError, match="split into nothing"):
        pieces_of(work)


def test_accumulation_and_memory_multiply() -> None:
    work = Work(lambda b: b, rows(8), [], None, None, 2, None, pieces=2)
    assert len(pieces_of(work)) == 4


# -- modules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "mixes"),
    [
        (nn.Linear(2, 2), False),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), True),
        (nn.Sequential(nn.SyncBatchNorm(2)), True),
        (nn.BatchNorm2d(2).eval(), False),
        (nn.LayerNorm(2), False),
        (nn.GroupNorm(1, 2), False),
    ],
    ids=lambda value: str(value).split("(")[0],
)
def test_modules_that_see_the_whole_batch_at_once(module: nn.Module, mixes: bool) -> None:
    assert mixes_samples([module]) is mixes


def test_lbfgs_clips_at_each_evaluation() -> None:
    def final(clip: float | None) -> Tensor:
        parameter = nn.Parameter(torch.tensor([5.0]))
        optimizer = torch.optim.LBFGS([parameter], lr=0.1, max_iter=3)
        work = Work(lambda b: (parameter * b).square().sum(), torch.ones(1), [optimizer], None, clip, 1, None)
        perform(work, CPU, lambda phase: None)
        return parameter.detach().clone()

    def bare(clip: float) -> Tensor:
        parameter = nn.Parameter(torch.tensor([5.0]))
        optimizer = torch.optim.LBFGS([parameter], lr=0.1, max_iter=3)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = parameter.square().sum()
            loss.backward()
            nn.utils.clip_grad_norm_([parameter], clip)
            return loss

        optimizer.step(closure)
        return parameter.detach()

    assert torch.equal(final(0.5), bare(0.5))
    assert not torch.equal(final(0.5), final(None))


def test_the_phases_of_a_step_in_pieces() -> None:
    parameter = nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    work = Work(lambda b: (parameter * b).sum(), rows(2), [optimizer], None, None, 2, None)
    phases: list[str] = []
    perform(work, CPU, lambda phase: phases.append(phase.label))
    one = [Phase.TO_DEVICE.label, Phase.FORWARD.label, Phase.BACKWARD.label]
    assert phases == [*one, *one, Phase.OPTIMIZER.label]
