"""Which rank this process is: what its agent says in the environment. No torch.

place = Place.of(os.environ)         # None: an ordinary process
place.rank, place.ranks, place.restarts
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.distributed.roster import Roster

RUN = "HOLDFAST_LAUNCHED_RUN"
"""The run folder, from `holdfast launch` to the ranks of the machine that keeps it."""
JOB = "HOLDFAST_LAUNCHED_JOB"
"""The folder of what outlives a rank; also a sign that somebody watches the ranks."""

LAUNCHER = "HOLDFAST_LAUNCHER"
"""The process number of `holdfast launch`."""

SEAT = "HOLDFAST_SEAT"
"""The seat of a rank whose agent is ours."""
MACHINE = "HOLDFAST_MACHINE"
"""The number of this machine, where there are several."""
CORES = "HOLDFAST_LAUNCHED_CORES"
"""CPU threads for all ranks together, where nobody has asked for a number and devices are of different kinds."""

START_AGAIN = 76
"""The exit code of a rank that asks the agent for a new one."""

OWN_AGENT = {"HOLDFAST_RANKS_STAY": "1", "TORCHELASTIC_RUN_ID": "holdfast"}
"""In the environment of ranks whose agent is ours (agent.py): it replaces the one that is lost, and the others stay."""


@dataclass(frozen=True, slots=True)
class Place:
    """One rank among others."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    restarts: int
    """How often the agent has replaced the ranks."""
    agent: int
    """The process that does."""
    run: str | None = None
    job: str | None = None
    stays: bool = False
    """Whether this process stays when another rank is lost."""
    roster: Roster | None = None
    """The processes of the group this rank is in, where ranks stay."""
    own_seat: int | None = None
    """Where ranks stay: the seat, if it is not the number among the ranks of this machine."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Place | None:
        """None for a process that no agent started, or that already is below a rank."""
        if "TORCHELASTIC_RUN_ID" not in environ or not {"RANK", "WORLD_SIZE"} <= set(environ):
            return None
        try:
            return cls(
                rank=int(environ["RANK"]),
                ranks=int(environ["WORLD_SIZE"]),
                local_rank=int(environ.get("LOCAL_RANK", "0")),
                local_ranks=int(environ.get("LOCAL_WORLD_SIZE", "1")),
                restarts=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
                agent=os.getppid(),
                run=environ.get(RUN) or None,
                job=environ.get(JOB) or None,
                stays=set(OWN_AGENT.items()) <= set(environ.items()),
                own_seat=int(environ[SEAT]) if environ.get(SEAT) else None,
            )
        except ValueError:
            return None

    @property
    def seat(self) -> int:
        """The number by which everything that outlives this process is named; users know the rank by it.

        Where ranks stay it is that of the first roster. The rank in a group is smaller while seats before it are empty.
        """
        if not self.stays:
            return self.rank
        return self.local_rank if self.own_seat is None else self.own_seat

    def seat_of(self, rank: int) -> int:
        """The seat of any rank of the group."""
        return rank if self.roster is None else self.roster.seats[rank]

    @property
    def watched(self) -> bool:
        """Whether `holdfast launch` looks after the ranks of this machine."""
        return self.job is not None
