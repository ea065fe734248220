"""The best weights of a loop that is left before its end, and of one without `session.epochs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from holdfast import Loader
from holdfast.record.best_weights import FILE
from holdfast.run.folder import RunFolder
from holdfast.run.messages import Message, Weights
from holdfast.worker.session import Session
from tests.worker.local_runs import Died, run, survive

VALUES = [3.0, 2.0, 1.0, 4.0, 5.0, 6.0]


class Scene:
    """A small model, and what the script itself kept of its weights."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data = Loader(TensorDataset(torch.randn(6, 4)), batch_size=2)
        session.protect(model=self.model, optimizer=self.optimizer, data=self.data)

    def step(self, batch: Any) -> None:
        self.session.step(lambda part: self.model(part[0]).square().mean(), batch)

    def epoch(self) -> None:
        for batch in self.session.batches(self.data):
            self.step(batch)

    def weight(self) -> Tensor:
        return self.model.weight.detach().clone()


def best_of(outcome: Any) -> Tensor:
    return load_file(outcome.folder.path / FILE)["weight"]


def _break(scene: Scene, kept: dict[str, Tensor]) -> None:
    for epoch in scene.session.epochs(6):
        scene.epoch()
        kept["weight"] = scene.weight()
        scene.session.log(valid_loss=VALUES[epoch])
        if epoch == 2:
            break


def _return(scene: Scene, kept: dict[str, Tensor]) -> None:
    for epoch in scene.session.epochs(6):
        scene.epoch()
        kept["weight"] = scene.weight()
        scene.session.log(valid_loss=VALUES[epoch])
        if epoch == 2:
            return


def _caught(scene: Scene, kept: dict[str, Tensor]) -> None:
    try:
        for epoch in scene.session.epochs(6):
            scene.epoch()
            kept["weight"] = scene.weight()
            scene.session.log(valid_loss=VALUES[epoch])
            if epoch == 2:
                raise EOFError("enough")
    except EOFError:
        pass


def _kept_iterator(scene: Scene, kept: dict[str, Tensor]) -> None:
    scene.epochs = scene.session.epochs(6)  # type: ignore[attr-defined]
    for epoch in scene.epochs:  # type: ignore[attr-defined]
        scene.epoch()
        kept["weight"] = scene.weight()
        scene.session.log(valid_loss=VALUES[epoch])
        if epoch == 2:
            break


def _both_loops(scene: Scene, kept: dict[str, Tensor]) -> None:
    for epoch in scene.session.epochs(6):
        for batch in scene.session.batches(scene.data):
            scene.step(batch)
            if epoch == 2:
                break
        kept["weight"] = scene.weight()
        scene.session.log(valid_loss=VALUES[epoch])
        if epoch == 2:
            break


LEFT = [_break, _return, _caught, _both_loops]


@pytest.mark.parametrize("loop", LEFT)
def test_a_loop_that_is_left_keeps_the_weights_of_the_epoch_that_was_left(tmp_path: Path, loop: Any) -> None:
    kept: dict[str, Tensor] = {}

    def train(session: Session) -> None:
        scene = Scene(session)
        loop(scene, kept)
        with torch.no_grad():
            scene.model.weight.zero_()  # what the script does after its loop is not what was valued

    outcome = run(tmp_path, train)
    assert torch.equal(best_of(outcome), kept["weight"])
    assert [data["epoch"] for data in outcome.kinds("epoch")] == [0, 1, 2]
    assert outcome.folder.info["best"]["value"] == 1.0


def test_also_where_the_script_keeps_the_iterator(tmp_path: Path) -> None:
    kept: dict[str, Tensor] = {}
    scenes: list[Scene] = []

    def train(session: Session) -> None:
        scenes.append(Scene(session))
        _kept_iterator(scenes[0], kept)

    outcome = run(tmp_path, train)
    scenes.clear()  # the iterator goes long after the run, and does nothing any more
    assert torch.equal(best_of(outcome), kept["weight"])
    assert [data["epoch"] for data in outcome.kinds("epoch")] == [0, 1, 2]


def test_weights_that_are_not_the_best_are_not_kept(tmp_path: Path) -> None:
    kept: dict[int, Tensor] = {}

    def train(session: Session) -> None:
        scene = Scene(session)
        for epoch in session.epochs(6):
            scene.epoch()
            kept[epoch] = scene.weight()
            session.log(valid_loss=VALUES[epoch])
            if epoch == 4:
                break

    assert torch.equal(best_of(run(tmp_path, train)), kept[2])


def test_a_later_loop_counts_from_the_beginning(tmp_path: Path) -> None:
    """With all of its batches: those of the epoch that was left are not begun again. The run counts on."""
    seen: list[tuple[int, int]] = []

    def train(session: Session) -> None:
        scene = Scene(session)
        for total in (3, 4):
            for epoch in session.epochs(total):
                for number, batch in enumerate(session.batches(scene.data)):
                    scene.step(batch)
                    seen.append((epoch, number))
                    if (epoch, number) == (1, 1):
                        break
                if epoch == 1:
                    break

    outcome = run(tmp_path, train)
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)] * 2
    assert [data["epoch"] for data in outcome.kinds("epoch")] == [0, 1, 2, 3]


