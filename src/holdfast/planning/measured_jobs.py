"""Trials of a job, each in a process of its own, until its time or that of all is over. No torch here.

    with Bench(budget_s=30.0, tell=bar.update) as bench:
        found = bench.measure(job, Way("cpu", threads=2), share=0.5)        # a Measurement, whatever happens
        bench.left_s

Whatever a trial does is a result: it raises, crashes, hangs, does not fit, or never ends its first step. Preparation
that says how far it is (`session.progress`) is not counted against the time: it is done once, and the run finds it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.devices import device_sensors
from holdfast.devices.ledger import Ledger
from holdfast.devices.probe_host import Child, Host
from holdfast.planning.measurement import Measurement, heard
from holdfast.planning.trial import OUTPUT, WORDS

PREPARING_S = 900.0
"""The most that preparation may take beside the time for measuring."""
LEAST_S = 2.0
"""Less is not worth starting a trial."""
TUNING, TUNING_SMALLER = 0.5, 0.2
"""Of the time for a trial: how much a script's tuner may take, without whose choice its steps are not those of a run. A
smaller form has little time, and only has to be compared."""
_QUIET_S = 15.0
"""Preparation that says nothing for so long is not counted as such."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One script with its arguments, as `holdfast train` would run it."""

    name: str
    script: Path
    settings: Mapping[str, Any]
    preset: str = ""
    argv: Sequence[str] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    """What its processes start with, unless the user has set it."""

    def reduced(self, preset: str, more: Mapping[str, str]) -> Job:
        return dataclasses.replace(self, preset=preset, arguments={**self.arguments, **more})


@dataclass(frozen=True, slots=True)
class Way:
    """A device and how it is used."""

    device: str
    precision: str = ""
    threads: int = 0
    env: tuple[tuple[str, str], ...] = ()
    """Remedies of the doctor's verdict, read when a library loads."""

    @property
    def label(self) -> str:
        return " ".join(filter(None, (self.device, self.precision)))


class TrialHost(Host):
    """Forks trials."""

    module = "holdfast.planning.trial"


class Bench:
    """Where trials are made, one at a time."""

    def __init__(
        self,
        budget_s: float,
        *,
        tell: Tell = lambda text: None,
        ledger: Ledger | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget_s, self.tell, self.clock = budget_s, tell, clock
        self.ledger = ledger
        self.spent_s = 0.0
        self._hosts: dict[tuple[tuple[str, str], ...], tuple[Host, float]] = {}
        self._place = Path(tempfile.mkdtemp(prefix="holdfast-plan-"))
        self._count = 0

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc: object) -> None:
        for host, _ in self._hosts.values():
            host.close()
        shutil.rmtree(self._place, ignore_errors=True)

    @property
    def left_s(self) -> float:
        return self.budget_s - self.spent_s

    def measure(self, job: Job, way: Way, share: float = 1.0) -> Measurement:
        """One trial, in a part of the time that is left."""
        about: dict[str, Any] = {
            "job": job.name,
            "device": way.device,
            "precision": way.precision,
            "threads": way.threads,
            "preset": job.preset,
        }
        if self.left_s < LEAST_S:
            why = f"not measured: the {self.budget_s:.0f} s for measuring were over"
            return Measurement(**about, why=why, slow=True)
        allowed = max(LEAST_S, self.left_s * share)
        host, torch_s = self._host({**job.env, **dict(way.env)})  # importing torch is no measuring
        began = self.clock()
        self._count += 1
        folder = self._place / f"trial-{self._count}"
        folder.mkdir(mode=0o700)
        opened = None
        if self.ledger is not None and way.device != "cpu":
            opened = self.ledger.open(way.device, way.label, f"plan {job.name}", processes.boot_id(), "plan")
        config = {
            "folder": str(folder), "script": str(job.script), "argv": list(job.argv),
            "arguments": dict(job.arguments), "seed": job.seed, "settings": dict(job.settings),
            "device": way.device, "precision": way.precision, "threads": way.threads,
            "seconds": max(1.0, allowed - (self.clock() - began) - 1.0),
            "tuning": TUNING_SMALLER if job.preset else TUNING,
        }  # fmt: skip
        trial = _Trial(host, host.start(config), folder, self.clock, way.device, self.tell)
        try:
            why = trial.wait(allowed - (self.clock() - began))
        finally:
            host.end(trial.child, 5.0)
            if trial.child.pid:
                processes.send_group(trial.child.pid, processes.KILL)  # loader processes that it left behind
        took = self.clock() - began
        self.spent_s += took - trial.prepared_s
        known: dict[str, Any] = {"why": why, "slow": trial.slow, "unended_s": trial.unended_s} if why else {}
        found = heard(trial.words(), torch_s, **about, **known)
        if opened is not None and self.ledger is not None:
            self.ledger.close(opened, "fault" if why else "finished", found.steps_seen, took)
        shutil.rmtree(folder / "runs", ignore_errors=True)
        return dataclasses.replace(found, prepared_s=trial.prepared_s, power_w=trial.power_w, took_s=round(took, 3))

    def _host(self, env: Mapping[str, str]) -> tuple[Host, float]:
        """The host with this environment, ready; and what it took to get so, which every run takes as well."""
        extra = {name: value for name, value in env.items() if name not in os.environ}
        key = tuple(sorted(extra.items()))
        if key not in self._hosts:
            began = self.clock()
            host = TrialHost(extra)
            while host.torch is None and not host.note and self.clock() - began < 120.0:
                host.poll()
                if host._server is None:
                    break
                time.sleep(0.01)
            self._hosts[key] = host, self.clock() - began
        return self._hosts[key]


