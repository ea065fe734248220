"""The plain loop of every introduction: nothing is saved before the end, and nobody starts it again."""

from __future__ import annotations

import torch
from shared import BATCH, EPOCHS, Data, done, finish, network, optimizer_of
from torch.nn.functional import cross_entropy

model = network()
optimizer = optimizer_of(model)
loader = torch.utils.data.DataLoader(Data(), batch_size=BATCH, shuffle=True)
step = 0
for _ in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        done(step)
finish(model)
