"""One Triton kernel, which doubles numbers: does it write anything at all? Importing this needs Triton."""

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

BLOCK = 256


@triton.jit  # type: ignore[untyped-decorator, misc, unused-ignore]
def _double(x, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    tl.store(out + places, tl.load(x + places, mask=mask) * 2, mask=mask)


def double(x: Tensor, out: Tensor) -> None:
    """out = 2 x, on the device they are on."""
    _double[(x.numel() + BLOCK - 1) // BLOCK,](x, out, x.numel(), BLOCK=BLOCK)
