"""Samples that raise, kill or hang: blamed by trying them and others, and left out only where that is allowed.

Real processes, real signals: `ctypes.string_at(0)` is a segmentation fault, `os._exit` an exit, `hang` waits for ever.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from holdfast.runtime import marks
from holdfast.runtime.blame import Blame
from holdfast.runtime.charge import BadSamples, charge_of
from holdfast.runtime.loader import Loader
from holdfast.runtime.patience import Patience
from tests.runtime import local_runs

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

LENGTH, SIZE = 24, 4
Event = tuple[str, dict[str, Any]]


def segfault() -> None:
    faulthandler.disable()  # its words would stand in the middle of the test report
    ctypes.string_at(0)


def leave() -> None:
    os._exit(3)


def hang() -> None:
    threading.Event().wait()


def refuse() -> None:
    raise ValueError("no label")


class Recordings(Dataset[torch.Tensor]):
    """Each sample draws random numbers, has a file of its own, and does something else if it is a bad one."""

    def __init__(self, bad: dict[int, Callable[[], None]] | None = None, length: int = LENGTH) -> None:
        self.bad = bad or {}
        self.files = [f"sub-{index:02d}_eeg.set" for index in range(length)]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.bad:
            self.bad[index]()
        return torch.tensor([index, torch.rand(()).item(), np.random.rand()], dtype=torch.float64)


def make(dataset: Any, workers: int = 2, **more: Any) -> Loader:
    loader = Loader(dataset, **{"batch_size": SIZE, "seed": 5, "num_workers": workers, **more})
    loader._pool.patience = Patience(floor_s=0.25, first_wait_s=60)
    return loader


@pytest.fixture
def events() -> list[Event]:
    return []


def record(loader: Loader, events: list[Event]) -> Loader:
    loader.on_event = lambda name, details: events.append((name, details))
    return loader


def train(loader: Loader, epochs: int = 1) -> list[torch.Tensor]:
    """Whole epochs, as a session does it; the values of all batches."""
    values = []
    for _ in range(epochs):
        for batch in loader.batches(loader.epoch, loader.cursor):
            assert batch.value[:, 0].tolist() == batch.samples.tolist()
            values.append(batch.value)
            loader.advance(batch)
        loader.finish_epoch()
    assert (loader.skipped, loader.repeated) == (0, 0)
    loader.close()
    return values


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# Samples that raise.


class Windows(Dataset[torch.Tensor]):
    """Windows cut out of recordings by an event table, in which some onsets and durations are missing."""

    def __init__(self, missing: set[int]) -> None:
        self.onsets = [float("nan") if index in missing else float(index) for index in range(LENGTH)]

    def __len__(self) -> int:
        return LENGTH

    def source(self, index: int) -> str:
        return f"sub-NDAR{index // 4:03d}/eeg/sub-NDAR{index // 4:03d}_task-RestingState_eeg.set"

    def __getitem__(self, index: int) -> torch.Tensor:
        onset = self.onsets[index]
        return torch.from_numpy(np.arange(onset, onset + 1.0, 0.25))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_event_table_with_missing_numbers_is_the_datas_fault(workers: int) -> None:
    """The story this was written for: numpy's words say nothing about which recording it is."""
    loader = make(Windows({13}), workers)
    with pytest.raises(ValueError, match="arange: cannot compute length") as caught:
        list(loader.batches(0, 0))
    found = charge_of(caught.value)
    assert found is not None
    assert json.loads(json.dumps(found)) == found
    source = "sub-NDAR003/eeg/sub-NDAR003_task-RestingState_eeg.set"
    assert (found["blame"], found["samples"]) == ("data", [{"index": 13, "source": source}])
    assert found["error"] == "ValueError: arange: cannot compute length"
    assert (found["others_tried"], found["others_ok"]) == (3, 3)
    assert found["sentence"] == (
        f"the data are at fault: sample 13 ({source}) raised ValueError: arange: cannot compute length"
    )
    assert found["cause"] == "3 of 3 other samples can be read"
    assert found["hints"][0] == "train without such samples: `data.skip_bad=true`"
    assert source in found["hints"][1]
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("bad", "size", "blame", "named", "tried", "ok"),
    [
        ([9, 10], 4, "data", [9, 10], 2, 2),
        ([8, 9, 10, 11], 4, "data", [8, 9, 10, 11], 8, 7),  # a whole batch of one bad recording: others are asked
        (range(LENGTH), 4, "code", [0, 1, 2, 3], 7, 0),
        ([9], 1, "data", [9], 7, 7),
        (range(LENGTH), 1, "code", [0], 8, 0),
    ],
)
def test_some_or_all_tells_data_from_code(
    workers: int, bad: Any, size: int, blame: str, named: list[int], tried: int, ok: int
) -> None:
    loader = make(Recordings(dict.fromkeys(bad, refuse)), workers, batch_size=size)
    with pytest.raises(ValueError, match="no label") as caught:
        list(loader.batches(0, 0))
    found = charge_of(caught.value)
    assert found is not None
    assert (found["blame"], [sample["index"] for sample in found["samples"]]) == (blame, named)
    assert found["others_ok"] == ok or blame == "data"
    assert found["others_tried"] >= found["others_ok"] >= min(ok, 1)
    assert found["others_tried"] <= max(tried, 8)
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_that_does_not_come_again_is_nobodys_fault_yet(workers: int, tmp_path: Path) -> None:
    def once() -> None:
        if not (tmp_path / "done").exists():
            (tmp_path / "done").touch()
            raise OSError("stale file handle")

    loader = make(Recordings({9: once}), workers)
    with pytest.raises(OSError, match="stale") as caught:
        list(loader.batches(0, 0))
    found = charge_of(caught.value)
    assert found is not None
    assert (found["blame"], found["samples"][0]["index"]) == ("unknown", 9)
    assert "read again, it did not do that" in found["cause"]
    loader.close()


