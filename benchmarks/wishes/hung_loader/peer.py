"""pytorch#96629, reduced: a loader process that hangs, and `timeout`."""

import time

import torch
from shared import BATCH, EPOCHS, Numbered, finish, network, once


class Hangs(Numbered):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        while index == 37 and once("hang"):
            time.sleep(3600)
        return super().__getitem__(index)


if __name__ == "__main__":
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(Hangs(), batch_size=BATCH, num_workers=2, timeout=10)
    for _ in range(EPOCHS):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finish(model)
