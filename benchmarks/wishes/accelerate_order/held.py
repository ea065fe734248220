"""The same with `holdfast.attach` in place of what saves and skips."""

import torch
from accelerate import Accelerator
from shared import BATCH, EPOCHS, Numbered, finish, kill_at, network

import holdfast

accelerator = Accelerator(cpu=True)
model = network()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(Numbered(), batch_size=BATCH, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
loader = holdfast.attach(model, optimizer.optimizer, loader)

for epoch in loader.epochs(EPOCHS):
    for at, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        kill_at(epoch * len(loader) + at + 1)
finish(accelerator.unwrap_model(model))