def test_the_only_sample_there_is_cannot_be_judged() -> None:
    loader = make(Recordings({0: refuse}, length=1), 0)
    with pytest.raises(ValueError) as caught:
        list(loader.batches(0, 0))
    assert (charge_of(caught.value) or {})["blame"] == "unknown"


def test_a_script_that_raises_its_own_error_from_it_still_says_which_sample() -> None:
    loader = make(Recordings({9: refuse}), 0)
    try:
        try:
            list(loader.batches(0, 0))
        except ValueError as error:
            raise LookupError("mine") from error
    except LookupError as error:
        assert (charge_of(error) or {})["samples"] == [{"index": 9, "source": "sub-09_eeg.set"}]
    assert charge_of(ValueError("another")) is None


class Uneven(Recordings):
    """Sample 9 is one number short."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index)[: 2 if index == 9 else 3]


class Ragged(Recordings):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(index + 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_of_another_size_is_the_datas_fault(workers: int) -> None:
    loader = make(Uneven(), workers)
    with pytest.raises(RuntimeError, match=r"equal size|resize storage") as caught:
        list(loader.batches(0, 0))
    found = charge_of(caught.value)
    assert found is not None
    assert (found["blame"], found["samples"]) == ("data", [{"index": 9, "source": "sub-09_eeg.set"}])
    assert "has shape (2,) where 3 others have shape (3,)" in found["sentence"]
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_all_differ_in_size_are_the_codes_fault(workers: int) -> None:
    loader = make(Ragged(), workers)
    with pytest.raises(RuntimeError, match="equal size") as caught:
        list(loader.batches(0, 0))
    assert (charge_of(caught.value) or {})["blame"] == "code"
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_raising_samples_are_skipped_where_that_is_allowed(workers: int, events: list[Event]) -> None:
    loader = record(make(Recordings({9: refuse, 10: refuse, 21: refuse}), workers, shuffle=True), events)
    loader.policy.skip_bad = True
    values = train(loader, epochs=2)
    plain = train(make(Recordings(), 0, shuffle=True), epochs=2)
    kept = [value[[int(row[0]) not in (9, 10, 21) for row in value]] for value in plain]
    assert same(values, [value for value in kept if len(value)])  # the others are as they always were
    told = [(name, details["index"], details["source"]) for name, details in events]
    assert sorted(told) == [("quarantined", index, f"sub-{index:02d}_eeg.set") for index in (9, 10, 21)]
    assert [sample["why"] for sample in loader.quarantined] == ["raised ValueError: no label"] * 3


def test_code_that_fails_for_every_sample_is_never_skipped() -> None:
    loader = make(Recordings(dict.fromkeys(range(LENGTH), refuse)), 0)
    loader.policy.skip_bad = True
    with pytest.raises(ValueError, match="no label"):
        list(loader.batches(0, 0))
    assert loader.quarantined == []


def test_too_many_bad_samples_end_the_run() -> None:
    loader = make(Recordings(dict.fromkeys(range(0, LENGTH, 2), refuse)), 0)
    loader.policy.skip_bad = True
    with pytest.raises(ValueError) as caught:
        list(loader.batches(0, 0))
    assert len(loader.quarantined) == 10
    assert "10 samples are left out already: `data.most_bad` allows more" in (charge_of(caught.value) or {})["hints"]
    loader.policy.most_bad = 50
    assert len([*loader.batches(0, 0)]) == 6


# Samples that kill or hang a loader child.


def known_from_the_start(bad: list[int], *, epoch: int = 0, batch: int = 0, **more: Any) -> Loader:
    """A loader of good samples that leaves some out from that batch on."""
    loader = make(Recordings(), 0, **more)
    loader.leave_out(bad, "told to", epoch=epoch, batch=batch)
    return loader


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (segfault, "ended the process that reads it (SIGSEGV)"),
        (leave, "ended the process that reads it (exit status 3)"),
        (hang, "hung the process that reads it"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_poison_sample_is_quarantined_by_index(
    act: Callable[[], None], why: str, workers: int, events: list[Event]
) -> None:
    loader = record(make(Recordings({9: act}), workers, shuffle=True), events)
    values = train(loader, epochs=2)
    assert same(values, train(known_from_the_start([9], shuffle=True), epochs=2))
    deaths = [name for name, _ in events if name != "quarantined"]
    told = [details for name, details in events if name == "quarantined"]
    assert len(told) == 1
    assert (told[0]["index"], told[0]["source"], told[0]["epoch"]) == (9, "sub-09_eeg.set", 0)
    assert told[0]["why"].startswith(why)
    assert 2 <= len(deaths) <= 4  # a neighbour may have been waited for the first times; and none in the second epoch
    assert [sample["index"] for sample in loader.quarantined] == [9]


def test_two_kinds_of_poison_in_one_batch_are_both_found(events: list[Event]) -> None:
    loader = record(make(Recordings({8: segfault, 10: leave})), events)
    assert same(train(loader), train(known_from_the_start([8, 10])))
    assert sorted(details["index"] for name, details in events if name == "quarantined") == [8, 10]


def test_a_sample_that_only_once_kills_is_not_quarantined(tmp_path: Path, events: list[Event]) -> None:
    def once() -> None:
        if not (tmp_path / "done").exists():
            (tmp_path / "done").touch()
            segfault()

    loader = record(make(Recordings({9: once})), events)
    assert same(train(loader), train(make(Recordings(), 0)))
    assert [name for name, _ in events] == ["loader_died"]


def test_a_batch_that_is_killed_from_outside_twice_loses_no_sample(tmp_path: Path, events: list[Event]) -> None:
    """As the kernel does when memory is short: SIGKILL while any sample is being read. Tried alone, each is fine."""

    class Slow(Recordings):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 9 and len(list(tmp_path.iterdir())) < 2:
                (tmp_path / str(time.monotonic_ns())).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    loader = record(make(Slow()), events)
    assert same(train(loader), train(make(Recordings(), 0)))
    assert [details["signal"] for _, details in events] == ["SIGKILL", "SIGKILL"]
    assert loader.quarantined == []


def test_one_that_is_too_large_for_memory_each_time_is_quarantined(events: list[Event]) -> None:
    loader = record(make(Recordings({9: lambda: os.kill(os.getpid(), signal.SIGKILL)})), events)
    assert same(train(loader), train(known_from_the_start([9])))


class InOneGo(Recordings):
    """Reads whole batches, and dies of the same sample either way."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.bad:
            self.bad[index]()
        return torch.tensor([index, 0.0, 0.0], dtype=torch.float64)

    def batch_of(self, indices: list[int]) -> torch.Tensor:
        return torch.stack([self[index] for index in indices])


