"""Less work for the same answer: neighbouring tokens of a transformer are averaged before its layers. Needs torch.

    factors(model, inputs)          # [8, 5, 4, 2]: by how many the tokens could be merged, the most first
    merged(model, inputs, 4)        # the same model with a quarter of the tokens between its layers

A recording that was filtered to 45 Hz and sampled at 500 Hz has ten tokens where one would do, and attention costs the
square of their number. The tokens are spread again after the last layer, so nothing behind it notices. That is an
approximation: parity decides on the validation set whether it is one that may be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

FACTORS = (10, 8, 5, 4, 2)
FEWEST = 64
"""Tokens that are left at least: with fewer there is nothing to gain."""


def factors(model: nn.Module, inputs: Sequence[Tensor]) -> list[int]:
    """What can be tried; nothing if the model has no chain of encoder layers over one axis of tokens."""
    chain = _chain(model, inputs)
    if chain is None:
        return []
    return [each for each in FACTORS if chain.tokens % each == 0 and chain.tokens // each >= FEWEST]


def merged(model: nn.Module, inputs: Sequence[Tensor], factor: int) -> nn.Module:
    """The model, changed in place."""
    chain = _chain(model, inputs)
    if chain is None or chain.tokens % factor:
        raise ValueError(f"its tokens cannot be merged by {factor}")

    def fewer(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        batch, count, width = given[0].shape
        return given[0].reshape(batch, count // factor, factor, width).mean(dim=2), *given[1:]

    def spread(_: nn.Module, __: Any, found: Tensor) -> Tensor:
        batch, count, width = found.shape
        return found[:, :, None].expand(batch, count, factor, width).reshape(batch, count * factor, width)

    model.get_submodule(chain.names[0]).register_forward_pre_hook(fewer)
    model.get_submodule(chain.names[-1]).register_forward_hook(spread)
    return model


class _Chain:
    """Encoder layers of which each takes what the one before gave."""

    def __init__(self, names: list[str], tokens: int) -> None:
        self.names, self.tokens = names, tokens


def _chain(model: nn.Module, inputs: Sequence[Tensor]) -> _Chain | None:
    """Call the model once and look who takes what from whom."""
    layers = {name: each for name, each in model.named_modules() if isinstance(each, nn.TransformerEncoderLayer)}
    if not layers or not all(each.self_attn.batch_first for each in layers.values()):
        return None
    seen: list[tuple[str, Any, Any]] = []

    def listen(name: str) -> Any:
        def hook(_: nn.Module, given: tuple[Any, ...], more: dict[str, Any], found: Any) -> None:
            masks = [each for each in (*given[1:], *more.values()) if isinstance(each, Tensor) or each is True]
            seen.append((name, None if masks or not given else given[0], found))

        return hook

    hooks = [each.register_forward_hook(listen(name), with_kwargs=True) for name, each in layers.items()]
    was = model.training
    try:
        with torch.no_grad():
            model.eval()(*inputs)
    finally:
        model.train(was)
        for each in hooks:
            each.remove()
    whole = [name for name, given, _ in seen if isinstance(given, Tensor) and given.dim() == 3]
    joined = all(seen[at][2] is seen[at + 1][1] for at in range(len(seen) - 1))
    if not seen or len(whole) != len(seen) or len(set(whole)) != len(whole) or not joined:
        return None  # masks, a layer that is called twice, or something between two of them
    return _Chain(whole, int(seen[0][1].shape[1]))
