"""The training's end of the checker: hands looks over and hears what came of them, without ever waiting.

    checking = Checking("cuda:0", folder)
    if not checking.busy:
        checking.submit(step, cases, ready=event.synchronize)     # a thread waits for the copies and writes them
    for answer in checking.answers():                             # what has come by now
        answer.findings, answer.confirmed
    checking.close()

A look that finds something is confirmed in a fresh process (confirmation.py) before its answer comes. Files are in
memory where the system has a folder for that. A checker that dies is started again a few times, then there is none.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base import interpreter
from holdfast.worker.operators.case import Case
from holdfast.worker.operators.comparison import Finding

MEMORY = Path("/dev/shm")
PREFIX = "holdfast-look-"
"""Of the folder there, with the number of the process: what a killed worker leaves, its supervisor removes."""
DEATHS = 3
"""Checkers that may die before there is none any more."""
PATIENCE = 300.0
"""Seconds a confirmation may take, the import of torch included."""


@dataclass(slots=True)
class Answer:
    """What came of a look."""

    step: int
    compared: int = 0
    skipped: int = 0
    findings: list[Finding] = field(default_factory=list)
    """Those that do not agree."""
    seconds: float = 0.0
    """Of a core."""
    confirmation: dict[str, Any] | None = None
    """What a fresh process made of the first of them."""
    folder: Path | None = None
    """Where the case, its numbers and the script are."""
    problem: str = ""
    """Why there is no answer."""

    @property
    def confirmed(self) -> bool:
        return self.confirmation is not None and bool(self.confirmation.get("confirmed"))


class Checking:
    """One checker process, and a thread that talks to it."""

    def __init__(self, label: str, keep: Path | None = None, *, env: dict[str, str] | None = None) -> None:
        self.label = label
        self.keep = keep
        """Where cases that disagree stay."""
        self.pid: int | None = None
        self._env = env or {}
        self._jobs: queue.SimpleQueue[tuple[int, list[Case], Callable[[], None]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._child: subprocess.Popen[str] | None = None
        self._asked: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._folder: Path | None = None
        self._outstanding = 0
        self._deaths = 0
        self._closed = False

    @property
    def busy(self) -> bool:
        return self._outstanding > 0 or self._closed

    def submit(self, step: int, cases: list[Case], ready: Callable[[], None] = lambda: None) -> None:
        """Hand a look over. `ready` returns once the copies from the device have arrived."""
        self._outstanding += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="holdfast-checking")
            self._thread.start()
        self._jobs.put((step, cases, ready))

    def answers(self) -> list[Answer]:
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._answers.get_nowait())
                self._outstanding -= 1
        return found

    def close(self) -> None:
        """End the processes; what they were at is of no interest any more."""
        self._closed = True
        self._jobs.put(None)
        for child in (self._child, self._asked):
            if child is not None:
                with contextlib.suppress(OSError):
                    child.kill()
                with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                    child.wait(1.0)
        if self._thread is not None:
            self._thread.join(1.0)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- in the thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            step, cases, ready = job
            try:
                answer = self._look(step, cases, ready)
            except Exception as error:  # the edge of a thread: the training must not hear of it but as a word
                answer = Answer(step, problem=f"{type(error).__name__}: {str(error)[:200]}")
            if self._closed:
                return
            self._answers.put(answer)

    def _look(self, step: int, cases: list[Case], ready: Callable[[], None]) -> Answer:
        if self._deaths >= DEATHS:
            return Answer(step, problem="the process that compares died again and again")
        ready()
        folder = self._place()
        paths = [folder / f"{step}-{number}.safetensors" for number in range(len(cases))]
        try:
            for case, path in zip(cases, paths, strict=True):
                case.save(path)
            said = self._ask(paths)
            if said is None:
                self._deaths += 1
                return Answer(step, problem="the process that compares died")
            return self._heard(step, said)
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    def _heard(self, step: int, said: dict[str, Any]) -> Answer:
        findings, paths = [], []
        answer = Answer(step, seconds=float(said["seconds"]))
        for data in said["findings"]:
            path = Path(data.pop("path"))
            finding = Finding.from_json(data)
            answer.skipped += bool(finding.skipped)
            answer.compared += not finding.skipped
            if not finding.agrees:
                findings.append(finding)
                paths.append(path)
        answer.findings = findings
        if findings:
            worst = max(range(len(findings)), key=lambda each: findings[each].share)
            answer.findings = [findings[worst], *findings[:worst], *findings[worst + 1 :]]
            answer.folder = self._kept(paths[worst], findings[worst], step)
            answer.confirmation = self._confirm(answer.folder)
        return answer

    def _kept(self, path: Path, finding: Finding, step: int) -> Path:
        from holdfast.worker.operators.confirmation import write_up

        keep = self.keep if self.keep is not None else self._place() / "kept"
        return write_up(keep / f"step-{step}", Case.load(path), finding, self.label)

    def _confirm(self, folder: Path) -> dict[str, Any]:
        """In a fresh process, with the device: the same again, and other numbers of the same shapes."""
        asked = (str(folder), "--device", self.label, "--parent", str(os.getpid()))
        words = interpreter.module("holdfast.worker.operators.confirmation", *asked)
        self._asked = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **self._env},
        )  # fmt: skip
        try:
            out, err = self._asked.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._asked.kill()
            self._asked.communicate()
            return {"confirmed": False, "why": f"no answer in {PATIENCE:.0f} s"}
        finally:
            code, self._asked = self._asked.returncode, None
        with contextlib.suppress(ValueError, IndexError):
            said = json.loads(out.splitlines()[-1])
            if isinstance(said, dict):
                return said
        return {"confirmed": False, "why": f"it ended with code {code}: {err.strip()[-200:]}"}

    def _ask(self, paths: list[Path]) -> dict[str, Any] | None:
        child = self._child
        if child is None or child.poll() is not None:
            child = self._child = self._start()
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps({"paths": [str(path) for path in paths]}) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except (OSError, ValueError):
            return None
        if not line:
            return None
        said = json.loads(line)
        return said if isinstance(said, dict) else None

    def _start(self) -> subprocess.Popen[str]:
        if self._closed:
            raise RuntimeError("the run is over")
        hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        child = subprocess.Popen(
            interpreter.module("holdfast.worker.operators.checker", "--parent", str(os.getpid())),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **hidden},
        )  # fmt: skip
        self.pid = child.pid
        return child

    def _place(self) -> Path:
        if self._folder is None:
            where = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None
            self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=where))
        return self._folder
