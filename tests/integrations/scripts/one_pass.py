"""A loop over iterations, as nanoGPT has one: no epochs, and the training is over when the loader is."""

import sys

import torch
from torch.utils.data import DataLoader

import holdfast

steps = int(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in holdfast.attach(model, optimizer, DataLoader(range(steps), batch_size=None)):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True)).backward()
    optimizer.step()
torch.save(model.state_dict(), "final.pt")
