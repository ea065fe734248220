"""As Lightning's documentation has it: checkpoints at each epoch and on exceptions, `ckpt_path="last"`.

torchrun --standalone --nproc-per-node 1 --max-restarts 3 with_lightning.py
https://lightning.ai/docs/pytorch/latest/api/lightning.pytorch.callbacks.OnExceptionCheckpoint.html
"""

from __future__ import annotations

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from shared import BATCH, EPOCHS, FOLDER, Data, done, finish, network, optimizer_of
from torch.nn.functional import cross_entropy


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return cross_entropy(self.network(batch[0]), batch[1])

    def on_train_batch_end(self, *_: object) -> None:
        done(self.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self.network)


lightning.seed_everything(0, verbose=False)
module = Module()
trainer = lightning.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    devices=1,
    default_root_dir=FOLDER,
    callbacks=[ModelCheckpoint(FOLDER, save_last=True), OnExceptionCheckpoint(FOLDER)],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, torch.utils.data.DataLoader(Data(), batch_size=BATCH, shuffle=True), ckpt_path="last")
finish(module.network)
