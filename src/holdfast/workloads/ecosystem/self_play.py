"""Self-play against the past: copies of earlier policies, frozen, that some of the worlds are played against.

    league = League(keep=4)
    league.add({"prey": prey_net, "predators": predator_net})       # now and then
    league.into("prey", net, draw=0.7)                              # one of them, by a random number

Who only ever meets the newest opponent forgets how to beat the older ones. The first copy, which knows nothing, is
always kept.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class League:
    """Frozen policies of both species, oldest first. Protected like a model."""

    def __init__(self, keep: int = 4) -> None:
        self.keep = max(1, keep)
        self.past: list[dict[str, dict[str, Tensor]]] = []
        self.ages: list[int] = []
        """After how many updates each was frozen."""

    def __len__(self) -> int:
        return len(self.past)

    def add(self, nets: dict[str, nn.Module], age: int = 0) -> None:
        if len(self.past) >= self.keep:
            oldest = 1 if self.keep > 1 else 0
            del self.past[oldest], self.ages[oldest]
        self.past.append(
            {name: {k: v.detach().cpu().clone() for k, v in net.state_dict().items()} for name, net in nets.items()}
        )
        self.ages.append(age)

    def into(self, species: str, net: nn.Module, draw: float) -> int:
        """Load one of them, chosen by a number from 0 to 1; returns its age."""
        which = min(int(draw * len(self.past)), len(self.past) - 1)
        net.load_state_dict(self.past[which][species])
        return self.ages[which]

    def state_dict(self) -> dict[str, Any]:
        return {"past": self.past, "ages": self.ages}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.past = [{name: dict(net) for name, net in each.items()} for each in state["past"]]
        self.ages = [int(age) for age in state["ages"]]
