"""A trial, inside its process: the script's `train` with a session that ends its loops when enough was seen of them.

    conduct(config, say, began)     # config: script, arguments, device, precision, threads, seconds, settings, folder

Everything else is as in a run: data, model, device, a snapshot after each step. Nothing is kept but the words.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from holdfast.base.board import Phase
from holdfast.data import sample_marks
from holdfast.devices import flags
from holdfast.faults.ladder import Rung
from holdfast.planning.stopwatch import IN_EPOCHS, WINDOW_S, Say, Watch
from holdfast.record.reporter import Face
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from holdfast.worker.local_run import LocalLink
from holdfast.worker.precision import force_fp32
from holdfast.worker.session import Run, Session
from holdfast.worker.worker import bind, load_train, open_device, seed_everything


class Enough(BaseException):
    """What there was time for has been seen. Not an Exception: a script may catch those."""


class TrialSession(Session):
    """A session whose epochs and batches end when enough was seen of them."""

    watch: Watch
    closing_from: float | None = None
    """When the last epoch was over."""
    tuning_s = math.inf
    """How long a script's tuner may take here (planning.measure)."""
    _said_at = 0.0

    def epochs(self, total: int, *, name: str | None = None) -> Iterator[int]:
        watch = self.watch
        watch.say(epochs=total)
        inner = super().epochs(total, name=name)
        for epoch in inner:
            watch.loop_begins()
            watch.epoch_begins()
            yield epoch
            watch.epoch_ends()
            if not watch.another_epoch(total):
                break
        inner.close()  # type: ignore[attr-defined]
        if watch.elapsed > watch.seconds:
            raise Enough
        self.closing_from = time.perf_counter()

    def batches(self, data: Any) -> Iterator[Any]:
        watch = self.watch
        watch.loop_begins()
        watch.batches_begin(len(data))
        inner = super().batches(data)
        for batch in inner:
            yield batch
            if watch.tick():
                break
        inner.close()  # type: ignore[attr-defined]
        watch.batches_end()
        if not self._loop.in_epoch and watch.elapsed > watch.seconds * IN_EPOCHS:
            raise Enough

    def _leave_step(self, loss: Any, norm: Any) -> None:
        super()._leave_step(loss, norm)
        if not self._loop.inside and self.watch.tick():  # a loop without epochs or batches
            self.watch.batches_end()
            raise Enough

    def _arrive_at_step(self) -> None:
        if not self.watch.looping:
            self.watch.loop_begins()
            self.watch.batches_begin(0)
        super()._arrive_at_step()

    def progress(self, done: int, total: int, label: str = "") -> None:
        super().progress(done, total, label)
        now = time.perf_counter()
        if now - self._said_at > 0.2 or done >= total:
            self._said_at = now
            self.watch.say(progress=[int(done), int(total), label[:100]])


def conduct(config: dict[str, Any], say: Say, began: float) -> None:
    """The whole trial; raises what the script raises, and `Enough` where the time was over before its end.

    `began` is when the process did: a fresh one has imported torch since, which a run has to do as well.
    """
    flags.apply()
    label = str(config["device"])
    device = open_device(label)
    flags.keep_free(device)
    if config.get("threads"):
        torch.set_num_threads(int(config["threads"]))
    settings = Settings.from_json(config["settings"]).override(
        {"checkpoint.every": "10h", "run.tensorboard": "false", "sentinel.enabled": "never"}, "the plan's trial"
    )
    root = Path(config["folder"]) / "runs"
    folder = RunFolder.create(root, "plan", {})
    link = LocalLink(folder, settings, Face())
    seed = int(config.get("seed", 0))
    seed_everything(seed)
    described = Run(name=folder.name, folder=folder.path, seed=seed, generation=0, resumed=False)
    rung = Rung(label, "fp32" if config.get("precision") == "fp32" else "")
    session = TrialSession(link, run=described, rungs=[rung], rung=0, settings=settings, device=device)
    if rung.precision == "fp32":
        force_fp32()
    if label.startswith("pretend"):
        from holdfast.injection import pretend

        pretend.arm(session, label, config.get("pretend"))
    session.tuning_s = float(config["seconds"]) * float(config.get("tuning", 0.5))
    wait = _waiting(device)
    session.watch = Watch(say, float(config["seconds"]), window_s=0.0 if device.type == "cpu" else WINDOW_S, wait=wait)
    sample_marks.begin(folder.path, policy=sample_marks.Policy.of(settings.data), beat=link.board.beat, tell=link.send)
    try:
        train = load_train(Path(config["script"]), list(config.get("argv", ())))
        say(imported=time.perf_counter() - began)
        session.watch.began = time.perf_counter()
        train(session, **bind(train, dict(config.get("arguments", {}))))
        if session.closing_from is not None:
            say(closing=time.perf_counter() - session.closing_from)
        session._finish()
    finally:
        _last_facts(say, session, link, device, folder.path)
        sample_marks.end()
        link.close()


def _waiting(device: torch.device) -> Callable[[], None]:
    module: Any = getattr(torch, device.type, None)
    if device.type == "cpu" or not hasattr(module, "synchronize"):
        return lambda: None
    return lambda: module.synchronize()


def _computing(session: TrialSession) -> float | None:
    """The part of a step that a faster device would speed up; None where phases do not tell, as on a device that works
    on while the script goes on."""
    if session.device.type != "cpu" or not session.watch.in_batches:
        return None
    spent = {phase: times.spent_s for phase, times in session._board.read().times.items()}
    device = sum(spent[phase] for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))
    other = sum(spent[phase] for phase in (Phase.DATA, Phase.TO_DEVICE, Phase.SNAPSHOT, Phase.LOOP))
    return device / (device + other) if device > 0 else None


def _last_facts(say: Say, session: TrialSession, link: LocalLink, device: torch.device, folder: Path) -> None:
    """Memory, what a save takes, which settings the tuner took."""
    memory: dict[str, Any] = {"pieces": session._pieces, "compute": _computing(session)}
    if sys.platform != "win32":
        import resource

        scale = 1 if sys.platform == "darwin" else 1024
        with contextlib.suppress(OSError, ValueError):
            memory["memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError, AssertionError):
            memory["device_memory_bytes"] = int(torch.cuda.max_memory_reserved(device))
            memory["device_total_bytes"] = int(torch.cuda.get_device_properties(device).total_memory)
    say(facts=memory)
    tuned = folder / "tuning.json"
    if tuned.is_file():
        with contextlib.suppress(OSError, ValueError):
            say(tuning=json.loads(tuned.read_text(encoding="utf-8")).get(str(device)))
    if device.type == "cpu" or not session._context.over:
        with contextlib.suppress(Exception):  # a state that cannot be saved is no reason to say nothing
            began = time.perf_counter()
            link.save()
            size = sum(each.stat().st_size for each in (folder / "checkpoints").rglob("*") if each.is_file())
            say(save=time.perf_counter() - began, state_bytes=size)
