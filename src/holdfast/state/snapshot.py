"""Taking snapshots: every committed step, the whole state goes into a slot of shared memory.

    snapshots = Snapshots(protected, link, device)
    snapshots.take(meta, step=12, samples=768, loss=loss)    # at the boundary; a device copies behind the next step
    snapshots.poll()                               # commit copies that have arrived
    snapshots.roll_back(…)                         # the state of the last take, in place

On the CPU a take is one pass of copies. On CUDA the state is gathered into one flat device buffer (small
states) or copied tensor by tensor (large ones) on a side stream into page-locked slots, and the slot is
committed when the copy has arrived. A step waits for that only where no slot is free, or where it is about to change
what is still being copied.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

import torch
from torch import Tensor

from holdfast.base.board import Board
from holdfast.run.messages import Message
from holdfast.state import layout as layouts
from holdfast.state.cuda_copies import Copies, copies_for
from holdfast.state.protected import Protected, view_bytes
from holdfast.state.rng import capture_rng, rng_specs
from holdfast.state.slot_preparation import Preparation
from holdfast.state.slot_views import Views, make_views
from holdfast.state.slots import LEAST, Arena, Slot
from holdfast.state.taken_snapshot import Taken
from holdfast.state.torch_private import copy_all

NO_LOSS = layouts.NO_LOSS


class Link(Protocol):
    """The session's way to whoever keeps its state."""

    board: Board
    generation: int

    def arena(self, capacity: int) -> Arena: ...
    def committed(self, step: int) -> None: ...
    def send(self, message: Message) -> None: ...


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The step whose numbers were not. It was never committed, and nothing after it is."""

    step: int
    loss: float
    norm: float

    @property
    def what(self) -> str:
        return "the gradient" if math.isfinite(self.loss) else "the loss"


_version = attrgetter("_version")
PATIENCE_WITH_SCALER = 20
"""Losses in a row that are not finite before a GradScaler's skipping is no explanation any more."""


