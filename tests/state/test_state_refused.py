"""What cannot be protected, and what does not fit the saved state, is refused with words that say what and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.base.errors import UserError
from holdfast.state.protected import Protected
from tests.state.saving import CPU, load, save
from tests.state.state_jobs import Extra, World, net

# -- bad input -----------------------------------------------------------------------------------------------


class Brain:
    pass


class Agents:
    def state_dict(self) -> dict[str, Any]:
        return {"agents": [{}, {}, {}, {"brain": Brain()}]}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def outside() -> torch.optim.Optimizer:
    return torch.optim.Adam(net().parameters())


def loose_layers() -> Any:
    module: Any = nn.Module()
    module.layers = [nn.Linear(2, 2)]
    return module


BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "nothing to train": (lambda: {"model": loose_layers()}, "`model` has no parameters"),
    "lazy": (lambda: {"model": nn.LazyLinear(3)}, "model.weight cannot be saved: it is not initialized yet"),
    "meta": (lambda: {"model": nn.Linear(2, 2, device="meta")}, "on the meta device"),
    "number": (lambda: {"step": 3}, "a `int` has no state_dict and no load_state_dict"),
    "class": (lambda: {"model": nn.Linear}, "it is the class `Linear`"),
    "list": (lambda: {"models": [net()]}, "a `list` has no state_dict"),
    "tensor": (lambda: {"latent": torch.zeros(3)}, "a `Tensor` has no state_dict"),
    "foreign optimizer": (lambda: {"model": net(), "optimizer": outside()}, "belong to no protected module"),
    "optimizer alone": (lambda: {"optimizer": outside()}, "belong to no protected module"),
    "unsaveable": (
        lambda: {"world": Agents()},
        "state of `world` cannot be saved: world.agents[3].brain is a `Brain`",
    ),
    "reserved name": (lambda: {"holdfast": net()}, "cannot be the name"),
    "dotted name": (lambda: {"a.b": net()}, "cannot be the name"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_a_user_error(what: str) -> None:
    make, message = BAD[what]
    with pytest.raises(UserError) as caught:
        Protected(make(), CPU)
    assert message in caught.value.message
    assert caught.value.hints


def test_a_name_is_given_once() -> None:
    protected = Protected({"model": net()}, CPU)
    with pytest.raises(UserError, match="`model` is protected already"):
        protected.add({"model": net()})
    protected.add({"other": net()})
    assert set(protected.meta()["parts"]) == {"model", "other"}


def test_frozen_module_needs_no_optimizer() -> None:
    Protected({"teacher": net(), "student": (student := net()), "o": torch.optim.SGD(student.parameters())}, CPU)


# -- another script than before -------------------------------------------------------------------------------


MISMATCH: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "shape": (lambda: {"model": nn.Linear(6, 4)}, "model.weight is [4, 6] here, [5, 6] was saved"),
    "more layers": (lambda: {"model": net()}, "`model` has 4 tensors here, 2 were saved"),
    "other names": (
        lambda: {"model": nn.ParameterDict({"a": torch.ones(1), "b": torch.ones(1)})},
        "not in the saved",
    ),
    "another object": (lambda: {"model": nn.Linear(6, 5), "ema": net()}, "did not save it"),
    "object gone": (dict, "is not protected here"),
    "other kind": (lambda: {"model": World(1)}, "was saved as module, here it is object"),
    "other saving": (lambda: {"model": Extra()}, "saved in another way"),
}


@pytest.mark.parametrize("what", MISMATCH)
def test_a_changed_script_is_told_what_differs(what: str) -> None:
    make, message = MISMATCH[what]
    slot = save(Protected({"model": nn.Linear(6, 5)}, CPU))
    with pytest.raises(UserError) as caught:
        load(Protected(make(), CPU), slot)
    assert message in caught.value.message
    assert caught.value.hints


def test_optimizer_of_another_size_is_told() -> None:
    model = net()
    slot = save(Protected({"model": model, "o": torch.optim.SGD(model.parameters())}, CPU))
    small = Protected({"model": model, "o": torch.optim.SGD(model[0].parameters())}, CPU)
    with pytest.raises(UserError, match=r"groups of \[2\] parameters here, \[4\] were saved"):
        load(small, slot)
