"""DistributedDataParallel under torchrun with `holdfast.attach`. Rank 1 is killed at step 12, once."""

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.randn(40, 8, generator=torch.Generator().manual_seed(rank))
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=4)
loader = holdfast.attach(model, optimizer, loader)
steps = 0
for _ in loader.epochs(3):
    for inputs, targets in loader:
        steps += 1
        if (rank, steps) == (1, 12) and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
torch.save(model.module.state_dict(), f"weights-{rank}.pt")
print("steps", steps, flush=True)
dist.destroy_process_group()
