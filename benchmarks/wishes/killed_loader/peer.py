"""pytorch#21554, reduced: a loader process that is killed, with `pin_memory`."""

import torch
from shared import BATCH, EPOCHS, Faulty, finish, network

if __name__ == "__main__":
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(Faulty(), batch_size=BATCH, num_workers=2, pin_memory=True)
    for _ in range(EPOCHS):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finish(model)
