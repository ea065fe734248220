"""Lightning#20550, reduced: a loader that says its place, and `estimated_stepping_batches` before it is restored."""

import lightning
from lightning_shared import checkpoints, trainer
from parts import Module, Stateful
from shared import finish

lightning.seed_everything(0, verbose=False)
module = Module()
trainer(checkpoints()).fit(module, Stateful(), ckpt_path="last")
finish(module.network)
