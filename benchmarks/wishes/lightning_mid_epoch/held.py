"""The same with our two lines: an import and a callback."""

import lightning
import torch
from lightning_shared import Module, checkpoints, trainer
from shared import BATCH, Numbered, finish

from holdfast.integrations.lightning import HoldfastCallback

lightning.seed_everything(0, verbose=False)
module = Module()
loader = torch.utils.data.DataLoader(Numbered(), batch_size=BATCH, shuffle=True)
trainer(checkpoints(), HoldfastCallback()).fit(module, loader, ckpt_path="last")
finish(module.network)
