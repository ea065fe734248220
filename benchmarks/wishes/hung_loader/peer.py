"""pytorch#96629, reduced: a loader process that hangs, and `timeout`."""

import torch
from shared import BATCH, EPOCHS, Faulty, finish, network

if __name__ == "__main__":
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(Faulty(), batch_size=BATCH, num_workers=2, timeout=10)
    for _ in range(EPOCHS):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finish(model)
