"""A net of somebody else beside ours: the same windows, the same subjects, as much processor time.

    rival = Rival("ShallowFBCSPNet")             # any model of braindecode, or one of ours
    with rival.timing(): fit(…)                  # what our net takes
    rival.answers(session, windows, rows, times, test, batch)     # what it says after it has trained for as long

It is trained as it comes: a linear layer on what it sees, mean squared error, AdamW at 1e-3, nothing stopped early. The
score of a net that was never tuned to the data says what a name in a library is worth here, and no more.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import holdfast
from holdfast.planning.measure import untouched_generators
from holdfast.workloads.eeg.heads import Ensemble
from holdfast.workloads.eeg.splits import Rows
from holdfast.workloads.eeg.training import Samples, predict

LR = 1e-3


class Rival:
    """One net, and the time that it has."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cpu_s = 0.0
        """Of this process; a run that was resumed has what it took since then."""
        self.steps = 0

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        began = time.process_time()
        try:
            yield
        finally:
            self.cpu_s += time.process_time() - began

    def answers(
        self, session: holdfast.Session, net: Ensemble, windows: Any, rows: Rows, times: Any, test: Rows, batch: int
    ) -> Any:
        """What `net` says about the test windows after as much processor time as was taken before."""
        net.to(session.device).train()
        samples = Samples(windows, rows, times[rows, None])
        optimizer = torch.optim.AdamW(net.parameters(), lr=LR)
        with untouched_generators(), torch.enable_grad():
            torch.manual_seed(session.run.seed)
            data = holdfast.Loader(samples, batch_size=min(batch, len(samples)), shuffle=True, seed=session.run.seed)
            began = time.process_time()
            try:
                while time.process_time() - began < self.cpu_s or not self.steps:
                    for x, targets, *_ in data:
                        self._step(session, net, optimizer, x, targets)
                        if time.process_time() - began >= self.cpu_s:
                            break
            finally:
                data.close()
        return predict(net, windows, test, session.device)[:, 0].astype(np.float64)

    def _step(self, session: holdfast.Session, net: Ensemble, optimizer: Any, x: Any, targets: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = net.loss(x.to(session.device), targets.to(session.device))
        loss.backward()
        optimizer.step()
        self.steps += 1
        session.progress(self.steps, self.steps + 1, f"{self.name} beside it")
