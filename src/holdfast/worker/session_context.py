"""What the parts of a session share: device, position, protected objects, snapshots, and the way to the supervisor.

    context = SessionContext(link, settings, device)
    context.protect({"model": model, "optimizer": optimizer})
    context.enter(Phase.FORWARD)                        # on the board, for the watchdog
    context.take(CommitPoint.BATCH, "data", resumable=True)  # a snapshot of everything protected, at this position

The session (loop and public calls), its attempts (retry.py) and its landing (restore.py) all work on it; the
session drives the other two.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import torch

from holdfast.base.board import Phase
from holdfast.base.errors import UserError
from holdfast.data.any_loader import AnyLoader, is_loader
from holdfast.data.loader import Loader
from holdfast.data.quarantine import MOST_LISTED
from holdfast.faults.classification import Fault
from holdfast.run.commit_points import CommitPoint
from holdfast.run.messages import Message
from holdfast.run.settings import Settings
from holdfast.state import snapshot
from holdfast.state.protected import Protected
from holdfast.state.savepoint import Savepoint
from holdfast.state.shared_out import local
from holdfast.worker.cadence import Cadence
from holdfast.worker.peers import Alone, Peers
from holdfast.worker.position import Loop, Position
from holdfast.worker.uncommitted import Uncommitted, norms
from holdfast.worker.unreported import Unheard


class StopRun(BaseException):
    """The run was asked to stop and its state is committed. Let it propagate: it is not an error."""


class LostWorker(BaseException):
    """This process cannot go on with the device; a new one will, from the last commit. Let it propagate as well."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.sentence())
        self.fault = fault


class Link(snapshot.Link, Protocol):
    """The session's way to whoever keeps its state: the supervisor, or this process itself."""

    def newest(self) -> memoryview | None: ...


