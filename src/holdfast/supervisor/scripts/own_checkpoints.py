"""The checkpoints of other people's scripts: where they are, and which is the newest that is whole.

    found = search(folders, patterns, since_ns)        # newest first
    why = damage(path)                                 # None if it is whole, else what is wrong with it
    newest, passed_over = newest_whole(found)

Nothing is unpickled here: a file of torch.save is a zip archive whose members carry checksums, a safetensors file says
itself how long it is. Files of the time before that are read by torch in a child, tensors only (`weights_only=True`).
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import struct
import subprocess
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.base import interpreter

DEEPEST, MOST_ENTRIES = 7, 50_000
"""Where a search ends: a data set with a million files is not looked through."""
MOST_HEADER = 100 << 20
CHILD_PATIENCE = 300.0
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages", "wandb", "mlruns"})
_WEIGHTS_ALONE = re.compile(
    r"(^|[_.-])(best|final|weights?|export(ed)?)[\w-]*\.(pt|pth)$|\.safetensors$", re.IGNORECASE
)
"""Names of files that hold a model and not the state of its training: they are tried last."""
_ZIPPED = frozenset({".pt", ".pth", ".ckpt", ".bin", ".tar"})


@dataclass(frozen=True, slots=True)
class Found:
    """Something that looks like a checkpoint: a file, or a folder of them."""

    path: Path
    time_ns: int
    """When it was written last."""
    step: int | None = None
    """Of the training, where its name or its files say so."""


# -- finding -----------------------------------------------------------------------------------------------------


def search(folders: Iterable[Path], patterns: Sequence[str], since_ns: int) -> list[Found]:
    """Files and folders whose name fits one of the patterns, written since then: newest first, weights alone last."""
    found: dict[Path, Found] = {}
    for folder in folders:
        for path in _walk(folder):
            if any(fnmatch.fnmatchcase(path.name, pattern) for pattern in patterns):
                entry = _look(path)
                if entry is not None and entry.time_ns >= since_ns:
                    found[path.resolve()] = entry
    newest_first = sorted(found.values(), key=lambda each: each.time_ns, reverse=True)
    return sorted(newest_first, key=lambda each: bool(_WEIGHTS_ALONE.search(each.path.name)))


def _walk(root: Path) -> Iterator[Path]:
    """Everything below a folder, not too deep and not too much; no links, nothing hidden, no run folder of ours."""
    waiting, seen = [(root, 0)], 0
    while waiting:
        folder, depth = waiting.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda each: each.name)
        except OSError:
            continue
        if any(entry.name == "journal.jsonl" for entry in entries):
            continue
        for entry in entries:
            seen += 1
            if seen > MOST_ENTRIES:
                return
            if entry.name.startswith(".") or entry.name in _SKIPPED:
                continue
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False) and depth < DEEPEST:
                    waiting.append((Path(entry.path), depth + 1))
                yield Path(entry.path)


def _look(path: Path) -> Found | None:
    try:
        if path.is_dir():
            times = [entry.stat().st_mtime_ns for entry in os.scandir(path) if entry.is_file()]
            return Found(path, max(times), _step_in(path)) if times else None
        stat = path.stat()
        return Found(path, stat.st_mtime_ns, _step_in(path)) if stat.st_size else None
    except (OSError, ValueError):
        return None


def _step_in(path: Path) -> int | None:
    """The step a checkpoint names: the Trainer writes it down, Lightning puts it into the name."""
    if path.is_dir():
        with contextlib.suppress(OSError, ValueError, AttributeError):
            step = json.loads((path / "trainer_state.json").read_text(encoding="utf-8")).get("global_step")
            return step if isinstance(step, int) else None
        return None
    match = re.search(r"\bstep=(\d+)\b", path.name)
    return int(match[1]) if match else None


# -- is it whole? ------------------------------------------------------------------------------------------------


def newest_whole(found: Iterable[Found]) -> tuple[Found | None, list[tuple[Found, str]]]:
    """The first that is whole, and those before it with what is wrong with them."""
    passed: list[tuple[Found, str]] = []
    for each in found:
        why = damage(each.path)
        if why is None:
            return each, passed
        passed.append((each, why))
    return None, passed


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, in words that can follow "it is skipped: "; None if it is whole."""
    try:
        return _folder(path) if path.is_dir() else _file(path)
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"


def _folder(path: Path) -> str | None:
    files = sorted(entry for entry in path.iterdir() if entry.is_file())
    state = [entry for entry in files if entry.suffix in (".safetensors", *_ZIPPED)]
    if not state:
        return "it holds no weights"
    if (path / "trainer_state.json").exists() or path.name.startswith("checkpoint-"):
        if not any(_is_model(entry.name) for entry in state):
            return "its weights are missing"
        try:
            json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return "its trainer_state.json is missing or torn"
    for entry in state:
        why = _file(entry)
        if why is not None:
            return f"{entry.name}: {why}"
    return None


def _is_model(name: str) -> bool:
    return name.startswith(("model", "pytorch_model", "adapter_model")) or "model" in name


def _file(path: Path) -> str | None:
    if path.suffix == ".safetensors":
        return _safetensors(path)
    with open(path, "rb") as file:
        head = file.read(4)
    if head == b"PK\x03\x04":
        return _archive(path)
    if head[:1] == b"\x80" or zipfile.is_zipfile(path):
        return _in_a_child(path)
    return "it is cut short or not a checkpoint"


def _archive(path: Path) -> str | None:
    """A file of torch.save: every member is read and compared with its checksum."""
    wrong, right = [], 0
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if not any(member.filename.endswith("data.pkl") for member in members):
                return "it is an archive, but not one of torch.save"
            for member in members:
                if member.compress_type != zipfile.ZIP_STORED:
                    return "its members are compressed, which torch.save never does"
                try:
                    with archive.open(member) as stream:
                        while stream.read(1 << 20):
                            pass
                    right += 1
                except zipfile.BadZipFile:
                    wrong.append(member.filename)
    except (zipfile.BadZipFile, EOFError, struct.error, ValueError, NotImplementedError):
        return "it is cut short or torn"
    if wrong and right:  # torch can be told to write no checksums; then none of them is right
        return f"{wrong[0]} is not what was written"
    return _in_a_child(path) if wrong else None


def _safetensors(path: Path) -> str | None:
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(size, MOST_HEADER):
            return "it is cut short or no safetensors file"
        try:
            header = json.loads(file.read(length))
            ends = [int(each["data_offsets"][1]) for name, each in header.items() if name != "__metadata__"]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return "its header is torn"
    expected = 8 + length + max(ends, default=0)
    return None if size == expected else f"it has {size} bytes instead of {expected}"


def _in_a_child(path: Path) -> str | None:
    """Ask torch, in a process of its own, and for tensors alone: nothing in the file is executed."""
    code = "import sys, torch; torch.load(sys.argv[1], map_location='cpu', weights_only=True)"
    command = interpreter.code(code, str(path))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CHILD_PATIENCE, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "reading it took too long"
    except OSError as error:
        return f"it could not be checked: {error.strerror or error}"
    if done.returncode == 0:
        return None
    last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["torch cannot read it"]
    return last[0][:200]
