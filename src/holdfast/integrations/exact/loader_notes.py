"""What the hook calls as an epoch of a DataLoader begins.

note(iterator, loader)
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch

from holdfast.integrations.exact import loaders
from holdfast.integrations.exact.capture import Capture
from holdfast.integrations.exact.constants import Constants, mark_of, sum_of


class Versions(Constants):
    """Large data of a dataset are not read for this: what torch has counted, and of arrays a few places."""

    def mark(self, tensor: torch.Tensor, in_data: bool = False, path: str = "") -> str:
        return f"{tensor._version} {tensor.data_ptr()} {tuple(tensor.shape)}"

    def mark_array(self, array: np.ndarray[Any, Any], in_data: bool) -> str:
        return mark_of(array, in_data=True)


def note(iterator: Any, loader: Any) -> None:
    loaders.note(iterator, loader, state_of)


def state_of(parts: Any) -> str:
    """A checksum of everything small that a dataset and its collate function hold: another one after a change."""
    capture = Capture({}, Versions())
    rows = [capture.value(each, f"part{at}") for at, each in enumerate(parts)]
    sums = [[name, sum_of(tensor)] for name, tensor in capture.tensors.items() if tensor.numel()]
    return f"{zlib.crc32(repr([rows, capture.text(), sums]).encode()):08x}"
