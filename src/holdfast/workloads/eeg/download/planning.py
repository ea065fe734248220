"""What was asked for, what of it is here already, and what is to be fetched.

    plan = planning.plan("data", Selection(releases=("R5",), tasks=("RestingState",)))
    plan.files                      # Wanted: path, size, digests, where to get it
    plan.bytes_total, plan.bytes_to_get, plan.lines()

A manifest (release, path, size, sha256; tab-separated, may be gzipped) adds the digests that a bucket does not tell,
and is enough by itself where a bucket refuses to be listed. The data set of a release lands in DATA/R5.
"""

from __future__ import annotations

import fnmatch
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.base.human import count, counted, size, table
from holdfast.workloads.eeg.download import listing, web
from holdfast.workloads.eeg.download.sources import Source, places

KEPT = ".holdfast"
"""Beside the data: journal, index of verified files, locks, parts, quarantine."""
_MAX_MANIFEST = 512 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)*")


@dataclass(frozen=True, slots=True)
class Selection:
    """What to get. Nothing named is everything."""

    releases: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    source: str = "competition"
    mini: bool = False
    manifest: str = ""

    def takes(self, path: str) -> bool:
        """Whether a file of a data set belongs to it: the set's own files always do."""
        subject = re.match(r"sub-([A-Za-z0-9]+)/", path)
        if subject is None:
            return "/" not in path or path.startswith("code/")
        if self.subjects and subject[1] not in {each.removeprefix("sub-") for each in self.subjects}:
            return False
        task = re.search(r"_task-([A-Za-z0-9]+)", path)
        return not self.tasks or task is None or any(fnmatch.fnmatchcase(task[1], each) for each in self.tasks)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file: where it goes, what it has to be, where it can be had."""

    path: str
    """Below the folder of the data, with the release: R5/sub-…/eeg/…"""
    size: int | None
    sha256: str
    md5: str
    urls: tuple[str, ...]


@dataclass
class Plan:
    """Everything that belongs to a selection."""

    folder: Path
    files: list[Wanted]
    here: set[str]
    """Paths of files that were verified before and have not changed since."""
    notes: list[str] = field(default_factory=list)

    @property
    def to_get(self) -> list[Wanted]:
        return [each for each in self.files if each.path not in self.here]

    @property
    def bytes_total(self) -> int:
        return sum(each.size or 0 for each in self.files)

    @property
    def bytes_to_get(self) -> int:
        return sum(each.size or 0 for each in self.to_get)

    def lines(self) -> list[str]:
        """A line for each release, and the sum."""
        rows = []
        for release in sorted({each.path.partition("/")[0] for each in self.files}, key=_order):
            mine = [each for each in self.files if each.path.startswith(f"{release}/")]
            people = {each.path.split("/")[1] for each in mine if "/sub-" in each.path}
            told = sum(1 for each in mine if each.sha256)
            rows.append(
                (release, count(len(people)), count(len(mine)), size(sum(e.size or 0 for e in mine)), count(told))
            )
        lines = table(rows, header=("RELEASE", "SUBJECTS", "FILES", "SIZE", "WITH SHA256"), right=(1, 2, 3, 4))
        return [
            *lines,
            "",
            f"{counted(len(self.files), 'file')}, {size(self.bytes_total)}; here already: "
            f"{count(len(self.files) - len(self.to_get))}; to get: {size(self.bytes_to_get)}",
        ]


def plan(
    folder: str | os.PathLike[str],
    selection: Selection,
    *,
    bases: dict[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Ask the buckets what there is, and look at what is here."""
    root = Path(folder)
    digests = _manifest(Path(selection.manifest)) if selection.manifest else {}
    notes: list[str] = []
    wanted: list[Wanted] = []
    for release in selection.releases:
        if progress is not None:
            progress(release)
        sources = places(release, source=selection.source, mini=selection.mini, bases=bases)
        wanted += _release(release, sources, selection, digests.get(release, {}), notes)
    if not wanted:
        raise UserError(
            "nothing there fits what was asked for",
            cause="; ".join(notes) or "no file has such a subject or task",
            hints=["`--tasks` and `--subjects` are spelt as in the data set, as in RestingState and NDARAC904DMU"],
        )
    return Plan(root, wanted, here(root, wanted), notes)


