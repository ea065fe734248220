"""A Trainer of transformers with a small model of one's own, as its quick tour teaches it."""

import sys

import torch
from transformers import Trainer, TrainingArguments


class Numbers(torch.utils.data.Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 8, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.x[index].sum()}


class Net(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(16, 1)
        self.net = torch.nn.Sequential(*layers)

    def forward(self, x, labels=None):
        out = self.net(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


def arguments(**more):
    return TrainingArguments(
        output_dir="out", per_device_train_batch_size=4, learning_rate=1e-2, report_to=[], disable_tqdm=True,
        dataloader_pin_memory=False, **more,
    )  # fmt: skip


def main():
    epochs, batches = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    args = arguments(num_train_epochs=epochs, save_steps=5, save_total_limit=3, logging_steps=5)
    model = Net(float(sys.argv[3]) if len(sys.argv) > 3 else 0.2)
    trainer = Trainer(model=model, args=args, train_dataset=Numbers(batches * 4))
    trainer.train()
    torch.save(model.state_dict(), "final.pt")
    print("steps", trainer.state.global_step, flush=True)


if __name__ == "__main__":
    main()
