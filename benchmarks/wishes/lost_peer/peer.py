"""pytorch#147064, reduced: two processes of torchrun with `--max-restarts`, and one is lost."""

import os

import torch
import torch.distributed as dist
from shared import BATCH, EPOCHS, HERE, Numbered, finish, network, shown, slowly, update
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank, path = dist.get_rank(), HERE / "checkpoint.pt"
model = DistributedDataParallel(network())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
first = 0
if path.exists():
    saved = torch.load(path, weights_only=True)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epoch"] + 1
sampler = DistributedSampler(Numbered(), shuffle=True)
loader = DataLoader(Numbered(), batch_size=BATCH // dist.get_world_size(), sampler=sampler)
for epoch in range(first, EPOCHS):
    sampler.set_epoch(epoch)
    for x, y in loader:
        update(model, optimizer, x, y)
        shown(rank)
        slowly()
    if rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
    dist.barrier()
if rank == 0:
    finish(model.module)
dist.destroy_process_group()