def _release(
    release: str,
    sources: list[Source],
    selection: Selection,
    digests: dict[str, tuple[int, str]],
    notes: list[str],
) -> list[Wanted]:
    found: dict[str, listing.Found] = {}
    troubles = []
    for source in sources:
        try:
            found = {each.path: each for each in _list(source, selection)}
            break
        except web.Trouble as trouble:
            troubles.append(f"{source.name} cannot be listed: {trouble.why}")
    else:
        if not digests:
            raise UserError(
                f"no bucket says what {release} holds",
                cause="; ".join(troubles),
                hints=["is there a connection?", "`--manifest FILE` does without a list"],
            )
        found = {path: listing.Found(path, known[0]) for path, known in digests.items()}
    notes += troubles
    wanted = []
    for path, each in sorted(found.items()):
        if not selection.takes(path):
            continue
        if not _NAME.fullmatch(path):
            notes.append(f"left out, a name that is none: {path[:80]!r}")
            continue
        size_, sha = digests.get(path, (each.size, ""))
        md5 = each.md5 if size_ == each.size else ""  # the manifest is believed more than the list
        urls = tuple(source.url(path) for source in sources)
        wanted.append(Wanted(f"{release}/{path}", size_, sha, md5, urls))
    return wanted


def _list(source: Source, selection: Selection) -> Iterator[listing.Found]:
    if not selection.subjects:
        yield from listing.below(source)
        return
    yield from listing.below(source, only_here=True)
    for subject in selection.subjects:
        yield from listing.below(source, f"sub-{subject.removeprefix('sub-')}/")


def _manifest(path: Path) -> dict[str, dict[str, tuple[int, str]]]:
    """Sizes and digests by release and path."""
    try:
        raw = files.read_bounded(path, _MAX_MANIFEST)
        text = (_unzipped(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"the manifest {path} cannot be read", cause=str(error)) from error
    lines = text.splitlines()
    header = lines[0].split("\t") if lines else []
    if not {"release", "path", "size", "sha256"} <= set(header):
        raise UserError(
            f"the manifest {path} is not understood",
            cause=f"its first line is {lines[0][:80]!r}" if lines else "it is empty",
            hints=["its columns are release, path, size and sha256, apart by tabs"],
        )
    at = [header.index(name) for name in ("release", "path", "size", "sha256")]
    found: dict[str, dict[str, tuple[int, str]]] = {}
    for line in lines[1:]:
        cells = line.split("\t")
        if len(cells) <= max(at):
            continue
        release, name, length, sha = (cells[i].strip() for i in at)
        if length.isdigit() and re.fullmatch(r"[0-9a-f]{64}", sha):
            found.setdefault(release, {})[name] = (int(length), sha)
    return found


def _unzipped(raw: bytes) -> bytes:
    import io

    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        text = file.read(_MAX_MANIFEST + 1)
    if len(text) > _MAX_MANIFEST:
        raise OSError("it unpacks to more than any manifest")
    return text


def here(root: Path, wanted: list[Wanted]) -> set[str]:
    """Which files are here, as they were when they were verified: by size and time, without reading them."""
    index = read_index(root)
    return {each.path for each in wanted if is_here(root, each, index)}


def is_here(root: Path, wanted: Wanted, index: dict[str, list[object]]) -> bool:
    entry = index.get(wanted.path)
    if entry is None:
        return False
    try:
        status = (root / wanted.path).lstat()
    except OSError:
        return False
    same = entry[:2] == [status.st_size, status.st_mtime_ns]
    return same and (wanted.size in (None, status.st_size)) and (not wanted.sha256 or entry[2] == wanted.sha256)


def read_index(root: Path) -> dict[str, list[object]]:
    """What was verified: a line for each file in the journal, [size, mtime_ns, sha256]. Later lines count."""
    from holdfast.workloads.eeg.download.journal import entries

    return {
        str(entry.get("path")): [entry.get("size"), entry.get("mtime_ns"), entry.get("sha256")]
        for entry in entries(root)
        if entry.get("event") == "verified"
    }


def _order(release: str) -> tuple[int, str]:
    digits = release.lstrip("R")
    return (int(digits) if digits.isdigit() else 999, release)
