"""Which way a metric is better, by its name.

smaller_is_better("valid_loss")        # True; of what is not known, more is better
"""

from __future__ import annotations

_SMALLER = ("loss", "error", "mse", "mae", "perplexity", "nll")


def smaller_is_better(name: str) -> bool:
    return any(word in name.lower() for word in _SMALLER)
