"""pytorch#21554, reduced: a loader process that is killed, with `pin_memory`."""

import torch
from shared import BATCH, EPOCHS, Faulty, finish, learner, update

if __name__ == "__main__":
    model, optimizer = learner()
    loader = torch.utils.data.DataLoader(Faulty(), batch_size=BATCH, num_workers=2, pin_memory=True)
    for _ in range(EPOCHS):
        for x, y in loader:
            update(model, optimizer, x, y)
    finish(model)