class _Trial:
    """A trial under way."""

    def __init__(
        self, host: Host, child: Child, folder: Path, clock: Callable[[], float], device: str, tell: Tell
    ) -> None:
        self.host, self.child, self.folder, self.clock = host, child, folder, clock
        self.device, self.tell = device, tell
        self.prepared_s = 0.0
        self.slow = False
        self.unended_s = 0.0
        self._looping_at: float | None = None
        self._powers: list[float] = []
        self._read = 0
        self._said: list[dict[str, Any]] = []

    @property
    def power_w(self) -> float | None:
        return round(sum(self._powers) / len(self._powers), 1) if self._powers else None

    def wait(self, allowed_s: float) -> str:
        """Until it is over; why it did not end by itself, or nothing."""
        began = last = heard_at = asked = self.clock()
        preparing, looping, steps = False, False, 0
        while True:
            self.host.poll()
            new = self._listen()
            now = self.clock()
            for word in new:
                heard_at = now
                progress = word.get("progress")
                looping = looping or "setup" in word
                self._looping_at = now if looping and self._looping_at is None else self._looping_at
                preparing = not looping and bool(progress and (progress[1] > 1 or preparing))
                if preparing and progress:
                    self.tell(f"preparing: {progress[2]} {progress[0]} of {progress[1]}")
                if "steps" in word or "warm" in word or "epoch" in word or "warm_epoch" in word:
                    steps += int((word.get("steps") or word.get("warm") or [1])[0])
                    self.tell(f"{steps} step{'s' * (steps != 1)}")
            if preparing and now - heard_at < _QUIET_S and self.prepared_s < PREPARING_S:
                self.prepared_s += now - last
            last = now
            if now - asked > 1.0 and steps:
                asked = now
                self._ask_power()
            if self.child.code is not None:
                self._listen()
                return self._how_it_ended()
            if now - began - self.prepared_s > allowed_s:
                return self._cut(steps, allowed_s)
            time.sleep(0.02)

    def _how_it_ended(self) -> str:
        if self.child.lost:
            return "the process that measures ended"
        if any(word.get("end") for word in self._said):
            return ""
        code = self.child.code or 0
        with contextlib.suppress(ValueError):
            if code < 0:
                return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process ended with code {code}: {self._last_line()}".rstrip(": ")

    def _cut(self, steps: int, allowed_s: float) -> str:
        """The time is over. What was seen counts, if there is anything."""
        if not self.host.end(self.child, 10.0):
            return f"it hung, and process {self.child.pid} cannot be killed: it may hold the device until a reboot"
        self._listen()
        if steps:
            return ""
        self.slow = True
        doing = next((word["progress"] for word in reversed(self._said) if "progress" in word), None)
        said = f"; it was at: {doing[2]} {doing[0]} of {doing[1]}" if doing else ""
        if any("setup" in word for word in self._said):
            self.unended_s = round(self.clock() - (self._looping_at or self.clock()), 1)
            return f"its first step did not end in {allowed_s:.0f} s{said}"
        return f"no step began in {allowed_s:.0f} s{said}"

    def _listen(self) -> list[dict[str, Any]]:
        try:
            with open(self.folder / WORDS, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        new = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                word = json.loads(line)
                if isinstance(word, dict):
                    new.append(word)
        self._said += new
        return new

    def words(self) -> list[dict[str, Any]]:
        return self._said

    def _last_line(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self.folder / OUTPUT).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return lines[-1][:200] if lines else ""
        return ""

    def _ask_power(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            power = device_sensors.read(self.device).get("power_w")
            if power:
                self._powers.append(power)
