"""As Accelerate's documentation has it: save_state at each epoch, load_state after a restart, smaller batches.

torchrun --standalone --nproc-per-node 1 --max-restarts 3 with_accelerate.py
https://huggingface.co/docs/accelerate/usage_guides/checkpoint
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size, set_seed
from shared import BATCH, EPOCHS, FOLDER, Data, done, finish, network, optimizer_of
from torch.nn.functional import cross_entropy

accelerator = Accelerator(cpu=True)


@find_executable_batch_size(starting_batch_size=BATCH)
def train(batch_size: int) -> None:
    accelerator.free_memory()
    set_seed(0)
    loader = torch.utils.data.DataLoader(Data(), batch_size=batch_size, shuffle=True)
    model = network()
    model, optimizer, loader = accelerator.prepare(model, optimizer_of(model), loader)
    saved = sorted(FOLDER.glob("epoch_*"))
    first = 0
    if saved:
        accelerator.load_state(str(saved[-1]))
        first = int(saved[-1].name.removeprefix("epoch_"))
    step = first * len(loader)
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(x), y))
            optimizer.step()
            step += 1
            done(step)
        accelerator.save_state(str(FOLDER / f"epoch_{epoch + 1}"))
    finish(accelerator.unwrap_model(model))


train()
