"""pytorch#96629, reduced: a loader process that hangs, and `timeout`."""

import torch
from shared import BATCH, EPOCHS, Faulty, finish, learner, update

if __name__ == "__main__":
    model, optimizer = learner()
    loader = torch.utils.data.DataLoader(Faulty(), batch_size=BATCH, num_workers=2, timeout=10)
    for _ in range(EPOCHS):
        for x, y in loader:
            update(model, optimizer, x, y)
    finish(model)
