"""What a process of the script needs to start: its streams, the hook's folder, signals, the port for whoever attaches.

    with ScriptSetup(run_folder, settings) as setup:
        first = setup.first(order)                             # before the supervisor itself is imported
        ...
        process = setup.start(command, rung, env, step=120)    # and each one after it

The command somebody wants to run waits for everything that is imported before it starts. So this is little, and the
rest (faults, evidence, checkpoints, trust) is imported while the script begins.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.base import processes
from holdfast.base.errors import HoldfastError
from holdfast.run.folder import RunFolder
from holdfast.supervisor.scripts import rungs
from holdfast.supervisor.scripts.attach_port import AttachPort
from holdfast.supervisor.scripts.exact_output import Gate
from holdfast.supervisor.scripts.hook_notes import Notes
from holdfast.supervisor.scripts.script_order import exact_environment
from holdfast.supervisor.scripts.script_processes import ScriptProcesses, command_of
from holdfast.supervisor.scripts.script_record import Record
from holdfast.supervisor.scripts.script_start import Script, launch
from holdfast.supervisor.scripts.streams import Streams
from holdfast.supervisor.signal_queue import TO_SCRIPTS, Signals

if TYPE_CHECKING:
    from holdfast.faults.ladder import Rung
    from holdfast.run.settings import Settings
    from holdfast.supervisor.scripts.script_order import Order


@dataclass(slots=True)
class Process:
    """One process of the script with what belongs to it."""

    script: Script
    notes: Notes
    streams: Streams
    kills: int
    """How often the kernel had killed for memory when it began."""
    name: bytes
    """Its command as the kernel shows it: if it goes into the background, it is known by that."""


class ScriptSetup:
    """Everything outside of the script that its processes share."""

    def __init__(self, run: RunFolder, settings: Settings) -> None:
        self.record = Record(run.path / "output.log", settings.external.output)
        self.port = AttachPort()
        self.signals = Signals(TO_SCRIPTS, ignored=TO_SCRIPTS)
        self.script_processes = ScriptProcesses()
        self._folder = run.path / "script"
        self._hook = settings.external.hook
        self._newest: Process | None = None
        self.gate: Gate | None = None
        """What is shown of processes that print again what was printed before."""
        self._listening = contextlib.ExitStack()

    def __enter__(self) -> ScriptSetup:
        self._listening.enter_context(self.signals.listening())
        return self

    def __exit__(self, *error: object) -> None:
        """Leave nothing of the script behind, and the terminal as it was, whatever happened."""
        newest = self._newest
        if newest is not None:
            if newest.script.poll() is None:
                self.script_processes.end(newest.script, term=0.0)
            newest.streams.close()
        self.record.close()
        self.port.close()
        self._listening.close()
        self.signals.close()

    def first(self, order: Order) -> Process | None:
        """The first process, at once; None where something has to be known before: an accelerator may be in
        quarantine, a run that goes on begins at a checkpoint. What fails here fails again, where it is told."""
        if order.going_on or not order.rungs[order.rung].on_cpu:
            return None
        try:
            env = exact_environment(order.hash_seed) if order.exact else {}
            return self.start(order.command, order.rungs[order.rung], env)
        except HoldfastError:
            return None

    def start(
        self, command: list[str], rung: Rung, env: Mapping[str, str], *, generation: int = 0, step: int = 0
    ) -> Process:
        """A new process, counting its steps from `step` on. UserError if it cannot be started."""
        notes = Notes(self._folder, generation=generation, step=step)
        full = rungs.environment(rung, os.environ)
        if self._hook:
            full = self.port.environment(notes.environment(full))
        streams = Streams.open(self.record)
        streams.gate = self.gate
        self.record.process_begins()
        kills = processes.memory_kills()
        try:
            script = launch(rungs.arguments(rung, command), streams, {**full, **env}, generation=generation)
        except HoldfastError:
            streams.close()
            raise
        self._newest = Process(script, notes, streams, kills, command_of(script.pid))
        return self._newest
