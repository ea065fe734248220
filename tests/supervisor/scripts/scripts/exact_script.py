"""A loop as people write it: state in variables, in an object, in a generator, in a log; nothing is ever saved."""

import copy
import random
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value):
        self.sum += value
        self.count += 1


def progress(batches):
    done = 0
    for batch in batches:
        done += 1  # noqa: SIM113 - a generator with a variable of its own
        yield done, batch


def train_epoch(epoch, model, average, loader, optimizer, meter, log):
    running, noise = 0.0, random.random()
    for i, (done, (x, y)) in enumerate(progress(loader)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x * (1 + 0.01 * np.random.rand())), y)
        loss.backward()
        optimizer.step()
        for kept, param in zip(average.parameters(), model.parameters(), strict=True):
            kept.data.mul_(0.9).add_(param.data, alpha=0.1)  # torch does not count what is written through .data
        time.sleep(0.1)  # the rehearsal takes a second of steps
        running += loss.item()
        meter.update(loss.item())
        print(
            f"epoch {epoch} batch {i} {done} loss {loss.item():.9f} running {running:.9f} noise {noise:.9f}", flush=True
        )
        log.write(f"{epoch},{i},{running:.9f}\n")
    return running


def main():
    epochs = int(sys.argv[1])
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    x = torch.randn(80, 6)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 128), nn.Linear(128, 140), nn.Dropout(0.2), nn.Linear(140, 1))
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    meter, history, total, best = Meter(), [], 0.0, None
    log = open("log.csv", "w")  # noqa: SIM115 - as people do
    log.write("epoch,batch,running\n")
    for epoch in range(epochs):
        total += train_epoch(epoch, model, average, loader, optimizer, meter, log)
        scheduler.step()
        history.append(total)
        if best is None or total < best[0]:
            best = (total, {name: each.clone() for name, each in model.state_dict().items()})
        print(f"total {total:.9f} mean {meter.sum / meter.count:.9f} best {best[0]:.9f} of {history}", flush=True)
    log.close()
    last = {f"last.{name}": each for name, each in model.state_dict().items()}
    torch.save(best[1] | last | {f"average.{name}": each for name, each in average.state_dict().items()}, "final.pt")


if __name__ == "__main__":
    main()
