"""Going on after a death in loops of other shapes: by a number of steps, without a loader, with a warm-up before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

import holdfast
from holdfast.worker.session import Session
from tests.worker.local_runs import Died, Raise, new_folder, run
from tests.worker.resuming import BATCHES, SAMPLES, Stage, outcome_of, same_with_deaths


def test_a_second_pass_over_the_same_epoch_is_refused(tmp_path: Path) -> None:
    """It would be empty, silently; on a resume nobody could tell the passes apart."""

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for _ in session.epochs(1):
            for _ in range(2):
                for batch in session.batches(stage.data):
                    stage.step(session, batch)

    with pytest.raises(holdfast.UserError, match="all batches of this epoch"):
        outcome_of(tmp_path, script, [])


@pytest.mark.parametrize("deaths", [[], ["forward 3", "forward 2"], ["data 7", "snapshot 3"]], ids=len)
def test_batches_without_epochs(deaths: list[str], tmp_path: Path) -> None:
    """`while` and a number of steps, as language models are trained: each time round is the next epoch's order."""

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        while session.step_count < 2 * BATCHES:
            for batch in session.batches(stage.data):
                stage.step(session, batch)

    diary, outcome = same_with_deaths(tmp_path, script, deaths)
    assert sorted(index for line in diary[:BATCHES] for index in line) == list(range(SAMPLES))
    assert sorted(index for line in diary[BATCHES:] for index in line) == list(range(SAMPLES))
    assert diary[0] != diary[BATCHES]
    assert (outcome.receipt["samples_skipped"], outcome.receipt["samples_repeated"]) == (0, 0)


def test_steps_in_an_epoch_without_a_loader(tmp_path: Path) -> None:
    """The body of the epoch is then what is done once: a death in it starts it again."""

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for epoch in session.epochs(3):
            for number in range(4):
                stage.step(session, (torch.rand(2, 4), torch.tensor([10 * epoch + number])))

    diary, outcome = same_with_deaths(tmp_path, script, ["forward 7", "forward 2", "snapshot 2"])
    assert len(diary) == outcome.receipt["steps"] == 12


def test_steps_without_any_loop_of_ours(tmp_path: Path) -> None:
    """Each step is committed by itself; `step_count` tells a resumed script where it is."""

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        while session.step_count < 8:
            number = session.step_count
            session.step(lambda b: stage.model(b).square().mean(), torch.rand(2, 4) + number)

    _, outcome = same_with_deaths(tmp_path, script, ["forward 3", "backward 2", "optimizer 1", "snapshot 2"])
    assert outcome.receipt["steps"] == 8


def own_loop(session: Session, stage: Stage) -> None:
    """As language models and players are trained: the script draws its own batches."""
    torch.rand(2)
    session.protect(**stage.objects)
    torch.rand(3)
    while session.step_count < 6:
        index = torch.randint(0, 100, (3,))
        stage.diary.lines.append(index.tolist())
        if session.step_count % 2 == 0:
            stage.draw()
        session.step(lambda b: stage.model(b).square().mean(), index[:, None] / (1 + torch.rand(3, 4)))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "deaths",
    [
        ["forward 1"],
        ["forward 1", "backward 1", "optimizer 2"],
        ["loop 1", "loop 2", "loop 1"],
        ["snapshot 2", "snapshot 3", "snapshot 1"],
        ["snapshot 5", "loop 1"],
    ],
    ids=" ".join,
)
def test_a_loop_of_ones_own_that_asks_for_the_step_count(deaths: list[str], tmp_path: Path) -> None:
    _, outcome = same_with_deaths(tmp_path, own_loop, deaths)
    assert outcome.receipt["steps"] == 6


def test_a_loop_of_ones_own_with_fewer_snapshots(tmp_path: Path) -> None:
    same_with_deaths(tmp_path, own_loop, ["forward 5", "forward 3"], snapshot__every=3)


def test_what_follows_a_step_goes_into_its_transaction(tmp_path: Path) -> None:
    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for number in range(session.step_count, 5):
            inputs = torch.rand(3, 4)

            def update(inputs: Tensor = inputs, number: int = number) -> None:
                stage.optimizer.zero_grad()
                stage.model(inputs).square().mean().backward()
                stage.optimizer.step()
                stage.diary.lines.append(number)

            session.transaction(update)

    diary, _ = same_with_deaths(tmp_path, script, ["forward 3", "loop 1", "snapshot 1"])
    assert diary == [0, 1, 2, 3, 4]