class Snapshots:
    """Every snapshot of one worker."""

    def __init__(
        self, protected: Protected, link: Link, device: torch.device, optimizers: Sequence[torch.optim.Optimizer] = ()
    ) -> None:
        self.protected = protected
        self.link = link
        self.device = device
        self.last: Taken | None = None
        self._arena: Arena | None = None
        self._ready: Preparation | None = None
        self._plan: layouts.Layout | None = None
        self._order: list[int] = []
        self._base: list[Tensor] = []
        self._live: list[Tensor] = []
        self._device_count = 0
        self._views: dict[int, Views] = {}
        self._pending: list[Taken] = []
        self._sequence = 0
        self._versions: tuple[int, ...] = ()
        self.watch_numbers = False
        """Whether a step that is not finite is refused."""
        self.not_finite: NotFinite | None = None
        self.on_numbers: Callable[[float, float], None] | None = None
        """Called with the loss and the gradient norm of each step that has arrived."""
        self.compares = False
        """A sentinel looks at the steps of this device."""
        self.compared = 0
        """The sequence of the newest snapshot after which device and CPU agreed."""
        self.in_parts = False
        """Other ranks hold the other parts of the state: all of them decide together which snapshot is kept."""
        self.newest: Taken | None = None
        """The last one that a run can go on from, on its way or whole; the same one in all ranks."""
        self._skips = 0
        self._laying_s = 0.0
        self._copies: Copies | None = copies_for(device)
        if self._copies is not None:
            for optimizer in optimizers:
                optimizer.register_step_pre_hook(lambda *_: self._before_update())

    # -- taking --------------------------------------------------------------------------------------------

    def reserve(self) -> None:
        """Ask for the slots now, sized for what the optimizer will add, so that "no room" is said before step 1."""
        self._use(self.link.arena(self.protected.estimate_bytes()))

    def take(
        self,
        meta: dict[str, Any],
        *,
        step: int,
        samples: int,
        loss: Tensor | None,
        norm: Tensor | None = None,
        scaled: bool = False,
        resumable: bool = True,
        hold: bool = False,
        again: bool = False,
        losses: Sequence[tuple[int, Tensor]] = (),
    ) -> None:
        """Copy the state as it is now. `resumable` is False for a savepoint inside a loop body.

        `hold` keeps the slot until somebody lets it go: its weights may be the best so far. `again` is for a copy of
        what was restored: it counts as the predecessor's, for this worker has done nothing yet. `losses` are those of
        the steps since the last take, by step.
        """
        rng_tensors, rng_json = capture_rng(self.device)
        changed = self.protected.changed()
        text = self.protected.meta_json({**meta, "rng": rng_json, "rng_names": list(rng_tensors)}, look=False)
        self._arrange(changed, len(text))
        plan = self._plan
        arena = self._arena
        assert plan is not None and arena is not None
        slot = self._free_slot(arena)
        self._sequence += 1
        slot.begin(self._sequence)
        views = self._slot_views(slot, plan)
        taken = Taken(slot, plan, self._sequence, step, resumable, samples, hold, again=again, scaled=scaled)
        taken.losses = losses
        slot.memory[views.meta] = plan.pack_meta(text)
        for name, source in rng_tensors.items():
            views.rng[name].copy_(source)
        self._copy(taken, views, loss, norm)
        self.last = taken
        self.newest = taken if resumable else self.newest
        self._look_ahead(arena)
        self._versions = self.protected.versions()
        if taken.lazy:
            pairs = zip(self.protected.tensors(), self.protected.lazy(), strict=True)
            taken.reads = [tensor for tensor, lazy in pairs if lazy]
            taken.versions = sum(map(_version, taken.reads))

    def _copy(self, taken: Taken, views: Views, loss: Tensor | None, norm: Tensor | None) -> None:
        on_device = self._live[: self._device_count]
        on_host = self._live[self._device_count :]
        with torch.no_grad():
            if on_host:
                copy_all(views.host, on_host)
            if self._copies is None:
                if on_device:
                    copy_all(views.device, on_device)
                views.loss[0] = NO_LOSS if loss is None else loss
                views.loss[2] = 0.0 if norm is None else norm
                self._finish(taken, views)
            else:
                self._copies.copy(taken, views, on_device, loss, norm)
                self._pending.append(taken)

    def fresh(self) -> bool:
        """True if no protected tensor has changed since the last take: rolling back to it is exact.

        What is not a tensor may have changed (a scheduler stepped before the step): `meta_now` keeps that.
        """
        if self.last is None:
            return False
        same = not self.protected.changed() and self.protected.tensors() is self._base
        if same and self.protected.versions() == self._versions:
            return True
        self._give_up_torn()
        return False

    def _give_up_torn(self) -> None:
        """Something was written outside a step while copies were still reading it: they never become commits."""
        for taken in self._pending:
            taken.torn = taken.torn or taken.lazy
        if self.last is not None and self.last.torn:
            self.last = None

    def meta_now(self) -> dict[str, Any]:
        """Everything that is not a tensor, as of the last look `fresh` or `take` took."""
        return self.protected.meta(look=False)

    @property
    def busy(self) -> bool:
        """A take would have to wait: for a copy on its way, or for a slot that is ready and that nobody wants."""
        self.poll()
        if self._pending:
            return True
        arena, ready = self._arena, self._ready
        if arena is None or ready is None:
            return False
        return not arena.has_room(self._in_use(arena), ready.slots())

    # -- arrival -------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Commit every copy that has arrived, in order."""
        while self._pending and self._pending[0].event.query():
            self._arrived()

    def flush(self) -> None:
        """Wait for every copy on its way and commit it."""
        while self._pending:
            self._pending[0].event.synchronize()
            self._arrived()

    def _before_update(self) -> None:
        """An optimizer is about to write: it waits, on the device, for copies that read straight from the state."""
        if self._copies is not None and self._pending:
            for taken in self._pending:
                self._look_at_torn(taken)
            self._copies.guard(self._pending)

    def _look_at_torn(self, taken: Taken) -> None:
        """What an optimizer alone changes was written to by something else while it was copied: no commit."""
        reads, taken.reads = taken.reads, []
        if reads and sum(map(_version, reads)) != taken.versions:
            taken.torn = True
            if self.last is taken:
                self.last = None

    def _arrived(self) -> None:
        taken = self._pending[0]
        self._look_at_torn(taken)
        self._pending.pop(0)
        self._finish(taken, self._slot_views(taken.slot, taken.plan))

    def _finish(self, taken: Taken, views: Views) -> None:
        if taken.torn:
            return
        loss, _, norm = views.loss.tolist()
        losses, taken.losses = taken.losses, ()
        if self.watch_numbers and not self._accepts(taken, loss, norm, losses):
            return
        views.loss[1] = 1.0 if math.isfinite(loss) else 0.0
        if taken.hold:
            taken.slot.hold()
        else:
            taken.slot.let_go()
        taken.slot.commit(
            sequence=taken.sequence,
            step=taken.step,
            generation=self.link.generation - taken.again,
            size=taken.plan.total_bytes,
            resumable=taken.resumable,
        )
        taken.done = True
        if taken.agreed:
            self._agree(taken.slot)
        elif taken.considered:
            taken.slot.consider()
        if taken.resumable and not taken.again:
            self.link.board.commit(taken.step, taken.samples)
            if loss != NO_LOSS and math.isfinite(loss):
                self.link.board.loss(loss)
            self.link.committed(taken.step)
            if self.on_numbers is not None and loss != NO_LOSS:
                self.on_numbers(loss, norm)

    def _accepts(self, taken: Taken, loss: float, norm: float, losses: Sequence[tuple[int, Tensor]]) -> bool:
        """Whether the numbers of these steps are finite. From the first that is not, nothing is kept any more."""
        if self.not_finite is None and not (math.isfinite(norm) and (loss == NO_LOSS or math.isfinite(loss))):
            early = [(step, each) for step, found in losses if not math.isfinite(each := float(found))]
            self._skips += max(1, len(early))
            if not taken.scaled:
                step, loss = early[0] if early else (taken.step, loss)
                self.not_finite = NotFinite(step, loss, norm)
            elif self._skips >= PATIENCE_WITH_SCALER:
                self.not_finite = NotFinite(taken.step, loss, norm)
        elif self.not_finite is None:
            self._skips = 0
        return self.not_finite is None

    def close(self) -> None:
        """No take any more. Copies that are on their way arrive: they were agreed on."""
        with contextlib.suppress(RuntimeError):
            self.flush()
        if self._ready is not None:
            self._ready.stop()

    # -- agreement -----------------------------------------------------------------------------------------

    def consider(self) -> Taken | None:
        """The step after the last take is looked at: it is kept until the answer comes, if there is room."""
        taken = self.last
        if taken is None or not taken.resumable or taken.agreed or self.in_parts:
            return taken
        self.keep(taken)
        return taken

    def keep(self, taken: Taken) -> None:
        """It may be agreed on soon: until then it makes room for another one only where nothing else does."""
        if taken.agreed:
            return
        taken.considered = True
        if self.holds(taken):
            taken.slot.consider()

    def holds(self, taken: Taken) -> bool:
        """Whether it has arrived, and no other has taken its place."""
        arena = self._arena  # an outgrown one may be closed
        return taken.done and arena is not None and taken.slot in arena.slots and taken.slot.age == 2 * taken.sequence

    def agreed(self, taken: Taken | None = None) -> None:
        """Device and CPU compute the same from the state of this take, or the last: if they part later, back to it.

        Ranks that hold parts of the state only note it here. They go back to a snapshot that all of them keep, so
        each of them keeps the one that all have agreed on (`agree_on`).
        """
        taken = self.last if taken is None else taken
        if taken is None:
            return
        self.compared = max(self.compared, taken.sequence)
        if not self.in_parts:
            self.agree_on(taken)

    def agree_on_start(self) -> None:
        """The last take is of a new run. Nothing was computed yet, in any rank: all may come back to here."""
        if self.last is not None:
            self.agreed()
            self.agree_on(self.last)

    def agree_on(self, taken: Taken) -> None:
        """The run goes back to this one if the device is found to be wrong."""
        if not taken.resumable:
            return
        taken.agreed = True
        if self.holds(taken):  # it may have made room for another by now
            self._agree(taken.slot)

    def let_go(self, taken: Taken) -> None:
        """It is not kept any longer."""
        taken.considered = False
        if self.holds(taken) and taken.slot.considered:
            taken.slot.forget_agreement()

    def _agree(self, slot: Slot) -> None:
        slot.agree()
        if not self.in_parts:  # else another rank may not have heard of it yet, and goes back to the one before
            self._forget_others(slot)

    def forget_older(self) -> None:
        """Of the snapshots that were agreed on only the newest is kept."""
        newest = None if self._arena is None else self._arena.agreed()
        if self._arena is not None and newest is not None:
            self._forget_others(self._arena.slots[newest.slot])

    def _forget_others(self, slot: Slot) -> None:
        for other in self._arena.slots if self._arena is not None else ():
            if other is not slot:
                other.forget_agreement()

    # -- going back ----------------------------------------------------------------------------------------

    def roll_back(self, meta: dict[str, Any]) -> None:
        """The tensors of the last take and the numbers of `meta` again, in place. Generators are the caller's."""
        self.flush()
        assert self.last is not None and self.last.done, "who rolls back has looked whether it was refused"
        self.protected.restore(reader(self.last.slot.payload(self.last.plan.total_bytes)), meta)
        if not self.protected.changed():
            self._refresh_live()
            self._versions = self.protected.versions()

    def moved(self, device: torch.device) -> None:
        """The protected objects are on another device now: the live tensors are others."""
        self.device = device
        self._plan = None

    # -- places --------------------------------------------------------------------------------------------

    def _arrange(self, changed: bool, meta_bytes: int) -> None:
        """Keep the layout while it fits; make a new one when a tensor came, went or changed its shape."""
        if self._plan is not None and not changed and meta_bytes <= self._plan.meta_capacity:
            self._refresh_live()
            return
        self.flush()
        specs = [entry.spec for entry in self.protected.layout().live]
        tensors = self.protected.tensors()
        self._order = list(range(len(tensors)))
        self._device_count = len(tensors)
        if self._copies is not None:  # the device's tensors first: then they are a few long runs in the slot
            on_device = [self._copies.holds(tensor) for tensor in tensors]
            self._order.sort(key=lambda index: not on_device[index])
            self._device_count = sum(on_device)
        ordered = [specs[index] for index in self._order]
        live, host = ordered[: self._device_count], ordered[self._device_count :]
        new = layouts.plan(live, extra=[*host, *rng_specs(self.device)], meta_capacity=layouts.capacity_for(meta_bytes))
        self._plan = new
        self._base = []
        self._refresh_live()
        if self._arena is None or new.total_bytes > self._arena.capacity:
            self._use(self.link.arena(new.total_bytes + new.total_bytes // 16))
        self._views.clear()
        if self._copies is not None:
            lazy = self.protected.lazy()
            self._copies.arrange(new, [lazy[index] for index in self._order[: self._device_count]])

    def _refresh_live(self) -> None:
        """Follow tensors that were replaced by others of the same shape."""
        tensors = self.protected.tensors()
        if tensors is not self._base:
            self._base = tensors
            self._live = [tensors[index] for index in self._order]

    def _use(self, arena: Arena) -> None:
        if self._ready is not None:
            self._ready.stop()
        self._arena = arena
        self._ready = Preparation(arena, None if self._copies is None else self._copies.lock_pages)
        self._views.clear()
        for slot in arena.slots:
            self._sequence = max(self._sequence, (int(slot.words[1]) + 1) // 2)

    @property
    def next_sequence(self) -> int:
        return self._sequence + 1

    def start_after(self, sequence: int) -> None:
        """Count on from the newest snapshot of an earlier worker."""
        self._sequence = max(self._sequence, sequence)

    def _free_slot(self, arena: Arena) -> Slot:
        assert self._ready is not None
        busy, newest = self._in_use(arena), arena.newest()
        self._laying_s += self._ready.wait(busy if newest is None else {*busy, newest.slot})
        ready = self._ready.slots()
        while len(busy) >= len(ready) - 1 and self._pending:
            self._pending[0].event.synchronize()
            busy.discard(self._pending[0].slot.index)
            self._arrived()
        return arena.choose(busy, ready)

    def _look_ahead(self, arena: Arena) -> None:
        """The next take finds a slot that is ready; where all of those are in use, one more is made ready meanwhile."""
        assert self._ready is not None
        if not self._ready.over and not arena.has_room(self._in_use(arena), self._ready.slots(), plain=True):
            self._ready.more()

    def _in_use(self, arena: Arena) -> set[int]:
        """Slots that are written to, and that of the last take: of two slots a savepoint makes room for the next."""
        busy = {taken.slot.index for taken in self._pending if taken.slot in arena.slots}
        last = self.last
        if last is not None and last.slot in arena.slots and (last.resumable or len(arena.slots) > LEAST):
            busy.add(last.slot.index)
        return busy

    def _slot_views(self, slot: Slot, plan: layouts.Layout) -> Views:
        views = self._views.get(slot.index)
        if views is None or views.plan is not plan:
            began = time.perf_counter()
            views = make_views(slot, plan)
            if self._copies is not None:
                self._copies.lock_pages(slot)
            self._views[slot.index] = views
            self._laying_s += time.perf_counter() - began
        return views

    def laid_out(self) -> float:
        """Seconds spent on laying out slots since this was asked last: that is done once for each."""
        seconds, self._laying_s = self._laying_s, 0.0
        return seconds

    def slots_said(self) -> dict[str, Any]:
        """How large slots were made ready; {} for small ones."""
        return {} if self._ready is None else self._ready.said()

    def waited(self) -> float:
        """Seconds that the device spent on copies since this was asked last."""
        return 0.0 if self._copies is None else self._copies.spent()

    def make_room(self) -> None:
        """Memory of the device is short: from the next take on the state is copied out without a buffer there."""
        if self._copies is not None and self._copies.make_room():
            self._plan = None


# -- reading ------------------------------------------------------------------------------------------------


def reader(payload: memoryview) -> Callable[[str], Tensor]:
    """Tensors of a snapshot or checkpoint by name, as views of its bytes."""
    entries, data_start = layouts.parse_header(payload)
    by_name = {entry.name: entry for entry in entries}
    whole = torch.frombuffer(payload, dtype=torch.uint8)

    def read(name: str) -> Tensor:
        entry = by_name[name]
        return view_bytes(whole[data_start + entry.start : data_start + entry.stop], entry.dtype, entry.shape)

    return read


def loss_in(payload: memoryview) -> float | None:
    """The loss of the step a snapshot was taken after; None if it has none."""
    loss = float(reader(payload)(layouts.LOSS)[0])
    return loss if loss != NO_LOSS and math.isfinite(loss) else None


def restore(protected: Protected, payload: memoryview) -> dict[str, Any]:
    """Put a snapshot's tensors and numbers into the protected objects; returns its meta."""
    meta = layouts.read_meta(payload)
    protected.restore(reader(payload), meta)
    return meta
