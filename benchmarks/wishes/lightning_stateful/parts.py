"""A loader that says its place, and a schedule that asks for `estimated_stepping_batches`, as in the thread."""

from __future__ import annotations

from collections.abc import Iterator

import lightning_shared
import torch
from shared import BATCH, Numbered


class Module(lightning_shared.Module):
    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Stateful(torch.utils.data.DataLoader):
    """A shuffled loader that can say where it is, as the documentation of Lightning asks for."""

    def __init__(self) -> None:
        super().__init__(Numbered(), batch_size=BATCH)
        self.passes, self.done = 0, 0

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        if self.done == len(self):  # the Trainer knows the length and does not ask for the end
            self.passes, self.done = self.passes + 1, 0
        order = torch.randperm(len(self.dataset), generator=torch.Generator().manual_seed(self.passes)).tolist()
        batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
        while self.done < len(batches):
            self.done += 1
            yield torch.utils.data.default_collate([self.dataset[index] for index in batches[self.done - 1]])

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes, "done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes, self.done = state["passes"], state["done"]
