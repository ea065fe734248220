"""The same with our two lines: an import and a callback."""

import lightning
from lightning_shared import checkpoints, trainer
from parts import Module, Stateful
from shared import finish

from holdfast.integrations.lightning import HoldfastCallback

lightning.seed_everything(0, verbose=False)
module = Module()
trainer(checkpoints(), HoldfastCallback()).fit(module, Stateful(), ckpt_path="last")
finish(module.network)
