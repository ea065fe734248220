"""What ranks agree on: gradients, whether a step was done, where a body ends, and which snapshot to go on from.

    group = Group.join(place, board, job, device=device, seed=0, patience=1800.0)
    group.together(work)(loss)                   # the gradients of the whole batch in every rank, and its loss
    group.all_done(None)                         # everybody got through; PeerFault if somebody did not
    group.at_boundary(context, CommitPoint.BATCH, stop=False)
    group.newest_common([7, 8, 9])               # 9, or what all of those that have any have

Every exchange begins with a vote: a few numbers of each rank, seen by all. A rank that met a fault votes so instead of
handing in gradients; so nobody waits for numbers that never come, and all go back to the same snapshot. Gradients are
brought together after the vote and not inside backward() for that reason. A model that the script has put into
DistributedDataParallel exchanges them inside. There a rank with a fault breaks the connections, and all vote in a new
group.

Ranks commit the same steps: rank 0 says in a vote whether the step is to be committed. A step right after a commit can
be taken back whole, so it ends with a vote of its own on whether all got through. The others end with the vote that
their exchange begins with (shared_votes.py inside a wrapper): a rank that fails after it is lost, and all go back to
the last commit.

All ranks hold the same model and optimizer at every boundary. Random generators are each rank's own: at a boundary
they are seeded anew from (seed, rank, place in the loop), so they need not be saved for any number of ranks.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from holdfast.base import dataclass_json
from holdfast.base.board import Board
from holdfast.base.errors import UserError
from holdfast.data.generators import NAMES, seed
from holdfast.data.loader import Loader
from holdfast.data.sample_order import key_of, mix_word
from holdfast.distributed import rank_numbers
from holdfast.distributed.checked_commits import CheckedCommits
from holdfast.distributed.connections import connections, ends
from holdfast.distributed.group_shares import CHANGE
from holdfast.distributed.job import Job
from holdfast.distributed.joined_ranks import About, GroupBroken, JoinedRanks, PeerLost, is_sent, other_steps
from holdfast.distributed.place import Place
from holdfast.distributed.rank_devices import IN_PARTS
from holdfast.distributed.roster import invited
from holdfast.distributed.shared_votes import NotTogether
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Move
from holdfast.faults.terms import Action
from holdfast.run.commit_points import CommitPoint
from holdfast.state.shared_out import is_shared_out
from holdfast.worker.peers import PeerFault
from holdfast.worker.uncommitted import MOST

if TYPE_CHECKING:
    from holdfast.data.loader import Batch
    from holdfast.data.quarantine import LeaveOut
    from holdfast.data.shares import Shares
    from holdfast.worker.peers import Peers, Trained
    from holdfast.worker.step import Work

_ACTIONS = list(Action)
_RANK = 4
"""A stream of random words of its own, beside those of the samples (sample_order.py)."""
_COMMIT, _MEET = 1, 2
"""What rank 0 wishes for at the end of a body: a commit, or a commit and then the next group. More in group_shares."""
PIECES = "pieces"
"""A note in the job's folder: in how many pieces ranks that hold parts of the state compute a batch."""
_LOOK = 0.05
"""Seconds between two looks for a new rank."""