def test_steps_by_hand_in_no_loop_of_ours_are_saved_at_the_end_and_the_run_says_so(tmp_path: Path) -> None:
    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for _ in range(session.step_count, 3):
            stage.optimizer.zero_grad()
            stage.model(torch.rand(3, 4)).square().mean().backward()
            stage.optimizer.step()

    _, _, outcome = outcome_of(tmp_path, script, [])
    assert outcome.receipt["steps"] == 3 and outcome.receipt["weights_sha256"]
    notes = [note["text"] for note in outcome.kinds("note") if "optimizer.step()" in note["text"]]
    assert len(notes) == 1 and "after a fault they are done again" in notes[0]


@pytest.mark.all
def test_a_body_of_many_steps_by_hand_goes_on_at_its_head(tmp_path: Path) -> None:
    """More than a hundred: they are committed at the head all the same."""

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        while session.step_count < 330:
            stage.draw()
            for _ in range(110):
                stage.optimizer.zero_grad()
                stage.model(torch.rand(3, 4)).square().mean().backward()
                stage.optimizer.step()

    diary, _ = same_with_deaths(tmp_path, script, ["snapshot 2"])
    assert len(diary) == 3


def test_asking_for_the_step_count_inside_a_step_commits_nothing(tmp_path: Path) -> None:
    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        while session.step_count < 4:

            def fn(batch: Tensor) -> Tensor:
                stage.diary.lines.append(session.step_count)
                return stage.model(batch).square().mean()

            session.step(fn, torch.rand(3, 4))

    diary, _ = same_with_deaths(tmp_path, script, ["backward 2", "backward 1"])
    assert diary == [0, 1, 2, 3]


def test_warming_up_before_the_epochs(tmp_path: Path) -> None:
    """Steps of both kinds in one script; those before the epochs are not made again in the middle of an epoch."""

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        while session.step_count < 3:
            session.step(lambda b: stage.model(b).square().mean(), torch.rand(3, 4))
        stage.draw()
        for _ in session.epochs(2):
            for batch in session.batches(stage.data):
                stage.step(session, batch)

    deaths = ["forward 2", "forward 4", "forward 3", f"data {BATCHES}"]
    _, outcome = same_with_deaths(tmp_path, script, deaths)
    assert outcome.receipt["steps"] == 3 + 2 * BATCHES


def test_warming_up_without_asking(tmp_path: Path) -> None:
    """The warm-up runs again on the way to the middle of an epoch, and does not count."""

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for number in range(3):
            stage.step(session, (torch.rand(3, 4), torch.tensor([number])))
        for _ in session.epochs(2):
            for batch in session.batches(stage.data):
                stage.step(session, batch)

    diary, outcome = same_with_deaths(tmp_path, script, ["forward 6", "forward 7", "forward 2", f"forward {BATCHES}"])
    assert len(diary) == outcome.receipt["steps"] == 3 + 2 * BATCHES


def test_a_step_inside_a_step_is_refused(tmp_path: Path) -> None:
    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        session.transaction(lambda: stage.step(session, (torch.rand(2, 4), torch.tensor([0]))))

    with pytest.raises(holdfast.UserError, match="inside a step"):
        outcome_of(tmp_path, script, [])


def test_an_update_that_goes_past_the_session_is_kept_too(tmp_path: Path) -> None:
    """A bare `optimizer.step()` in the body has no rollback, but what the body did is committed with it."""
    committed: list[int] = []

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for _ in session.epochs(2):
            for batch in session.batches(stage.data):
                stage.optimizer.zero_grad()
                mse_loss(stage.model(batch[0]), torch.ones(len(batch[0]), 1)).backward()
                stage.optimizer.step()
                stage.diary.lines.append([int(index) for index in batch[1]])
            committed.append(len(stage.diary.lines))

    same_with_deaths(tmp_path, script, ["loop 4", "loop 3", "data 5"])


def test_a_body_that_makes_no_step_is_committed_as_well(tmp_path: Path) -> None:
    """Otherwise a death would repeat everything since the last step."""
    lives: list[int] = []

    def train(session: Session) -> None:
        stage = Stage()
        session.protect(**stage.objects)
        lives.append(stage.data.cursor)
        for _ in session.epochs(1):
            for _batch in session.batches(stage.data):
                pass

    folder = new_folder(tmp_path)
    with pytest.raises(Died):
        run(tmp_path, train, hooks=[Raise(Died, "loop", 5)], folder=folder)
    run(tmp_path, train, folder=folder)
    assert lives == [0, 3]
