"""The Trainer of transformers with exact recovery: one callback.

    from holdfast.integrations.transformers import HoldfastCallback
    trainer = Trainer(..., callbacks=[HoldfastCallback()])

Before a step, about once a second, everything the Trainer itself would save is handed out of the process: weights,
optimizer, scheduler, its own state, the random generators, the place in the data. After a fault `train` begins there.
The Trainer would pass over the batches that were used, which means for a stream to read them all again, and it would
draw other random numbers for the first batch. So its loader is followed (data.py) and comes back to its place itself.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from typing import Any

import torch

try:
    from transformers import TrainerCallback
    from transformers import trainer as trainer_module
except ImportError:
    from holdfast.base.errors import UserError

    raise UserError(
        "holdfast.integrations.transformers needs transformers",
        hints=["install it: `pip install transformers accelerate`"],
    ) from None

from holdfast.base.board import Phase
from holdfast.integrations.data import Followed, follow
from holdfast.integrations.outside import Keep, Outside, begin_at, connect
from holdfast.integrations.whole import Whole
from holdfast.run.messages import Log, Loggers, Note


class HoldfastCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Hands the Trainer's state out about once a second, before a step, and begins at the last one after a fault."""

    def __init__(self) -> None:
        self._outside: Outside | None = connect()
        self._keep: Keep | None = None
        self._now: dict[str, Any] = {}
        self._whole = Whole(lambda: self._now)
        self._set_back = False
        self._followed: Followed | None = None
        self._batches = 0
        """In a restored run on a stream of unknown length: how many batches the Trainer takes an epoch to have."""
        self._place: dict[str, Any] | None = None
        """The place in the data of a restored run."""
        if self._outside is not None and self._outside.newest() is not None:
            self._keep = Keep(self._outside, {"checkpoint": self._whole}, torch.device("cpu"))
            self._keep.restore()
            begin_at(self._as_folder())
            self._set_back = True

    def _as_folder(self) -> str:
        """The last commit as the folder `resume_from_checkpoint` takes."""
        from safetensors.torch import save_file

        saved = self._whole.restored or {}
        folder = os.path.join(tempfile.mkdtemp(prefix="holdfast-trainer-"), f"checkpoint-{saved['step']}")
        os.mkdir(folder)
        weights = {name: tensor.clone().contiguous() for name, tensor in saved["model"].items()}
        save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        torch.save(saved["optimizer"], os.path.join(folder, "optimizer.pt"))
        torch.save(saved["scheduler"], os.path.join(folder, "scheduler.pt"))
        if saved.get("scaler") is not None:
            torch.save(saved["scaler"], os.path.join(folder, "scaler.pt"))
        with open(os.path.join(folder, "trainer_state.json"), "w", encoding="utf-8") as file:
            file.write(str(saved["state"]))
        self._whole.restored = None
        self._place = saved.get("data")
        return folder

    # -- what the Trainer calls ----------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._outside is None:
            return
        if args.world_size > 1:
            self._outside.detach("several processes train: the Trainer's own checkpoints are used for restarts")
            self._outside = None
            return
        if self._keep is None:
            self._look(state, **kwargs)
            self._keep = Keep(self._outside, {"checkpoint": self._whole}, args.device)
            self._keep.restore()
        else:
            self._look(state, **kwargs)
            self._keep = self._keep.on(args.device)
        self._follow(args, state, kwargs.get("train_dataloader"))
        self._outside.send(Loggers(tuple(str(name) for name in args.report_to or ())))
        self._outside.board.enter(Phase.LOOP)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._followed is not None and not self._followed.resuming:
            self._followed.finish()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All of the step before is over, what it logged, evaluated and saved too: that is what is committed."""
        if self._keep is None or self._outside is None:
            return
        if self._set_back:
            self._set_back = False
            self._keep.restore_generators()
        elif self._keep.passed(step=state.global_step, samples=state.global_step):
            self._commit(args, state, **kwargs)
        self._outside.board.begin_attempt(state.global_step + 1)
        self._outside.board.enter(Phase.LOOP)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A batch of several that make one step."""
        if self._followed is not None:
            self._followed.used += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._followed is not None:
            self._followed.used += 1
            if self._batches:
                state.epoch = self._followed.passes - 1 + self._followed.used / self._batches
        if self._outside is not None:
            self._outside.board.enter(Phase.LOOP)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._outside is not None:
            self._outside.board.enter(Phase.EVALUATE)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self._outside is not None and isinstance(logs, dict):
            values = {name: float(each) for name, each in logs.items() if isinstance(each, (int, float))}
            self._outside.send(Log(state.global_step, int(state.epoch or 0), values))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._keep is not None:
            self._keep.passed(step=state.global_step, samples=state.global_step)
            self._commit(args, state, **kwargs)
            self._keep.flush()
            self._keep.outside.board.enter(Phase.SAVE)

    # -- the data -----------------------------------------------------------------------------------------

    def _follow(self, args: Any, state: Any, loader: Any) -> None:
        """The loader remembers its place. That of a restored run goes on there instead of being passed over."""
        base = getattr(loader, "base_dataloader", loader)  # what the Trainer's loader of accelerate reads
        if base is None:
            return
        self._followed = follow(base)
        stream = getattr(base, "dataset", None)
        if isinstance(stream, torch.utils.data.IterableDataset) and hasattr(stream, "set_epoch"):
            # A restored Trainer counts the passes over a stream of unknown length from 0 again.
            self._followed.on_pass = stream.set_epoch
        outside = self._outside
        if outside is not None:
            self._followed.on_note = lambda text: outside.send(Note(text))
        if self._place is None:
            return
        self._followed.load_state_dict(self._place)
        self._place = None
        self._batches = (
            0 if hasattr(base, "__len__") and _length(base) else state.max_steps * args.gradient_accumulation_steps
        )
        _leave_skipping_to(loader)

    # -- the state -----------------------------------------------------------------------------------------

    def _look(self, state: Any, model: Any = None, optimizer: Any = None, lr_scheduler: Any = None, **_: Any) -> None:
        plain = getattr(model, "module", model)
        self._now = {
            "step": state.global_step,
            "model": plain.state_dict(),
            "optimizer": optimizer.state_dict() if optimizer is not None else None,
            "scheduler": lr_scheduler.state_dict() if lr_scheduler is not None else None,
            "data": self._followed.state_dict() if self._followed is not None else None,
            "state": json.dumps(dataclasses.asdict(state), default=str),
        }

    def _commit(self, args: Any, state: Any, **kwargs: Any) -> None:
        assert self._keep is not None and self._outside is not None
        self._look(state, **kwargs)
        self._outside.board.position(
            epoch=int(state.epoch or 0), epochs=int(state.num_train_epochs or 0), batch=0, batches=0
        )
        self._keep.commit()
        self._keep.stop_if_asked()


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:  # a stream
        return 0


def _leave_skipping_to(loader: Any) -> None:
    """The next call of `skip_first_batches` in the Trainer gives this loader as it is."""
    module: Any = trainer_module
    original = module.skip_first_batches

    def skip_first_batches(given: Any, count: int = 0) -> Any:
        if given is not loader:
            return original(given, count)
        module.skip_first_batches = original
        return loader

    module.skip_first_batches = skip_first_batches