def test_a_loop_after_an_error_that_was_caught_is_the_same_one(tmp_path: Path) -> None:
    seen: list[int] = []

    def train(session: Session) -> None:
        scene = Scene(session)
        for _ in range(2):
            try:
                for epoch in session.epochs(4):
                    scene.epoch()
                    seen.append(epoch)
                    if seen == [0, 1]:
                        raise EOFError("try again")
            except EOFError:
                pass
            else:
                break

    outcome = run(tmp_path, train)
    assert seen == [0, 1, 2, 3]
    assert [data["epoch"] for data in outcome.kinds("epoch")] == [0, 1, 2, 3]


@pytest.mark.parametrize("death", ["forward 7", "optimizer 9"])
def test_a_run_that_goes_on_does_not_enter_a_loop_it_had_left(tmp_path: Path, death: str) -> None:
    """After a loop that was left come steps of another kind, and a change that must be made once."""

    def train(session: Session) -> None:
        scene = Scene(session)
        for epoch in session.epochs(9):
            scene.epoch()
            session.log(valid_loss=VALUES[epoch])
            if epoch == 1:
                break
        scene.optimizer.param_groups[0]["lr"] *= 0.5
        while session.step_count < 12:
            scene.step([torch.ones(2, 4) * session.step_count])
        rates.append(scene.optimizer.param_groups[0]["lr"])

    rates: list[float] = []
    undisturbed = run(tmp_path / "one", train)
    disturbed = survive(tmp_path / "two", train, [death])
    assert disturbed.receipt["weights_sha256"] == undisturbed.receipt["weights_sha256"]
    assert disturbed.receipt["steps"] == undisturbed.receipt["steps"] == 12
    assert rates == [0.05, 0.05]


def test_an_error_that_nobody_catches_does_not_end_its_epoch(tmp_path: Path) -> None:
    """The script is mended, and goes on in the epoch it failed in."""
    steps: list[int] = []

    def train(session: Session) -> None:
        scene = Scene(session)
        for epoch in session.epochs(2):
            scene.epoch()
            steps.append(session.step_count)
            session.log(valid_loss=VALUES[epoch])
            if epoch == 1 and not mended:
                raise EOFError("in the evaluation")

    mended: list[bool] = []
    with pytest.raises(EOFError):
        run(tmp_path, train)
    mended.append(True)
    folder = next(tmp_path.iterdir())
    outcome = run(tmp_path, train, folder=RunFolder.open(folder))
    assert steps == [3, 6, 6], "the second epoch is evaluated again"
    assert [data["epoch"] for data in outcome.kinds("epoch")] == [0, 1]


# -- without session.epochs ----------------------------------------------------------------------------------


def _free(scene: Scene, kept: dict[str, Tensor]) -> None:
    session = scene.session
    while session.step_count < 6:
        scene.step([torch.ones(2, 4) * session.step_count])
        value = VALUES[session.step_count - 1]
        if value == 1.0:
            kept["weight"] = scene.weight()
        session.log(valid_loss=value)


def _passes(scene: Scene, kept: dict[str, Tensor]) -> None:
    session = scene.session
    while session.step_count < 6:
        for batch in session.batches(scene.data):
            scene.step(batch)
            value = VALUES[session.step_count - 1]
            if value == 1.0:
                kept["weight"] = scene.weight()
            session.log(valid_loss=value)


def _inside(scene: Scene, kept: dict[str, Tensor]) -> None:
    session = scene.session

    def turn() -> None:
        scene.optimizer.zero_grad()
        scene.model(torch.ones(2, 4)).square().mean().backward()
        scene.optimizer.step()
        value = VALUES[session.step_count]
        if value == 1.0:
            kept["weight"] = scene.weight()
        session.log(valid_loss=value)

    while session.step_count < 6:
        session.transaction(turn)


@pytest.mark.parametrize("loop", [_free, _passes, _inside])
def test_a_loop_without_epochs_keeps_the_weights_of_its_best_value(tmp_path: Path, loop: Any) -> None:
    kept: dict[str, Tensor] = {}
    outcome = run(tmp_path, lambda session: loop(Scene(session), kept))
    assert torch.equal(best_of(outcome), kept["weight"])


@pytest.mark.sample(3)
@pytest.mark.parametrize("death", ["loop 4", "snapshot 6", "forward 4"])
def test_also_when_it_dies(tmp_path: Path, death: str) -> None:
    kept: dict[str, Tensor] = {}

    def train(session: Session) -> None:
        _free(Scene(session), kept)

    outcome = survive(tmp_path, train, [death])
    assert torch.equal(best_of(outcome), kept["weight"])
    assert outcome.receipt["steps"] == 6


def test_also_when_it_dies_after_the_value_and_before_its_weights(tmp_path: Path) -> None:
    kept: dict[str, Tensor] = {}

    def train(session: Session) -> None:
        link: Any = session._context.link
        send = link.send

        def die(message: Message) -> None:
            if isinstance(message, Weights) and message.step == 3 and not died:
                died.append(True)
                raise Died
            send(message)

        link.send = die
        _free(Scene(session), kept)

    died: list[bool] = []
    folders = tmp_path / "runs"
    with pytest.raises(Died):
        run(folders, train)
    outcome = run(folders, train, folder=RunFolder.open(next(folders.iterdir())))
    assert died and torch.equal(best_of(outcome), kept["weight"])


def test_no_metric_no_weights(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        _break(Scene(session), {})

    outcome = run(tmp_path, train, checkpoint__best="none")
    assert not (outcome.folder.path / FILE).exists()
