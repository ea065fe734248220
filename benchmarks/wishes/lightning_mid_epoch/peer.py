"""Lightning#19764, reduced: checkpoints within an epoch, and the training is resumed from the last one."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from shared import BATCH, EPOCHS, HERE, Numbered, finish, kill_at, network


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def on_train_batch_end(self, *_: object) -> None:
        kill_at(self.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


lightning.seed_everything(0, verbose=False)
module = Module()
trainer = lightning.Trainer(
    max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[ModelCheckpoint(HERE, save_last=True, every_n_train_steps=4)],
)  # fmt: skip
loader = torch.utils.data.DataLoader(Numbered(), batch_size=BATCH, shuffle=True)
trainer.fit(module, loader, ckpt_path="last")
finish(module.network)
