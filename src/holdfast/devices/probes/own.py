"""The user's own model: one real step of a script, at its real shapes, against the CPU.

    probe = catalog.script_probe(Path("my_script.py"), {"width": "64"})

The script runs as in a run, in a folder that is thrown away, up to its first `session.step`. That step is computed on
the device and on the CPU from the same weights, as the sentinel of a run does, with the whole batch; then it is done
for real, with its optimizer. Nothing after it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from holdfast.devices.probes.bench import Bench
from holdfast.devices.probes.compare import Outcome
from holdfast.runfolder import RunFolder
from holdfast.runtime import marks, transaction
from holdfast.runtime.ladder import Rung
from holdfast.runtime.local import LocalLink
from holdfast.runtime.sentinel import Opinion, Sentinel
from holdfast.runtime.session import Run, Session
from holdfast.runtime.telling import Face
from holdfast.runtime.transaction import Work
from holdfast.runtime.worker import bind, load_train, seed_everything
from holdfast.settings import Settings

WHOLE = 1 << 20
"""Samples: all of any batch."""


class _Enough(BaseException):
    """The first step was seen. Not an Exception: a script may catch those."""


class OneStep(Session):
    """A session whose first step is looked at, and is the last."""

    opinion: Opinion | None = None
    not_compared = ""
    batch: int | None = None
    loss: float | None = None

    def step(self, fn: Any, batch: Any, **options: Any) -> NoReturn:
        self.batch = transaction.batch_size(batch)
        replay = self._attempts.vigil._replay
        if replay is None:
            self.not_compared = "the script protects no module"
        else:
            settings = replace(self.settings.sentinel, samples=WHOLE)
            sentinel = Sentinel(replay, self.device, settings)
            self.opinion = sentinel.check(self._work(fn, batch, options))
            if self.opinion is None:
                self.not_compared = sentinel.off or "memory does not suffice to compute the step twice"
        if self.opinion is None or self.opinion.agrees:
            self.loss = float(super().step(fn, batch, **options))
        raise _Enough

    def transaction(self, fn: Any) -> NoReturn:
        self.not_compared = "it makes its updates in a transaction, which cannot be computed twice"
        super().transaction(fn)
        raise _Enough

    def _work(self, fn: Any, batch: Any, options: dict[str, Any]) -> Work:
        return Work(
            fn=fn,
            batch=batch,
            optimizers=self._ground.optimizers(options.get("optimizer")),
            scaler=self._ground.scaler(),
            clip=options.get("clip"),
            accumulate=1,
            split=options.get("split"),
        )


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
    marks.begin(run.path, policy=marks.Policy.of(settings.data), beat=link.board.beat, tell=link.send)
    try:
        with bench.on():
            train = load_train(path.resolve(), [])
            train(session, **bind(train, spec["options"].get("arguments", {})))
        yield Outcome(skip="the script ended before its first step")
    except _Enough:
        bench.wait()
        yield _outcome(session)
    finally:
        marks.end()
        link.close()
        run.close()


def _outcome(session: OneStep) -> Outcome:
    facts: dict[str, Any] = {"batch": session.batch, "loss": session.loss, "torch": torch.__version__}
    if session.opinion is None:
        return Outcome(facts={**facts, "not_compared": session.not_compared})
    opinion = session.opinion
    facts |= {"tensor": opinion.tensor, "precision": opinion.precision, "samples": opinion.samples}
    return Outcome(opinion.error, opinion.bound, facts)
