"""What the scripts of the Lightning wishes share: a module that dies once, and a Trainer without decoration."""

from __future__ import annotations

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from shared import EPOCHS, HERE, kill_at, network


class Module(lightning.LightningModule):
    """A step, an optimizer, and a kill -9 after a batch in the middle of the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def on_train_batch_end(self, *_: object) -> None:
        kill_at(self.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer | dict[str, object]:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def checkpoints() -> ModelCheckpoint:
    """One every four steps, as `last`: what `ckpt_path="last"` finds."""
    return ModelCheckpoint(HERE, save_last=True, every_n_train_steps=4)


def trainer(*callbacks: lightning.Callback) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=bool(callbacks), callbacks=list(callbacks),
    )  # fmt: skip
