"""The sentinel: now and then, does the device compute what the CPU computes, operator by operator?

    sentinel = Sentinel(device, settings.sentinel, label="cuda:0", keep=run.folder / "suspicions")
    with sentinel.looking(step):                 # nearly always does nothing; sometimes notes operators of the step
        loss = fn(batch); loss.backward()
    for opinion in sentinel.opinions():          # what has come by now of earlier looks
        opinion.agrees, opinion.confirmed, opinion.text

The step is an ordinary one. What is noted of it goes to another process, which computes each operator again in fp64
and holds the device's numbers against what rounding explains (operators/). The training never waits for it: while it
is busy there is no look. A device that has to prove itself is looked at in every step, and waited for.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.run.setting_groups import SentinelSettings
from holdfast.worker.operators.checker_client import Answer, Checking
from holdfast.worker.operators.comparison import METHOD, Finding
from holdfast.worker.operators.confirmation import compare_here, confirmed, repeat, write_up
from holdfast.worker.operators.recorder import Recorder, changes_compiled_code

FIRST_STEP = 3
"""The step of a worker in which it looks for the first time: a device that is wrong is wrong from the start."""
AT_ONCE = 100.0
"""Percent of `sentinel.cost` from which on every step is looked at, and waited for."""
CORE = 0.25
"""Of a core that the comparison may use, over time."""
SMALL_CORE = 0.05
"""The same where there is one core, or little memory."""
SMALL_MEMORY = 1 << 30
LONGEST_S = 20.0
"""Of a look that is waited for."""
SPIKE = 8.0
"""Times its usual size from which on a loss or a gradient has jumped."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What came of a look."""

    agrees: bool
    step: int
    compared: int = 0
    """Operators that were compared."""
    finding: Finding | None = None
    """The worst of those that disagree."""
    confirmed: bool = False
    by: str = ""
    """Who confirmed it."""
    why: str = ""
    folder: Path | None = None

    @property
    def text(self) -> str:
        return "" if self.finding is None else self.finding.text

    def to_json(self) -> dict[str, Any]:
        found = {} if self.finding is None else {"finding": self.finding.to_json(), "tensor": self.finding.operator}
        more = {"case": str(self.folder)} if self.folder is not None else {}
        told = {"agrees": self.agrees, "compared": self.compared, "confirmed": self.confirmed, "method": METHOD}
        return {**told, "by": self.by, "why": self.why, **found, **more}


