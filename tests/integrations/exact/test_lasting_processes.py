"""Loader processes that live over epochs: a new set of them goes on in the middle of a later epoch."""

from __future__ import annotations

import importlib.util
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import holdfast
from holdfast.integrations.exact import loader_notes, loaders
from holdfast.integrations.exact.capture import Capture, Unsaved
from holdfast.integrations.exact.constants import Constants

HOOK = Path(holdfast.__file__).parent / "supervisor" / "scripts" / "hook" / "_holdfast_exact.py"


class Noisy(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """All three generators of a loader process are drawn from, and its seed is seen."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        process = torch.utils.data.get_worker_info()
        seed = process.seed % 1000 if process is not None else 0
        return torch.tensor([index, seed, random.random(), np.random.random(), float(torch.rand(()))]).double()


class Counting(Noisy):
    """What it returns depends on how often it was asked."""

    asked = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        return super().__getitem__(index) + self.asked


DRAWN = np.random.default_rng(0)


class Global(Noisy):
    """Draws from a generator of its module."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + DRAWN.random()


class Marked(Noisy):
    """Somebody may change it in the script."""

    epoch = 0


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hook of `holdfast run --exact` notes each epoch that begins."""
    found = importlib.util.spec_from_file_location("exact_hook", HOOK)
    assert found is not None and found.loader is not None
    hook = importlib.util.module_from_spec(found)
    found.loader.exec_module(hook)
    base: Any = torch.utils.data.dataloader._BaseDataLoaderIter
    monkeypatch.setattr(base, "__init__", base.__init__)  # and what it was comes back at the end
    monkeypatch.setattr(base, "_reset", base._reset)
    hook._loader_is_here(torch.utils.data.dataloader)
    yield


def made(dataset: Any = None, workers: int = 2) -> Any:
    torch.manual_seed(5)
    return torch.utils.data.DataLoader(
        Noisy() if dataset is None else dataset,
        batch_size=2,
        num_workers=workers,
        persistent_workers=True,
        shuffle=True,
    )


def place_of(iterator: Any) -> loaders.Place:
    lasting = loaders.processes(iterator)
    assert lasting is not None
    return loaders.Place(
        int(iterator._num_yielded),
        loaders.begun_json(iterator),
        iterator._holdfast_own,
        *lasting,
        made_own=iterator._holdfast_made_own,
    )


@pytest.mark.all
@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.usefixtures("hooked")
def test_a_later_epoch_goes_on_in_other_processes(epoch: int) -> None:
    loader = made()
    for _ in range(epoch):
        assert len(list(loader)) == 6
    batches = iter(loader)
    before = [batch.tolist() for batch in itertools.islice(batches, 3)]
    place = place_of(batches)
    rest, following = [batch.tolist() for batch in batches], [batch.tolist() for batch in loader]
    assert before[0] != following[0]
    other = made()
    led = loaders.again(other, place)
    now = torch.get_rng_state()
    assert [batch.tolist() for batch in led] == rest
    assert torch.equal(torch.get_rng_state(), now)
    torch.set_rng_state(loader_random_state_after(place))
    assert [batch.tolist() for batch in other] == following


def loader_random_state_after(place: loaders.Place) -> torch.Tensor:
    """The generator of the script as that epoch's order was drawn from it: the next epoch draws from there."""
    loaders._set_generators(place.begun)
    iter(torch.utils.data.RandomSampler(range(12)))
    torch.empty((), dtype=torch.int64).random_()
    return torch.get_rng_state()


@pytest.mark.usefixtures("hooked")
def test_a_process_asks_for_the_seed_that_the_first_one_had() -> None:
    """It is drawn from the generator of the loader, which is somewhere else by then."""

    def with_its_own() -> Any:
        drawn = torch.Generator().manual_seed(3)
        return torch.utils.data.DataLoader(Noisy(), num_workers=1, persistent_workers=True, generator=drawn)

    loader = with_its_own()
    list(loader)
    batches = iter(loader)
    first = next(batches)
    place = place_of(batches)
    rest = [batch.tolist() for batch in batches]
    other = with_its_own()
    list(other)
    assert first[0, 1] == rest[0][0][1]
    assert [batch.tolist() for batch in loaders.again(other, place)] == rest


@pytest.mark.all
@pytest.mark.parametrize("dataset", [Counting, Global, Marked])
@pytest.mark.usefixtures("hooked")
def test_a_dataset_that_is_changed_is_found_out(dataset: type[Noisy], monkeypatch: pytest.MonkeyPatch) -> None:
    """By reading it in a loader process, by a generator of its module there, or in the script."""
    monkeypatch.setattr(loader_notes, "is_own", lambda name: name == __name__)
    loader = made(dataset(), workers=1)
    list(loader)
    if dataset is Marked:
        loader.dataset.epoch = 1
    batches = iter(loader)
    next(batches)
    with pytest.raises(Unsaved, match="persistent_workers=True"):
        Capture({}, Constants()).value(batches, "batches")


def test_what_a_dataset_holds_is_told_by_its_checksum() -> None:
    dataset = Counting()
    first = loader_notes.state_of((dataset, None))
    assert loader_notes.state_of((dataset, None)) == first
    dataset.asked = 1
    assert loader_notes.state_of((dataset, None)) != first


@pytest.mark.all
def test_processes_that_are_not_forked_are_refused(tmp_path: Path) -> None:
    """A started one does not share memory with the script. Its own process: a start method is for good."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from holdfast.integrations.exact import process_generators\n"
        "loader = torch.utils.data.DataLoader([1], num_workers=1, persistent_workers=True, "
        "multiprocessing_context='spawn')\n"
        "print(process_generators.make_room(loader, repr))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
