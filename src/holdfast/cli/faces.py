"""Who shows a run while it runs: a terminal, a pipe or file, or nobody.

    face = face_choice.choose(output, header)  # Careful(TerminalFace | PlainFace | QuietFace)
    Supervisor(run, plan, settings, face).run()
    face.close()

A face is told everything and asked nothing. It must never disturb the run: `Careful` silences one whose
terminal was closed, whose pipe was broken, or which is simply wrong.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.console.output import Screen
from holdfast.console.text import Lines, without_control
from holdfast.monitor.bottleneck import Bottleneck, judge
from holdfast.record.reporter import Face
from holdfast.run import machine
from holdfast.run.events import Event

PROGRESS_EVERY = 60.0
"""Seconds between two progress lines in a file."""
_BARE = re.compile(r"[\w./:+@%,~\-\[\]]+")


@dataclass(slots=True)
class Header:
    """What is known before the first step."""

    version: str
    run: str
    handle: str
    """What to call it in a command: its name, or its folder."""
    workload: str
    folder: str
    device: str
    """Device and precision of the rung it starts on."""
    seed: int
    differs: list[str] = field(default_factory=list)
    """Settings and arguments that are not the default, as a person would write them."""
    resumed_from: int | None = None
    threads: int | None = None
    bell: bool = False
    """Whether the terminal rings when the run ends or needs somebody."""


class QuietFace(Face):
    """Shows nothing."""

    def close(self) -> None:
        return None


class Careful(QuietFace):
    """A face that cannot hurt the run: when it fails, it is silent from then on."""

    def __init__(self, face: QuietFace) -> None:
        self.face: QuietFace | None = face
        self.why: str | None = None

    def event(self, event: Event) -> None:
        self._tell(lambda face: face.event(event))

    def beat(self, info: dict[str, Any]) -> None:
        self._tell(lambda face: face.beat(info))

    def output(self, text: str) -> None:
        self._tell(lambda face: face.output(text))

    def close(self) -> None:
        self._tell(lambda face: face.close())

    def _tell(self, say: Callable[[QuietFace], None]) -> None:
        if self.face is None:
            return
        try:
            say(self.face)
        except Exception:  # an edge: whatever is wrong with the showing, the run goes on
            self.why = traceback.format_exc()
            broken, self.face = self.face, None
            with contextlib.suppress(Exception):  # give the terminal its cursor back, if there still is one
                broken.close()


class Epochs:
    """The numbers of the epoch under way, until its end makes a row of them."""

    def __init__(self) -> None:
        self.values: dict[str, float | None] = {}
        self.loss: float | None = None
        self.began: float | None = None

    def starts(self, event: Event) -> None:
        """A worker begins: the first epoch is not charged with importing torch."""
        if self.began is None:
            self.began = event.seconds()

    def log(self, event: Event) -> None:
        values = event.data.get("values")
        if isinstance(values, dict):
            self.values.update(values)

    def end(self, event: Event) -> tuple[dict[str, float | None], float | None]:
        """The values of the epoch that ended, and its seconds."""
        now = event.seconds()
        seconds = None if now is None or self.began is None else now - self.began
        loss = event.data.get("loss", self.loss)
        values = self.values or ({} if loss is None else {"loss": loss})
        self.values, self.began = {}, now
        return values, seconds


class Bound:
    """What binds the run, told once it is clear and again when it has changed for good."""

    SURE = 20
    """Beats in a row that must agree before it is told."""

    def __init__(self, threads: int | None) -> None:
        self.threads = threads
        self._told: str | None = None
        self._seen: tuple[str, int] = ("", 0)

    def news(self, info: dict[str, Any]) -> Bottleneck | None:
        """The verdict, if somebody should hear it now."""
        found = judge(info, threads=self.threads, cpus=machine.usable_cpus())
        if found is None or found.bound == "limit":  # a limit has told so itself
            return None
        bound, times = self._seen
        self._seen = (found.bound, times + 1 if bound == found.bound else 1)
        if found.bound == self._told or self._seen[1] < self.SURE:
            return None
        self._told = found.bound
        return found


class PlainFace(QuietFace):
    """One line an event, for files and pipes: ISO time, a word, key=value. No control characters, ever."""

    def __init__(self, screen: Screen, header: Header, *, progress: bool = True) -> None:
        self.screen = screen
        self.header = header
        self._every = PROGRESS_EVERY if progress else None
        self._last_progress = time.monotonic()
        self._lines = Lines()
        self._epochs = Epochs()
        self._bound = Bound(header.threads)

    def event(self, event: Event) -> None:
        handler = getattr(self, f"_on_{event.kind}", None)
        if handler is not None:
            handler(event)
        else:
            self._write(event.time, event.kind, **event.data)

    def _on_start(self, event: Event) -> None:
        header = self.header
        device, _, precision = header.device.partition(" ")
        self._write(
            event.time,
            "start",
            run=header.run,
            workload=header.workload,
            device=device,
            dtype=precision or None,
            seed=header.seed,
            folder=header.folder,
            resumed_from=header.resumed_from,
        )

    def _on_worker(self, event: Event) -> None:
        self._epochs.starts(event)

    def _on_log(self, event: Event) -> None:
        self._epochs.log(event)

    def _on_epoch(self, event: Event) -> None:
        values, seconds = self._epochs.end(event)
        self._write(
            event.time,
            "epoch",
            epoch=int(event.data.get("epoch", 0)) + 1,
            step=event.data.get("step"),
            **values,
            saved=bool(event.data.get("best")),
            seconds=None if seconds is None else round(seconds, 1),
            device=event.data.get("device"),
        )

    def _on_fault(self, event: Event) -> None:
        keys = ("code", "device", "step", "phase", "kind", "action", "reason", "folder")
        self._write(event.time, "fault", **{key: event.data.get(key) for key in keys})

    def _on_end(self, event: Event) -> None:
        for line in self._lines.flush():
            self._write_output(event.time, line)
        error = event.data.get("error") or {}
        keys = ("state", "exit_code", "step")
        known = {key: event.data.get(key) for key in keys}
        self._write(event.time, "end", **known, message=error.get("message"), saved=error.get("saved"))

    def beat(self, info: dict[str, Any]) -> None:
        self._epochs.loss = info.get("loss")
        bottleneck = self._bound.news(info)
        if bottleneck is not None:
            self._write(str(info.get("time")), "bottleneck", **bottleneck.to_json())
        now = time.monotonic()
        if self._every is None or now - self._last_progress < self._every:
            return
        self._last_progress = now
        total = info.get("steps_total")
        step = f"{info.get('step')}/{total}" if total else info.get("step")
        pct = round(100 * int(info.get("step") or 0) / total) if total else None
        epoch = int(info.get("epoch") or 0) + 1 if info.get("epochs") else None
        work = info.get("progress") or {}
        self._write(
            str(info.get("time")),
            "progress",
            phase=info.get("phase"),
            epoch=epoch,
            pct=pct,
            step=step,
            rate=info.get("rate"),
            eta_s=info.get("time_left_s"),
            loss=info.get("loss"),
            setup=f"{work.get('done')}/{work.get('total')}" if work else None,
        )

    def output(self, text: str) -> None:
        from holdfast.run.events import utc_now

        now = utc_now()
        for line in self._lines.feed(text):
            self._write_output(now, line)

    def _write_output(self, when: str, line: str) -> None:
        self.screen.write(f"{to_the_second(when)} output {without_control(line)}".rstrip())

    def _write(self, when: str, word: str, **values: Any) -> None:
        pairs = [f"{key}={plain_value(value)}" for key, value in values.items() if value is not None]
        self.screen.write(" ".join([to_the_second(when), word, *pairs]))


def plain_value(value: Any) -> str:
    """A value that a `split()` keeps in one piece, or JSON in quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else str(value)
    return text if _BARE.fullmatch(text) else json.dumps(without_control(text), ensure_ascii=False)


def to_the_second(when: str) -> str:
    """2026-11-15T09:12:04.123Z to the second."""
    return re.sub(r"\.\d+Z$", "Z", when)
