"""ultralytics with recovery at epochs: one line, for those who installed it. Nothing here imports it.

    from holdfast.integrations.ultralytics import attach
    model = attach(YOLO("yolo11n.yaml"))
    model.train(data="my.yaml", epochs=100)

At the end of every epoch the live weights, their average, optimizer, scheduler, scaler, generators and the order of the
data are handed out of the process. After a fault training goes on with the next epoch, from the live weights in full
precision, which its own `resume` does not have. What is lost: the batches of the epoch that was under way are done
again; gradients that were accumulated over the end of an epoch and not applied yet (it accumulates up to 64 images,
`nbs`) are gone, so the weights at the end are not those of an undisturbed run; and the restarted process writes its
plots and its results.csv into a folder of its own, because `train` always makes a new one.

ultralytics is AGPL-3.0. Holdfast does not contain, import or install it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from holdfast.base.board import Phase
from holdfast.base.errors import UserError
from holdfast.integrations.outside import Keep, Outside, connect
from holdfast.run.messages import Log, ScriptEpoch

M = TypeVar("M")


def attach(model: M) -> M:
    """The same model; its trainings hand their state out when they run under `holdfast run`."""
    if not hasattr(model, "add_callback"):
        raise UserError(
            f"ultralytics.attach takes a YOLO model, not a {type(model).__name__}",
            hints=['for example `attach(YOLO("yolo11n.yaml"))`'],
        )
    outside = connect()
    if outside is not None:
        training = _Training(outside)
        for name in (
            "on_train_start",
            "on_train_epoch_start",
            "on_train_batch_end",
            "on_fit_epoch_end",
            "on_train_end",
        ):
            model.add_callback(name, getattr(training, name))
        for name in ("on_val_batch_end", "on_train_epoch_end"):
            model.add_callback(name, training.evaluates)
    return model


class _Training:
    """One training, followed through its callbacks."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._keep: Keep | None = None
        self._place = _Place()
        self._resumed = False
        self._batches = 0

    def on_train_start(self, trainer: Any) -> None:
        self._place.trainer = trainer
        self._batches = len(trainer.train_loader)
        objects = {"model": trainer.model, "optimizer": trainer.optimizer, "scheduler": trainer.scheduler}
        objects |= {"scaler": trainer.scaler, "place": self._place}
        if trainer.ema is not None:
            objects["average"] = trainer.ema.ema
        self._keep = Keep(self._outside, objects, torch.device(trainer.device))
        session = self._keep.restore()
        if session is not None:
            trainer.start_epoch = int(session["epoch"])
            self._place.set_back()
            self._resumed = True
            if trainer.start_epoch > trainer.epochs - trainer.args.close_mosaic:
                trainer._close_dataloader_mosaic()
        self._outside.board.enter(Phase.LOOP)

    def on_train_epoch_start(self, trainer: Any) -> None:
        board = self._outside.board
        board.position(epoch=trainer.epoch, epochs=trainer.epochs, batch=0, batches=self._batches)
        if self._resumed and self._keep is not None:
            self._resumed = False
            self._keep.restore_generators()
        board.enter(Phase.LOOP)

    def on_train_batch_end(self, trainer: Any) -> None:
        board = self._outside.board
        board.begin_attempt(board.read().attempt + 1)
        board.enter(Phase.LOOP)

    def evaluates(self, _: Any) -> None:
        self._outside.board.enter(Phase.EVALUATE)

    def on_fit_epoch_end(self, trainer: Any) -> None:
        """All of an epoch is over, its validation and its files too."""
        if self._keep is None:
            return
        epoch = int(trainer.epoch) + 1
        step = epoch * self._batches
        self._keep.passed(step=step, samples=step)
        self._keep.commit(epoch=epoch)
        self._keep.flush()
        numbers = {str(name): float(value) for name, value in (getattr(trainer, "metrics", None) or {}).items()}
        self._outside.send(Log(step, int(trainer.epoch), numbers))
        self._outside.send(ScriptEpoch(int(trainer.epoch), step))  # then it is known whether it is the best
        self._keep.stop_if_asked()

    def on_train_end(self, trainer: Any) -> None:
        if self._keep is not None:
            self._keep.flush()
        self._outside.board.enter(Phase.SAVE)


class _Place:
    """The rest of a trainer: the order of its data, its average's count, what it has seen as the best."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self._saved: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        trainer = self.trainer
        generator = getattr(trainer.train_loader, "generator", None)
        stopper = getattr(trainer, "stopper", None)
        return {
            "generator": generator.get_state() if generator is not None else None,
            "updates": int(trainer.ema.updates) if trainer.ema is not None else 0,
            "best": _number(getattr(trainer, "best_fitness", None)),
            "stopper": [_number(getattr(stopper, name, None)) for name in ("best_fitness", "best_epoch")],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._saved = state

    def set_back(self) -> None:
        """After all objects are restored: the loader begins anew, at the order the next epoch would have had."""
        trainer, saved = self.trainer, self._saved
        loader = trainer.train_loader
        if hasattr(loader, "reset"):
            loader.reset()
        if saved.get("generator") is not None and getattr(loader, "generator", None) is not None:
            loader.generator.set_state(saved["generator"].clone())
        if trainer.ema is not None:
            trainer.ema.updates = saved["updates"]
        trainer.best_fitness = saved["best"]
        stopper = getattr(trainer, "stopper", None)
        if stopper is not None and saved["stopper"][0] is not None:
            stopper.best_fitness, stopper.best_epoch = saved["stopper"][0], int(saved["stopper"][1] or 0)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
