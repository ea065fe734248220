"""Processes that compute failed steps on the CPU, beside the worker that goes on. No torch here.

    opinion = Opinion.begin(workers, fault, setup_s=2.0)        # None: no slot holds the state before the step
    if opinion.over():                                       # asked now and then; it is ended when it takes too long
        opinion.finding, opinion.leave_out
    opinion.end()

A process from the nursery copies the snapshot before the step and runs the script up to it (worker/opinion.py). That
snapshot is held in its slot until the opinion is there: if the data turn out to be at fault, the run goes back to it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from holdfast.base import processes
from holdfast.base.board import Phase
from holdfast.faults.blame import Cpu, Finding
from holdfast.faults.classification import Fault, Kind, classify_exit
from holdfast.run.messages import Copied, Found, heard
from holdfast.state.slots import Commit
from holdfast.supervisor.process_start import NurseryDied, SpawnLauncher, WorkerProcess
from holdfast.supervisor.run_context import RunContext
from holdfast.supervisor.workers import Workers, kill_group

MEMORY = 3
"""Times the size of a snapshot that has to be free: a copy of it, what is restored from it, and gradients."""
FEW_SLOTS = 4
"""With fewer slots than this, a snapshot is not held longer than its copy takes: a commit would have to wait for it."""
SETUPS = 3
"""The script gets to the step on the CPU, behind the training, in so many times what its worker took."""
SPARE = 10.0
"""Seconds on top, for a machine that is busy."""


class Opinion:
    """One such process."""

    def __init__(
        self, process: WorkerProcess, fault: Fault, commit: Commit, context: RunContext, setup_s: float
    ) -> None:
        self.process = process
        self.fault = fault
        self.commit = commit
        self.finding: Finding | None = None
        self.leave_out: dict[str, Any] | None = None
        self.number = 1
        self.cut_short = False
        """It was ended from outside, and may be begun again."""
        self._affairs = context
        self.setup_s = setup_s
        self.bound_s = context.settings.blame.budget + SETUPS * setup_s + SPARE
        """Seconds after which it is ended."""
        self._deadline = time.monotonic() + self.bound_s
        self._closed = False

    @classmethod
    def begin(cls, workers: Workers, fault: Fault, *, setup_s: float, number: int = 1) -> Opinion | None:
        """None if the state before the step is in no slot, or no process can be forked.

        `setup_s` is what the worker took to come to the step, `number` how many were asked before, and this one.
        """
        assert fault.step is not None
        context = workers.context
        if workers.launcher is None or not cls.can_fork(
            workers
        ):  # asked first: whoever holds a snapshot must let it go
            return None
        found = context.memory.keep_step(fault.step - 1)
        if found is None:
            return None
        arena, commit = found
        config = replace(workers.config(None), opinion=commit.sequence, fault=fault)
        try:
            process = workers.launcher.start(config, [arena])
        except NurseryDied:
            context.memory.let_evidence_go(commit.sequence)
            return None
        opinion = cls(process, fault, commit, context, setup_s)
        opinion.number = number
        return opinion

    @staticmethod
    def can_fork(workers: Workers) -> bool:
        """Whether workers come from a nursery: a fresh interpreter would keep the supervisor waiting."""
        return not workers.context.portable and not isinstance(workers.launcher, SpawnLauncher)

    @classmethod
    def fits(cls, workers: Workers) -> bool:
        """Whether there is a nursery, memory for another copy of the state, and for what is computed from it."""
        newest, available = workers.context.memory.newest(), processes.available_memory()
        fits = newest is not None and (available is None or available >= MEMORY * newest.size)
        return fits and cls.can_fork(workers)

    def over(self) -> bool:
        """Whether nothing more will come of it. What came is `finding`."""
        if self._closed:
            return True
        messages, closed = self.process.channel.mail()
        for message in heard(messages):
            if isinstance(message, Copied) and self._few_slots():
                self._affairs.memory.let_evidence_go(self.commit.sequence)
            elif isinstance(message, Found):
                self.finding, self.leave_out = message.finding, message.leave_out
        if self.finding is None and self.process.told:
            self.finding = self._by_exit()
        elif self.finding is None and time.monotonic() > self._deadline:
            self.finding = Finding(Cpu.UNKNOWN, "the CPU did not get through the batch in time")
        elif self.finding is None and closed and self._vanished():
            self.cut_short, self.finding = True, Finding(Cpu.UNKNOWN, "the process that computed it was ended")
        if self.finding is not None:
            self._end_process()
        return self.finding is not None

    def _few_slots(self) -> bool:
        return sum(len(arena.slots) for arena in self._affairs.memory.arenas) < FEW_SLOTS

    def _vanished(self) -> bool:
        return bool(self.process.pid) and not processes.exists(self.process.pid)

    def _by_exit(self) -> Finding:
        """It ended without a word: in the step itself that is the CPU's own word, elsewhere it says nothing."""
        beat = self.process.board.read()
        fault = classify_exit(exitcode=self.process.exit_code, last_words="", oom_kills=0, device="cpu")
        if beat.phase is Phase.REPLAY and fault.kind in (Kind.CRASH, Kind.EXIT):
            return Finding(Cpu.CRASHED, fault.sentence())
        self.cut_short = fault.kind is Kind.KILLED
        return Finding(Cpu.UNKNOWN, "the process that computed it ended before it was done")

    def end(self) -> None:
        """Nobody waits for it any longer; the snapshot is let go."""
        self._end_process()
        self._affairs.memory.let_evidence_go(self.commit.sequence)

    def _end_process(self) -> None:
        if self._closed:
            return
        self._closed = True
        process = self.process
        process.pid = process.pid or process.board.read().pid  # the nursery's word about it may be on its way
        if process.pid and not process.told:
            kill_group(process)
        process.close()  # one that is not born yet ends when it finds this
