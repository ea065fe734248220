"""One probe from its start to its last result: watched, timed, killed when it must be. No torch here.

    turn = Turn(probe, "cuda:0", host, folder, ledger=ledger, ...)
    for result in turn.results(): ...

The clock starts anew with every word of the child: it is silence that counts, not length. A child with a compiler at
work below it is not silent. What dies is asked how it died, in which check, and with which last words.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.devices import device_sensors
from holdfast.devices.ledger import Ledger, Opened
from holdfast.devices.probe_catalog import Probe
from holdfast.devices.probe_host import Child, Host
from holdfast.devices.results import ProbeResult, skipped

RUNG = "probe"
"""Under which the ledger keeps the probes of a device."""
WORDS, OUTPUT = "words.jsonl", "output.txt"
KILL_GRACE = 10.0
"""Seconds a process has to vanish after SIGKILL before it is left behind."""
COMPILING = 5.0
"""Times its deadline that a probe gets while a compiler is at work."""
STARTING = 120.0
"""Seconds more until a process that has to import torch first says its first word."""
_COMPILERS = ("clang", "comgr", "ptxas", "nvcc", "cc1plus", "g++", "c++", "ld.lld", "cl.exe", "hipcc", "ocloc")
_LOOK = 0.25
"""Seconds between looks at memory and temperature."""
_COMPANY = 600.0


class Turn:
    """A probe at work."""

    abandoned = ""
    """What to say of the probes that follow, if this one cannot be killed."""

    def __init__(
        self,
        probe: Probe,
        device: str,
        host: Host,
        folder: Path,
        *,
        ledger: Ledger | None,
        full: bool,
        deadline_s: float,
        options: dict[str, Any],
        announce: Callable[[str], None],
        before: Mapping[str, str],
        shared: bool = False,
    ) -> None:
        self.probe = probe
        self.device = device
        self.host = host
        self.folder = folder
        self.ledger = ledger
        self.deadline_s = deadline_s
        self.announce = announce
        self._frozen = next((check for check in probe.checks if probe.named(check) in before), None)
        self._when = before.get(probe.named(self._frozen), "") if self._frozen is not None else ""
        spec = probe.to_json()
        self._config: dict[str, Any] = {
            "device": device,
            "probe": {**spec, "options": {**spec["options"], **options}},
            "folder": str(folder),
            "full": full,
            "gate": ledger is not None,
            "stop_at": self._frozen,
        }
        self._shared, self._over = shared, False
        self._child: Child | None = None
        self._second: Child | None = None
        self._opened: Opened | None = None
        self._check: str | None = None
        self._told: set[str] = set()
        self._turns = 0
        self._read = 0
        self._began = self._word = time.monotonic()
        self._looked = 0.0
        self._cap = memory_cap()
        self._hot: device_sensors.Reading = {}
        self._hung: dict[str, Any] = {}
        self._greedy = 0
        self._skip = ""

    # -- from start to end -----------------------------------------------------------------------------------

    def results(self) -> Iterator[ProbeResult]:
        if self._frozen == self.probe.checks[0]:
            yield from self._rest("")
            return
        if self.probe.company:
            self._second = self._occupy()
            if self._second.code is not None:
                why = "a second process could not use the device"
                yield self._result(self.probe.checks[0], "failed", why=why, **self._last_words(self.folder / "second"))
                return
        cold = device_sensors.read(self.device) if self.probe.situation == "sustained" else {}
        bad = ""
        for _ in range(2):
            for result in map(self._with_second, self._checks()):
                bad = bad or ("" if result.status in ("passed", "skipped") else result.probe)
                yield self._warm(result, cold)
            if self._told or not self._lost():
                break
        ended = self._ended()
        if ended is not None:
            bad = ended.probe
            yield ended
        yield from self._rest(bad)

    def close(self) -> None:
        """Leave nothing behind, whatever happened."""
        stays = self._child if self._shared and self._over else None
        for child in (self._child, self._second):
            if child is not None and child.code is None and child is not stays:
                self.host.end(child, 1.0)
        self._settle(0.0)

    def _checks(self) -> Iterator[ProbeResult]:
        """What one process has to tell."""
        (self.folder / WORDS).unlink(missing_ok=True)
        self._turns = self._read = 0
        self._child = self.host.share(self._config) if self._shared else self.host.start(self._config)
        self._began = self._word = time.monotonic()
        for said in self._listen(self._child):
            result = self._heard(said)
            if result is not None:
                yield result

    def _lost(self) -> bool:
        """It ended with the process it was forked from, not by itself: the next one is started without."""
        return self._child is not None and self._child.lost

    def _listen(self, child: Child) -> Iterator[dict[str, Any]]:
        """Its words as they come, until it ends or has to be ended."""
        pause, forked = 0.001, bool(child.pid)
        while True:
            self.host.poll()
            if child.pid and not forked:  # until now it waited for torch to be imported
                self._word, forked = time.monotonic(), True
            over = child.code is not None
            said = list(self._words())
            if said:
                self._word, pause = time.monotonic(), 0.001
            yield from said
            if over or (self._shared and self._over) or self._too_long(child) or self._too_much(child):
                return
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)

    def _words(self) -> Iterator[dict[str, Any]]:
        try:
            with open(self.folder / WORDS, "rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return
        whole = new.rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                said = json.loads(line)
                if isinstance(said, dict):
                    yield said

    def _heard(self, said: dict[str, Any]) -> ProbeResult | None:
        self._over = self._over or said.get("end") is True
        if "check" in said:
            self._begin(str(said["check"]))
            return None
        if "done" not in said:
            return None
        check = str(said["done"])
        status = "skipped" if said.get("skip") else "passed" if said.get("ok") is True else "failed"
        facts = said.get("facts")
        why = str(said.get("skip") or said.get("why") or "")
        self._skip = str(said.get("skip") or "")
        if status == "failed" and not why:
            why = _off(said.get("error"), said.get("bound"))
        seconds = said.get("seconds")
        self._settle(float(seconds) if isinstance(seconds, (int, float)) else 0.0)
        self._check = None
        return self._result(
            check,
            status,
            error=_number(said.get("error")),
            bound=_number(said.get("bound")),
            seconds=_number(seconds) or 0.0,
            why=why,
            **(facts if isinstance(facts, dict) else {}),
        )

    def _begin(self, check: str) -> None:
        """On record first; then the child may go on."""
        self._check = check
        self._turns += 1
        self.announce(self.probe.named(check))
        if self.ledger is not None:
            self._settle(0.0)
            act = f"{RUNG} {self.probe.named(check)}"
            self._opened = self.ledger.open(self.device, RUNG, run="doctor", boot_id=processes.boot_id(), act=act)
            (self.folder / f"go-{self._turns}").touch()

    def _settle(self, seconds: float) -> None:
        """The machine is still there."""
        if self.ledger is not None and self._opened is not None:
            self.ledger.close(self._opened, "finished", seconds=seconds)
            self._opened = None

    # -- limits ----------------------------------------------------------------------------------------------

    def _too_long(self, child: Child) -> bool:
        silent = time.monotonic() - self._word
        starting = not child.pid or (child.popen is not None and not self._turns)
        if silent < self.deadline_s + (STARTING if starting else 0.0):
            return False
        if silent < COMPILING * self.deadline_s and (_compiling(child.pid) or self._caches_grow()):
            return False
        self._hung = {**_state(child.pid), "silent_s": round(silent, 1)}
        if not self.host.end(child, KILL_GRACE):
            self.abandoned = f"not tried: process {child.pid} cannot be killed and may hold the device until a reboot"
            self._hung["abandoned"] = child.pid
        return True

    def _caches_grow(self) -> bool:
        """Some drivers compile inside of the process: then kernels appear in the caches, which nobody else uses."""
        since = time.time() - self.deadline_s
        for path in self.host.caches.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_mtime > since:
                    return True
        return False

    def _too_much(self, child: Child) -> bool:
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return False
        self._looked = now
        if self.probe.situation == "sustained":
            self._hot = device_sensors.hotter(self._hot, device_sensors.read(self.device))
        info = processes.inspect(child.pid) if child.pid else None
        if info is None or info.rss_bytes <= self._cap:
            return False
        self._greedy = info.rss_bytes
        self.host.end(child, KILL_GRACE)
        return True

    # -- ends ------------------------------------------------------------------------------------------------

    def _ended(self) -> ProbeResult | None:
        """What the end of the process says, where its words do not."""
        child = self._child
        assert child is not None
        if child.code is None and self._over:  # it stays for the next
            return None
        check = self._check if self._check is not None else self._next()
        if check is None or (self._check is None and child.code == 0 and not self._hung):
            return None
        seconds = round(time.monotonic() - self._began, 3)
        words = self._last_words(self.folder)
        if self._greedy:
            why = f"it took {self._greedy >> 20} MB of memory, and {self._cap >> 20} are allowed"
            return self._result(check, "failed", seconds=seconds, why=why, rss_bytes=self._greedy, **words)
        if self._hung:
            why = f"no sign of life for {self._hung['silent_s']:.0f} s"
            if "abandoned" in self._hung:
                why += f", and process {self._hung['abandoned']} cannot be killed"
            return self._result(check, "hung", seconds=seconds, why=why, **self._hung, **words)
        if child.lost:
            return self._result(check, "skipped", seconds=seconds, why=f"it was ended from outside: {self.host.note}")
        name = _signal(child.code)
        why = f"its process {_how(child.code)}"
        said: dict[str, Any] = {"signal": name} if name else {"exit_code": child.code}
        if self._second is not None and self._second.code not in (None, 0):
            said["second_process"] = "ended as well"
        return self._result(check, "crashed", seconds=seconds, why=why, **said, **words)

    def _next(self) -> str | None:
        return next((check for check in self.probe.checks if check not in self._told), None)

    def _rest(self, bad: str) -> Iterator[ProbeResult]:
        """The checks that were not reached."""
        left = [check for check in self.probe.checks if check not in self._told]
        if not left:
            return
        if self._frozen is not None and not bad:
            why = "the last time, it took the machine down; it is not done again unless told to"
            more = {"took_machine_down": True, "time": self._when}
            yield from skipped(self.probe, self.device, left[:1], why, **more)
            yield from skipped(self.probe, self.device, left[1:], "not reached")
        else:
            yield from skipped(
                self.probe, self.device, left, f"not reached: {bad}" if bad else self._skip or "not reached"
            )

    def _result(self, check: str, status: str, **said: Any) -> ProbeResult:
        self._told.add(check)
        own = {name: said.pop(name) for name in ("error", "bound", "seconds") if name in said}
        evidence = {**self.probe.traits(check), **{name: value for name, value in said.items() if value != ""}}
        return ProbeResult(self.probe.named(check), self.device, status, evidence=evidence, **own)

    def _warm(self, result: ProbeResult, cold: device_sensors.Reading) -> ProbeResult:
        if cold:
            hot = device_sensors.hotter(self._hot, device_sensors.read(self.device))
            result.evidence["sensors"] = {"before": cold, "most": hot}
            more = device_sensors.errors(hot) - device_sensors.errors(cold)
            if more > 0 and result.ok:
                result.evidence["why"] = f"the device counted {more} errors of its own under load"
                return ProbeResult(
                    result.probe, result.device, "failed", result.error, result.bound, result.seconds, result.evidence
                )
        return result

    # -- a second process ------------------------------------------------------------------------------------

    def _occupy(self) -> Child:
        """Somebody else on the device, at work."""
        folder = self.folder / "second"
        folder.mkdir()
        child = self.host.start({**self._config, "folder": str(folder), "gate": False, "occupy": _COMPANY})
        until = time.monotonic() + self.deadline_s
        while child.code is None and time.monotonic() < until:
            self.host.poll()
            with contextlib.suppress(OSError):
                if "occupying" in (folder / WORDS).read_text(encoding="utf-8"):
                    break
            time.sleep(0.005)
        return child

    def _with_second(self, result: ProbeResult) -> ProbeResult:
        """A second process that died meanwhile is what was looked for."""
        self.host.poll()
        if self._second is None or self._second.code is None or not result.ok:
            return result
        why = f"the second process on the device {_how(self._second.code)}"
        return self._result(
            self.probe.checks[0], "crashed", seconds=result.seconds, why=why, **self._last_words(self.folder / "second")
        )

    @staticmethod
    def _last_words(folder: Path) -> dict[str, Any]:
        try:
            text = (folder / OUTPUT).read_bytes()[-4000:].decode(errors="replace")
        except OSError:
            return {}
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        return {"last_words": lines[-6:]} if lines else {}


def _off(error: object, bound: object) -> str:
    if not isinstance(error, (int, float)):
        return "it is not finite"
    return f"it is off by {error:.2g}, the bound is {bound:.2g}" if isinstance(bound, (int, float)) else "it is wrong"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _signal(code: int | None) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name if code is not None and code < 0 else ""
    return ""


def _how(code: int | None) -> str:
    name = _signal(code)
    return f"was killed by {name}" if name else f"ended with code {code}"


def _compiling(pid: int) -> bool:
    """A compiler runs below it, or in its group."""
    if not pid:
        return False
    words = " ".join(processes.children(pid).values())
    return any(name in words for name in _COMPILERS)


def memory_cap() -> int:
    """Bytes of the machine's memory that a probe may take: enough for the context of any device, never all there is."""
    room = processes.available_memory()
    return 16 << 30 if room is None else max(1 << 30, min(16 << 30, room * 7 // 10))


def _state(pid: int) -> dict[str, Any]:
    """Busy or asleep: the one is an endless kernel or loop, the other a signal that was lost."""
    info = processes.inspect(pid) if pid else None
    return {} if info is None else {"process_state": info.state, "cpu_ticks": info.cpu_ticks}
