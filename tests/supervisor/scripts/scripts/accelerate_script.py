"""Accelerate with save_state and --resume_from_checkpoint, as its complete examples do it."""

import argparse
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--resume_from_checkpoint", type=str, default=None, help="a folder written by save_state")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(args.steps * 4, 8)
    loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done = 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        done = int(os.path.basename(args.resume_from_checkpoint).removeprefix("step_"))
        accelerator.print("going on at", done, flush=True)
        active = accelerator.skip_first_batches(loader, done)
    else:
        active = loader
    for inputs, targets in active:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if done % 5 == 0:
            accelerator.save_state(f"state/step_{done}")
    torch.save(accelerator.unwrap_model(model).state_dict(), "final.pt")
    accelerator.print("steps", done, flush=True)


if __name__ == "__main__":
    main()