class SessionContext:
    """One for each session; its loop, its attempts and its restoring work on it."""

    def __init__(self, link: Link, settings: Settings, device: torch.device) -> None:
        self.link = link
        self.board = link.board
        self.settings = settings
        self.device = device
        """Where the protected objects are now: the CPU for a moment, for a batch that fits nowhere else."""
        self.replaying = False
        """A step is computed off the record."""
        self.position = Position()
        self.loop: Loop | None = None
        self.begun = 0
        """The batch at which the pass over the data began that the run is in: 0 unless one was left by `break`."""
        self.unheard = Unheard(link.board)
        self.objects: dict[str, Any] = {}
        """What is protected, by name."""
        self.loss: torch.Tensor | None = None
        """Of the last step, kept with its snapshot."""
        self.norm: torch.Tensor | None = None
        """Of its gradients, where it is known."""
        self.uncommitted = Uncommitted()
        self.cadence = Cadence(settings)
        """How often everything is committed."""
        self._savepoint: Savepoint | None = None
        self.over: StopRun | LostWorker | None = None
        """Why nothing more is done here: said again to a script whose bare `except:` went on regardless."""
        self.phase_hooks: list[Callable[[Phase], None]] = []
        self.ready = False
        """True once something is protected."""
        self._optimizers: list[torch.optim.Optimizer] = []
        self._scalers: list[torch.amp.GradScaler] = []
        """Of `objects`, by kind: asked for in each step."""
        self.peers: Peers = Alone()
        """The other ranks of this run."""
        self._finite_from_start: bool | None = None
        """Whether parameters were finite at the first commit: some models have infinite ones on purpose."""
        self._protected: Protected | None = None
        self._snapshots: snapshot.Snapshots | None = None

    def enter(self, phase: Phase) -> None:
        self.board.enter(phase)
        for hook in self.phase_hooks:
            hook(phase)

    @property
    def entering(self) -> Callable[[Phase], None]:
        """`enter`, for the phases of one step: the board's own where nobody else wants to hear of them."""
        return self.enter if self.phase_hooks else self.board.enter

    def check_not_over(self) -> None:
        if self.over is not None:
            raise self.over

    def tell(self, message: Message) -> None:
        """For the journal of the run."""
        self.link.send(message)

    def lose(self, fault: Fault) -> NoReturn:
        """This process must not go on. The next one begins at the last commit."""
        self.over = LostWorker(fault)
        raise self.over

    @contextlib.contextmanager
    def elsewhere(self, device: torch.device) -> Iterator[None]:
        """For a while `session.device` is another: a step is computed off the record there."""
        home, self.device, self.replaying = self.device, device, True
        try:
            yield
        finally:
            self.device, self.replaying = home, False

    def updating(self, by_session: bool) -> None:
        """Whether the session itself updates now, and clears the gradients before the next time: none is state then."""
        if self._protected is not None:
            self._protected.gradients.by_session = by_session

    # -- what is protected ---------------------------------------------------------------------------------

    def protect(self, objects: dict[str, Any]) -> None:
        """On the device from now on, with room for their snapshots."""
        protected = Protected(objects, self.device)
        protected.move(self.device)
        self.objects = objects
        self._optimizers = [value for value in objects.values() if isinstance(value, torch.optim.Optimizer)]
        self._scalers = [value for value in objects.values() if isinstance(value, torch.amp.GradScaler)]
        self._protected = protected
        self._snapshots = snapshot.Snapshots(protected, self.link, self.device, self.known_optimizers())
        self._snapshots.reserve()
        loaders = [name for name, value in objects.items() if isinstance(value, (Loader, AnyLoader))]
        self._savepoint = Savepoint(protected, objects.values(), constant=loaders)
        self.ready = True

    @property
    def protected(self) -> Protected:
        assert self._protected is not None, "protect() comes first"
        return self._protected

    @property
    def snapshots(self) -> snapshot.Snapshots:
        assert self._snapshots is not None, "protect() comes first"
        return self._snapshots

    @property
    def light(self) -> Savepoint:
        """Where a step goes back to that fails before its update, if no snapshot was taken just before it."""
        assert self._savepoint is not None, "protect() comes first"
        return self._savepoint

    def take(
        self, at: CommitPoint, of: str | None = None, *, resumable: bool, hold: bool = False, again: bool = False
    ) -> None:
        """Everything protected, as it is now, with the place in the loop it belongs to.

        `hold`: its weights may be the best. `again`: it is what was restored, and no new commit.
        """
        snapshots, position = self.snapshots, self.position
        snapshots.poll()
        norm = self._norm()
        skipped = sum(loader.skipped for loader in self.loaders())
        repeated = sum(loader.repeated for loader in self.loaders())
        meta = {
            "session": {
                "step": position.step,
                "epoch": position.epoch,
                "samples": position.samples,
                "at": at,
                "of": of,
                "loop": None if self.loop is None else self.loop.to_json(),
                "begun": self.begun,
                "sequence": snapshots.next_sequence,
                "skipped": skipped,
                "repeated": repeated,
                "quarantined": self._quarantined(),
                "unheard": self.unheard.records(),
            }
        }
        snapshots.take(
            meta,
            step=position.step,
            samples=position.samples,
            loss=self.loss,
            norm=norm,
            scaled=self.scaler() is not None,
            resumable=resumable,
            hold=hold,
            again=again,
            losses=self.uncommitted.looked_at(),
        )

    def _norm(self) -> torch.Tensor | None:
        """Of the gradients of the last step, not finite if any number since the last commit was not.

        A GradScaler passes over steps that are not finite, and knows better.
        """
        if not self.snapshots.watch_numbers or self.scaler() is not None:
            return self.norm
        with torch.no_grad():
            if self._finite_from_start is None:
                self._finite_from_start = all(bool(torch.isfinite(each)) for each in norms(self._parameters()))
            found = self.uncommitted.norm(self._parameters if self._finite_from_start else None)
        return self.norm if found is None else found

    def _parameters(self) -> list[torch.Tensor]:
        return [local(each) for module in self.modules() for each in module.parameters()]

    def _quarantined(self) -> dict[str, Any] | None:
        """The samples that are left out, for the receipt; None if there are none, as there should be."""
        kinds = (Loader, AnyLoader)
        found = [(name, value.quarantined) for name, value in self.objects.items() if isinstance(value, kinds)]
        count = sum(len(samples) for _, samples in found)
        listed = [{"loader": name, **sample} for name, samples in found for sample in samples[:MOST_LISTED]]
        return {"count": count, "samples": listed[:MOST_LISTED]} if count else None

    # -- by kind -------------------------------------------------------------------------------------------

    def loaders(self) -> list[Loader | AnyLoader]:
        return list(self.named_loaders().values())

    def named_loaders(self) -> dict[str, Loader | AnyLoader]:
        return {name: value for name, value in self.objects.items() if isinstance(value, (Loader, AnyLoader))}

    def name_of(self, data: Any) -> str:
        """The name a loader was protected by."""
        for name, value in self.objects.items():
            if value is data or (isinstance(value, AnyLoader) and value.loader is data):
                return name
            if isinstance(value, Loader) and data is not None and value.stands_for is data:
                return name
        if not isinstance(data, Loader) and not is_loader(data):
            raise UserError(
                f"session.batches takes a holdfast.Loader or a DataLoader, not a {type(data).__name__}",
                cause="nobody could say which of its batches were used when a worker is replaced",
                hints=[
                    "`data = holdfast.Loader(dataset, batch_size=…, shuffle=True)` takes a dataset",
                    "a torch DataLoader, an IterableDataset, or anything with __iter__, state_dict and load_state_dict",
                ],
            )
        raise UserError(
            f"this {type(data).__name__} was not protected",
            cause="its position would be lost when a worker is replaced",
            hints=["add it to the call: `session.protect(model=…, optimizer=…, data=data)`"],
        )

    def modules(self) -> list[torch.nn.Module]:
        return list(self.named_modules().values())

    def named_modules(self) -> dict[str, torch.nn.Module]:
        return {name: value for name, value in self.objects.items() if isinstance(value, torch.nn.Module)}

    def scaler(self) -> Any | None:
        return next((scaler for scaler in self._scalers if scaler.is_enabled()), None) if self._scalers else None

    def optimizers(self, wanted: Any = None) -> list[torch.optim.Optimizer]:
        """Those a step is to use: the ones asked for, or the only one there is."""
        known = self._optimizers
        if wanted is None:
            if len(known) == 1:
                return known
            raise UserError(
                "session.step needs one optimizer" if known else "no optimizer is protected",
                cause=f"{len(known)} are protected" if known else "session.protect was given none",
                hints=["say which: `session.step(fn, batch, optimizer=…)`" if known else "protect it with the model"],
            )
        chosen = [wanted] if isinstance(wanted, torch.optim.Optimizer) else list(wanted)
        for optimizer in chosen:
            if not any(optimizer is other for other in known):
                raise UserError(
                    f"the {type(optimizer).__name__} given to session.step was not protected",
                    cause="its state would be lost at the first fault",
                    hints=["add it to the call: `session.protect(model=…, optimizer=…)`"],
                )
        return chosen

    def drop_gradients(self) -> None:
        for optimizer in self.known_optimizers():
            optimizer.zero_grad(set_to_none=True)

    def known_optimizers(self) -> list[torch.optim.Optimizer]:
        return list(self._optimizers)


def named_by_kind(values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """`protect(model, optimizer, data)`: names from what the objects are, beside those that were named."""
    found: dict[str, Any] = {}
    for value in values:
        kind = type(value).__name__.lower()
        if isinstance(value, torch.nn.Module):
            kind = "model"
        elif isinstance(value, torch.optim.Optimizer):
            kind = "optimizer"
        elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            kind = "scheduler"
        elif isinstance(value, torch.amp.GradScaler):
            kind = "scaler"
        elif isinstance(value, (Loader, AnyLoader)) or is_loader(value):
            kind = "data"
        name, number = kind, 2
        while name in found or name in named:
            name, number = f"{kind}{number}", number + 1
        found[name] = value
    objects = {**found, **named}
    return {name: _unwrapped(value) for name, value in objects.items()}


def _unwrapped(value: Any) -> Any:
    """The module under torch.compile or DistributedDataParallel, so that a checkpoint fits with and without them."""
    value = getattr(value, "_orig_mod", value)
    return _unwrapped(value.module) if isinstance(value, torch.nn.parallel.DistributedDataParallel) else value
