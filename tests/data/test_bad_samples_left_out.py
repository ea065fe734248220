"""With samples left out, the others come exactly once with the same bits, through empty batches, deaths and resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.data import sample_marks
from holdfast.faults.bad_samples import charge_of
from tests.data.loaders import POSIX, Event, leave, record
from tests.data.recordings import LENGTH, Recordings, known_from_the_start, make, refuse, same, train
from tests.worker import local_runs

pytestmark = POSIX


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


@pytest.mark.all
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


@pytest.mark.sample(3)
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
    assert sample_marks.current() is None
