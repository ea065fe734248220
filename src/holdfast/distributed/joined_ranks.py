"""The ranks of a run, joined: they meet, vote and send each other numbers. What they agree on is in group.py.

    ranks = JoinedRanks(place, board, job, device=device, patience=1800.0)
    ranks._meet()
    ranks._vote(About.DONE, 1.0)                 # that number of every rank, by rank; PeerFault if one hands in a fault
    ranks.newest_common([7, 8, 9])               # 9, or what all of those that have any have
    ranks.leave()                                # the connections end, so that nobody waits for this rank

Ranks that stay in their processes meet anew for each roster. A rank that is lost ends its connections. All others
notice that, whatever they wait for: they leave as well (PeerLost), or build the group anew inside of a step
(GroupBroken).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d  # the script has others of these functions (script_calls.py)

from holdfast.base.board import Board, Phase
from holdfast.base.errors import UserError
from holdfast.distributed.connections import connections, ends, hang_up, has_ended
from holdfast.distributed.group_shares import GroupShares
from holdfast.distributed.job import Job
from holdfast.distributed.leave_watch import LeaveWatch
from holdfast.distributed.meeting import meet
from holdfast.distributed.place import LAUNCHER, MACHINE, Place
from holdfast.distributed.roster import CONNECT, ask, await_next, gather, store_path
from holdfast.distributed.share_keeper import Policy
from holdfast.distributed.shared_votes import NUMBERS, SharedVotes
from holdfast.distributed.wrapped import Wrapped
from holdfast.faults.classification import Fault, Kind
from holdfast.state.torch_private import broadcast_all, set_timeout
from holdfast.worker.peers import PeerFault

if TYPE_CHECKING:
    from holdfast.worker.peers import Trained

_KINDS = list(Kind)
_MOST_SNAPSHOTS = 64
_AT_ONCE = 64 << 20
"""Bytes of parameters and buffers that go in one exchange."""


class About(IntEnum):
    """What a vote is about. Ranks that vote about different things do not take the same steps."""

    GRADIENTS = 1
    DONE = 2
    MOVE = 3
    BOUNDARY = 4
    SNAPSHOTS = 5
    SEQUENCE = 6
    SHARES = 7
    NUMBERS = 8


class PeerLost(BaseException):
    """Another rank is gone, or does not answer: this one leaves the group. Let it propagate: it is not an error."""


class GroupBroken(Exception):
    """The connections broke inside a step: this rank, and each of the others, can still go back to where it began."""


class JoinedRanks:
    """The others, as one rank reaches them."""

    def __init__(
        self,
        place: Place,
        board: Board,
        job: Job,
        *,
        device: torch.device,
        patience: float,
        one_card: bool = False,
        mixed: bool = False,
        policy: Policy | None = None,
    ) -> None:
        """`one_card`: NCCL cannot join these ranks, two of them share a card or one is on the CPU. `mixed`: they are on
        devices of different kinds."""
        self.place = place
        self.rank = place.rank
        self.ranks = place.ranks
        self.neighbours = place.local_ranks
        self.wrapped = Wrapped(active=place.stays)
        self._board = board
        self._job = job
        policy = policy or Policy()
        names = range(place.ranks) if place.roster is None else place.roster.seats
        wanted = place.ranks if place.roster is None else len(policy.devices) or place.roster.wanted
        self.sharing = GroupShares(policy, job, names, place.rank, self.wrapped, device, mixed=mixed, wanted=wanted)
        # NCCL refuses two ranks on one card; gloo goes through the memory of the host.
        self._backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" and not one_card else "gloo"
        self._patience = patience
        self._sockets: frozenset[tuple[int, int]] = frozenset()
        """The connections to the others, by descriptor and inode."""
        self._in_step = False
        """A broken group can be built anew from here, and the step tried again."""
        self.all_had = 0
        """The newest snapshot that every rank with any had reached when this group began."""
        self._context: Trained | None = None
        """None until something is protected."""
        self._shared: SharedVotes | None = None
        """Only where all ranks are on this machine and stay."""
        self._exchanges = 0
        """How many votes of all ranks this one has begun."""
        self._watch: LeaveWatch | None = None
        """Only where they are on several machines."""
        self._leaving = False
        """A new rank waits, and all have agreed to meet it after their next commit."""
        self._invited = False
        """Of rank 0: whether the agent has invited it to meet a new rank."""

    def _meet(self) -> None:
        place, patience = self.place, timedelta(seconds=self._patience)
        before = connections()
        with self._talking():
            if place.stays:
                store = self._meet_in_store()
                if place.roster is not None and place.roster.spans:  # a machine may be lost while they connect
                    self._sockets = frozenset()
                    lead = int(os.environ.get(MACHINE) or 0) == 0
                    self._watch = LeaveWatch(
                        self._job,
                        place.restarts,
                        lambda: self._sockets or connections() - before,
                        launcher=0 if lead else _launcher(),
                    )
                self._connect(store, timedelta(seconds=self._time_to_connect))
                set_timeout(dist.group.WORLD, patience)
            else:
                host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
                serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and place.rank == 0
                tcp = dist.TCPStore(host, port, place.ranks, serves, timeout=patience, wait_for_workers=False)
                self._connect(meet(tcp, place.rank, place.ranks, patience=self._patience), patience)
        self._sockets = connections() - before

    @property
    def _time_to_connect(self) -> float:
        return CONNECT if self.place.roster is None else self.place.roster.connect

    def _meet_in_store(self) -> dist.Store:
        """All ranks of this roster are here, and this is where they find each other's addresses.

        On one machine that is a file. On several, rank 0 serves a store for this roster alone. A rank that connects to
        it has heard of its port from its agent, so no rank finds a store that belongs to another roster.
        """
        job, place = self._job, self.place
        where = (job, place.rank, place.ranks, place.restarts)
        if place.roster is None or not place.roster.spans:
            self._shared = SharedVotes(job, place.restarts, place.rank, place.ranks)
            gather(*where, launcher=_launcher())
            return dist.FileStore(str(store_path(job, place.restarts)), place.ranks)
        host, how = os.environ["MASTER_ADDR"], {"wait_for_workers": False}
        patience = timedelta(seconds=self._time_to_connect)
        if place.rank == 0:
            served = dist.TCPStore(host, 0, place.ranks, True, timeout=patience, **how)
            gather(*where, launcher=_launcher(), port=served.port)
            return served
        port = gather(*where, launcher=_launcher())
        return dist.TCPStore(host, port, place.ranks, False, timeout=patience, **how)

    def _connect(self, store: dist.Store, patience: timedelta) -> None:
        rank, ranks = self.place.rank, self.place.ranks
        c10d.init_process_group(self._backend, store=store, rank=rank, world_size=ranks, timeout=patience)

    def leave(self) -> None:
        """Break the connections, so that nobody waits for this rank, and forget the group."""
        self.wrapped.close()
        self.sharing.close()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        if self._shared is not None:
            self._shared.close()
            self._shared = None
        hang_up(self._sockets)
        self._sockets = frozenset()
        if dist.is_initialized():
            c10d.destroy_process_group()

    def begin(self) -> None:
        """This rank begins anew, with the script: all have to, or the group is of no use."""
        self._agree_to_begin(anew=True)

    def _agree_to_begin(self, *, anew: bool) -> None:
        if self.place.stays:
            rows = self._gather(torch.tensor([float(anew)], dtype=torch.float64))
            if any(bool(row) != anew for row in rows):
                raise PeerLost("some ranks begin anew and others do not")

    def _rebuild(self) -> None:
        """The same ranks in a new group, inside of a step. PeerLost if they are not the same: then all begin anew."""
        phase = self._board.phase
        self._board.enter(Phase.PEERS)  # others may take long to come here: that is no hang of this rank
        before = self.place.roster
        self._hang_up()
        ask(self._job, self.place.restarts)
        now = await_next(self._job, after=self.place.restarts, launcher=_launcher())
        if before is None or before.pids != now.pids:
            raise PeerLost("a rank was lost")
        self.place = replace(self.place, restarts=now.number, roster=now)
        self._invited = self._leaving = False  # an invitation is to the roster that was
        self._meet()
        self._agree_to_begin(anew=False)
        self.wrapped.follow(dist.group.WORLD)
        self._board.enter(phase)

    def _is_broken(self) -> bool:
        """Whether a connection to another rank has ended."""
        return any(has_ended(fd, inode) for fd, inode in self._sockets)

    def _check_connections(self) -> None:
        if self._is_broken():
            raise GroupBroken("a rank is gone")

    def _to_ranks(self) -> frozenset[tuple[int, int]]:
        """Connections of groups that the script has made, one for each axis of its mesh: a rank that leaves ends those
        too. Both ends are known, so that other connections of the script are left alone."""
        notes = [self._job.noted(f"ends-{self.place.restarts}-{rank}") for rank in range(self.ranks)]
        if self.place.roster is not None and self.place.roster.spans:  # other machines have notes of their own
            notes = [{}, *self.of_all([notes[self.rank]])]
            notes.remove(self._job.noted(f"ends-{self.place.restarts}-{self.rank}"))
            others = {str(end) for note in notes for end in note.get("ends", ())}
        else:
            others = {str(end) for rank, note in enumerate(notes) if rank != self.rank for end in note.get("ends", ())}
        return frozenset(each for each, end in ends(connections(), far=True).items() if end in others)

    # -- voting --------------------------------------------------------------------------------------------

    def _vote(self, about: int, *values: float, fault: Fault | None = None) -> list[list[float]]:
        """A few numbers of every rank, by rank. Raises PeerFault if somebody hands in a fault, and it was not us.

        PeerLost if the ranks are in different steps: one failed in a step that others have done. All go back then.
        """
        mine = torch.zeros(3 + NUMBERS, dtype=torch.float64)
        mine[0] = 0 if fault is None else 1 + _KINDS.index(fault.kind)
        mine[1] = about
        mine[2] = 0 if self._context is None else self._context.position.step
        for place, value in enumerate(values, 3):
            mine[place] = value
        rows = [row.tolist() for row in self._gather(mine)]
        faults = [int(row[0]) for row in rows]
        if len({row[2] for row in rows}) > 1 and (any(faults) or len({row[1] for row in rows}) == 1):
            raise PeerLost("the ranks are in different steps")
        if fault is None and any(faults):
            rank = next(rank for rank, code in enumerate(faults) if code)
            device = f"rank {self.place.seat_of(rank)}"
            raise PeerFault(Fault(_KINDS[faults[rank] - 1], device, evidence={"rank": rank}))
        if not any(faults) and len({row[1] for row in rows}) > 1:
            raise other_steps()
        return [row[3:] for row in rows]

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """Waiting for others is no hang of this rank; when they are gone, neither is it this rank's error."""
        before = self._board.phase
        self._board.enter(Phase.PEERS)
        try:
            with self.sharing.waiting():
                yield
        except (RuntimeError, ValueError, OSError) as error:
            self._board.enter(Phase.SETUP)  # what the script does on its way out is its own, and may take long
            text = str(error).partition("\n")[0]
            raise GroupBroken(text) if self._in_step and self.wrapped else PeerLost(text) from error
        self._board.enter(before)

    def _gather(self, mine: Tensor) -> list[Tensor]:
        if self.ranks == 1:
            return [mine]
        rows = [torch.empty_like(mine) for _ in range(self.ranks)]
        self._exchanges += 1
        if self._shared is not None:
            self._shared.elsewhere(self._exchanges)
        with self._talking():
            dist.all_gather(rows, mine)
        if self._shared is not None:
            self._shared.elsewhere(0)
        return rows

    def of_all(self, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What each rank knows, put together in the order of ranks, and each thing once."""
        mine = json.dumps(known, sort_keys=True).encode() if known else b""
        most = int(max(row.item() for row in self._gather(torch.tensor([len(mine)]))))
        if not most:
            return []
        rows = self._gather(torch.frombuffer(bytearray(mine.ljust(most)), dtype=torch.uint8))
        texts = (bytes(row.tolist()).strip() for row in rows)
        found = [each for text in texts if text for each in json.loads(text)]
        return list({json.dumps(each, sort_keys=True): each for each in found}.values())

    def somebody(self, value: int) -> tuple[int, int]:
        """The largest value that any rank has, and the first rank that has it."""
        rows = self._vote(About.SNAPSHOTS, value)
        largest = max(row[0] for row in rows)
        return int(largest), next(rank for rank, row in enumerate(rows) if row[0] == largest)

    def newest_common(self, sequences: Iterable[int]) -> tuple[int | None, int]:
        """The newest snapshot to go on from, and a rank that has it: one that all have who have any, or any at all."""
        mine = torch.full((_MOST_SNAPSHOTS,), -1, dtype=torch.int64)
        own = sorted(set(sequences))[-_MOST_SNAPSHOTS:]
        mine[: len(own)] = torch.tensor(own, dtype=torch.int64)
        held = [{int(each) for each in row.tolist() if each >= 0} for row in self._gather(mine)]
        holders = [rank for rank, each in enumerate(held) if each]
        if not holders:
            return None, 0
        self.all_had = min(max(held[rank]) for rank in holders)
        common = set.intersection(*(held[rank] for rank in holders))
        newest = max(common) if common else max(max(held[rank]) for rank in holders)
        return newest, next(rank for rank in holders if newest in held[rank])

    # -- sending -------------------------------------------------------------------------------------------

    def _add_up(self, tensor: Tensor) -> None:
        """The sum over all ranks, in place."""
        if self.ranks == 1:
            return
        sent = tensor if is_sent(tensor) else tensor.cpu()
        with self._talking():
            dist.all_reduce(sent)
        if sent is not tensor:
            tensor.copy_(sent)

    def _from_rank_0(self, payload: bytes) -> bytes:
        """What rank 0 has to say, in all ranks."""
        size = int(self._vote(About.SHARES, len(payload))[0][0])
        if self.ranks == 1 or not size:
            return payload
        said = torch.frombuffer(bytearray(payload or bytes(size)), dtype=torch.uint8)
        with self._talking():
            dist.broadcast(said, 0)
        return bytes(said.numpy().tobytes())

    @torch.no_grad()
    def _from_first(self, tensors: list[Tensor]) -> None:
        """What rank 0 has, in all ranks: initial weights, and buffers such as running means."""
        if self.ranks == 1 or not tensors:
            return
        world = dist.group.WORLD
        assert world is not None
        with self._talking():
            own = [each.detach() for each in tensors]
            sent = [each if is_sent(each) else each.cpu() for each in own]
            broadcast_all(world, sent, _AT_ONCE)
        for each, received in zip(own, sent, strict=True):
            if received is not each:
                each.copy_(received)

    def hand_over(
        self,
        payload: memoryview | None,
        source: int,
        *,
        wanted: bool,
        whole: Callable[[], memoryview | None] | None = None,
    ) -> memoryview | None:
        """The bytes of a snapshot from the rank that has it to those that want it; others keep their own.

        `whole` makes what is sent, in place of `payload`.
        """
        rows = self._vote(About.SNAPSHOTS, wanted)
        if not any(row[0] for row in rows):
            return payload
        own = payload
        if whole is not None and self.rank == source:
            payload = whole()
        size = int(self._vote(About.SNAPSHOTS, 0 if payload is None else len(payload))[source][0])
        if self.rank == source:
            assert payload is not None
            sent = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        else:
            sent = torch.empty(size, dtype=torch.uint8)
        with self._talking():
            dist.broadcast(sent, source)
        return memoryview(bytearray(sent.numpy().tobytes())) if wanted else own


def other_steps() -> UserError:
    return UserError(
        "the ranks do not take the same steps",
        cause="one takes a step or ends a loop body where another does not",
        hints=["the loop of a script must not depend on the rank: `session.rank` is for what is printed"],
    )


def is_sent(tensor: Tensor) -> bool:
    """Whether gloo and NCCL take it from where it is. From other kinds of devices it goes through the host."""
    return tensor.device.type in ("cpu", "cuda")


def _launcher() -> int:
    """The process of the agent, which replaces ranks that are lost."""
    return int(os.environ.get(LAUNCHER) or 0)
