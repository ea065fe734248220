"""Which device each rank is on: the agent of its machine decides it, the ranks read it. No torch.

    tell(job, 2, Told("cuda:2"))                       # the agent, before it starts a process for seat 2
    told(job, 2).device                                # that process; None where no ladder is kept
    tell_group(job, 7, ["cuda:0", "cpu"])              # the agent, before it publishes roster 7
    over_gloo(job, 7), mixed(job, 7)                   # every rank, before it builds the group of that roster

Notes in the job's folder. What a process for a seat is told may change at any time: then it leaves at the next commit.
What the ranks of one roster are on does not change, and all of them read the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.base import dataclass_json
from holdfast.devices import inventory
from holdfast.distributed.job import Job


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


def tell_group(job: Job, number: int, devices: Sequence[str], machines: Sequence[int] = ()) -> None:
    """By rank. `machines`: where each rank is; empty where all are on this one."""
    job.note(_group(number), {"devices": list(devices), "machines": list(machines)})
    job.forget(_group(number - 2))


def of_group(job: Job, number: int) -> list[str]:
    """The devices of the ranks of that roster; [] where no ladder is kept."""
    return [str(each) for each in job.noted(_group(number)).get("devices", [])]


def over_gloo(job: Job, number: int) -> bool:
    """NCCL needs a card for each rank: with a rank on the CPU, or two on one card, all exchange over gloo."""
    devices = of_group(job, number)
    machines = job.noted(_group(number)).get("machines") or [0] * len(devices)
    places = set(zip(machines, devices, strict=False))  # two machines may each have a card of one name
    return len(places) < len(devices) or "cpu" in devices


def mixed(job: Job, number: int) -> bool:
    """Ranks on devices of different kinds: the last bits of an update may differ between them."""
    return len({each.partition(":")[0] for each in of_group(job, number)}) > 1


def _group(number: int) -> str:
    return f"group-{number}"


def _name(seat: int) -> str:
    return f"device-{seat}"
