"""Runs idioms quiet, killed, stopped and resumed, and with a supervisor that is killed; and says what came of it.

    kit = Kit(folder, nursery)
    kit.cell(IDIOMS["k folds"], "killed")          # "equal", "clear error", or "DIFFERS: …"

The weights, the logged numbers and the count of steps of a disturbed run are held against those of a quiet one, and the
weights of the quiet one against those of the plain PyTorch script, where there is one.
"""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from holdfast.supervisor.process_start import NurseryLauncher
from holdfast.testing import logged
from tests.idioms.pieces import Idiom
from tests.real_faults.driving import Command, Run, drive, read_run

JOB = Path(__file__).parent / "job.py"
WAYS = ("plain", "quiet", "killed", "hung", "out of memory", "stopped and resumed", "supervisor killed")
KILLS = (2, 5, 6, 9, 14)
"""Moments, counted over all lives: two of them in a row."""
HUNG = {"watchdog.floor": "2s", "watchdog.loop": "3s"}
HANG = 4
LIMIT = 600.0
"""Seconds for one command, on a busy machine."""
SHORT = (3, 8)
"""Losses that do not come, and those that find no memory."""
STOP, END = 6, 7
"""The moments at which the run is asked to stop, and at which its supervisor is killed."""


class Kit:
    """Where the runs lie, and the nursery their workers come from."""

    def __init__(self, folder: Path, nursery: NurseryLauncher) -> None:
        self.folder = folder
        self.nursery = nursery
        self._quiet: dict[str, Run] = {}
        self._count = 0

    def quiet(self, idiom: Idiom) -> Run:
        if idiom.name not in self._quiet:
            self._quiet[idiom.name] = self._drive(idiom, {})
        return self._quiet[idiom.name]

    def cell(self, idiom: Idiom, way: str) -> str:
        """What comes of it, in a few words."""
        if way == "plain":
            return self._plain(idiom)
        if way == "quiet":
            run = self.quiet(idiom)
            return "equal" if run.outcome.state == "FINISHED" else self._stopped(idiom, run)
        return self._verdict(idiom, self._disturbed(idiom, way))

    def _disturbed(self, idiom: Idiom, way: str) -> Run:
        if way == "killed":
            return self._drive(idiom, {"kill": list(KILLS)})
        if way == "hung":
            return self._drive(idiom, {"hang": [HANG]}, settings=HUNG)
        if way == "out of memory":
            return self._drive(idiom, {"oom": list(SHORT)})
        if way == "stopped and resumed":
            first = self._drive(idiom, {"stop": STOP})
            return self._drive(idiom, {}, resume=first.folder) if first.outcome.state == "STOPPED" else first
        return self._without_supervisor(idiom)

    def _drive(
        self,
        idiom: Idiom,
        plan: dict[str, Any],
        resume: Path | None = None,
        settings: dict[str, str] | None = None,
    ) -> Run:
        runs = self._new_folder()
        words = {"idiom": idiom.name, "plan": json.dumps(plan).replace('"', "'")}
        return drive(
            runs, JOB, nursery=self.nursery, resume=resume, settings={"run.seed": "0", **(settings or {})}, **words
        )

    def _without_supervisor(self, idiom: Idiom) -> Run:
        runs = self._new_folder()
        path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]
        env = {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        plan = json.dumps({"end": END}).replace('"', "'")
        with Command(runs, "train", JOB, f"idiom={idiom.name}", f"plan={plan}", "--device", "cpu", env=env) as command:
            command.end(LIMIT)
            folder = command.folder
        with Command(runs, "resume", folder, env=env) as command:
            command.end(LIMIT)
        return read_run(folder)

    def _new_folder(self) -> Path:
        self._count += 1
        runs = self.folder / f"{self._count:03d}"
        runs.mkdir()
        return runs

    def _verdict(self, idiom: Idiom, run: Run) -> str:
        quiet = self.quiet(idiom)
        if run.outcome.state != "FINISHED":
            return self._stopped(idiom, run)
        same, why = logged.compare([logged.read(quiet.folder)], logged.read(run.folder))
        if run.receipt["weights_sha256"] != quiet.receipt["weights_sha256"]:
            return "DIFFERS: other weights"
        if run.receipt["steps"] != quiet.receipt["steps"]:
            return f"DIFFERS: {run.receipt['steps']} steps instead of {quiet.receipt['steps']}"
        if same is False:
            return "numbers differ, seen by chaos" if idiom.refused == "numbers differ" else f"DIFFERS: {why}"
        return "equal"

    def _stopped(self, idiom: Idiom, run: Run) -> str:
        """A run that did not finish: was that the error that is due?"""
        error = run.outcome.error
        said = f"{getattr(error, 'message', '')} {getattr(error, 'cause', '')}" if error is not None else run.story()
        due = idiom.refused and re.search(idiom.refused, said or "")
        return "clear error" if due else f"DIFFERS: {run.outcome.state}: {said}"

    def _plain(self, idiom: Idiom) -> str:
        if idiom.plain is None:
            return ""
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        numbers: list[dict[str, Any]] = []
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            weights = idiom.plain(lambda **values: numbers.append(values)).state_dict()
        finally:
            torch.set_num_threads(threads)
        found = load_file(self.quiet(idiom).folder / "final.safetensors")
        wrong = [name for name, value in weights.items() if not torch.equal(found.get(name, torch.empty(0)), value)]
        lines = (self.quiet(idiom).folder / "metrics.jsonl").read_text().splitlines() if numbers else []
        told = [{name: json.loads(line).get(name) for name in each} for line, each in zip(lines, numbers, strict=False)]
        if wrong or told != numbers:
            return f"DIFFERS from plain PyTorch: {wrong or (told, numbers)}"
        return "equal"
