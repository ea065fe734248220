"""accelerate#4071, reduced: `save_state` within an epoch, and `skip_first_batches` after the first epoch is over."""

import torch
from accelerate import Accelerator, skip_first_batches
from shared import BATCH, EPOCHS, HERE, Numbered, finish, kill_at, network

accelerator = Accelerator(cpu=True)
model = network()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(Numbered(), batch_size=BATCH, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

begin = 0
if (HERE / "step").exists():
    accelerator.load_state(str(HERE / "state"))
    begin = int((HERE / "step").read_text())

step = begin
for epoch in range(begin // len(loader), EPOCHS):
    left = begin - epoch * len(loader)
    for x, y in skip_first_batches(loader, left) if left > 0 else loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        if step % 4 == 0:
            accelerator.save_state(str(HERE / "state"))
            (HERE / "step").write_text(str(step))
        kill_at(step)
finish(accelerator.unwrap_model(model))
