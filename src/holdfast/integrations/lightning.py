"""Lightning with exact recovery: one callback.

    from holdfast.integrations.lightning import HoldfastCallback
    trainer = L.Trainer(..., callbacks=[HoldfastCallback()])

At every batch the Trainer's own checkpoint is handed out of the process, with the random generators and the place in
the data. After a fault `fit` begins there, in the middle of an epoch too. It works for one process with one train
loader; for several it says so and leaves the Trainer to its own checkpoints.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch

try:
    from lightning.pytorch.callbacks import Checkpoint
except ImportError:
    try:
        from pytorch_lightning.callbacks import Checkpoint  # type: ignore[import-not-found,no-redef,assignment,unused-ignore]
    except ImportError:
        from holdfast.base.errors import UserError

        raise UserError(
            "holdfast.integrations.lightning needs Lightning", hints=["install it: `pip install lightning`"]
        ) from None

from holdfast.base.board import Phase
from holdfast.integrations.data import Followed, follow
from holdfast.integrations.outside import Keep, Outside, begin_at, connect
from holdfast.integrations.whole import Whole
from holdfast.run.messages import Loggers, Note, ScriptEpoch

_MADE_ANEW = ("hyper_parameters", "hparams_name", "datamodule_hyper_parameters")
"""What the script gives again when it starts."""

_LOGGERS = {"MLFlowLogger": "mlflow", "WandbLogger": "wandb", "TensorBoardLogger": "tensorboard"}
"""Loggers of the Trainer by class, with their names in the setting track.to."""


class HoldfastCallback(Checkpoint):  # type: ignore[misc,unused-ignore]
    """Hands the Trainer's state out at every batch, and begins at the last one after a fault."""

    def __init__(self) -> None:
        super().__init__()
        self._outside: Outside | None = connect()
        self._keep: Keep | None = None
        self._followed: Followed | None = None
        self._trainer: Any = None
        self._whole = Whole(self._dump)
        self._loaders = _Place()
        if self._outside is not None:
            self._restore(self._outside)

    def _restore(self, outside: Outside) -> None:
        """The last commit as a checkpoint file, which `fit` is told to begin at."""
        if outside.newest() is None:
            return
        self._keep = Keep(outside, {"checkpoint": self._whole, "data": self._loaders}, torch.device("cpu"))
        self._keep.restore()
        folder = tempfile.mkdtemp(prefix="holdfast-lightning-")
        path = os.path.join(folder, "last.ckpt")
        torch.save(self._whole.restored, path)
        self._whole.restored = None
        begin_at(path)

    # -- what Lightning calls ------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Last of all callbacks, so that what the others did at the end of an epoch is part of it."""
        if self._outside is None or stage != "fit":
            return
        self._trainer = trainer
        if trainer.world_size > 1:
            self._outside.detach("several processes train: the Trainer's own checkpoints are used for restarts")
            self._outside = None
            return
        trainer.callbacks.remove(self)
        trainer.callbacks.append(self)
        source = trainer.fit_loop._data_source
        original = source.dataloader
        source.dataloader = lambda: self._follow(original())

    def _follow(self, loader: Any) -> Any:
        if isinstance(loader, (list, tuple, dict)):
            self._say("several train loaders: after a fault the epoch is not gone on with in the middle")
            return loader
        self._followed = follow(loader)
        self._followed.on_note = self._say
        if self._loaders.state is not None:
            self._followed.load_state_dict(self._loaders.state)
            if self._keep is not None:
                self._followed.on_resumed = self._keep.restore_generators
        self._loaders.followed = self._followed
        return loader

    def _say(self, text: str) -> None:
        if self._outside is not None:
            self._outside.send(Note(text))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._outside is None:
            return
        if self._keep is None:
            objects = {"checkpoint": self._whole, "data": self._loaders}
            self._keep = Keep(self._outside, objects, pl_module.device)
            self._keep.restore()
        else:
            self._keep = self._keep.on(pl_module.device)
        if self._followed is not None and self._followed.on_resumed is not None:
            self._followed.on_resumed = self._keep.restore_generators
        kinds = {base.__name__ for logger in trainer.loggers for base in type(logger).__mro__}
        self._outside.send(Loggers(tuple(name for kind, name in _LOGGERS.items() if kind in kinds)))
        self._outside.board.enter(Phase.LOOP)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._keep is not None and self._outside is not None:
            self._outside.board.enter(Phase.LOOP)
            self._outside.board.begin_attempt(self._keep.step + 1)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._keep is None or self._outside is None:
            return
        batches = trainer.num_training_batches
        last = batches == batches and batch_idx + 1 >= batches
        if self._followed is not None:
            self._followed.used = batch_idx + 1
        due = self._keep.passed(step=self._keep.step + 1, samples=self._keep.step + 1)
        if last or not due or trainer.fit_loop.epoch_loop._should_accumulate():  # committed with what follows
            self._outside.board.enter(Phase.EVALUATE if last else Phase.LOOP)
            return
        self._commit(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._keep is None or self._outside is None:
            return
        if self._followed is not None:
            self._followed.finish()
        self._commit(trainer)
        self._outside.send(ScriptEpoch(trainer.current_epoch, self._keep.step))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._outside is not None:
            self._outside.board.enter(Phase.EVALUATE)

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        if self._outside is not None:
            self._outside.board.beat()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """What the Trainer and the script do after the last epoch takes as long as it takes."""
        if self._keep is not None and self._outside is not None:
            self._keep.flush()
            self._outside.board.enter(Phase.SAVE)

    # -- the state -----------------------------------------------------------------------------------------

    def _commit(self, trainer: Any) -> None:
        assert self._keep is not None and self._outside is not None
        epochs = trainer.max_epochs or 0
        used = self._followed.used if self._followed is not None else 0
        batches = trainer.num_training_batches
        self._outside.board.position(
            epoch=trainer.current_epoch,
            epochs=max(0, epochs),
            batch=used,
            batches=int(batches) if batches != float("inf") else 0,
        )
        self._keep.commit()
        self._keep.stop_if_asked()

    def _dump(self) -> dict[str, Any]:
        if self._trainer is None:
            return {}
        checkpoint = self._trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        return {key: value for key, value in checkpoint.items() if key not in _MADE_ANEW}


class _Place:
    """The place in the data, whose loader Lightning asks for later than the state is restored."""

    def __init__(self) -> None:
        self.followed: Followed | None = None
        self.state: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        return self.followed.state_dict() if self.followed is not None else (self.state or {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state or None
