"""A run folder to another place and back, with every checkpoint checked at both ends. No torch.

    moved = copy_run(source, target_root)                    # a folder on this machine: a disk, a mounted bucket
    moved = push(source, "box:runs")                         # with rsync, over ssh
    moved = pull("box:runs/job-20261115-calm-heron", root)
    moved.checkpoints, moved.newest                          # how many verified there, and where a resume goes on

What is copied may come from anybody: no link is followed, nothing is executed. A copy that has gone further than what
would replace it is left alone. Where the run is held by a living process only what is finished is taken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import UserError
from holdfast.base.files import kind_of, open_regular, read_json, remove
from holdfast.base.folders import Folder, make_private
from holdfast.base.human import counted
from holdfast.run.digests import Origin
from holdfast.run.folder import RunFolder
from holdfast.state import checkpoint

LEFT_BEHIND = ("lock", "slots", "compile-cache", "beat.json")
"""What means something only where the run is."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Moved:
    """What arrived."""

    where: str
    name: str
    checkpoints: int
    """Verified at the other end."""
    newest: int | None
    """The step a resume goes on from there."""
    files: int
    bytes: int

    def to_json(self) -> dict[str, object]:
        return {
            "schema": 1,
            "where": self.where,
            "run": self.name,
            "checkpoints_verified": self.checkpoints,
            "newest_step": self.newest,
            "files": self.files,
            "bytes": self.bytes,
        }


def is_remote(place: str) -> bool:
    """`host:path` or `user@host:path`, as rsync and scp read it. A drive letter is none."""
    host, colon, _ = place.partition(":")
    return bool(colon) and "/" not in host and len(host) > 1 and not Path(place).exists()


# On this machine ------------------------------------------------------------------------------------------


def copy_run(source: Path, root: Path, *, live: bool = False) -> Moved:
    """The run folder `source` under `root`, whole or not at all; what is there of the same run already is replaced."""
    good = check_source(source, live=live)
    target = root / source.resolve().name
    _check_target(source, target, good)
    temporary = root / f".{target.name}.{os.getpid()}.tmp"
    try:
        root.mkdir(parents=True, exist_ok=True)
        remove(temporary)
        count, size = _copy_tree(source, temporary)
        arrived = _check_arrived(temporary, good)
        _put(temporary, target)
    except OSError as error:
        raise UserError(
            f"{source.name} could not be copied to {root}",
            cause=str(error.strerror or error),
            hints=["the target is unchanged"],
        ) from None
    finally:
        remove(temporary)
    newest = max(arrived, default=None)
    return Moved(str(target), RunFolder(target).name, len(arrived), newest, count, size)


def check_source(source: Path, *, live: bool) -> dict[int, str]:
    """The checkpoints that verify, by step; UserError if the folder is no run, is in use, or has none that is good."""
    run = RunFolder.open(source)
    if run.in_use() and not live:
        raise UserError(
            f"{run.name} is running",
            cause="a copy that continues elsewhere would be a second run with the same name",
            hints=[f"stop it first: `holdfast stop {run.name}`", "or copy what it has saved so far: `--live`"],
        )
    found = [checkpoint.check(path) for path in checkpoint.candidates(source / "checkpoints")]
    good = {each.step: each.sha256 for each in found if isinstance(each, checkpoint.Checkpoint)}
    bad = [each for each in found if isinstance(each, checkpoint.Damaged)]
    if bad and not good:
        raise UserError(
            f"no checkpoint of {run.name} is good",
            cause=f"{bad[0].path.name}: {bad[0]}",
            hints=[f"`holdfast fsck {source}` lists what is damaged"],
        )
    return good


def _check_target(source: Path, target: Path, good: dict[int, str]) -> None:
    if not os.path.lexists(target):
        return
    if target.resolve() == source.resolve():
        raise UserError(f"{source.name} exists already", cause="source and target are the same folder")
    there = Origin.of_folder(target)
    if there != Origin.of_folder(source):
        raise UserError(f"{target} is another run", hints=["choose another place, or move that one away"])
    if RunFolder(target).in_use():
        raise UserError(f"{target} is running", hints=["stop it first"])
    newest, _ = checkpoint.newest_good(target / "checkpoints")
    if newest is not None and newest.step > max(good, default=-1):
        raise UserError(
            f"the copy in {target.parent} is ahead: it is at step {newest.step}",
            cause=f"this one is at step {max(good)}" if good else "this one has no checkpoint",
            hints=["copy in the other direction, or move the older one away first"],
        )


def _copy_tree(source: Path, target: Path) -> tuple[int, int]:
    """Regular files alone; returns how many and how large."""
    count = size = 0
    target.mkdir(mode=0o700)
    for path in _files(source):
        place = target / path.relative_to(source)
        try:
            reader = open_regular(path)
        except FileNotFoundError:  # a checkpoint of a living run that was pruned meanwhile
            continue
        inner = len(place.relative_to(target).parts) - 1
        with reader, Folder.at(place.parent, inner=inner, make=True) as folder, folder.create(place.name) as writer:
            shutil.copyfileobj(reader, writer, _CHUNK)
            writer.flush()
            os.fsync(writer.fileno())
            size += writer.tell()
        count += 1
    return count, size


