"""As torch's tutorial on fault tolerance with torchrun has it: a snapshot at each epoch, loaded when there is one.

torchrun --standalone --nproc-per-node 1 --max-restarts 3 elastic.py
https://pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html
"""

from __future__ import annotations

import torch
from shared import BATCH, EPOCHS, FOLDER, Data, done, finish, network, optimizer_of
from torch.nn.functional import cross_entropy

SNAPSHOT = FOLDER / "snapshot.pt"

model = network()
optimizer = optimizer_of(model)
first = 0
if SNAPSHOT.exists():
    snapshot = torch.load(SNAPSHOT)
    model.load_state_dict(snapshot["MODEL_STATE"])
    optimizer.load_state_dict(snapshot["OPTIMIZER_STATE"])
    first = snapshot["EPOCHS_RUN"]
data = Data()
sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=1, rank=0)
loader = torch.utils.data.DataLoader(data, batch_size=BATCH, sampler=sampler)
step = first * len(loader)
for epoch in range(first, EPOCHS):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        done(step)
    state = {"MODEL_STATE": model.state_dict(), "OPTIMIZER_STATE": optimizer.state_dict(), "EPOCHS_RUN": epoch + 1}
    torch.save(state, SNAPSHOT)
finish(model)
