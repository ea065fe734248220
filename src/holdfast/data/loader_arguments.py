"""What a Loader is given, looked at once: which arguments go together, and what they have to be.

`holdfast.Loader` takes what torch's DataLoader takes. Each is exact after a restart, or is an error here that says why.
"""

from __future__ import annotations

import multiprocessing
import operator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from holdfast.base.errors import UserError
from holdfast.data.given_order import GivenOrder

AS_IT_IS = "session.protect and session.batches take a torch DataLoader as it is"


def given_order(
    batch_size: Any, shuffle: bool, drop_last: bool, sampler: Any, batch_sampler: Any, generator: Any
) -> GivenOrder | None:
    """Who says the order, if it is not the Loader itself. Which arguments exclude each other is as in torch."""
    if batch_size is None:
        raise UserError(
            "batch_size is None, which makes no batches, and a Loader counts batches",
            hints=[f"use a torch DataLoader: {AS_IT_IS}"],
        )
    if generator is not None and not isinstance(generator, torch.Generator):
        raise UserError(f"generator is a {type(generator).__name__}, but it has to be a torch.Generator")
    if sampler is not None and shuffle:
        raise UserError("a Loader has a sampler and shuffle=True, and both say the order", hints=["leave one out"])
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise UserError(
            "batch_sampler says the order and the batches: batch_size, shuffle, sampler and drop_last go without it",
            hints=["leave them out"],
        )
    if sampler is None and batch_sampler is None and (generator is None or not shuffle):
        return None
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is not None and not hasattr(value, "__iter__"):
            raise UserError(f"{name} is a {type(value).__name__}, which gives nothing: it has no __iter__")
        if hasattr(value, "__next__"):
            raise UserError(
                f"{name} is a {type(value).__name__}, which can be asked only once, and each epoch asks it anew",
                hints=["give a list, or an object with __iter__"],
            )
    return GivenOrder(sampler, batch_sampler, generator)


def start_method_of(context: Any, num_workers: int) -> str | None:
    """`multiprocessing_context` as the name of a way to start processes."""
    if context is None:
        return None
    if not num_workers:
        raise UserError("multiprocessing_context is for loader processes, and num_workers is 0")
    name = context if isinstance(context, str) else getattr(context, "get_start_method", lambda: None)()
    if name not in multiprocessing.get_all_start_methods():
        ways = ", ".join(multiprocessing.get_all_start_methods())
        raise UserError(f"multiprocessing_context is {context!r}, but this system has {ways}")
    return str(name)


def seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise UserError(f"{name} is {value!r}, but it has to be a number of seconds, 0 for no limit of your own")
    return float(value)


def check_in_order(in_order: bool) -> None:
    if not in_order:
        raise UserError(
            "in_order=False gives batches in the order in which they get ready, which no other process could repeat",
            hints=["leave it out: batches that are ready wait for their turn"],
        )


def length_of(dataset: Any) -> int:
    """The number of samples, or a UserError that says what kind of dataset is needed."""
    kind = type(dataset).__name__
    indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, DataLoader):
        hint = f"pass the dataset itself, Loader(loader.dataset, ...), or do without a Loader: {AS_IT_IS}"
    elif isinstance(dataset, IterableDataset):
        hint = f"a stream goes into a torch DataLoader: {AS_IT_IS}"
    else:
        hint = "give it __len__ and __getitem__(index)"
    if not indexed or isinstance(dataset, IterableDataset):
        raise UserError(f"a dataset needs a length and an index, and `{kind}` has not both", hints=(hint,))
    length = len(dataset)
    if length == 0:
        raise UserError(
            f"the dataset (`{kind}`) is empty", cause="its length is 0", hints=("check the path it reads from",)
        )
    return length


def not_grown(now: int, saved: int) -> UserError:
    return UserError(
        f"the dataset had grown to {saved} samples when the run was saved, and has {now} now",
        cause="what a script adds to a dataset in the course of a run is not restored by itself",
        hints=(
            "give the dataset state_dict and load_state_dict, and protect it: session.protect(…, samples=dataset)",
            "or build it from `session.epoch` at the beginning of each epoch",
        ),
    )


def whole(name: str, value: Any, least: int | None) -> int:
    """`value` as an int, or a UserError naming the setting, the value and what is allowed."""
    wanted = "a whole number" if least is None else f"a whole number of {least} or more"
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name} is {value!r}, but it has to be {wanted}") from None
    if isinstance(value, bool) or (least is not None and number < least):
        raise UserError(f"{name} is {value!r}, but it has to be {wanted}")
    return number
