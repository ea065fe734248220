"""One file, until it is here and is what it should be.

    done = Transfer(root, wanted, journal, bell).run()      # Failed, with why, if every mirror was tried

    part        DATA/.holdfast/parts/…    grows, and is gone on with after any interruption
    quarantine  DATA/.holdfast/quarantine/…   a whole file that was not what it should be; never used, kept to look at

A body that breaks off is gone on with from its last byte. A server that is busy is asked again, later each time; one
that does not have the file makes room for the next mirror. What is complete is compared: size, then sha256 of the
manifest, else the md5 that the bucket tells. Only then it gets its name, so that a file with its name is whole.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.base import files
from holdfast.workloads.eeg.download import web
from holdfast.workloads.eeg.download.journal import Journal
from holdfast.workloads.eeg.download.planning import KEPT, Wanted

TRIES = 8
"""Attempts in a row at one mirror that bring not a single byte; any byte begins the count anew."""
LONGEST = 60.0


class Failed(Exception):
    """This file cannot be had."""


class Stopping(Exception):
    """Somebody asked to stop; the part stays."""


@dataclass
class Bell:
    """What all transfers share: progress, and a wish to stop that wakes up those who wait."""

    advance: Callable[[int], None]
    wait: Callable[[float], bool]
    """Sleep; True if it is time to stop."""
    pause: float = 0.5
    """Seconds before the second try; it doubles."""


@dataclass(frozen=True)
class Verified:
    """A file that is here and is what it should be."""

    size: int
    mtime_ns: int
    sha256: str


class Transfer:
    """Gets one file. A lock on it is held by the caller."""

    def __init__(self, root: Path, wanted: Wanted, journal: Journal, bell: Bell) -> None:
        self._root, self._wanted, self._journal, self._bell = root, wanted, journal, bell
        key = hashlib.sha256(wanted.path.encode()).hexdigest()[:32]
        self._part = root / KEPT / "parts" / key
        self._target = root / wanted.path
        self.retries = self.received = self.quarantined = 0
        self.fetched = False

    def run(self) -> Verified:
        """Use what is here if it is right, else get it from one mirror after the other."""
        there = self._look()
        if there is not None:
            return there
        self._bell.advance(self._have())
        why = []
        for url in self._wanted.urls:
            try:
                return self._from(url)
            except Failed as failed:
                why.append(f"{url.partition('//')[2].partition('/')[0]}: {failed}")
        raise Failed("; ".join(why) or "there is no address for it")

    # What is here ---------------------------------------------------------------------------------------------

    def _look(self) -> Verified | None:
        """A file with the name may have been there before us: it is used if it is right, else put aside."""
        try:
            kind = files.kind_of(self._target)
        except OSError:
            return None
        if kind is not None:
            raise Failed(f"{kind} stands where the file should be")
        problem, digest = self._compare(self._target)
        if problem is None:
            self._bell.advance(self._wanted.size or 0)
            return self._verified(digest)
        self._quarantine(self._target, problem)
        return None

    def _verified(self, digest: str) -> Verified:
        status = self._target.stat()
        return Verified(status.st_size, status.st_mtime_ns, digest)

    # One mirror -----------------------------------------------------------------------------------------------

    def _from(self, url: str) -> Verified:
        tries, spoilt = 0, 0
        while True:
            before = self._have()
            try:
                self._append(url)
                problem, digest = self._compare(self._part)
                if problem is None:
                    return self._finish(digest)
                spoilt += 1
                self._bell.advance(-self._have())
                self._quarantine(self._part, problem)
                if spoilt > 1:  # twice the same: it is the server that has another file
                    raise Failed(problem)
                tries = 0
            except web.Trouble as trouble:
                if trouble.kind == web.ELSEWHERE:
                    raise Failed(trouble.why) from trouble
                if trouble.kind == web.CHANGED:
                    self._bell.advance(-self._have())
                    files.remove(self._part)
                tries = 1 if self._have() > before else tries + 1
                if tries >= TRIES:
                    raise Failed(f"{trouble.why}, {TRIES} times") from trouble
                self.retries += 1
                self._journal.add("retry", self._wanted.path, why=trouble.why, at=self._have())
                self._rest(tries, trouble.wait)

    def _rest(self, tries: int, wait: float | None) -> None:
        longest = min(LONGEST, self._bell.pause * 2 ** (tries - 1))
        if self._bell.wait(wait if wait is not None else longest * random.uniform(0.5, 1.0)):
            raise Stopping

    def _append(self, url: str) -> None:
        """Ask for what is missing and add it to the part."""
        have, size = self._have(), self._wanted.size
        if size is not None and have >= size and (have or size == 0) and self._part.exists():
            return  # complete, or more than that: the comparison says which
        with web.get(url, start=have) as answer:
            if size is not None and answer.total is not None and answer.total != size:
                raise web.Trouble(web.ELSEWHERE, f"the server has {answer.total} bytes, {size} were announced")
            if answer.start != have:  # the server does not do ranges: from the beginning
                self._bell.advance(-have)
                have = 0
            self._receive(answer, have)
        total = size if size is not None else answer.total
        if total is not None and self._have() < total:
            raise web.Trouble(web.LATER, f"the body broke off after {self._have()} of {total} bytes")

    def _receive(self, answer: web.Answer, have: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
        fd = os.open(self._part, flags, 0o600)
        try:
            os.ftruncate(fd, have)
            os.lseek(fd, have, os.SEEK_SET)
            for chunk in answer.chunks():
                view = memoryview(chunk)
                while view:
                    view = view[os.write(fd, view) :]
                have += len(chunk)
                self.received += len(chunk)
                self._bell.advance(len(chunk))
                if self._wanted.size is not None and have > self._wanted.size:
                    break  # it lies about its size; no need to wait for all of it
                if self._bell.wait(0):
                    raise Stopping
            files.flush_to_disk(fd)
        finally:
            os.close(fd)

    def _have(self) -> int:
        try:
            return self._part.lstat().st_size
        except OSError:
            return 0

    # When it is whole -----------------------------------------------------------------------------------------

    def _compare(self, path: Path) -> tuple[str | None, str]:
        """What is wrong with a whole file, or None; and its sha256."""
        size = path.lstat().st_size
        if self._wanted.size is not None and size != self._wanted.size:
            return f"it has {size} bytes, {self._wanted.size} were announced", ""
        sha, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        with_md5 = bool(self._wanted.md5) and not self._wanted.sha256
        with files.open_regular(path) as file:
            while chunk := file.read(1 << 20):
                sha.update(chunk)
                if with_md5:
                    md5.update(chunk)
        if self._wanted.sha256 and sha.hexdigest() != self._wanted.sha256:
            return "its sha256 is not that of the manifest", sha.hexdigest()
        if with_md5 and md5.hexdigest() != self._wanted.md5:
            return "its md5 is not the one that the bucket tells", sha.hexdigest()
        return None, sha.hexdigest()

    def _finish(self, digest: str) -> Verified:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self._part, self._target)
        self.fetched = True
        files.sync_folder(self._target.parent)
        return self._verified(digest)

    def _quarantine(self, path: Path, why: str) -> None:
        folder = self._root / KEPT / "quarantine"
        folder.mkdir(exist_ok=True, mode=0o700)
        name = self._wanted.path.replace("/", "__")
        number = 1
        while (folder / f"{name}.{number}").exists():
            number += 1
        os.replace(path, folder / f"{name}.{number}")
        self.quarantined += 1
        self._journal.add("quarantined", self._wanted.path, why=why, to=f"{name}.{number}")