@pytest.mark.parametrize("act", [segfault, leave])
def test_one_that_ends_whole_batches_is_found_among_them(act: Callable[[], None]) -> None:
    loader = make(InOneGo({9: act}))
    values = train(loader)
    assert [index for index, *_ in torch.cat(values).tolist()] == [index for index in range(LENGTH) if index != 9]
    assert [each["index"] for each in loader.quarantined] == [9]


def test_code_that_kills_with_every_sample_is_not_quarantined_away() -> None:
    loader = make(Recordings(dict.fromkeys(range(LENGTH), leave)), 1)
    with pytest.raises(BadSamples) as caught:
        list(loader.batches(0, 0))
    assert caught.value.charge.blame is Blame.CODE
    assert "the script is at fault: each sample that was tried ended the process" in caught.value.message
    assert loader.quarantined == []
    loader.close()


def test_without_quarantine_the_sample_is_named_and_the_run_ends() -> None:
    loader = make(Recordings({9: segfault}), 1)
    loader.policy.quarantine = False
    with pytest.raises(BadSamples) as caught:
        list(loader.batches(0, 0))
    assert caught.value.message == (
        "the data are at fault: sample 9 (sub-09_eeg.set) ended the process that reads it (SIGSEGV)"
    )
    assert caught.value.cause == "3 of 3 other samples can be read"
    assert caught.value.hints[0] == "train without such samples: `data.quarantine=true`"
    assert (charge_of(caught.value) or {})["blame"] == "data"
    loader.close()


