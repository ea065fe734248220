"""Going on after a death: the same bits, every sample once, whatever the script does around its loop."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import holdfast
from holdfast.runtime import checkpoint
from holdfast.runtime.session import Session
from tests.runtime.local_runs import Died, Outcome, Raise, equal, fingerprint, new_folder, run, survive

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


# -- the data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_in_the_middle_of_an_epoch(workers: int, tmp_path: Path) -> None:
    deaths = ["loop 4", "data 3", "backward 5", "snapshot 2", "to-device 1"]
    diary, outcome = same_with_deaths(tmp_path, usual, deaths, stage=lambda: Stage(num_workers=workers))
    for epoch in range(3):
        seen = [index for line in diary[BATCHES * epoch : BATCHES * (epoch + 1)] for index in line]
        assert sorted(seen) == list(range(SAMPLES))
    assert (outcome.receipt["samples_skipped"], outcome.receipt["samples_repeated"]) == (0, 0)
    assert outcome.receipt["steps"] == 3 * BATCHES


def test_twice_in_the_same_epoch_and_twice_at_the_same_batch(tmp_path: Path) -> None:
    same_with_deaths(tmp_path, usual, ["backward 3", "backward 1", "backward 1", "backward 2", "forward 1"])


def test_at_the_very_first_and_the_very_last_batch(tmp_path: Path) -> None:
    same_with_deaths(tmp_path, usual, ["forward 1", "snapshot 1", f"optimizer {3 * BATCHES}"])


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


def test_two_loaders_at_once_are_refused(tmp_path: Path) -> None:
    """Their batches would be committed one after the other: a death in between would tear a pair apart."""

    def script(session: Session, stage: Stage) -> None:
        other = holdfast.Loader(Augmented(), SIZE)
        session.protect(**stage.objects, other=other)
        for _ in zip(session.batches(stage.data), session.batches(other), strict=True):
            pass

    with pytest.raises(holdfast.UserError, match="inside another") as caught:
        outcome_of(tmp_path, script, [])
    assert "one dataset" in caught.value.hints[0]


# -- leaving early -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, BATCHES])
@pytest.mark.parametrize("deaths", [[], ["forward 1", "forward 2"], ["loop 5", "evaluate 1"]], ids=len)
def test_a_break_and_then_the_next_epoch(count: int, deaths: list[str], tmp_path: Path) -> None:
    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        for _ in session.epochs(3):
            for number, batch in enumerate(session.batches(stage.data), stage.data.cursor + 1):
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


# -- other loops ---------------------------------------------------------------------------------------------


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

    diary, _ = same_with_deaths(tmp_path, script, ["forward 3", "loop 1", "snapshot 2"])
    assert diary == [0, 1, 2, 3, 4]


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


# -- stopping ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["body", "head", "tail", "free"])
def test_a_stop_is_honoured_at_the_next_boundary_and_nothing_is_lost(where: str, tmp_path: Path) -> None:
    asked: list[bool] = []

    def ask(session: Session, here: str) -> None:
        if asked == [True] and here == where and session.step_count in (0, 4, BATCHES):
            asked.append(True)
            session._board.request_stop()

    def script(session: Session, stage: Stage) -> None:
        session.protect(**stage.objects)
        if where == "free":
            while session.step_count < 6:
                ask(session, "free")
                stage.draw()
                session.step(lambda b: stage.model(b).square().mean(), torch.rand(2, 4))
            return
        for _ in session.epochs(2):
            ask(session, "head")
            for batch in session.batches(stage.data):
                stage.step(session, batch)
                ask(session, "body")
            stage.draw()
            ask(session, "tail")

    expected, diary, _ = outcome_of(tmp_path, script, [])
    asked.append(True)
    results: list[tuple[dict[str, Any], list[Any]]] = []

    def train(session: Session) -> None:
        stage = Stage()
        script(session, stage)
        state = {name: value for name, value in stage.objects.items() if name != "diary"}
        results.append((fingerprint(**state), stage.diary.lines))

    folder = new_folder(tmp_path)
    with pytest.raises(holdfast.Stopped) as caught:
        run(tmp_path, train, folder=folder)
    assert caught.value.saved is not None
    assert folder.info["state"] == "STOPPED"
    steps = folder.receipt()
    assert steps is not None and steps["steps"] <= BATCHES
    run(tmp_path, train, folder=folder)
    equal(results[-1][0], expected)
    assert results[-1][1] == diary


def test_a_script_that_swallows_everything_cannot_go_on_after_a_stop(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        stage = Stage()
        session.protect(**stage.objects)
        session._board.request_stop()
        for _ in range(3):
            try:
                stage.step(session, (torch.rand(2, 4), torch.tensor([0])))
            except BaseException:
                continue
        stage.step(session, (torch.rand(2, 4), torch.tensor([0])))

    with pytest.raises(holdfast.Stopped):
        run(tmp_path, train)


# -- what does not fit ---------------------------------------------------------------------------------------


def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    def trainer(epochs: int, results: list[Any]) -> Callable[[Session], None]:
        def train(session: Session) -> None:
            stage = Stage()
            session.protect(**stage.objects)
            torch.rand(3)
            for _ in session.epochs(epochs):
                for batch in session.batches(stage.data):
                    stage.step(session, batch)
                stage.draw()
            results.append((fingerprint(model=stage.model, optimizer=stage.optimizer), stage.diary.lines))

        return train

    results: list[Any] = []
    run(tmp_path, trainer(3, results))
    folder = new_folder(tmp_path)
    run(tmp_path, trainer(2, results), folder=folder)
    run(tmp_path, trainer(3, results), folder=folder)
    equal(results[-1][0], results[0][0])
    assert results[-1][1] == results[0][1]


def test_other_objects_than_before(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    with pytest.raises(Died):
        run(tmp_path, lambda s: usual(s, Stage()), hooks=[Raise(Died, "loop", 4)], folder=folder)

    def train(session: Session) -> None:
        stage = Stage()
        session.protect(model=stage.model, optim=stage.optimizer, data=stage.data, diary=stage.diary)

    with pytest.raises(holdfast.UserError, match="protects other objects") as caught:
        run(tmp_path, train, folder=folder)
    assert caught.value.cause == "saved: data, diary, model, optimizer; protected now: data, diary, model, optim"


def test_another_model_than_before(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    with pytest.raises(Died):
        run(tmp_path, lambda s: usual(s, Stage()), hooks=[Raise(Died, "loop", 4)], folder=folder)

    def train(session: Session) -> None:
        stage = Stage()
        stage.model = nn.Sequential(nn.Linear(4, 7), nn.Dropout(0.3), nn.Linear(7, 1))
        stage.optimizer = torch.optim.Adam(stage.model.parameters(), lr=0.01)
        session.protect(**stage.objects)

    with pytest.raises(holdfast.UserError):
        run(tmp_path, train, folder=folder)


def test_a_resumed_script_is_told_so(tmp_path: Path) -> None:
    told: list[tuple[bool, int, int]] = []

    def train(session: Session) -> None:
        resumed = session.run.resumed
        stage = Stage()
        session.protect(**stage.objects)
        told.append((resumed, session.step_count, session.epoch))
        for _ in session.epochs(2):
            for batch in session.batches(stage.data):
                stage.step(session, batch)

    survive(tmp_path, train, [f"forward {BATCHES + 3}"])
    assert told == [(False, 0, 0), (True, BATCHES + 2, 1)]


def test_an_own_error_without_a_supervisor_loses_no_committed_step(tmp_path: Path) -> None:
    """The only copy of the state is in this process: it is saved before the error goes on its way."""

    def script(session: Session) -> None:
        model = torch.nn.Linear(2, 1)
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        while session.step_count < 4:
            session.step(lambda batch: model(batch).mean(), torch.ones(1, 2))
        raise KeyError("mine")

    with pytest.raises(KeyError):
        run(tmp_path, script, checkpoint__every="1h")
    [folder] = tmp_path.iterdir()
    good, _ = checkpoint.newest_good(folder / "checkpoints")
    assert good is not None and good.step == 4
