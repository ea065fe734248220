"""A plain loop with what a careless resume gets wrong.

Gradients over three batches, an order from a generator of the loader's own, noise from one of the dataset's, and at
the head of each epoch a scheduler and a running mean that begins there.
"""

import sys

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

import holdfast


class Noisy(Dataset):
    def __init__(self, count):
        self.x = torch.randn(count, 8)
        self.rng = numpy.random.default_rng(7)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + float(self.rng.random()), self.x[index].sum(dim=0, keepdim=True)


def main():
    epochs, batches = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(3)
    loader = DataLoader(Noisy(batches * 4), batch_size=4, shuffle=True, generator=g)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loader = holdfast.attach(model, optimizer, loader, scheduler=scheduler)
    loader.state.setdefault("seen", 0)
    for epoch in loader.epochs(epochs):
        scheduler.step()
        running = loader.meter("loss")
        for i, (inputs, targets) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            (loss / 3).backward()
            if (i + 1) % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
            running.add(loss.item())
            loader.state["seen"] += len(inputs)
        print("epoch", epoch, repr(running.mean), loader.state["seen"], scheduler.get_last_lr()[0], flush=True)
    torch.save(model.state_dict(), "final.pt")


if __name__ == "__main__":
    main()