# Exactly once, and the same bits, with samples missing.


def test_a_batch_without_any_sample_does_not_come_and_is_accounted_for() -> None:
    for bad in (
        [0, 1, 2, 3],
        [8, 9, 10, 11, 12],
        [20, 21, 22, 23],
        [0, 1, 2, 3, 4, 5, 6, 7],
        [16, 17, 18, 19, 20, 21, 22, 23],
    ):
        loader = known_from_the_start(bad)
        loader.policy.most_bad = 100
        got = []
        for batch in loader.batches(0, 0):
            got += batch.samples.tolist()
            loader.advance(batch)
        assert got == [index for index in range(LENGTH) if index not in bad]
        assert loader.cursor == len(loader)
        loader.finish_epoch()
        assert (loader.skipped, loader.repeated, len(loader)) == (0, 0, 6)


def test_a_batch_of_one_poison_sample_is_left_out(events: list[Event]) -> None:
    loader = record(make(Recordings({9: leave, LENGTH - 1: leave}), 1, batch_size=1), events)
    values = train(loader)
    assert [int(value[0, 0]) for value in values] == [index for index in range(LENGTH - 1) if index != 9]


def test_a_run_with_every_sample_of_a_small_dataset_left_out_trains_on_nothing() -> None:
    loader = make(Recordings(length=3), 0)
    loader.leave_out([0, 1, 2], "told to", epoch=0, batch=0)
    assert list(loader.batches(0, 0)) == []
    loader.finish_epoch()
    assert (loader.skipped, loader.epoch) == (0, 1)