class Sentinel:
    """Watches one device for one worker."""

    def __init__(
        self,
        device: torch.device,
        settings: SentinelSettings,
        *,
        label: str | None = None,
        keep: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        self.device = device
        self.settings = settings
        self.label = label or str(device)
        self.off: str | None = None
        """Why nothing is compared any more."""
        self.beat: Callable[[], None] = lambda: None
        """A sign of life between two operators, while a step waits."""
        self.checks = 0
        self.every_step = 0
        """Steps that are all looked at and waited for: a device on probation."""
        self.ranks = 1
        """Ranks that look within `sentinel.cost`: every step waits for the slowest of them."""
        self.neighbours = 1
        """Those that have the same cores."""
        self.recorder = Recorder(device, label=self.label, samples=settings.samples, seed=seed)
        self.checking = Checking(self.label, keep)
        self.rare = _little_room()
        """Why it looks more rarely here; empty where there is room."""
        self._keep = keep
        self._clock = clock
        self._chance = random.Random(seed)
        self._steps = 0
        self._debt = 0.0
        self._since = clock()
        self._not_before = 0.0
        self._hurry = False
        self._phased = False
        """Whether steps say which part of them comes."""
        self._usual: dict[str, float] = {}
        self._step_s: float | None = None
        self._here: list[Opinion] = []

    # -- when ----------------------------------------------------------------------------------------------

    @property
    def at_once(self) -> bool:
        """Whether looks are waited for."""
        return self.every_step > 0 or self.settings.cost >= AT_ONCE

    def due(self) -> bool:
        """Whether to look at the step that begins now. Asked once a step."""
        now = self._clock()
        self._debt -= (now - self._since) * self.settings.cost / 100.0 / self.ranks
        self._since = now
        self._steps += 1
        if self.off is not None:
            return False
        if self.at_once:
            return True
        if self._steps == FIRST_STEP and changes_compiled_code():
            self.off = "this torch runs compiled code otherwise in a step that is looked at"
            self._here.append(Opinion(True, 0, why=self.off))
            return False
        if self._steps < FIRST_STEP or self.checking.busy or now < self._not_before:
            return False
        if self.checks == 0 or self._hurry:
            return True
        return self._debt <= 0.0 and self._chance.random() < 0.5  # never the same step of a cycle each time

    def note(self, loss: float, gradient: float) -> None:
        """The numbers of a step that has arrived. One far above its usual size calls for a look."""
        for name, value in (("loss", abs(loss)), ("gradient", gradient)):
            if not math.isfinite(value):
                continue
            usual = self._usual.get(name)
            if usual is not None and value > SPIKE * usual and self._steps > 20:
                self._hurry = True
            self._usual[name] = value if usual is None else 0.95 * usual + 0.05 * value

    def _paid(self, seconds: float) -> None:
        """What a look cost is owed, not trained in: it does not earn the next one."""
        self._debt = max(self._debt, 0.0) + seconds
        self._since = self._clock()
        self._hurry = False

    # -- looking -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def looking(self, step: int) -> Iterator[bool]:
        """Around a step. A step that raises leaves nothing behind."""
        began = self._clock()
        if not self.due():
            yield False
            spent = self._clock() - began
            self._step_s = spent if self._step_s is None else 0.9 * self._step_s + 0.1 * spent
            return
        self.recorder.everything = self.at_once
        with self.recorder.look(step, parts=self._phased):
            yield True
        self.checks += 1
        if self.at_once:
            self._judge_here(step)
        else:
            self._hand_over(step)
        more = max(0.0, self._clock() - began - (self._step_s or 0.0))
        if not self.at_once and self._step_s is not None:
            self.recorder.spent(more, self._step_s)
        self._paid(more)

    def enters(self, part: str) -> None:
        """The step comes to this part: forward, backward, optimizer, or another."""
        self._phased = True
        self.recorder.enters(part)

    def _hand_over(self, step: int) -> None:
        cases = self.recorder.taken()
        if cases:
            self.checking.submit(step, cases, self.recorder.wait)

    def _judge_here(self, step: int) -> None:
        """In this process, and the step waits for it: the device is not trusted, or the user wants it so."""
        self.every_step = max(0, self.every_step - 1)
        self.recorder.wait()
        cases = self.recorder.taken()
        self._chance.shuffle(cases)
        findings, until = [], self._clock() + LONGEST_S
        for case in cases:
            self.beat()
            findings.append((compare_here(case), case))
            if self._clock() > until:  # a large network: the next step looks at others
                break
        wrong = [pair for pair in findings if not pair[0].agrees]
        told = sum(not finding.skipped for finding, _ in findings)
        if not wrong:
            self._here.append(Opinion(True, step, told))
            return
        finding, case = max(wrong, key=lambda pair: pair[0].share)
        folder = write_up(self._keep / f"step-{step}", case, finding, self.label) if self._keep is not None else None
        again = repeat(case, self.device, label=self.label)
        self._here.append(
            Opinion(
                False, step, told, finding, confirmed(again), f"the worker ({os.getpid()})",
                f"{sum(not each.agrees for each in again)} of {len(again)} repetitions disagree", folder,
            )
        )  # fmt: skip

    def opinions(self) -> list[Opinion]:
        """What has come since the last time."""
        found, self._here = self._here, []
        for answer in self.checking.answers():
            found.append(self._opinion(answer))
        return found

    def _opinion(self, answer: Answer) -> Opinion:
        share = (SMALL_CORE if self.rare else CORE) / self.neighbours
        self._not_before = self._clock() + answer.seconds * (1.0 / share - 1.0)
        if answer.problem:
            self.off = answer.problem if "again and again" in answer.problem else self.off
            return Opinion(True, answer.step, why=answer.problem)
        if not answer.findings:
            return Opinion(True, answer.step, answer.compared)
        finding, said = answer.findings[0], answer.confirmation or {}
        self.recorder.wanted.add(finding.key)
        self._not_before = 0.0
        self._hurry = True
        return Opinion(
            False, answer.step, answer.compared, finding, answer.confirmed,
            str(said.get("by") or ""), str(said.get("why") or ""), answer.folder,
        )  # fmt: skip

    def close(self) -> None:
        self.checking.close()


def _little_room() -> str:
    """Why the comparison has to be modest here."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 2:
        return "there is one core"
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable") and int(line.split()[1]) << 10 < SMALL_MEMORY:
                return "there is little memory"
    return ""
