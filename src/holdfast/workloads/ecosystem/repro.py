"""One backward through this network's attention, and nothing else: the smallest thing that hung our first user's card.

    holdfast doctor --script …/workloads/ecosystem/repro.py      one step on each device, against the CPU
    holdfast train ecosystem-repro --device cuda:0               the same, supervised: a hang is found and told
    holdfast train ecosystem-repro kernel=math preset=small   with a remedy

A forward that works proves little; here loss, backward and update are taken once, at the shapes of a minibatch of
`holdfast train ecosystem preset=full`, with animals and neighbours made from a seed.
"""

from __future__ import annotations

import torch

import holdfast
from holdfast.workloads.ecosystem import ppo
from holdfast.workloads.ecosystem.policy import Policy, attention, check_attention, parameters, size_of
from holdfast.workloads.ecosystem.rules import ACTIONS
from holdfast.workloads.ecosystem.world import NEIGHBOUR_FEATURES, OWN_FEATURES


class Animals(torch.utils.data.Dataset[tuple[torch.Tensor, ...]]):
    """What animals could have seen and done."""

    def __init__(self, count: int, neighbours: int) -> None:
        own = torch.Generator().manual_seed(0)
        self.rows = (
            torch.randn(count, OWN_FEATURES, generator=own),
            torch.randn(count, neighbours, NEIGHBOUR_FEATURES, generator=own),
            torch.randint(0, ACTIONS, (count,), generator=own),
            torch.full((count,), -2.3),
            *torch.randn(3, count, generator=own),
        )

    def __len__(self) -> int:
        return len(self.rows[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(each[index] for each in self.rows)


def train(
    session: holdfast.Session,
    *,
    preset: str = "full",
    animals: int = 512,
    neighbours: int = 16,
    steps: int = 1,
    kernel: str = "auto",
) -> None:
    """A step: forward, one backward, update."""
    check_attention(kernel, session.device)
    net = Policy(size_of(preset))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    data = holdfast.Loader(Animals(animals * steps, neighbours), batch_size=animals)
    session.protect(model=net, optimizer=optimizer, data=data)
    print(f"one backward of {parameters(net):,} parameters, {animals} animals x {neighbours} neighbours", flush=True)

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        with attention(kernel, session.device):
            return ppo.loss(net, ppo.Batch.of(tuple(batch)), ppo.Recipe())[0]

    for _ in session.epochs(1):
        for batch in session.batches(data):
            loss = session.step(loss_of, batch)
        session.log(loss=loss)


if __name__ == "__main__":
    holdfast.main(train)