def test_a_sample_is_left_out_from_its_batch_on_and_not_before() -> None:
    """A run that goes back to an older state does the same again."""
    plain, known = train(make(Recordings(), 0), epochs=3), known_from_the_start([9], epoch=1, batch=2)
    values = train(known, epochs=3)
    assert same(values[:6], plain[:6])
    assert [len(value) for value in values] == [4] * 6 + [4, 4, 3, 4, 4, 4] * 2


@pytest.mark.parametrize("workers", [0, 1])
def test_a_resumed_run_knows_what_to_leave_out(workers: int) -> None:
    loader = known_from_the_start([9], shuffle=True)
    whole = train(known_from_the_start([9], shuffle=True), epochs=2)
    first = []
    for batch in loader.batches(0, 0):
        first.append(batch.value)
        loader.advance(batch)
        if batch.index == 3:
            break
    state = json.loads(json.dumps(loader.state_dict()))
    other = make(Recordings({9: leave if workers else refuse}), workers, shuffle=True)  # would end it, or raise
    other.load_state_dict(state)
    assert other.state_dict() == state
    rest = [batch.value for batch in other.batches(0, other.cursor)]
    rest += [batch.value for batch in other.batches(1, 0)]
    assert same(first + rest, whole)
    other.close()


def test_an_older_state_does_not_forget_what_was_found_since() -> None:
    """A resumed run restores its state once more when it has come to where the snapshot was taken."""
    loader = make(Recordings({9: refuse}), 0)
    loader.policy.skip_bad = True
    before = loader.state_dict()
    assert len([*loader.batches(0, 0)]) == 6
    loader.load_state_dict(before)
    assert [sample["index"] for sample in loader.quarantined] == [9]


def test_a_state_from_before_there_was_a_quarantine_is_read() -> None:
    loader = make(Recordings(), 0)
    state = loader.state_dict()
    del state["quarantined"]
    loader.load_state_dict(state)
    for rows in (
        None,
        "x",
        [[1]],
        [["a", 0, 0, ""]],
        [[99, 0, 0, ""]],
        [[-1, 0, 0, ""]],
        [[1.5, 0, 0, ""]],
        [[True, 0, 0, ""]],
    ):
        loader.load_state_dict({**state, "quarantined": rows})
        assert loader.quarantined == []


def test_another_dataset_does_not_inherit_the_quarantine() -> None:
    state = known_from_the_start([9]).state_dict()
    loader = make(Recordings(length=LENGTH + 1), 0)
    loader.load_state_dict(state)
    assert loader.quarantined == []


def test_a_run_resumed_without_quarantine_reads_repaired_samples_again() -> None:
    loader = make(Recordings(), 0)
    loader.policy.quarantine = False
    loader.load_state_dict(known_from_the_start([9]).state_dict())
    assert same(train(loader), train(make(Recordings(), 0)))
    assert loader.quarantined == []


@pytest.mark.parametrize("empty", [[0, 1, 2, 3], [8, 9, 10, 11], [20, 21, 22, 23]], ids=["first", "middle", "last"])
def test_a_session_goes_around_an_empty_batch_and_through_a_death(tmp_path: Path, empty: list[int]) -> None:
    results: list[dict[str, Any]] = []

    def training(session: Any) -> None:
        model = torch.nn.Linear(3, 3, dtype=torch.float64)
        optimizer = torch.optim.Adam(model.parameters())
        data = make(Recordings(), 0)
        session.protect(model=model, optimizer=optimizer, data=data)
        if not session.run.resumed:
            data.leave_out(empty, "told to", epoch=0, batch=0)
        for _ in session.epochs(2):
            for batch in session.batches(data):
                session.step(lambda b: model(b).square().mean(), batch)
        results.append(local_runs.fingerprint(model=model, optimizer=optimizer, data=data))

    undisturbed = local_runs.run(tmp_path, training)
    disturbed = local_runs.survive(tmp_path, training, ["forward 2", "forward 4", "backward 2"])
    for outcome in (undisturbed, disturbed):
        receipt = outcome.receipt
        assert (receipt["steps"], receipt["samples_quarantined"]) == (10, 4)
        assert (receipt["samples_skipped"], receipt["samples_repeated"]) == (0, 0)
    local_runs.equal(results[0], results[-1])


