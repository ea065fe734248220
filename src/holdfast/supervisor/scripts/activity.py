"""Is a silent script computing? CPU time of everything it started, and of the GPU's engines where the kernel tells.

    activity = Activity(script_processes)
    activity.look()                      # every few seconds while it is silent
    activity.busy()                      # True, False, or None where nothing can be known

The engines of AMD and Intel cards are counted in /proc (fdinfo). NVIDIA's driver does not do that: there nvidia-smi is
asked, as a child with a deadline, because a driver that hangs hangs whoever asks it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import deque

from holdfast.devices import nvidia
from holdfast.record.evidence.reader import Reader
from holdfast.supervisor.scripts.script_processes import ScriptProcesses

EVERY = 2.0
"""Seconds between two looks."""
CPU_SHARE = 0.2
"""Of one core, from which on it counts as computing: a thread that waits in a loop of sleeps takes a few percent."""
GPU_SHARE = 0.05
WINDOW = 10.0
"""Seconds it is judged over."""
_USE = nvidia.query("utilization.gpu")


class Activity:
    """What a silent script did in the last seconds."""

    def __init__(self, script_processes: ScriptProcesses) -> None:
        self.script_processes = script_processes
        self.known = script_processes.adopts
        self._marks: deque[tuple[float, float, float, bool]] = deque(maxlen=64)
        self._looked = 0.0
        self._nvidia: Reader | None = None
        self._gpu_use: float | None = None
        self._has_nvidia = shutil.which("nvidia-smi") is not None and os.path.exists("/dev/nvidiactl")

    def forget(self) -> None:
        """It said something: what it did before does not matter."""
        self._marks.clear()
        self._gpu_use = None

    def look(self) -> None:
        now = time.monotonic()
        if not self.known or now - self._looked < EVERY:
            return
        self._looked = now
        members = self.script_processes.members()
        ready = any(member.state == "R" for member in members.values())
        self._marks.append((now, self.script_processes.cpu_seconds(members), _gpu_seconds(list(members)), ready))
        self._ask_nvidia()

    def _ask_nvidia(self) -> None:
        if not self._has_nvidia:
            return
        if self._nvidia is None:
            self._nvidia = Reader(_USE, 5.0)
            return
        answer = self._nvidia.answer()
        if answer is None:
            return
        self._nvidia = None
        numbers = [int(word) for word in answer.text.split() if word.isdigit()] if not answer.why else []
        self._gpu_use = max(numbers) / 100 if numbers else None

    def busy(self) -> bool | None:
        """Does it compute? None before there are two looks, or where processes cannot be looked at."""
        recent = [mark for mark in self._marks if mark[0] >= time.monotonic() - WINDOW]
        if len(recent) < 2:
            return None
        (begin, cpu, gpu, _), (end, cpu_now, gpu_now, _) = recent[0], recent[-1]
        if 2 * sum(ready for _, _, _, ready in recent) >= len(recent):  # on a busy machine it has to wait its turn
            return True
        seconds = max(0.001, end - begin)
        if (cpu_now - cpu) / seconds >= CPU_SHARE or (gpu_now - gpu) / seconds >= GPU_SHARE:
            return True
        return self._gpu_use is not None and self._gpu_use >= GPU_SHARE

    def pids(self) -> set[int]:
        """Processes of ours that are under way."""
        pid = self._nvidia.pid if self._nvidia is not None else None
        return {pid} if pid is not None else set()

    def close(self) -> None:
        if self._nvidia is not None:
            self._nvidia.kill("the run is over")
            self._nvidia = None


def _gpu_seconds(pids: list[int]) -> float:
    """Time of all engines of AMD and Intel cards that these processes have used; a device is counted once."""
    total = 0
    for pid in pids:
        clients: dict[str, int] = {}
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fdinfo"):
                with contextlib.suppress(OSError), open(entry.path, encoding="ascii", errors="replace") as file:
                    text = file.read(4096)
                if "drm-engine-" not in text:
                    continue
                client, spent = _engines(text)
                clients[client] = max(clients.get(client, 0), spent)
        total += sum(clients.values())
    return total / 1e9


def _engines(text: str) -> tuple[str, int]:
    """The client a file of fdinfo speaks of, and the nanoseconds of its engines."""
    client, spent = "", 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name in ("drm-client-id", "drm-pdev"):
            client += value.strip()
        elif name.startswith("drm-engine-") and not name.startswith("drm-engine-capacity") and words:
            spent += int(words[0]) if words[0].isdigit() else 0
    return client, spent
