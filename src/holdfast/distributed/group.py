"""What ranks agree on: gradients, whether a step was done, where a body ends, and which snapshot to go on from.

    group = Group.join(place, board, seed=0, patience=1800.0)
    group.together(work)(loss)                   # the gradients of the whole batch in every rank, and its loss
    group.all_done(None)                         # everybody got through; PeerFault if somebody did not
    group.at_boundary(ground, "batch", stop=False)
    group.newest_common([7, 8, 9])               # 9, or what all of those that have any have

Every exchange begins with a vote: a few numbers of each rank, seen by all. A rank that met a fault votes so instead of
handing in gradients; so nobody waits for numbers that never come, and all go back to the same snapshot. Gradients are
brought together after the vote and not inside backward() for that reason.

All ranks hold the same model and optimizer at every boundary. Random generators are each rank's own: at a boundary
they are seeded anew from (seed, rank, place in the loop), so they need not be saved for any number of ranks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.base.board import Board, Phase
from holdfast.base.errors import UserError
from holdfast.data.generators import NAMES, seed
from holdfast.data.sample_order import _key, _mix_word
from holdfast.distributed.meeting import meet
from holdfast.distributed.place import Place
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Action, Move
from holdfast.worker.peers import PeerFault

if TYPE_CHECKING:
    from holdfast.data.loader import Batch
    from holdfast.worker.peers import Peers
    from holdfast.worker.session_base import Ground
    from holdfast.worker.step import Work

_KINDS = list(Kind)
_ACTIONS = list(Action)
_RANK = 4
"""A stream of random words of its own, beside those of the samples (sample_order.py)."""
_GRADIENTS, _DONE, _MOVE, _BOUNDARY, _SNAPSHOTS, _SEQUENCE = range(1, 7)
_MOST_SNAPSHOTS = 64


class PeerLost(BaseException):
    """Another rank is gone, or does not answer: this one ends, and the agent starts all of them again."""


class Group:
    """The ranks of a run, as one of them sees the others."""

    def __init__(self, place: Place, board: Board, *, seed: int) -> None:
        self.rank = place.rank
        self.ranks = place.ranks
        self.seed = seed
        self._board = board
        self._share = 1.0 / place.ranks

    @classmethod
    def join(cls, place: Place, board: Board, *, device: torch.device, seed: int, patience: float) -> Group:
        """Meet the others. Votes go over gloo; gradients on CUDA and ROCm over NCCL and RCCL."""
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        time = timedelta(seconds=patience)
        with _talking(board):
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and place.rank == 0
            store = dist.TCPStore(host, port, place.ranks, serves, timeout=time, wait_for_workers=False)
            own = meet(store, place.rank, place.ranks, patience=patience)
            dist.init_process_group(backend, store=own, rank=place.rank, world_size=place.ranks, timeout=time)
        return cls(place, board, seed=seed)

    # -- voting --------------------------------------------------------------------------------------------

    def _vote(self, about: int, *values: float, fault: Fault | None = None) -> list[list[float]]:
        """Three numbers of every rank, by rank. Raises PeerFault if somebody hands in a fault, and it was not us."""
        mine = torch.zeros(5, dtype=torch.float64)
        mine[0] = 0 if fault is None else 1 + _KINDS.index(fault.kind)
        mine[1] = about
        for place, value in enumerate(values, 2):
            mine[place] = value
        rows = [row.tolist() for row in self._gather(mine)]
        faults = [int(row[0]) for row in rows]
        if fault is None and any(faults):
            rank = next(rank for rank, code in enumerate(faults) if code)
            raise PeerFault(Fault(_KINDS[faults[rank] - 1], f"rank {rank}", evidence={"rank": rank}))
        if not any(faults) and len({row[1] for row in rows}) > 1:
            raise UserError(
                "the ranks do not take the same steps",
                cause="one takes a step or ends a loop body where another does not",
                hints=["the loop of a script must not depend on the rank: `session.rank` is for what is printed"],
            )
        return [row[2:] for row in rows]

    def _gather(self, mine: Tensor) -> list[Tensor]:
        rows = [torch.empty_like(mine) for _ in range(self.ranks)]
        with _talking(self._board):
            dist.all_gather(rows, mine)
        return rows

    # -- one step ------------------------------------------------------------------------------------------

    def begin_step(self, batch: Batch | None) -> None:
        self._share = 1.0 / self.ranks if batch is None or batch.part is None else batch.share

    def together(self, work: Work) -> Callable[[Tensor], Tensor]:
        def bring(loss: Tensor) -> Tensor:
            return self._bring_together(work.optimizers, loss)

        return bring

    def _bring_together(self, optimizers: Iterable[torch.optim.Optimizer], loss: Tensor) -> Tensor:
        on_cpu = loss.device.type == "cpu"
        rows = self._vote(_GRADIENTS, float(loss) * self._share if on_cpu and self._share else 0.0)
        self._reduce(optimizers)
        if on_cpu:
            return loss.new_tensor(sum(row[0] for row in rows))
        total = loss.detach() * self._share
        with _talking(self._board):
            dist.all_reduce(total)
        return total

    def _reduce(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """The sum over all ranks, each with its weight; a parameter that nobody has a gradient for keeps none."""
        kinds: dict[tuple[torch.device, torch.dtype], dict[int, Tensor]] = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad:
                        kinds.setdefault((parameter.device, parameter.dtype), {})[id(parameter)] = parameter
        for parameters in kinds.values():
            self._reduce_kind(list(parameters.values()))

    @torch.no_grad()
    def _reduce_kind(self, parameters: list[Tensor]) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        flat = parameters[0].new_zeros(sum(sizes) + len(parameters))
        parts = list(flat.split([*sizes, len(parameters)]))
        has = parts.pop()
        for index, (part, parameter) in enumerate(zip(parts, parameters, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.is_sparse:
                raise UserError("sparse gradients cannot be brought together", hints=["use `sparse=False`"])
            has[index] = 1.0
            if self._share:
                part.view_as(gradient).copy_(gradient).mul_(self._share)
        with _talking(self._board):
            dist.all_reduce(flat)
        for part, parameter, somebody in zip(parts, parameters, has.tolist(), strict=True):
            if not somebody:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = part.view_as(parameter).clone()
            else:
                parameter.grad.copy_(part.view_as(parameter))

    @contextlib.contextmanager
    def averaging(self, optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
        def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self._vote(_GRADIENTS)
            self._reduce([optimizer])

        hooks = [optimizer.register_step_pre_hook(before_step) for optimizer in optimizers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def all_done(self, fault: Fault | None) -> Fault | None:
        self._vote(_DONE, fault=fault)
        return fault

    def agree_on(self, move: Move) -> Move:
        """The furthest that anybody has to go."""
        rows = self._vote(_MOVE, _ACTIONS.index(move.action), move.pieces)
        action, pieces = _ACTIONS[int(max(row[0] for row in rows))], int(max(row[1] for row in rows))
        return Move(action, move.rung, pieces, reason=move.reason, new_worker=move.new_worker)

    # -- boundaries ----------------------------------------------------------------------------------------

    def protect(self, ground: Ground, *, restored: bool) -> None:
        """The same numbers in all ranks, and the same number for the next snapshot."""
        if not restored:
            for module in ground.modules():
                self._from_first([*module.parameters(), *module.buffers()])
        rows = self._vote(_SEQUENCE, ground.snapshots.next_sequence - 1)
        ground.snapshots.start_after(int(max(row[0] for row in rows)))

    def landed(self, ground: Ground) -> None:
        self._reseed(ground)

    def at_boundary(self, ground: Ground, at: str, *, stop: bool) -> bool:
        rows = self._vote(_BOUNDARY, stop, ground.position.step)
        for module in ground.modules():
            self._from_first(list(module.buffers()))
        self._reseed(ground)
        return any(row[0] for row in rows)

    @torch.no_grad()
    def _from_first(self, tensors: list[Tensor]) -> None:
        """What rank 0 has, in all ranks: initial weights, and buffers such as running means."""
        if self.ranks == 1:
            return
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            with _talking(self._board):
                dist.broadcast(whole, 0)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.copy_(whole)

    def _reseed(self, ground: Ground) -> None:
        """Random words of this rank's own from here on, the same whenever the run comes by."""
        place = ground.position
        base = _key(self.seed, _RANK, self.rank, place.epoch, place.step, place.samples)
        words = [_mix_word(base + index) for index in range(4)]
        seed(words, NAMES)
        if ground.device.type == "cuda":
            torch.cuda.manual_seed(words[3] >> 1)

    # -- snapshots -----------------------------------------------------------------------------------------

    def newest_common(self, sequences: Iterable[int]) -> tuple[int | None, int]:
        """The newest snapshot to go on from, and a rank that has it: one that all have who have any, or any at all."""
        mine = torch.full((_MOST_SNAPSHOTS,), -1, dtype=torch.int64)
        own = sorted(set(sequences))[-_MOST_SNAPSHOTS:]
        mine[: len(own)] = torch.tensor(own, dtype=torch.int64)
        held = [{int(each) for each in row.tolist() if each >= 0} for row in self._gather(mine)]
        holders = [rank for rank, each in enumerate(held) if each]
        if not holders:
            return None, 0
        common = set.intersection(*(held[rank] for rank in holders))
        newest = max(common) if common else max(max(held[rank]) for rank in holders)
        return newest, next(rank for rank in holders if newest in held[rank])

    def somebody(self, value: int) -> tuple[int, int]:
        """The largest value that any rank has, and the first rank that has it."""
        rows = self._vote(_SNAPSHOTS, value)
        largest = max(row[0] for row in rows)
        return int(largest), next(rank for rank, row in enumerate(rows) if row[0] == largest)

    def hand_over(self, payload: memoryview | None, source: int, *, wanted: bool) -> memoryview | None:
        """The bytes of a snapshot from the rank that has it to those that want it; others keep their own."""
        rows = self._vote(_SNAPSHOTS, wanted)
        if not any(row[0] for row in rows):
            return payload
        size = int(self._vote(_SNAPSHOTS, 0 if payload is None else len(payload))[source][0])
        if self.rank == source:
            assert payload is not None
            sent = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        else:
            sent = torch.empty(size, dtype=torch.uint8)
        with _talking(self._board):
            dist.broadcast(sent, source)
        return memoryview(bytearray(sent.numpy().tobytes())) if wanted else payload


@contextlib.contextmanager
def _talking(board: Board) -> Iterator[None]:
    """Waiting for others is no hang of this rank; when they are gone, neither is it this rank's error."""
    before = board.phase
    board.enter(Phase.PEERS)
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        raise PeerLost(str(error).partition("\n")[0]) from error
    board.enter(before)


if TYPE_CHECKING:
    _checked: type[Peers] = Group