def test_a_session_of_this_very_process_counts_what_was_left_out(tmp_path: Path) -> None:
    def training(session: Any) -> None:
        model = torch.nn.Linear(3, 3, dtype=torch.float64)
        optimizer = torch.optim.Adam(model.parameters())
        data = make(Recordings({9: refuse}), 0)
        session.protect(model=model, optimizer=optimizer, data=data)
        for batch in session.batches(data):
            session.step(lambda b: model(b).square().mean(), batch)

    with pytest.raises(ValueError, match="no label") as caught:
        local_runs.run(tmp_path, training)
    assert (charge_of(caught.value) or {})["blame"] == "data"
    outcome = local_runs.run(tmp_path, training, data__skip_bad="true")
    assert outcome.receipt["quarantined"] == [
        {"loader": "data", "index": 9, "source": "sub-09_eeg.set", "why": "raised ValueError: no label"}
    ]
    assert [data["index"] for data in outcome.kinds("quarantined")] == [9]
    assert marks.current() is None


# Scores.


def test_a_score_never_misses_a_sample_silently() -> None:
    loader = known_from_the_start([9])
    with pytest.raises(BadSamples) as caught:
        iter(loader)
    assert "sample 9 (sub-09_eeg.set) cannot be read, and no score may miss a sample" in caught.value.message
    assert caught.value.cause == "in training it told to"
    assert "allow_missing=True" in caught.value.hints[0]
    assert (charge_of(caught.value) or {})["samples"] == [{"index": 9, "source": "sub-09_eeg.set"}]


@pytest.mark.parametrize("act", [segfault, leave, hang])
def test_a_poison_sample_in_an_evaluation_ends_it(act: Callable[[], None], events: list[Event]) -> None:
    loader = record(make(Recordings({9: act}), 1), events)
    got = []
    with pytest.raises(BadSamples) as caught:
        for value in loader:
            got.append(value)
    assert len(got) == 2
    assert [sample["index"] for sample in caught.value.charge.samples] == [9]
    assert "allow_missing=True" in caught.value.hints[0]
    assert loader.quarantined == [] and not any(name == "quarantined" for name, _ in events)
    loader.close()


@pytest.mark.parametrize(
    ("workers", "act", "quarantine"), [(0, refuse, True), (1, refuse, False), (1, leave, True), (1, leave, False)]
)
def test_an_evaluation_that_may_miss_samples_says_which(
    workers: int, act: Callable[[], None], quarantine: bool, events: list[Event]
) -> None:
    """What the training may leave out is another matter."""
    loader = record(make(Recordings({9: act}), workers, allow_missing=True), events)
    loader.policy.quarantine = quarantine
    for _ in range(2):
        seen = [int(index) for value in loader for index in value[:, 0]]
        assert seen == [index for index in range(LENGTH) if index != 9]
        assert loader.missing == (9,)
    told = {"count": 1, "samples": [9], "text": "an evaluation went without sample 9 (sub-09_eeg.set)"}
    assert [details for name, details in events if name == "missing"] == [told] * 2
    loader.close()


