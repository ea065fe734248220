"""Signals to a script under `holdfast run` when it comes to a step: the faults of `holdfast chaos -- COMMAND`.

    plan = parse("sigkill@40,sigstop@60")            # or draw(10, steps=400, seed=0)
    sent = send_at(process, board, plan, seed=0)     # until the process ends: the signals that were sent

The process that trains writes its step to the board of its run. The signal comes a moment later, at random within the
time that a step takes, so that it meets any part of one.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.base import processes
from holdfast.base.board import Board
from holdfast.base.errors import UserError

KINDS = {
    "sigkill": getattr(signal, "SIGKILL", signal.SIGTERM),
    "segfault": signal.SIGSEGV,
    "abort": signal.SIGABRT,
    "sigstop": getattr(signal, "SIGSTOP", signal.SIGTERM),
}
"""What can be done to a script from outside, by the name used on the command line."""
POLL_S = 0.01
FIRST_S, LONGEST_S = 0.02, 2.0
"""Seconds within which the signal comes before a step was timed, and for the longest steps."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A signal to come when the script is at this step."""

    kind: str
    step: int


def parse(text: str) -> list[Planned]:
    """`sigkill@17,sigstop@30`; without a step they come at 3, 6, 9 …"""
    plan = []
    for number, word in enumerate(part.strip() for part in text.split(",") if part.strip()):
        kind, _, step = word.partition("@")
        if kind not in KINDS or (step and not step.isdigit()):
            raise UserError(
                f"`{word}` is no fault for a command",
                cause="an unchanged script is met from outside, by signals",
                hints=[f"faults: {', '.join(KINDS)}", "write KIND@STEP, for example `sigkill@17`"],
            )
        plan.append(Planned(kind, int(step or 3 * (number + 1))))
    return sorted(plan, key=lambda each: each.step)


def draw(count: int, *, steps: int, seed: int) -> list[Planned]:
    """`count` kills at different steps."""
    if steps < 3:
        raise UserError(f"{steps} steps are too few for random kills")
    places = random.Random(seed).sample(range(1, steps), min(count, steps - 1))
    return [Planned("sigkill", step) for step in sorted(places)]


def send_at(
    process: subprocess.Popen[bytes],
    board: Callable[[], Path | None],
    plan: Iterable[Planned],
    *,
    seed: int = 0,
) -> list[Planned]:
    """Until the process ends; returns what was sent, at which steps. `board` tells where the board of its run is.

    Each process of the script gets one signal at most.
    """
    waiting, sent, met, chance, pace = list(plan), [], set(), random.Random(seed), _Pace()
    while process.poll() is None:
        time.sleep(POLL_S)
        place = _place(board()) if waiting else None
        if place is None or place[0] in met:
            continue
        pace.note(*place)
        if place[1] < waiting[0].step:
            continue
        time.sleep(pace.step_s * chance.random())
        if process.poll() is None and _is_ours(place[0], process.pid):
            if processes.send(place[0], KINDS[waiting[0].kind]):
                sent.append(Planned(waiting.pop(0).kind, place[1]))
            met.add(place[0])
    return sent


class _Pace:
    """How long a step takes, as it is seen from outside."""

    def __init__(self) -> None:
        self.step_s = FIRST_S
        self._pid = self._step = 0
        self._since = 0.0

    def note(self, pid: int, step: int) -> None:
        now = time.monotonic()
        if pid != self._pid:
            self._pid, self._step, self._since = pid, step, now
        elif step > self._step:
            self.step_s = min(LONGEST_S, (now - self._since) / (step - self._step))


def _place(path: Path | None) -> tuple[int, int] | None:
    """The process that trains, and the step it is at; None before its first step."""
    if path is None:
        return None
    try:
        board = Board.open_path(path)
    except (OSError, ValueError):  # each process gets a new one, which may be about to be made
        return None
    try:
        beat = board.read()
        return (beat.pid, beat.attempt) if beat.pid and beat.attempt else None
    finally:
        board.close(unlink=False)


def _is_ours(pid: int, ancestor: int) -> bool:
    """Whether the process belongs to this run: a number may have gone to another process meanwhile."""
    for _ in range(64):
        if pid == ancestor:
            return True
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return not os.path.isdir("/proc/self")
        pid = int(stat[stat.rindex(b")") + 2 :].split()[1])
        if pid <= 1:
            return False
    return False
