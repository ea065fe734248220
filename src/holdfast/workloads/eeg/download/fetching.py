"""Many files at once: threads, locks, space, progress; and an account of it.

    result = fetch(plan, parallel=8, progress=lambda done, total: ...)
    result.got, result.verified, result.failed, result.retries

Two processes may fetch into one folder: each file is locked by who is getting it, and what the other has got is used.
KeyboardInterrupt stops within a moment; parts stay, and the next run goes on with them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.errors import UserError
from holdfast.base.files import in_folder
from holdfast.base.human import size as in_words
from holdfast.workloads.eeg import locking
from holdfast.workloads.eeg.download.journal import Journal
from holdfast.workloads.eeg.download.planning import KEPT, Plan, Wanted
from holdfast.workloads.eeg.download.transfer import Bell, Failed, Stopping, Transfer

RESERVE = 256 << 20
"""Bytes that are left free: a disk that is full to the last one breaks other programs."""


@dataclass
class Result:
    """What became of a plan."""

    got: int = 0
    bytes: int = 0
    """That came over the network."""
    verified: int = 0
    """Files that were here already, and are right."""
    retries: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    quarantined: int = 0
    seconds: float = 0.0


def fetch(
    plan: Plan,
    *,
    parallel: int = 8,
    pause: float = 0.5,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Get everything that is not here yet; what cannot be had is in `failed`, the rest is here and verified."""
    for name in ("", "parts", "locks"):
        (plan.folder / KEPT / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    _guard_space(plan)
    return _Fetch(plan, parallel, pause, progress).run()


def _guard_space(plan: Plan) -> None:
    parts = sum(status.st_size for _, status in in_folder(plan.folder / KEPT / "parts"))
    free, needed = shutil.disk_usage(plan.folder).free, plan.bytes_to_get - parts
    if needed + RESERVE > free:
        raise UserError(
            f"{in_words(needed)} are to be fetched, {in_words(free)} are free in {plan.folder}",
            cause="nothing was fetched",
            hints=["choose fewer releases, tasks or subjects, `--mini`, or another disk"],
        )


class _Fetch:
    def __init__(self, plan: Plan, parallel: int, pause: float, progress: Callable[[int, int], None] | None) -> None:
        self._plan, self._parallel, self._progress = plan, parallel, progress
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._journal = Journal(plan.folder)
        self._bell = Bell(self._advance, self._stop.wait, pause)
        self._result = Result(verified=len(plan.files) - len(plan.to_get))
        self._done = plan.bytes_total - plan.bytes_to_get
        self._full: OSError | None = None

    def run(self) -> Result:
        began = time.monotonic()
        try:
            self._all(deque(self._plan.to_get))
        finally:
            self._stop.set()
            self._journal.close()
            self._result.seconds = time.monotonic() - began
        if self._full is not None:
            raise UserError(
                f"no space is left in {self._plan.folder}",
                cause=str(self._full.strerror or self._full),
                saved="what was fetched stays, parts too",
                hints=["make room and run the same command again: it goes on where it was"],
            ) from self._full
        return self._result

    def _all(self, waiting: deque[Wanted]) -> None:
        """Keep the threads busy; a file that another process is getting goes to the end of the queue."""
        running: dict[Future[bool], Wanted] = {}
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="fetch") as pool:
            try:
                while (waiting or running) and not self._stop.is_set():
                    while waiting and len(running) < self._parallel:
                        wanted = waiting.popleft()
                        running[pool.submit(self._one, wanted)] = wanted
                    done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                    for future in done:
                        wanted = running.pop(future)
                        if not future.result():
                            waiting.append(wanted)
                    if self._progress is not None:
                        self._progress(self._done, self._plan.bytes_total)
            except BaseException:
                self._stop.set()
                raise

    def _one(self, wanted: Wanted) -> bool:
        """Get one file; False if another process has it in its hands."""
        name = hashlib.sha256(wanted.path.encode()).hexdigest()[:32]
        transfer = Transfer(self._plan.folder, wanted, self._journal, self._bell)
        try:
            with locking.held(self._plan.folder / KEPT / "locks" / name):
                verified = transfer.run()
                facts = {"size": verified.size, "mtime_ns": verified.mtime_ns, "sha256": verified.sha256}
                self._journal.add("verified", wanted.path, **facts)
                with self._lock:
                    self._result.got += transfer.fetched
                    self._result.verified += not transfer.fetched
        except locking.Busy:
            self._stop.wait(0.3)
            return False
        except Stopping:
            return True
        except Failed as failed:
            self._fail(wanted.path, str(failed))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._full = error
                self._stop.set()
            else:
                self._fail(wanted.path, f"{os.path.basename(str(error.filename or ''))}: {error.strerror or error}")
        finally:
            with self._lock:
                self._result.retries += transfer.retries
                self._result.bytes += transfer.received
                self._result.quarantined += transfer.quarantined
        return True

    def _fail(self, path: str, why: str) -> None:
        self._journal.add("failed", path, why=why)
        with self._lock:
            self._result.failed[path] = why

    def _advance(self, count: int) -> None:
        with self._lock:
            self._done += count


def leftovers(folder: Path) -> list[str]:
    """Names in the quarantine."""
    try:
        return sorted(each.name for each in (folder / KEPT / "quarantine").iterdir())
    except OSError:
        return []
