"""Only generators that a dataset uses are seeded, and nobody can tell from the numbers that it draws."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from holdfast.data.generators import NAMES, Watch, capture, restore, same
from holdfast.data.loader import Loader
from holdfast.data.loader_child import Ticket, fetch_here
from holdfast.data.sample_order import sample_seeds
from holdfast.data.sample_seeding import Twister
from holdfast.state import rng
from tests.data.loaders import POSIX, TIDY

pytestmark = [POSIX, TIDY]

LENGTH = 23


class Drawing(Dataset[torch.Tensor]):
    """Each sample is its index and what `act` gives for it; the reads are counted."""

    def __init__(self, act: Callable[[int], float]) -> None:
        self.act = act
        self.reads: list[int] = []

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads.append(index)
        return torch.tensor([float(index), self.act(index)], dtype=torch.float64)


def of_numpy_rarely(index: int) -> float:
    return float(np.random.rand()) if index == 13 else 0.0


ACTS: dict[str, tuple[Callable[[int], float], set[str]]] = {
    "nothing": (lambda index: 0.5, set()),
    "torch": (lambda index: torch.rand(()).item(), {"torch"}),
    "numpy": (lambda index: float(np.random.rand()), {"numpy"}),
    "python": (lambda index: random.random(), {"python"}),
    "numpy in pairs": (lambda index: float(np.random.standard_normal()), {"numpy"}),
    "python in pairs": (lambda index: random.gauss(0, 1), {"python"}),
    "rarely": (of_numpy_rarely, {"numpy"}),
    "one sample of two kinds": (
        lambda index: random.random() + np.random.rand() if index == 4 else 0.0,
        {"numpy", "python"},
    ),
    "a look at the seed": (lambda index: torch.initial_seed() % 1000, {"torch"}),
    "a look at torch's state": (lambda index: torch.get_rng_state()[:64].sum().item(), {"torch"}),
    "a look at numpy's state": (lambda index: float(np.random.get_state()[1][5]), {"numpy"}),  # type: ignore[index]
    "a look at Python's state": (lambda index: float(random.getstate()[1][5]), {"python"}),
    "its own seed": (lambda index: float(np.random.default_rng(torch.initial_seed() & 0xFFFF).random()), {"torch"}),
    "all of numpy's state": (lambda index: float(np.random.get_state()[1].sum()), {"numpy"}),  # type: ignore[index]
    "all of Python's state": (lambda index: float(sum(random.getstate()[1])), {"python"}),
    "many of numpy": (lambda index: float(np.random.rand(2000).sum()), {"numpy"}),
    "many of Python": (lambda index: sum(random.random() for _ in range(2000)), {"python"}),
    "seeding by itself": (lambda index: [np.random.seed(index), float(np.random.rand())][1], {"numpy"}),  # type: ignore[func-returns-value]
}


def loader(act: Callable[[int], float], workers: int = 0, **changes: Any) -> Loader:
    return Loader(Drawing(act), 4, shuffle=True, seed=7, num_workers=workers, **changes)


def always_seeded(act: Callable[[int], float], **changes: Any) -> torch.Tensor:
    reference = loader(act, **changes)
    reference._fetcher.used.update(NAMES)
    return torch.cat(list(reference))


@pytest.mark.parametrize("name", ACTS)
def test_the_numbers_are_those_of_samples_that_are_seeded_each(name: str) -> None:
    act, used = ACTS[name]
    here = loader(act)
    assert torch.equal(torch.cat(list(here)), always_seeded(act))
    assert here._fetcher.used == used


@pytest.mark.parametrize("name", ["numpy in pairs", "rarely", "a look at the seed"])
def test_a_child_gives_the_same_numbers(name: str) -> None:
    act, _ = ACTS[name]
    there = loader(act, workers=1)
    assert torch.equal(torch.cat(list(there)), always_seeded(act))
    there.close()


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("half", [False, True], ids=["whole", "half a pair"])
def test_the_generators_of_the_training_stay_as_they_are(name: str, half: bool) -> None:
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    if half:  # one normal number of a pair is kept back, which the twister's words do not show
        np.random.standard_normal(), random.gauss(0, 1), torch.randn(())
    before = {each: capture(each) for each in NAMES}
    list(loader(ACTS[name][0]))
    for each, state in before.items():
        assert same(state, capture(each)), each


def test_half_a_pair_that_the_training_left_is_no_sample_s() -> None:
    act, _ = ACTS["numpy in pairs"]
    np.random.seed(1)
    np.random.standard_normal()
    assert torch.equal(torch.cat(list(loader(act))), always_seeded(act))


def test_a_dataset_that_draws_has_one_sample_read_twice() -> None:
    drawing = loader(ACTS["torch"][0])
    list(drawing)
    assert len(drawing.dataset.reads) == LENGTH + 1
    quiet = loader(ACTS["nothing"][0])
    list(quiet)
    assert sorted(quiet.dataset.reads) == list(range(LENGTH))


def test_a_sample_that_raises_after_drawing_is_raised_as_seeded() -> None:
    def act(index: int) -> float:
        drawn = random.random()
        if index == 11:
            raise ValueError(f"drew {drawn}")
        return 0.0

    words = []
    for used in ((), NAMES):
        here = loader(act)
        here._fetcher.used.update(used)
        with pytest.raises(ValueError, match="drew") as caught:
            list(here)
        words.append(str(caught.value))
    assert words[0] == words[1]


def test_a_collate_function_that_draws_is_seeded_too() -> None:
    def mixed(items: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(items) + np.random.rand()

    act, _ = ACTS["nothing"]
    assert torch.equal(torch.cat(list(loader(act, collate_fn=mixed))), always_seeded(act, collate_fn=mixed))


class Together(Drawing):
    """Gives several samples at once, as datasets of Hugging Face do."""

    asked = 0

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        self.asked += 1
        return [torch.tensor([float(index), self.act(index)], dtype=torch.float64) for index in indices]


@pytest.mark.parametrize("behind", [False, True], ids=["itself", "behind a Subset"])
def test_samples_are_read_together_where_the_dataset_can(behind: bool) -> None:
    dataset = Together(ACTS["nothing"][0])
    data = Loader(Subset(dataset, range(LENGTH)) if behind else dataset, 4, seed=7)
    assert torch.equal(torch.cat(list(data))[:, 0], torch.arange(LENGTH, dtype=torch.float64))
    assert dataset.asked == len(data) and not dataset.reads


def test_samples_that_draw_are_read_one_by_one_also_where_the_dataset_has_another_way() -> None:
    act, _ = ACTS["numpy"]
    together = Loader(Together(act), 4, shuffle=True, seed=7)
    assert torch.equal(torch.cat(list(together)), always_seeded(act))
    assert together.dataset.asked == 1


def test_a_sample_that_raises_is_named_also_where_samples_come_together() -> None:
    def act(index: int) -> float:
        if index == 9:
            raise KeyError("nine")
        return 0.0

    with pytest.raises(KeyError, match="nine") as caught:
        list(Loader(Together(act), 4, seed=7))
    assert any("dataset[9]" in note for note in getattr(caught.value, "__notes__", ["dataset[9]"]))


def test_watches_of_two_threads_leave_the_real_functions_behind() -> None:
    real = torch.initial_seed, np.random.get_state, random.getstate
    first, second = threading.Event(), threading.Event()

    def other() -> None:
        with Watch(()):
            first.set()
            second.wait(100)

    thread = threading.Thread(target=other)
    with Watch(()):
        thread.start()
        first.wait(100)
    second.set()
    thread.join()
    assert (torch.initial_seed, np.random.get_state, random.getstate) == real


@pytest.mark.parametrize("name", NAMES)
def test_a_state_comes_back(name: str) -> None:
    draw = {"torch": torch.rand, "numpy": np.random.standard_normal, "python": lambda n: [random.gauss(0, 1)] * n}[name]
    draw(1)
    state = capture(name)
    first = list(draw(5))
    restore(name, state)
    assert list(draw(5)) == first


# Only the first words of a twister are made: what samples draw beyond them.


def unequal(index: int) -> float:
    """Most samples draw two words, some of them hundreds, and one more than the twister has."""
    count = {5: 40, 11: 200, 17: 700}.get(index, 1)
    return sum(random.random() for _ in range(count)) + float(np.random.rand(count).sum())


class Unequal(Drawing):
    def __len__(self) -> int:
        return 2 * LENGTH


def test_a_sample_that_draws_more_than_was_made_for_it_draws_what_it_would_have_drawn() -> None:
    """The first batches measure what is drawn; the samples in question come last."""
    here = Loader(Unequal(unequal), 4, sampler=[*range(20, 2 * LENGTH), *range(20)], seed=7)
    found = {int(index): value for index, value in torch.cat(list(here)).tolist()}
    assert here._fetcher.seeding.python.count == here._fetcher.seeding.numpy.count == 624
    # A batch with such a sample is read again, and no other.
    assert [here.dataset.reads.count(index) for index in (0, 4, 5, 11, 13, 17)] == [1, 2, 2, 2, 1, 2]
    plain = Loader(Unequal(unequal), 4, seed=7)
    for twister in (plain._fetcher.seeding.python, plain._fetcher.seeding.numpy):
        twister.make_all()
    assert found == {int(index): value for index, value in torch.cat(list(plain)).tolist()}


def halved(index: int) -> float:
    """Few samples draw one number of a normal pair: the other half must not come to the next sample that wants one."""
    if index in (6, 7, 13):
        return float(np.random.standard_normal()) + random.gauss(0.0, 1.0)
    return random.random() + float(np.random.rand())


def test_half_of_a_normal_pair_stays_with_its_sample() -> None:
    order = [*range(16, 2 * LENGTH), *range(16)]
    late = Loader(Unequal(halved), 4, sampler=order, seed=7)
    found = {int(index): value for index, value in torch.cat(list(late)).tolist()}
    assert late._fetcher.seeding.numpy.halves
    alone = {}
    for index in (6, 7, 13, 14):
        one = Loader(Unequal(halved), 1, sampler=[index], seed=7)
        alone |= {int(at): value for at, value in torch.cat(list(one)).tolist()}
    assert {index: found[index] for index in alone} == alone


def test_a_sample_that_raises_after_drawing_more_is_read_again_first() -> None:
    drawn: list[float] = []

    def act(index: int) -> float:
        if index == 22:
            drawn.append(sum(random.random() for _ in range(100)))
            raise ValueError(f"drew {drawn[-1]}")
        return random.random()

    here = Loader(Drawing(act), 4, seed=7)
    with pytest.raises(ValueError, match="drew") as caught:
        list(here)
    plain = Loader(Drawing(act), 4, seed=7)
    plain._fetcher.used.add("python")
    plain._fetcher.seeding.python.make_all()
    with pytest.raises(ValueError, match="drew") as right:
        list(plain)
    assert str(caught.value) == str(right.value)


@pytest.mark.parametrize("name", ["python", "numpy", "numpy in pairs", "python in pairs", "many of numpy"])
def test_a_generator_whose_memory_is_not_found_gives_the_same_numbers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, _ = ACTS[name]
    expected = always_seeded(act)
    for each in (rng.python_global, rng.numpy_global):
        monkeypatch.setattr(each, "exposed", lambda: None)
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    before = {each: capture(each) for each in NAMES}
    assert torch.equal(torch.cat(list(loader(act))), expected)
    assert all(same(state, capture(each)) for each, state in before.items())


def test_what_samples_draw_is_pinned() -> None:
    """A run saved by one version is resumed by another: these numbers must never change."""
    draw = lambda index: random.random() + float(np.random.rand(400)[-1])  # noqa: E731
    assert torch.cat(list(Loader(Drawing(draw), 4, seed=7)))[3].tolist() == DREW_7_0_3


DREW_7_0_3 = [3.0, 1.432060956953048]


def test_words_of_samples_are_independent() -> None:
    """Of 500 samples: each bit as often 0 as 1, no two samples and no two places alike (normal scores)."""
    words = sample_seeds(7, 3, np.arange(500))[:, 1]
    made = np.array([row.tolist()[:-1] for rows in Twister("numpy")._made(words) for row in rows], dtype=np.uint32)
    ones = np.array([((made >> np.uint32(bit)) & 1).mean() for bit in range(32)])
    assert abs(ones - 0.5).max() * 2 * made.size**0.5 < 6
    values = (made / 2**32 - 0.5) * 12**0.5
    for several in (values, values.T):
        alike = several @ several.T / several.shape[1]
        np.fill_diagonal(alike, 0.0)
        assert abs(alike).max() * several.shape[1] ** 0.5 < 7


def test_a_subset_is_looked_through_and_a_subclass_is_not() -> None:
    class Marked(Subset[torch.Tensor]):
        def __getitem__(self, index: Any) -> torch.Tensor:
            return super().__getitem__(index) + 100

        def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
            return [self[index] for index in indices]

    dataset = Drawing(ACTS["nothing"][0])
    inner = Subset(Subset(dataset, range(3, LENGTH)), [4, 2, 0])
    assert torch.cat(list(Loader(inner, 2)))[:, 0].tolist() == [7.0, 5.0, 3.0]
    assert torch.cat(list(Loader(Marked(dataset, [1, 2]), 2)))[:, 0].tolist() == [101.0, 102.0]


class Counted(Dataset[torch.Tensor]):
    """Draws nothing; the reads of all processes are counted, each by a byte of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self.path, "ab") as file:
            file.write(b"x")
        return torch.tensor([float(index)])


def test_a_loader_process_reads_samples_that_draw_nothing_once(tmp_path: Path) -> None:
    """It was forked from a process that had read some, and its generators are seeded anew."""
    loader = Loader(Counted(tmp_path / "reads"), batch_size=4, num_workers=1)
    try:
        fetch_here(loader._fetcher, Ticket(seed=1, epoch=0, batch=0, samples=np.arange(4)))
        torch.rand(1)
        for _ in range(2):
            for batch in loader.batches(loader.epoch, loader.cursor):
                loader.advance(batch)
            loader.finish_epoch()
    finally:
        loader.close()
    assert (tmp_path / "reads").stat().st_size == 4 + 2 * LENGTH
