"""A loop whose random numbers come from an object that nobody can look into: it cannot be led back."""

import hashlib
import time

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
chain = hashlib.sha256(b"begin")
for step in range(60):
    chain.update(b"next")
    noise = chain.digest()[0] / 255
    loss = (model(torch.randn(8, 4)) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.05)  # the rehearsal takes a second of steps
    print(f"step {step} loss {loss.item():.9f}", flush=True)
torch.save(model.state_dict(), "final.pt")
