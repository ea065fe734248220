"""The CPU's opinion of a failed step, in a process of its own, while the next worker goes on with the training.

    form_opinion(config, channel, board, arenas)      # the life of such a process, forked from the nursery

The process copies the snapshot before the failed step, runs the script on the CPU up to that step, computes the step
there (step_inquiry.py), says what it found, and ends. It sees no accelerator, commits nothing, logs nothing, and leaves
the processors to the training first. What goes wrong before it comes to the step says nothing about the step.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from holdfast.base.board import Board
from holdfast.base.channel import Channel, Closed
from holdfast.base.scratch import Scratch
from holdfast.data import sample_marks
from holdfast.faults.blame import Cpu, Finding
from holdfast.faults.ladder import PLUMBING, Rung
from holdfast.run.digests import NICE
from holdfast.run.messages import Copied, Found, Message
from holdfast.run.settings import Settings
from holdfast.run.worker_config import WorkerConfig
from holdfast.state.slots import LEAST, Arena, fence
from holdfast.worker.session import LostWorker, Session, StopRun
from holdfast.worker.worker import begin_run, bind, load_train

CPU = Rung("cpu")


class Gone(Exception):
    """The snapshot was overwritten before it was copied."""


class OpinionLink:
    """What a session sends to its supervisor: of all that, only the finding is passed on."""

    def __init__(self, channel: Channel, board: Board, generation: int, evidence: memoryview) -> None:
        self.channel = channel
        self.board = board
        self.generation = generation
        self.evidence = evidence
        self.finding: Finding | None = None

    def arena(self, capacity: int) -> Arena:
        """Slots that nobody else sees. Their pages are not asked for ahead: as a rule none is written."""
        arena = Arena.create(capacity, slots=LEAST, later=True)
        arena.where = "private"
        return arena

    def newest(self) -> memoryview | None:
        return self.evidence

    def committed(self, step: int) -> None:
        return None

    def send(self, message: Message) -> None:
        if isinstance(message, Found):
            self.finding = message.finding


def form_opinion(config: WorkerConfig, channel: Channel, board: Board, arenas: list[Arena]) -> int:
    """Copy, compute, tell. The exit status says how it ended if nothing was told."""
    assert config.opinion is not None
    board.identify(os.getpid())
    _step_back()
    _be_quiet()
    Scratch(Path(config.scratch)).adopt()
    with contextlib.suppress(Closed):  # then nobody wants to know any more
        try:
            evidence = _copied(arenas, config.opinion)
        except Gone:
            channel.send(Found(Finding(Cpu.UNKNOWN, "the snapshot before the step was overwritten")).to_json())
            return 0
        for arena in arenas:
            arena.close()
        channel.send(Copied().to_json())
        link = OpinionLink(channel, board, config.generation, evidence)
        channel.send(_computed(config, link).to_json())
    return 0


def _computed(config: WorkerConfig, link: OpinionLink) -> Found:
    """The message that tells what the CPU made of the step."""
    leave_out: Any = None
    why = "the script did not come to the step again on the CPU"
    try:
        with tempfile.TemporaryDirectory(dir=config.scratch) as folder:
            _run_script(config, link, Path(folder))
    except StopRun:
        pass
    except LostWorker as lost:
        leave_out = lost.fault.evidence.get("leave_out")
    except Exception as error:
        why = f"on the CPU the script raised {type(error).__name__} before it came to the step: {str(error)[:200]}"
    except SystemExit:
        why = "on the CPU the script ended before it came to the step"
    return Found(link.finding or Finding(Cpu.UNKNOWN, why), leave_out)


def _run_script(config: WorkerConfig, link: OpinionLink, folder: Path) -> None:
    """Up to the step. Raises StopRun or LostWorker once the step was computed."""
    assert config.fault is not None
    settings = Settings.from_json(config.settings)
    run = begin_run(config, threads=max(1, (config.threads or os.cpu_count() or 1) // 2), resumed=True)
    session = Session(link, run=run, rungs=[CPU], rung=0, settings=settings, device=torch.device("cpu"))
    session.begin_with(
        pieces=1,
        cpu_batch=False,
        trial={"fault": config.fault.to_json(), "only": True},
        sentinel=False,
        leave_out=config.leave_out,
    )
    # The marks of the worker that trains are in the run folder; those of this process are nobody's business.
    sample_marks.begin(folder, policy=sample_marks.Policy.of(settings.data), beat=link.board.beat)
    try:
        train = load_train(Path(config.script), list(config.argv))
        train(session, **bind(train, config.arguments))
    finally:
        sample_marks.end()


def _copied(arenas: list[Arena], sequence: int) -> memoryview:
    """A copy of the snapshot that is this process's own. Raises Gone if a worker has written over it."""
    slot = next((found for arena in arenas if (found := arena.find(sequence)) is not None), None)
    commit = slot.read() if slot is not None else None
    if slot is None or commit is None:
        raise Gone
    copy = memoryview(mmap.mmap(-1, commit.size))
    copy[:] = slot.payload(commit.size)
    fence()  # the copy was made before this look
    if slot.read() != commit:
        raise Gone
    return copy


def _step_back() -> None:
    """The training comes first, and the accelerators are its own."""
    if hasattr(os, "nice"):
        with contextlib.suppress(OSError):
            os.nice(NICE)
    for name in PLUMBING:
        if name.endswith(("VISIBLE_DEVICES", "MASK")):
            os.environ[name] = "" if name == "CUDA_VISIBLE_DEVICES" else "-1"
    os.environ["ACCELERATE_USE_CPU"] = "true"


def _be_quiet() -> None:
    """What the script prints was printed by the worker already."""
    fd = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(fd, stream)
    os.close(fd)
