"""A loop as the PyTorch tutorials write it: a DataLoader, epochs, and not one word about checkpoints."""

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    epochs, batches = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(batches * 4, 8)
    loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=4, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(epochs):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        print(f"epoch {epoch} loss {loss.item():.6f}", flush=True)
    torch.save(model.state_dict(), "final.pt")
    print("steps", epochs * batches, flush=True)


if __name__ == "__main__":
    main()
