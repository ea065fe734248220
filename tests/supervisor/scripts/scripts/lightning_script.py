"""A LightningModule and a Trainer, as the framework's own introduction teaches it."""

import os
import sys

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class LitModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        self.net = torch.nn.Sequential(*layers)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main():
    epochs, batches = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    L.seed_everything(7, verbose=False)
    x = torch.randn(batches * 4, 8)
    data = TensorDataset(x, x.sum(dim=1, keepdim=True))
    train_loader = DataLoader(data, batch_size=4, shuffle=True)
    val_loader = DataLoader(data, batch_size=16)
    model = LitModel()
    checkpoints = L.pytorch.callbacks.ModelCheckpoint(every_n_train_steps=5, save_top_k=2, monitor="step", mode="max")
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="auto",
        devices=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        callbacks=[checkpoints],
    )
    trainer.fit(model, train_loader, val_loader)
    torch.save(model.state_dict(), "final.pt")
    print("steps", trainer.global_step, "pid", os.getpid(), flush=True)


if __name__ == "__main__":
    main()