def _files(source: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(source):
        here = Path(folder)
        folders[:] = [
            name for name in folders if kind_of(here / name) == "a folder" and not _left_behind(source, here / name)
        ]
        for name in names:
            if kind_of(here / name) is None and not _left_behind(source, here / name):
                yield here / name


def _left_behind(source: Path, path: Path) -> bool:
    top = path.relative_to(source).parts[0]
    unfinished = path.parent == source / "checkpoints" and path.name.startswith(".")
    return top in LEFT_BEHIND or top.startswith("lock.") or unfinished


def _check_arrived(copy: Path, sent: dict[int, str]) -> dict[int, str]:
    """Every checkpoint that was good must be good here, with the same digest."""
    arrived = {}
    for path in checkpoint.candidates(copy / "checkpoints"):
        result = checkpoint.check(path, Origin.of_folder(copy))
        if isinstance(result, checkpoint.Checkpoint):
            arrived[result.step] = result.sha256
    wrong = [step for step, digest in sent.items() if arrived.get(step) != digest]
    gone = [step for step in wrong if step not in arrived]
    if wrong and (len(gone) < len(wrong) or max(sent) in wrong):
        raise UserError(
            f"{counted(len(wrong), 'checkpoint')} arrived damaged: step {wrong[0]}",
            cause="its digest is not the one it was sent with",
            hints=["nothing was replaced; try again, and check the disk"],
        )
    return arrived


def _put(temporary: Path, target: Path) -> None:
    """Give it its name; what had it before goes only after that."""
    aside = temporary.with_suffix(".old")
    with Folder.at(target.parent) as folder:
        with folder.below(temporary.name) as copy:
            copy.sync()
        if os.path.lexists(target):
            folder.rename(target.name, aside.name)
        folder.rename(temporary.name, target.name)
        folder.discard(aside.name)
        folder.sync()


# With rsync -----------------------------------------------------------------------------------------------


def push(source: Path, place: str, *, live: bool = False) -> Moved:
    """To `host:path`; the far end is compared byte by byte, by checksums that each end computes itself."""
    good = check_source(source, live=live)
    where = f"{place.rstrip('/')}/{source.resolve().name}"
    _rsync(["-a", "--partial", "--mkpath", *_left_out()], f"{source.resolve()}/", f"{where}/")
    _compare(f"{source.resolve()}/", f"{where}/")
    size = sum(path.stat().st_size for path in _files(source))
    return Moved(
        where, RunFolder(source).name, len(good), max(good, default=None), sum(1 for _ in _files(source)), size
    )


def pull(place: str, root: Path) -> Moved:
    """From `host:path`, into a folder beside the target first; only what verifies replaces what is there."""
    name = place.rstrip("/").rpartition("/")[2].rpartition(":")[2]
    arriving = root / ".arriving" / name
    make_private(arriving.parent)
    try:
        known = root / name
        reuse = ["--copy-dest", str(known.resolve())] if known.is_dir() else []
        _rsync(["-rtc", "--partial", *reuse, *_left_out()], f"{place.rstrip('/')}/", f"{arriving}/")
        _compare(f"{place.rstrip('/')}/", f"{arriving}/")
        return copy_run(arriving, root)
    finally:
        remove(arriving.parent)


def _left_out() -> list[str]:
    return [*(f"--exclude=/{name}" for name in (*LEFT_BEHIND, "lock.*")), "--exclude=/checkpoints/.*", "--no-links"]


def _compare(one: str, other: str) -> None:
    """Both ends read every file again and compare checksums."""
    said = _rsync(["-rcn", "--out-format=%n", *_left_out()], one, other)
    different = [line for line in said.splitlines() if line and not line.endswith("/")]
    if different:
        raise UserError(
            f"{counted(len(different), 'file')} arrived damaged: {different[0]}",
            cause="its checksum differs at the other end",
            hints=["run the command again: it sends only what differs"],
        )


def _rsync(options: list[str], source: str, target: str) -> str:
    program = shutil.which("rsync")
    if program is None:
        raise UserError(
            "rsync is not installed",
            cause="holdfast uses it to copy to other machines",
            hints=["install it on both machines, or copy to a folder: `holdfast push RUN /mnt/disk`"],
        )
    command = [program, *options, "--", source, target]  # a place that begins with a dash is no option
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line]
        raise UserError(
            f"rsync ended with code {done.returncode}",
            cause=lines[-1] if lines else None,
            hints=["what arrived so far is kept: the same command continues"],
        )
    return done.stdout


def script_is_here(run: Path) -> bool:
    """Whether the script that run.json names can be read here."""
    named = (read_json(run / "run.json") or {}).get("script")
    return isinstance(named, str) and Path(named).is_file()
