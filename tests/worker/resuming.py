"""Scripts that die and go on, for tests: what they train, and that they end as if nothing had happened.

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for batch in session.batches(stage.data):
            stage.step(session, batch)

    diary, outcome = same_with_deaths(tmp_path, script, ["loop 4", "data 3"])

The diary is what reached the protected state, in order; the deaths are those of local_runs.py.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import holdfast
from holdfast.worker.session import Session
from tests.worker.local_runs import Outcome, equal, fingerprint, survive

SAMPLES, SIZE = 22, 4
BATCHES = 6


class Augmented(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Each sample draws from all three generators and says which one it is."""

    def __init__(self, length: int = SAMPLES) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = random.random() + float(np.random.rand())
        return torch.rand(4) + noise + index / 10, index


class Diary:
    """What reached the protected state, in order: it is rolled back and resumed like everything else."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {"lines": list(self.lines)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lines = list(state["lines"])


class Stage:
    """The objects of a small training, and the steps tests make with them."""

    def __init__(self, **options: Any) -> None:
        self.model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.3), nn.Linear(5, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.data = holdfast.Loader(Augmented(), SIZE, **{"shuffle": True, **options})
        self.diary = Diary()

    @property
    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "data": self.data, "diary": self.diary}

    def step(self, session: Session, batch: Any) -> None:
        session.step(lambda b: self.model(b[0]).square().mean(), batch)
        self.diary.lines.append([int(index) for index in batch[1]])

    def draw(self) -> None:
        """Random numbers in the script itself, kept: a wrong one shows at the end."""
        drawn = [random.random(), float(np.random.rand()), torch.rand(()).item()]
        self.diary.lines.append(drawn)


Script = Callable[[Session, Stage], None]


def outcome_of(
    root: Path, script: Script, deaths: list[str], *, stage: Callable[[], Stage] = Stage, **settings: Any
) -> tuple[dict[str, Any], list[Any], Outcome]:
    """The final state, the diary and the receipt of a run with these deaths."""
    results: list[tuple[dict[str, Any], list[Any]]] = []

    def train(session: Session) -> None:
        made = stage()
        script(session, made)
        state = {name: value for name, value in made.objects.items() if name != "diary"}
        results.append((fingerprint(**state), made.diary.lines))

    outcome = survive(root, train, deaths, **settings)
    return *results[-1], outcome


def same_with_deaths(root: Path, script: Script, deaths: list[str], **options: Any) -> tuple[list[Any], Outcome]:
    """A run with deaths must end as the one without."""
    expected, diary, _ = outcome_of(root, script, [], **options)
    result, its_diary, outcome = outcome_of(root, script, deaths, **options)
    assert its_diary == diary
    equal(result, expected)
    assert not multiprocessing.active_children(), "a run that died left its loader's children behind"
    return its_diary, outcome


def usual(session: Session, stage: Stage) -> None:
    session.protect(**stage.objects)
    for _ in session.epochs(3):
        for batch in session.batches(stage.data):
            stage.step(session, batch)
