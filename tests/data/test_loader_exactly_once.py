"""Loader: each sample of an epoch comes exactly once, and whatever is skipped or repeated is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.base.errors import UserError
from holdfast.data.loader import Loader
from tests.data.loaders import POSIX, SIZE, TIDY, Augmented, make

pytestmark = [POSIX, TIDY]


def test_an_epoch_is_covered() -> None:
    loader = make(workers=0)
    for epoch in range(2):
        for batch in loader.batches(loader.epoch, loader.cursor):
            loader.advance(batch)
        loader.finish_epoch()
        assert (loader.epoch, loader.cursor) == (epoch + 1, 0)
    assert (loader.skipped, loader.repeated) == (0, 0)


def test_a_batch_skipped_or_repeated_is_told_and_kept() -> None:
    loader = make(workers=0)
    batches = list(loader.batches(0, 0))
    for batch in [*batches[1:], batches[2]]:
        loader.advance(batch)
    loader.finish_epoch()
    assert (loader.skipped, loader.repeated) == (1, 1)
    for batch in batches[:-1]:
        loader.advance(batch)
    loader.finish_epoch()
    assert (loader.skipped, loader.repeated) == (2, 1)
    other = make(workers=0)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert (other.skipped, other.repeated) == (2, 1)


@pytest.mark.parametrize(("name", "value"), [("batch_size", 5), ("shuffle", False), ("drop_last", True)])
def test_other_batches_in_the_middle_of_an_epoch_are_refused(name: str, value: Any) -> None:
    loader = make(workers=0)
    settings = {"batch_size": SIZE, "shuffle": True, "drop_last": False}
    other = Loader(Augmented(), **{**settings, name: value})
    other.load_state_dict(loader.state_dict())  # at the start of an epoch: allowed
    loader.advance(next(loader.batches(0, 0)))
    other.load_state_dict(loader.state_dict())  # the script may still set it right, as the epoch's body begins
    with pytest.raises(UserError, match=f"{name}={settings[name]}"):
        next(other.batches(other.epoch, other.cursor))