def test_an_evaluation_in_the_middle_of_an_epoch_leaves_the_batch_at_hand_as_it_was() -> None:
    loader = make(Recordings({9: refuse}), 0, allow_missing=True)
    loader.dataset.bad = {}
    seen = []
    for batch in loader.batches(0, 0):
        if batch.index == 2:  # sample 9 is in it, and was fine
            assert 9 in batch.samples
            loader.dataset.bad = {9: refuse}
            assert len([*loader]) == 6
            loader.dataset.bad = {}
        loader.advance(batch)
        seen += batch.samples.tolist()
    loader.finish_epoch()
    assert seen == list(range(LENGTH)) and (loader.skipped, loader.repeated) == (0, 0)
    assert [len(batch.samples) for batch in loader.batches(1, 0)] == [4, 4, 3, 4, 4, 4]


def test_a_loader_without_poison_has_nothing_missing() -> None:
    loader = make(Recordings(), 0)
    assert len([*loader]) == 6
    assert (loader.missing, loader.quarantined) == ((), [])


# Without loader children: the process that reads is the one that dies.


def read(folder: Path, act: str, how: str) -> None:
    """The life of one process: it leaves marks, reads everything, and writes down what came of it."""

    def tell(name: str, details: Any) -> None:
        with open(folder / "said", "a") as file:
            file.write(json.dumps([name, details]) + "\n")

    def outside() -> None:
        if not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    bad = {"segfault": segfault, "leave": leave, "hang": hang, "outside": outside}[act]
    marks.begin(folder, tell=lambda name, **details: tell(name, details))
    loader = make(Recordings({9: bad}), 0, shuffle=how == "train", allow_missing=how == "missing")
    try:
        values = list(loader) if how != "train" else [batch.value for batch in loader.batches(0, 0)]
        tell("values", torch.cat(values).tolist())
    except BadSamples as error:
        tell("bad", error.message)
    marks.end()


class Story:
    """Processes that read the same data, one after the other."""

    def __init__(self, folder: Path, act: str, how: str) -> None:
        self.folder, self.act, self.how = folder, act, how
        self.hangs = act == "hang"

    def next(self) -> tuple[int | None, dict[str, Any]]:
        """How it ended, and what it said."""
        process = multiprocessing.get_context("fork").Process(target=read, args=(self.folder, self.act, self.how))
        process.start()
        if self.hangs:
            self.hangs = False
            self._kill_when_it_hangs(process)
        process.join(100)
        said = self.folder / "said"
        lines = said.read_text().splitlines() if said.exists() else []
        return process.exitcode, dict(json.loads(line) for line in lines)

    def _kill_when_it_hangs(self, process: Any) -> None:
        """As the watchdog would: it has been at sample 9 for a while."""
        marked = self.folder / f"reading-{process.pid}"
        while [suspect.index for suspect in marks._read(marked)] != [9]:
            assert process.is_alive()
            time.sleep(0.05)
        process.kill()


@pytest.fixture
def story(tmp_path: Path) -> Callable[[str, str], Story]:
    return lambda act, how: Story(tmp_path, act, how)


def rows(loader: Loader) -> list[list[float]]:
    found: list[list[float]] = torch.cat([batch.value for batch in loader.batches(0, 0)]).tolist()
    return found


@pytest.mark.parametrize(
    ("act", "ends", "why"),
    [
        ("segfault", -signal.SIGSEGV, "ended the process that reads it (SIGSEGV)"),
        ("leave", 3, "ended the process that reads it (exit status 3)"),
        ("hang", -signal.SIGKILL, "hung the process that reads it"),
    ],
)
def test_the_next_process_leaves_out_what_the_last_one_died_of(
    story: Callable[[str, str], Story], act: str, ends: int, why: str
) -> None:
    run = story(act, "train")
    assert run.next() == (ends, {})
    code, said = run.next()
    assert code == 0
    assert (said["quarantined"]["index"], said["quarantined"]["source"]) == (9, "sub-09_eeg.set")
    assert said["quarantined"]["why"].startswith(why)
    assert said["values"] == rows(known_from_the_start([9], shuffle=True))


