"""Going on after a death: the same bits, every sample once, whatever the script does around its loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.worker.session import Session
from tests.worker.resuming import BATCHES, SAMPLES, SIZE, Augmented, Stage, outcome_of, same_with_deaths, usual

# -- the data ------------------------------------------------------------------------------------------------


@pytest.mark.sample(2, 1)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_in_the_middle_of_an_epoch(workers: int, tmp_path: Path) -> None:
    deaths = ["loop 4", "data 3", "backward 5", "snapshot 2", "to-device 1"]
    diary, outcome = same_with_deaths(tmp_path, usual, deaths, stage=lambda: Stage(num_workers=workers))
    for epoch in range(3):
        seen = [index for line in diary[BATCHES * epoch : BATCHES * (epoch + 1)] for index in line]
        assert sorted(seen) == list(range(SAMPLES))
    assert (outcome.receipt["samples_skipped"], outcome.receipt["samples_repeated"]) == (0, 0)
    assert outcome.receipt["steps"] == 3 * BATCHES


@pytest.mark.all
def test_twice_in_the_same_epoch_and_twice_at_the_same_batch(tmp_path: Path) -> None:
    same_with_deaths(tmp_path, usual, ["backward 3", "backward 1", "backward 1", "backward 2", "forward 1"])


def test_at_the_very_first_and_the_very_last_batch(tmp_path: Path) -> None:
    same_with_deaths(tmp_path, usual, ["forward 1", "snapshot 1", f"optimizer {3 * BATCHES}"])


@pytest.mark.sample(4, 1)
@pytest.mark.parametrize("phase", ["data", "snapshot", "loop", "evaluate"])
def test_around_the_end_of_an_epoch(phase: str, tmp_path: Path) -> None:
    """The last batch is committed, the epoch is not: nothing is left to iterate over, and nothing is repeated."""
    for count in (1, 2) if phase == "evaluate" else (BATCHES, BATCHES + 1, BATCHES + 2):
        same_with_deaths(tmp_path, usual, [f"{phase} {count}", f"{phase} 1"])


def test_fewer_snapshots_repeat_more_and_end_the_same(tmp_path: Path) -> None:
    _, outcome = same_with_deaths(tmp_path, usual, ["forward 5", "forward 4"], snapshot__every=3)
    assert (outcome.receipt["samples_skipped"], outcome.receipt["samples_repeated"]) == (0, 0)


# -- code around the loop ------------------------------------------------------------------------------------


def test_random_numbers_drawn_anywhere_in_the_script(tmp_path: Path) -> None:
    """Before the loop, at the head of an epoch, in the body, after the batches, in an evaluation."""

    def script(session: Session, stage: Stage) -> None:
        stage.draw()
        session.protect(**stage.objects)
        stage.draw()
        for _ in session.epochs(2):
            stage.draw()
            for batch in session.batches(stage.data):
                stage.draw()
                stage.step(session, batch)
                stage.draw()
            stage.draw()
            with session.evaluating():
                torch.rand(7)
            stage.draw()

    for deaths in (["forward 3", "forward 2"], [f"loop {2 * BATCHES + 1}"], ["evaluate 1"], ["evaluate 2", "data 1"]):
        same_with_deaths(tmp_path, script, deaths)


def test_weights_that_are_loaded_after_protect_do_not_come_back(tmp_path: Path) -> None:
    """A script that starts from pretrained weights runs that line again in every worker."""

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        with torch.no_grad():
            for parameter in stage.model.parameters():
                parameter.fill_(0.1)
        for _ in session.epochs(2):
            for batch in session.batches(stage.data):
                stage.step(session, batch)

    same_with_deaths(tmp_path, script, ["forward 3", "forward 6"])


def test_a_step_at_the_head_of_an_epoch_counts_once(tmp_path: Path) -> None:
    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for epoch in session.epochs(2):
            stage.step(session, (torch.full((3, 4), float(epoch)), torch.tensor([100 + epoch])))
            for batch in session.batches(stage.data):
                stage.step(session, batch)
        stage.diary.lines.append(session.step_count)

    diary, outcome = same_with_deaths(tmp_path, script, ["forward 4", "forward 3", "forward 5"])
    assert diary[-1] == outcome.receipt["steps"] == 2 * (BATCHES + 1)


def test_two_loaders_one_after_the_other(tmp_path: Path) -> None:
    class Both(Stage):
        def __init__(self) -> None:
            super().__init__()
            self.more = holdfast.Loader(Augmented(9), SIZE, shuffle=True)

        @property
        def objects(self) -> dict[str, Any]:
            return {**super().objects, "more": self.more}

    def script(session: Session, stage: Stage) -> None:
        assert isinstance(stage, Both)
        session.protect(**stage.objects)
        for _ in session.epochs(2):
            for batch in session.batches(stage.data):
                stage.step(session, batch)
            stage.draw()
            for batch in session.batches(stage.more):
                stage.step(session, batch)
            stage.draw()

    deaths = [f"forward {BATCHES + 2}", "forward 1", f"loop {2 * BATCHES + 5}", "snapshot 1", "data 1"]
    same_with_deaths(tmp_path, script, deaths, stage=Both)


def test_one_loader_twice_at_once_is_refused(tmp_path: Path) -> None:
    """It has one place in its epoch, which both loops would move."""

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for _ in zip(session.batches(stage.data), session.batches(stage.data), strict=True):
            pass

    with pytest.raises(holdfast.UserError, match="inside another") as caught:
        outcome_of(tmp_path, script, [])
    assert "second loader" in caught.value.hints[0]


# -- leaving early -------------------------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize("count", [1, 3, BATCHES])
@pytest.mark.parametrize("deaths", [[], ["forward 1", "forward 2"], ["loop 5", "evaluate 1"]], ids=len)
def test_a_break_and_then_the_next_epoch(count: int, deaths: list[str], tmp_path: Path) -> None:
    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for _ in session.epochs(3):
            for number, batch in enumerate(session.batches(stage.data), 1):
                stage.step(session, batch)
                if number == count:
                    break
            with session.evaluating():
                pass
            stage.draw()

    if deaths and count == 1:
        deaths = ["forward 1", "evaluate 1"]
    diary, outcome = same_with_deaths(tmp_path, script, deaths)
    epochs = [diary[start : start + count] for start in range(0, len(diary), count + 1)]
    assert len(epochs) == 3
    assert len({tuple(epoch[0]) for epoch in epochs}) == 3, "each epoch begins with other samples"
    assert (outcome.receipt["samples_skipped"], outcome.receipt["samples_repeated"]) == (0, 0), "left out on purpose"


def test_a_break_without_a_step(tmp_path: Path) -> None:
    """Looking at one batch is not training on it: it comes again."""

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for _ in session.epochs(2):
            for batch in session.batches(stage.data):
                stage.diary.lines.append(len(batch[0]))
                break
            for batch in session.batches(stage.data):
                stage.step(session, batch)

    _, diary, outcome = outcome_of(tmp_path, script, [])
    assert len(diary) == 2 * (BATCHES + 1)
    assert (outcome.receipt["samples_skipped"], outcome.receipt["samples_repeated"]) == (0, 0)


def test_early_stopping(tmp_path: Path) -> None:
    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for epoch in session.epochs(10):
            for batch in session.batches(stage.data):
                stage.step(session, batch)
            stage.draw()
            if epoch == 1:
                break

    diary, outcome = same_with_deaths(tmp_path, script, ["forward 3", "evaluate 2"])
    assert len(diary) == 2 * (BATCHES + 1)
    assert outcome.receipt["samples_skipped"] == 0


def test_batches_that_are_passed_over(tmp_path: Path) -> None:
    """`continue` before the step: the batch is done, and it is the script that did nothing with it."""

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for _ in session.epochs(2):
            for number, batch in enumerate(session.batches(stage.data), stage.data.cursor):
                if number % 2:
                    continue
                stage.step(session, batch)

    diary, outcome = same_with_deaths(tmp_path, script, ["forward 3", "forward 2"])
    assert len(diary) == BATCHES
    assert (outcome.receipt["samples_skipped"], outcome.receipt["samples_repeated"]) == (0, 0)