class Group(JoinedRanks):
    """The ranks of a run, as one of them sees the others."""

    def __init__(self, place: Place, board: Board, job: Job, *, seed: int, mixed: bool = False, **how: Any) -> None:
        """The rest of `how` is as for JoinedRanks."""
        super().__init__(place, board, job, mixed=mixed, **how)
        self.seed = seed
        self._mixed = mixed
        self._unread_loss = self.sharing.accelerated
        """The ranks add their loss up in an exchange, because the host does not read it on an accelerator."""
        self._share = 1.0 / place.ranks
        self._fewest: int | None = None
        """Samples of this batch that the rank with the smallest part has."""
        self._finest = False
        """Ranks with parts of the state compute this batch in as many pieces as that rank can make."""
        self._agreed = self._stop = False
        """The last step was one of all ranks, and whether one of them wants to stop."""
        self._by_hand = self._handed = False
        """The last body called backward and the optimizer itself; numbers were handed in as this one began."""
        self._hooks: list[Any] = []
        """Of a body whose parts are not equal: they give gradients the weight of this rank's part."""
        self._checked: CheckedCommits | None = None
        """Of ranks that hold parts of the state: which snapshot all of them keep to go back to."""
        self._own: deque[tuple[int, Tensor]] = deque(maxlen=MOST)
        """By step: the loss of this rank's own part, as it is on the device."""
        self._loss: Tensor | None = None
        """Of this rank's part, until those of the others are known."""
        self._exchanging = False
        """Others may be inside an exchange of a wrapper: a vote would not reach them."""
        self._brief = self._past = False
        """The step ends with the vote before its exchange; and that vote is over, so that others may have gone on."""
        self.trial = 0
        """Up to this step, which is looked into, each step is committed."""
        self.looked = False
        """A step was computed again and nothing was found, and it has to be taken in the next group."""
        self._looked = 0.0
        """Of rank 0: when it has looked last whether a new rank waits."""

    @classmethod
    def join(cls, place: Place, board: Board, job: Job, **how: Any) -> Group:
        """Meet the others; `how` as for Group. Votes go over gloo; gradients on CUDA and ROCm over NCCL and RCCL."""
        group = cls(place, board, job, **how)
        try:
            group._meet()
        except BaseException:
            group.leave()
            raise
        return group

    # -- a body that computes by itself --------------------------------------------------------------------

    def open_body(self, batch: Batch | None) -> None:
        """Gradients of a part that is smaller or larger than those of the others get its weight where they are made.

        Wrappers of the script, and `before_update`, give every rank the same weight.
        """
        self._meet_newcomer()
        self._close_body()
        if self._by_hand and self._shared is not None and self.wrapped:
            self._shared.hand_in(*self._numbers(None))  # the wrapper exchanges in this body: all have these by its end
            self._handed = True
        if not self.wrapped:
            self.wrapped.silence()
        if batch is None or self._context is None or batch.has_mean_part(self.ranks):
            return
        every = (each for module in self._context.modules() for each in module.parameters())
        once = {id(each): each for each in every if not is_shared_out(each)}  # one may be in two protected modules
        self._hooks = _weighing(batch.share * self.ranks, once.values())

    def before_update(self, optimizer: torch.optim.Optimizer, *, closure: bool) -> None:
        """No wrapper has exchanged these gradients, and no step of ours will: without this ranks would drift apart."""
        own = self._own_part([optimizer])
        if own and closure:
            raise UserError(
                "`optimizer.step(closure)` computes gradients that the ranks cannot bring together",
                hints=["use `session.step`, or put the model into DistributedDataParallel"],
            )
        if own:
            # A rank that takes no step here, as a GradScaler may decide, votes about something else.
            self._agree(self._vote(About.GRADIENTS, *self._numbers(None)))
            self._share = 1.0 / self.ranks
            self._reduce(own)

    def _meet_newcomer(self) -> None:
        """All ranks have this commit, and all have agreed to leave after it."""
        if self._leaving and self._context is not None and self._context.uncommitted.count == 0:
            self._context.snapshots.flush()
            raise PeerLost("a new rank waits")

    def _close_body(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._handed:
            self._handed_in()  # unread, the row after the next would take its place before another rank has read it
        self._share = 1.0 / self.ranks

    # -- one step ------------------------------------------------------------------------------------------

    def begin_step(self, batch: Batch | None) -> None:
        self._meet_newcomer()
        self._close_body()
        self._share = 1.0 / self.ranks if batch is None or batch.part is None else batch.share
        self._fewest = None if batch is None or batch.parts is None else batch.parts.fewest
        self.sharing.begin_step(batch)
        self._brief = self._past = False

    def _begin_attempt(self) -> None:
        self.sharing.begin_attempt()
        self._in_step, self._exchanging = self.place.stays, bool(self.wrapped)
        self._brief = self._past = False
        if not self.wrapped:
            self.wrapped.silence()

    def together(self, work: Work) -> Callable[[Tensor], Tensor]:
        self._begin_attempt()
        context = self._context
        self._brief = context is not None and not context.cadence.each_step and context.uncommitted.count > 0
        # All of them anew for each attempt: `work` has those of the last one, and wrappers may exchange no more.
        wrapped = bool(self.wrapped)
        work.scale = self._share * self.ranks if wrapped else 1.0
        work.before_piece = self.wrapped.exchange if wrapped else None
        work.before_exchange = self._hand_in if wrapped and self._brief else None
        if self.wrapped.parts:  # FSDP2 exchanges in every forward and backward
            work.most_pieces = self._fewest
            self._finest = self._fewest is not None and work.accumulate * work.pieces >= self._fewest

        def bring(loss: Tensor) -> Tensor:
            return self._bring_together(work.optimizers, loss)

        return bring

    def _hand_in(self, loss: Tensor) -> None:
        """Before the backward that exchanges gradients. A rank that has come through it finds these numbers of all."""
        if self._shared is not None:  # a loss on a device is not read: that would wait for the device
            self._shared.hand_in(*self._numbers(None if self._unread_loss else loss))

    def _numbers(self, loss: Tensor | None) -> tuple[float, ...]:
        """What a rank says of a step: its part of the loss, whether it wants to stop, what it wishes for, its time, and
        which of its snapshots was compared with the CPU."""
        part = float(loss) * self._share if loss is not None and self._share else 0.0
        return part, float(self._board.stop_requested), float(self._wishes()), self.sharing.own_s, self._compared()

    def _compared(self) -> float:
        return 0.0 if self._checked is None else self._checked.told()

    def _wishes(self) -> int:
        """Of rank 0: whether this body should end with a commit, whether all leave the group after one, other parts."""
        context = self._context
        if self.rank or context is None:
            return 0
        shares = self.sharing.wishes()
        if self._newcomer_waits() or self.sharing.leaves:
            return _MEET | shares  # where a snapshot is still being copied, this commit waits for it
        if context.cadence.fixed is not None:
            return shares
        return shares | (_COMMIT if context.cadence.wishes() and not context.snapshots.busy else 0)

    def _newcomer_waits(self) -> bool:
        now = time.monotonic()
        if self.place.stays and not self._invited and now - self._looked >= _LOOK:
            self._looked = now
            self._invited = invited(self._job, self.place.restarts)
        return self._invited

    def _agree(self, rows: Iterable[Sequence[float]]) -> None:
        """All ranks have this step, and end its body alike: they stop if one wants to, and commit if rank 0 does."""
        rows = list(rows)
        self._in_step = self._exchanging = False
        self._agreed, self._stop = True, any(row[1] for row in rows)
        flags = int(rows[0][2])
        self.sharing.agreed(flags, [row[3] for row in rows])
        if self._checked is not None:
            self._checked.hear([row[4] for row in rows])
        if self._context is not None:
            # A change of parts is committed as well, so that the state to go back to has it.
            self._context.cadence.agreed = bool(flags & (_COMMIT | _MEET | CHANGE))
            self._leaving = self._leaving or bool(flags & _MEET)

    def _bring_together(self, optimizers: Iterable[torch.optim.Optimizer], loss: Tensor) -> Tensor:
        self.sharing.computed()
        if self._share and self._context is not None:
            self._own.append((self._context.position.step + 1, loss.detach()))
        on_cpu = not self._unread_loss
        if self.wrapped and on_cpu and not self._own_part(optimizers):
            self._exchanging = False  # backward is over here, so that every rank has handed in all of its gradients
            if not self._brief or self._shared is None:
                self._loss = loss.detach().clone()
                return self._loss
            shared = self._read_shared()
            self._end_brief(shared)
            return loss.new_tensor(sum(row[0] for row in shared))
        if self.wrapped and self._brief and self._shared is not None and not self._own_part(optimizers):
            self._exchanging = False
            self._end_brief(self._read_shared())
            return self._of_all(loss)
        rows = self._vote(About.GRADIENTS, *self._numbers(loss if on_cpu else None))
        self._exchanging = False
        if self._brief:
            self._end_brief(rows)
        self._reduce(self._own_part(optimizers))
        if on_cpu:
            return loss.new_tensor(sum(row[0] for row in rows))
        return self._of_all(loss)

    def _of_all(self, loss: Tensor) -> Tensor:
        """The loss of the whole batch, added up on the device without waiting for it.

        In float64 in all ranks: autocast gives a loss of another type on a card than on the CPU. Devices without
        float64 send through the host, which has it.
        """
        own = loss.detach()
        own = own if is_sent(own) else own.cpu()
        total = own.double() * self._share if self._share else torch.zeros_like(own, dtype=torch.float64)
        self._add_up(total)
        return total.to(loss.device, loss.dtype)

    def _end_brief(self, rows: Iterable[Sequence[float]]) -> None:
        self._agree(rows)
        self._past = True

    def _own_part(self, optimizers: Iterable[torch.optim.Optimizer]) -> list[Tensor]:
        """The parameters whose gradients no wrapper exchanges, each once."""
        done = self.wrapped.parameters()
        every = (each for optimizer in optimizers for group in optimizer.param_groups for each in group["params"])
        own = (each for each in every if each.requires_grad and id(each) not in done and not is_shared_out(each))
        return list({id(each): each for each in own}.values())

    def _reduce(self, parameters: list[Tensor]) -> None:
        """The sum over all ranks, each with its weight; a parameter that nobody has a gradient for keeps none."""
        if self.ranks == 1:
            return
        kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for parameter in parameters:
            kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
        for each in kinds.values():
            self._reduce_kind(each)

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
        self._add_up(flat)
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
            self._vote(About.GRADIENTS)
            self._reduce(self._own_part([optimizer]))

        self._begin_attempt()
        hooks: list[Any] = [optimizer.register_step_pre_hook(before_step) for optimizer in optimizers]
        try:
            hooks += self._weigh_gradients()
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _weigh_gradients(self) -> list[Any]:
        """A wrapper averages inside of backward as if parts were equal, and the loss of a transaction is not ours to
        scale: each gradient gets this rank's weight before the wrapper has it. Returns hooks to remove."""
        scale = self._share * self.ranks
        if not self.wrapped or not self.sharing.unequal:
            return []
        if self.wrapped.parts:
            raise UserError(
                "session.transaction with FSDP2 needs equal parts of each batch",
                cause=f"this rank has {self._share:.0%} of the batch, and FSDP2 averages over ranks inside of backward",
                hints=["use session.step, which weighs the loss, or equal parts: `--shares equal`, `drop_last=True`"],
            )

        exchanged = self.wrapped.parameters()
        return _weighing(scale, (each for each in self.wrapped.all() if id(each) in exchanged))

    def all_done(self, fault: Fault | None) -> Fault | None:
        """One exchange for all a step needs: whether all got through, the loss of all, whether one wants to stop."""
        if self._past and fault is None:
            return None
        loss, self._loss = self._loss, None
        rows = self._vote(About.DONE, *self._numbers(loss if fault is None else None), fault=fault)
        if fault is not None:  # the others raise PeerFault in this vote: nobody has agreed on what rank 0 wishes for
            self._in_step = self._exchanging = self._agreed = False
            return fault
        if loss is not None:
            loss.fill_(sum(row[0] for row in rows))
        self._agree(rows)
        return None

    def after_error(self, error: Exception, fault: Fault | None) -> Fault | None:
        """What a step that failed here means for all. None: the script's own error.

        Where a wrapper exchanges gradients, the others may wait for numbers of ours that never come, and a vote would
        not reach them. Then the connections are broken, which ends their waiting, and all vote in a new group.
        """
        self._in_step = False
        exchanging = self._exchanging or self.wrapped.parts
        broken = isinstance(error, GroupBroken) or (exchanging and self._is_broken())
        if self.wrapped.parts and (broken or fault is not None):
            self._leave_with_parts(error, None if broken else fault)
        if fault is None and not broken:
            return None
        if self._past and fault is not None:  # others may be in the next step: no vote, and no way back to this one
            assert self._context is not None
            self._context.lose(fault.at(step=self._context.position.step + 1))
        own = None if broken else fault
        if broken or self._exchanging:
            if not self.place.stays:
                raise PeerLost(str(error).partition("\n")[0]) from error
            self._rebuild()
        try:
            self.all_done(own)
        except PeerFault as peer:
            return peer.fault
        return own or Fault(Kind.TRANSIENT, "ranks", message=f"the connection between the ranks broke: {error}")

    def _leave_with_parts(self, error: Exception, own: Fault | None) -> NoReturn:
        """FSDP2 keeps to the process group it was made with, so all ranks begin anew in the next one.

        A batch that was too large here is computed in more pieces there, by all.
        """
        context = self._context
        if own is not None and context is not None:
            if own.kind is not Kind.OUT_OF_MEMORY or not own.evidence.get("splittable"):
                context.lose(own.at(step=context.position.step + 1))
            if self._finest:
                raise self._cannot_be_split() from error
            pieces = 2 * max(1, self._board.read().pieces)
            told = replace(own, device=f"rank {self.place.seat}").at(step=context.position.step + 1)
            self._job.note(PIECES, {"pieces": pieces, "fault": told.to_json()})
        raise PeerLost(str(error).partition("\n")[0]) from error

    def _cannot_be_split(self) -> UserError:
        assert self._fewest is not None
        smallest = "1 sample" if self._fewest == 1 else f"{self._fewest} samples"
        return UserError(
            f"rank {self.place.seat} ran out of memory, and its batch cannot be split further",
            cause=f"with FSDP2 all ranks compute as many pieces, and the smallest part of this batch is {smallest}",
            hints=["use parts that differ less (`--shares`), a larger batch, or a smaller model"],
        )

    def own_loss_is_bad(self, step: int) -> bool:
        """Whether the loss of this rank's part of that step was not finite."""
        with contextlib.suppress(RuntimeError):  # the device may be lost
            return any(not bool(torch.isfinite(loss)) for at, loss in self._own if at == step)
        return False

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        if self.wrapped.parts and self._context is not None:
            try:
                with self._talking():
                    self.wrapped.make_whole(self._context.modules())
            except (RuntimeError, AttributeError, PeerLost) as error:
                self.looked = not self._is_broken()  # a whole model may not fit here: then no rank looks
                raise PeerLost(str(error).partition("\n")[0]) from error
        # The script may exchange in its loss, as contrastive ones do. Without a group such a call raises, and the look
        # finds nothing: numbers of another rank would have this one accuse a sample of its own.
        world, c10d.GroupMember.WORLD = c10d.GroupMember.WORLD, None
        try:
            with self.wrapped.apart():
                yield
        finally:
            c10d.GroupMember.WORLD = world

    def blame(self, fault: Fault | None, every: Sequence[dict[str, Any]]) -> Fault | None:
        assert self._context is not None
        self._vote(About.NUMBERS)  # a rank that failed in its look votes so, and nobody waits for what it found
        own = rank_numbers.Part(self.rank, self.place.seat, self._share > 0.0, fault, tuple(every))
        found = [
            dataclass_json.read_strictly(rank_numbers.Part, each) for each in self.of_all([dataclass_json.write(own)])
        ]
        verdict = rank_numbers.blame(found, self._context.position.step + 1)
        if verdict is None and self.wrapped.takes_no_step:  # all begin anew, to take the step
            self.looked = True
            raise PeerLost("the ranks have computed a step again, and found nothing")
        return verdict

    def lost_a_rank(self) -> bool:
        """Whether an error outside of a step may come from a connection that ended: a script exchanges there too, in
        its backward, in an evaluation, for a number that it prints."""
        return self._is_broken()

    def agree_on(self, move: Move) -> Move:
        """The furthest that anybody has to go."""
        rows = self._vote(About.MOVE, _ACTIONS.index(move.action), move.pieces)
        action, pieces = _ACTIONS[int(max(row[0] for row in rows))], int(max(row[1] for row in rows))
        return Move(action, move.rung, pieces, reason=move.reason, new_worker=move.new_worker)

    # -- boundaries ----------------------------------------------------------------------------------------

    def protect(self, context: Trained, *, restored: bool) -> None:
        """The same numbers in all ranks, and the same number for the next snapshot."""
        self._context = context
        self.wrapped.parts = any(is_shared_out(each) for module in context.modules() for each in module.parameters())
        if not restored:
            for module in context.modules():
                own = [each for each in module.parameters() if not is_shared_out(each)]
                self._from_first([*own, *module.buffers()])
        self._agreed = False
        if self.wrapped.parts:
            self._checked = CheckedCommits(context.snapshots)
            self._job.note(IN_PARTS, {"parts": True})
            self._job.note(f"ends-{self.place.restarts}-{self.rank}", {"ends": sorted(ends(connections()).values())})
        rows = self._vote(About.SEQUENCE, context.snapshots.next_sequence - 1)
        context.snapshots.start_after(int(max(row[0] for row in rows)))
        if self.wrapped.parts:
            self._sockets |= self._to_ranks()
        self._agree_on_loaders(context)
        self.sharing.check(context)
        if self.sharing.policy.may_change:
            self.sharing.learn(self._from_rank_0(self.sharing.known() if self.rank == 0 else b""))

    def _agree_on_loaders(self, context: Trained) -> None:
        """Every rank cuts its part out of the same batches: loaders are alike, and draw by the seed of rank 0.

        A Loader has the seed of its script, and scripts for torchrun often seed each rank differently.
        """
        loaders = {name: each for name, each in context.named_loaders().items() if isinstance(each, Loader)}
        shapes = self.of_all([{name: each.shape() for name, each in loaders.items()}])
        for other in shapes[1:]:
            raise _unlike(shapes[0], other)
        seeds = json.dumps({name: each.seed for name, each in loaders.items()}).encode()
        for name, number in json.loads(self._from_rank_0(seeds)).items():
            loaders[name].seed = int(number)

    def shares(self, name: str) -> Shares | None:
        return self.sharing.of(name)

    def leaving_out(self, loader: str) -> LeaveOut | None:
        """All begin anew at the last commit, and leave the samples out from the batch on that they are in.

        Their place in the data is one number, and which samples a rank reads follows from those that are left. So all
        have to know before the next of them reads that batch. Below torchrun all would start again for each sample.
        """
        if not self.place.stays:
            return None

        def leave_out(samples: list[int], why: str, epoch: int, batch: int) -> None:
            self.leave_out({"loader": loader, "samples": samples, "why": why, "epoch": epoch, "batch": batch})
            raise PeerLost("samples that cannot be read are left out")

        return leave_out

    def leave_out(self, found: dict[str, Any]) -> None:
        """From the next group on all ranks leave these samples out."""
        known = self._job.noted(self._left_out).get("all", [])
        self._job.note(self._left_out, {"all": [*known, found]})

    @property
    def _left_out(self) -> str:
        return f"left-out-{self.place.seat}"

    def left_out(self) -> list[dict[str, Any]]:
        """What any rank of this group has found so far, in the same order in all of them."""
        return self.of_all(self._job.noted(self._left_out).get("all", []))

    def landed(self, context: Trained) -> None:
        self._reseed(context)

    def at_boundary(self, context: Trained, at: CommitPoint, *, stop: bool) -> bool:
        """A body that ended with a step needs no other vote: no rank is past the next step before all are here."""
        by_hand = at.by_cadence and not self._agreed
        if by_hand or not at.by_cadence:
            self._agree(self._handed_in() if by_hand and self._handed else self._boundary_vote(stop))
        stop, self._agreed = self._stop, False
        if at.by_cadence:
            self._by_hand = by_hand
        self._close_body()
        if self.sharing.changes:
            self.sharing.hear(self._from_rank_0(self.sharing.said_at(context) if self.rank == 0 else b""))
        for note in self.sharing.news():
            context.tell(note)
        _take_parts_back(context.modules() if self.wrapped.parts else ())
        self._from_first([buffer for module in context.modules() for buffer in module.buffers()])
        if self._mixed and (stop or self._commits(context, at)):
            self._even_out(context)
        self._reseed(context)
        return stop

    def _boundary_vote(self, stop: bool) -> Sequence[Sequence[float]]:
        return self._vote(About.BOUNDARY, 0.0, stop, self._wishes(), self.sharing.own_s, self._compared())

    def _handed_in(self) -> Sequence[Sequence[float]]:
        """What all ranks said when this body began. Nobody waits, if a wrapper has exchanged gradients since."""
        self._handed = False
        try:
            return self._read_shared()
        except GroupBroken as error:
            raise PeerLost(str(error)) from error

    def _read_shared(self) -> Sequence[Sequence[float]]:
        """What all ranks of this machine have handed in last."""
        assert self._shared is not None
        try:
            with self._talking():
                return self._shared.read(self._check_connections)
        except NotTogether:
            raise other_steps() from None

    def _commits(self, context: Trained, at: CommitPoint) -> bool:
        """Whether this boundary ends with a commit, from what is the same in all ranks."""
        cadence, since = context.cadence, context.uncommitted
        due = cadence.agreed if cadence.fixed is None else since.count >= cadence.fixed
        return due or since.whole or not at.by_cadence or context.position.step <= self.trial

    def _even_out(self, context: Trained) -> None:
        """Devices of different kinds round an update differently, and nothing would ever bring the ranks together
        again: they commit the parameters of rank 0."""
        own = (each for module in context.modules() for each in module.parameters() if not is_shared_out(each))
        self._from_first(list(own))

    def _reseed(self, context: Trained) -> None:
        """Random words of this rank's own from here on, the same whenever the run comes by."""
        place = context.position
        base = key_of(self.seed, _RANK, self.rank, place.epoch, place.step, place.samples)
        words = [mix_word(base + index) for index in range(4)]
        seed(words, NAMES)
        if context.device.type == "cuda":
            torch.cuda.manual_seed(words[3] >> 1)

    # -- snapshots -----------------------------------------------------------------------------------------


def _unlike(one: dict[str, Any], other: dict[str, Any]) -> UserError:
    """Two ranks have these shapes of loaders, by name, and they differ."""
    name = next(name for name in one | other if one.get(name) != other.get(name))
    first, second = one.get(name) or {}, other.get(name) or {}
    differs = [key for key in first | second if first.get(key) != second.get(key)]
    said = ", ".join(f"{key} is {first.get(key)} in one and {second.get(key)} in another" for key in differs)
    return UserError(
        f"`{name}` is not the same in all ranks: {said}",
        cause="every rank reads its part of the same batches, so all of them need the same dataset and batch size",
        hints=["give each rank the whole dataset, and the batch size of all ranks: the Loader shares it out"],
    )


def _weighing(scale: float, parameters: Iterable[Tensor]) -> list[Any]:
    """Every gradient of these gets that weight when it is computed. Returns hooks to remove."""

    def weigh(gradient: Tensor) -> Tensor:
        return gradient * scale if scale else torch.zeros_like(gradient)

    return [each.register_hook(weigh) for each in parameters if each.requires_grad]


def _take_parts_back(modules: Iterable[torch.nn.Module]) -> None:
    """A forward without backward may leave parameters of FSDP2 whole in every rank: a snapshot is of the parts."""
    for module in modules:
        for each in module.modules():
            reshard = getattr(each, "reshard", None)
            if reshard is not None and hasattr(each, "set_requires_gradient_sync"):
                reshard()


if TYPE_CHECKING:
    _checked: type[Peers] = Group