def test_one_that_was_killed_from_outside_misses_nothing(story: Callable[[str, str], Story], tmp_path: Path) -> None:
    run = story("outside", "train")
    assert run.next() == (-signal.SIGKILL, {})
    code, said = run.next()
    assert code == 0 and "quarantined" not in said
    assert said["values"] == rows(make(Recordings(), 0, shuffle=True))
    assert not list(tmp_path.glob("reading-*"))


def test_a_sample_that_ends_three_workers_is_out_even_if_a_child_can_read_it(tmp_path: Path) -> None:
    """Something about the worker itself, as with a dataset that uses the device."""
    loader = make(Recordings(), 0)
    for _ in range(3):
        marks.begin(tmp_path).place(loader._here.kind, epoch=0, batch=2)(9)
        marks._current.clear()  # it died
    here = marks.begin(tmp_path)
    try:
        assert [suspect.strikes for suspect in here.suspects(loader._here.kind)] == [3]
        assert rows(loader) == rows(known_from_the_start([9]))
        assert loader.quarantined[0]["why"] == "ended 3 workers that were reading it"
    finally:
        marks.end()


@pytest.mark.parametrize(("deaths", "missing"), [(1, []), (2, [9])])
def test_where_a_child_can_read_nothing_the_second_worker_decides(
    tmp_path: Path, deaths: int, missing: list[int]
) -> None:
    """A dataset with num_workers=0 may well use what does not survive a fork."""

    class AtHome(Recordings):
        home = os.getpid()

        def __getitem__(self, index: int) -> torch.Tensor:
            if os.getpid() != self.home:
                raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
            return super().__getitem__(index)

    loader = make(AtHome(), 0)
    for _ in range(deaths):
        marks.begin(tmp_path).place(loader._here.kind, epoch=0, batch=2)(9)
        marks._current.clear()
    marks.begin(tmp_path)
    try:
        assert rows(loader) == rows(known_from_the_start(missing))
    finally:
        marks.end()


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_dataset_that_cannot_be_sent_to_a_child_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(Recordings):
        pass

    monkeypatch.setenv("HOLDFAST_PORTABLE", "1")
    loader = make(Local(), 0)
    marks.begin(tmp_path).place(loader._here.kind, epoch=0, batch=2)(9)
    marks._current.clear()
    marks.begin(tmp_path)
    try:
        assert rows(loader) == rows(make(Recordings(), 0))
    finally:
        marks.end()


def test_the_next_process_does_not_score_without_what_the_last_one_died_of(story: Callable[[str, str], Story]) -> None:
    run = story("segfault", "score")
    assert run.next()[0] == -signal.SIGSEGV
    assert run.next() == (
        0,
        {"bad": "the data are at fault: sample 9 (sub-09_eeg.set) ended the process that reads it (SIGSEGV)"},
    )


def test_the_next_process_scores_without_it_where_that_is_allowed(story: Callable[[str, str], Story]) -> None:
    run = story("leave", "missing")
    assert run.next()[0] == 3
    code, said = run.next()
    assert (code, said["missing"]["samples"]) == (0, [9])
    assert [row[0] for row in said["values"]] == [index for index in range(LENGTH) if index != 9]


def test_a_run_says_what_its_loaders_may_leave_out(tmp_path: Path) -> None:
    marks.begin(tmp_path, policy=marks.Policy(skip_bad=True, most_bad=3.0))
    try:
        loader = make(Recordings({9: refuse}), 0)
        assert (loader.policy.skip_bad, loader.policy.most_bad) == (True, 3.0)
        assert len([*loader.batches(0, 0)]) == 6
    finally:
        marks.end()
    assert make(Recordings(), 0).policy == marks.Policy()


def test_spawned_children_are_tried_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows."""
    monkeypatch.setenv("HOLDFAST_PORTABLE", "1")
    loader = make(Recordings({9: leave}), 1)
    loader._pool.patience = Patience()
    assert same(train(loader), train(known_from_the_start([9])))
