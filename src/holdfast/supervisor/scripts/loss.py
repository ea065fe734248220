"""The loss, where it can be seen honestly: in what the script itself prints.

    value = printed_loss("Epoch 3: train_loss=0.412, lr=1e-3")        # 0.412

What a script passes to `backward()` may be scaled, divided or one of several; what it prints is what it calls its loss.
"""

from __future__ import annotations

import math
import re

_LOSS = re.compile(
    r"""(?<![A-Za-z])(?:train(?:ing)?[ _/-]?)?loss['"]?\s*[:=]?\s*['"]?
    (?P<value>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf)(?![\w.])""",
    re.IGNORECASE | re.VERBOSE,
)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


_EPOCH = re.compile(r"(?<![A-Za-z])epoch[\s:=#\[(]{0,8}(?P<value>\d{1,7})(?![\w.])", re.IGNORECASE)


def printed_epoch(text: str) -> int | None:
    """The last epoch a text speaks of; None if it speaks of none."""
    last = None
    for match in _EPOCH.finditer(_COLOUR.sub("", text)):
        last = match
    return int(last["value"]) if last is not None else None


def printed_loss(text: str) -> float | None:
    """The last training loss in a text; None if there is none, or it is not finite."""
    last = None
    for match in _LOSS.finditer(_COLOUR.sub("", text)):
        last = match
    if last is None or last.end() == len(text):  # the number may still be on its way
        return None
    value = float(last["value"])
    return value if math.isfinite(value) else None
