"""A Trainer on data that draws random numbers: `stream` says its place, `plain` cannot, `map` has an index.

The collator masks at random, as for masked language models. Every sample that is read is counted in a file.
"""

import os
import sys

import torch
from torch.utils.data import Dataset, IterableDataset
from trainer_script import Net, arguments
from transformers import Trainer

from holdfast.integrations.transformers import HoldfastCallback


def sample(index):
    with open("read.txt", "a") as file:
        file.write(f"{os.getpid()} {index}\n")
    x = torch.randn(8, generator=torch.Generator().manual_seed(index))
    return {"x": x, "labels": x.sum()}


class Plain(IterableDataset):
    def __init__(self, count):
        self.count, self.start, self.epoch = count, 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        first, self.start = self.start, 0
        for index in range(first, self.count):
            self.next = index + 1
            yield sample(index + 1000 * self.epoch)


class Stream(Plain):
    next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.start = state["next"]


class Map(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return sample(index)


def masked(samples):
    x = torch.stack([each["x"] for each in samples])
    return {"x": x * (torch.rand_like(x) > 0.15), "labels": torch.stack([each["labels"] for each in samples])}


def main():
    kind, steps, batches, accumulate = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    args = arguments(max_steps=steps, gradient_accumulation_steps=accumulate, save_strategy="no", logging_steps=1)
    model, data = Net(0.2), {"plain": Plain, "stream": Stream, "map": Map}[kind](batches * 4)
    trainer = Trainer(model=model, args=args, train_dataset=data, data_collator=masked, callbacks=[HoldfastCallback()])
    trainer.train()
    torch.save(model.state_dict(), "final.pt")


if __name__ == "__main__":
    main()
