"""The state of a script outside of its process: when a commit counts."""

from __future__ import annotations

from pathlib import Path

import torch

from holdfast.base.board import Board
from holdfast.base.channel import Channel
from holdfast.injection import late
from holdfast.integrations.outside import Keep, Outside
from holdfast.run.messages import AttachAnswer
from holdfast.state.layout import read_meta
from holdfast.state.slots import Arena


def test_a_copy_that_arrives_late_is_the_newest_commit_after_the_next_steps(tmp_path: Path) -> None:
    """On a GPU a copy is on its way when `commit` returns. A kill before the next commit must not lose it."""
    arena = Arena.create(8 << 20, slots=5, folder=tmp_path)
    channel, _other = Channel.pair()
    told = AttachAnswer(1, "run", {}, (arena.at(by_path=True),))
    outside = Outside(channel, Board.create(), told)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keep = Keep(outside, {"model": model, "optimizer": optimizer}, late.DEVICE)
    keep.restore()
    keep.passed(step=1, samples=1)
    keep.commit()
    assert outside.newest() is None
    for step in range(2, 2 + late.LOOKS):
        keep.passed(step=step, samples=step)
    newest = outside.newest()
    assert newest is not None and read_meta(newest)["session"]["step"] == 1


def test_without_a_supervisor_nothing_is_committed(tmp_path: Path) -> None:
    """The lines of such a step were read by nobody: a run that goes on prints them again."""
    arena = Arena.create(8 << 20, slots=5, folder=tmp_path)
    channel, supervisor = Channel.pair()
    outside = Outside(channel, Board.create(), AttachAnswer(0, "run", {}, (arena.at(by_path=True),)))
    model = torch.nn.Linear(4, 4)
    keep = Keep(outside, {"model": model}, torch.device("cpu"))
    keep.restore()
    keep.passed(step=1, samples=1)
    keep.commit()
    supervisor.close()  # as the system does for a process that was killed
    keep.passed(step=2, samples=2)
    keep.commit()
    newest = outside.newest()
    assert newest is not None and read_meta(newest)["session"]["step"] == 1
