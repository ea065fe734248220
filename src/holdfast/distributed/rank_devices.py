"""Which device each rank of this machine is on: the agent decides it, the ranks read it. No torch.

    tell(job, 2, Told("cuda:2"))                       # the agent, before it starts a process for seat 2
    told(job, 2).device                                # that process; None where no agent of ours has said anything
    over_gloo(job, roster), mixed(job, roster)         # every rank, before it builds the group of this roster

A note for each seat in the job's folder. It is written before a roster is published that has the process, so all ranks
of one roster read the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.base import dataclass_json
from holdfast.devices import inventory
from holdfast.distributed.job import Job
from holdfast.distributed.roster import Roster


@dataclass(frozen=True, slots=True)
class Told:
    """What a process for a seat is told about its device."""

    device: str
    probation: int = 0
    """Steps that are also computed on the CPU: the device has come back."""
    from_cpu: bool = False
    """The process before it was on the CPU: there is nothing to doubt in the state that it left."""

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]


IN_PARTS = "in-parts"
"""A note in the job's folder: ranks hold parts of the state (FSDP2), on devices of one kind."""
MOVED = "moved"
"""Why a process has left: it makes room for one of the same rank on another device."""
PRETEND_CARDS = "HOLDFAST_PRETEND_CARDS"
"""How many pretended cards there are beside those that ranks are on, for tests and trials."""


def cards() -> list[str]:
    """The accelerators of this machine, as far as its kernel shows them."""
    pretended = os.environ.get(PRETEND_CARDS, "")
    found = [f"pretend:{number}" for number in range(int(pretended))] if pretended.isdigit() else []
    return [each for each in inventory.candidates() if each != "cpu"] + found


def planned(asked: str, seats: int, ranks: int, cards: Sequence[str]) -> list[str]:
    """The device of each seat, by what `--device` says and which cards there are.

    Each rank of a machine with enough cards has one of its own. A name with a number is one card for all of them.
    """
    if asked == "auto":
        own = [card for card in cards if card.startswith("cuda")]
        return own[:seats] + ["cpu"] * (seats - len(own)) if len(own) >= ranks else ["cpu"] * seats
    if asked in ("cuda", "pretend"):
        return [f"{asked}:{seat}" for seat in range(seats)]
    return [asked] * seats


def tell(job: Job, seat: int, said: Told) -> None:
    job.note(_name(seat), dataclass_json.write(said))


def told(job: Job, seat: int) -> Told | None:
    found = job.noted(_name(seat))
    return dataclass_json.read_strictly(Told, found) if found else None


def over_gloo(job: Job, roster: Roster) -> bool:
    """NCCL needs a card for each rank: with a rank on the CPU, or two on one card, all exchange over gloo."""
    devices = [each.device for each in _of(job, roster)]
    return len(set(devices)) < len(devices) or any(each == "cpu" for each in devices)


def mixed(job: Job, roster: Roster) -> bool:
    """Ranks on devices of different kinds: the last bits of an update may differ between them."""
    return len({each.kind for each in _of(job, roster)}) > 1


def _of(job: Job, roster: Roster) -> list[Told]:
    return [found for seat in roster.seats if (found := told(job, seat)) is not None]


def _name(seat: int) -> str:
    return f"device-{seat}"
