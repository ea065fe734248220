"""When a run looks at its validation set: seldom enough that looking takes a fifth of the time of learning at most.

    looks = Looks(every=2)                       # from the sizes of the set; a number that the user gave stays
    if looks.due(epoch, epochs): …
    looks.learned(10.0)                          # each epoch: what learning took
    looks.took(look_s=4.0, epoch_s=10.0)         # measured: from now on every second epoch, or more seldom
    looks.words()                                # "scores: 8 % of the time, every second epoch …"

The last epoch is always scored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHARE = 0.2


@dataclass
class Looks:
    """Epochs from one look to the next."""

    every: int
    given: bool = False
    """By the user: it does not change."""
    learning_s: float = 0.0
    looking_s: float = 0.0
    """In this process: what both have taken so far."""

    def due(self, epoch: int, epochs: int) -> bool:
        return (epoch + 1) % self.every == 0 or epoch + 1 == epochs

    def learned(self, epoch_s: float) -> None:
        self.learning_s += epoch_s

    def words(self) -> str:
        """What looking has cost, for the screen."""
        share = 100 * self.looking_s / max(1e-9, self.learning_s + self.looking_s)
        often = "after each epoch" if self.every == 1 else f"every {self.every} epochs"
        return f"scores on the validation set took {share:.0f} % of the time ({often} and after the last)"

    def took(self, look_s: float, epoch_s: float) -> None:
        """What one look and one epoch of learning took. It only becomes more seldom, so that noise cannot swing it."""
        self.looking_s += look_s
        if not self.given and epoch_s > 0:
            self.every = max(self.every, math.ceil(look_s / (SHARE * epoch_s)))
