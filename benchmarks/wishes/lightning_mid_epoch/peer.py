"""Lightning#19764, reduced: checkpoints within an epoch, and the training is resumed from the last one."""

import lightning
import torch
from lightning_shared import Module, checkpoints, trainer
from shared import BATCH, Numbered, finish

lightning.seed_everything(0, verbose=False)
module = Module()
loader = torch.utils.data.DataLoader(Numbered(), batch_size=BATCH, shuffle=True)
trainer(checkpoints()).fit(module, loader, ckpt_path="last")
finish(module.network)
