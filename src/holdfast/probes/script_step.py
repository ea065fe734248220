"""The user's own model: one real step of a script, at its real shapes, against the CPU.

    probe = catalog.script_probe(Path("my_script.py"), {"width": "64"})

The script runs as in a run, in a folder that is thrown away, up to its first `session.step`. That step is done for
real, with its optimizer, and every kind of operator in it is computed again on the CPU from the inputs the device had,
as the sentinel of a run does. Nothing after it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch

from holdfast.data import batch as batches
from holdfast.data import sample_marks
from holdfast.faults.ladder import Rung
from holdfast.probes.bench import Bench
from holdfast.probes.compare import Outcome
from holdfast.record.reporter import Face
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from holdfast.worker.local_run import LocalLink
from holdfast.worker.operators.comparison import Finding
from holdfast.worker.operators.confirmation import compare_here
from holdfast.worker.operators.recorder import Recorder
from holdfast.worker.precision import coarsest, watch_precision
from holdfast.worker.session import Run, Session
from holdfast.worker.session_context import LostWorker
from holdfast.worker.worker import bind, load_train, seed_everything


class _Enough(BaseException):
    """The first step was seen. Not an Exception: a script may catch those."""


class OneStep(Session):
    """A session whose first step is looked at, and is the last."""

    findings: tuple[Finding, ...] = ()
    not_compared = ""
    precision = ""
    samples: int | None = None
    loss: float | None = None

    def step(self, fn: Any, batch: Any, **options: Any) -> NoReturn:
        self.samples = batches.batch_size(batch)
        with self._looked_at():
            self.loss = float(super().step(fn, batch, **options))
        raise _Enough

    def transaction(self, fn: Any) -> NoReturn:
        with self._looked_at():
            super().transaction(fn)
        raise _Enough

    @contextlib.contextmanager
    def _looked_at(self) -> Iterator[None]:
        recorder = Recorder(self.device, label=self._rung_label, seed=0)
        recorder.everything = True
        lost: LostWorker | None = None
        try:
            with watch_precision(self.device) as seen, recorder.look(1):
                yield
        except LostWorker as error:  # numbers that are not finite end a step; which operator made them is the answer
            lost = error
        recorder.wait()
        dtypes = {each.dtype for module in self._context.modules() for each in module.parameters()}
        self.precision = coarsest(seen.names, dtypes, self.device)
        self.findings = tuple(compare_here(case) for case in recorder.taken())
        if lost is not None and all(finding.agrees for finding in self.findings):
            raise lost
        if all(finding.skipped for finding in self.findings):
            self.not_compared = "none of its operators can be computed again"

    @property
    def _rung_label(self) -> str:
        return self._attempts.checks.rung.device


def script(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """One step of a script with `train(session)`."""
    path = Path(spec["options"]["script"])
    bench.tell("")
    settings = Settings()
    run = RunFolder.create(Path(spec["options"].get("folder") or "."), "doctor", {})
    link = LocalLink(run, settings, Face())
    seed_everything(int(spec["options"].get("seed", 0)))
    described = Run(name=run.name, folder=run.path, seed=0, generation=0, resumed=False)
    session = OneStep(link, run=described, rungs=[Rung(bench.label)], rung=0, settings=settings, device=bench.device)
    bench.away = lambda: session.device != bench.device
    sample_marks.begin(run.path, policy=sample_marks.Policy.of(settings.data), beat=link.board.beat, tell=link.send)
    try:
        with bench.on():
            train = load_train(path.resolve(), [])
            train(session, **bind(train, spec["options"].get("arguments", {})))
        yield Outcome(skip="the script ended before its first step")
    except _Enough:
        bench.wait()
        yield _outcome(session)
    finally:
        sample_marks.end()
        link.close()
        run.close()


def _outcome(session: OneStep) -> Outcome:
    facts: dict[str, Any] = {"batch": session.samples, "loss": session.loss, "torch": torch.__version__}
    told = [finding for finding in session.findings if not finding.skipped]
    facts |= {"operators": len(told), "precision": session.precision}
    if not told:
        return Outcome(facts={**facts, "not_compared": session.not_compared})
    wrong = [finding for finding in told if not finding.agrees]
    if not wrong:
        return Outcome(0.0, 0.0, facts)
    worst = max(wrong, key=lambda finding: finding.share)
    return Outcome(worst.error, worst.allowed, {**facts, "tensor": worst.operator}, why=worst.text)
