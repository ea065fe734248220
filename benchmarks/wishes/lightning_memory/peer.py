"""Lightning#17393, reduced: a batch that does not fit. No more than 4 samples at a time do here, as on a small card."""

import lightning
import torch
from shared import BATCH, EPOCHS, Numbered, finish, network

FITS = 4


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        if len(batch[0]) > FITS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return torch.nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-2)


module = Module()
trainer = lightning.Trainer(
    max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False,
)  # fmt: skip
trainer.fit(module, torch.utils.data.DataLoader(Numbered(), batch_size=BATCH))
finish(module.network)
