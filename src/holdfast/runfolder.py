"""The run folder: the one module that knows what a run looks like on disk.

    run.json          what this run is, its state and its supervisor      (replaced whole, never half)
    journal.jsonl     events, appended                                     output.log   what the script printed
    metrics.jsonl     numbers the script logged                            beat.json    the board, once a second
    checkpoints/N/    state.safetensors + digest.json                      best.safetensors  final.safetensors
    faults/NN/        what was found at a fault                            receipt.json
    lock              held while a supervisor or keeper lives

Runtime and monitor both stand on this module. A run folder may come from somebody else: everything read
here is checked and nothing in it is executed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from holdfast.errors import UserError
from holdfast.events import DURABLE, Event

FORMAT = 1
LAST_WORD = "last.json"
"""What the keeper leaves when its supervisor died: how far the last worker was."""
LIVE_STATES = frozenset({"STARTING", "RUNNING", "RECOVERING", "MOVED", "PAUSED"})
_MAX_JSON = 16 << 20

_ADJECTIVES = """
    amber bold brave bright brisk calm candid clear cobalt crisp deep eager early fair fleet fond frank gentle
    glad golden grand hardy hazel honest humble jolly keen kind lively lucid lucky mellow merry mild misty
    modest neat noble olive patient plain plucky polite prime proud quick quiet rapid ready royal rustic sandy
    sharp silent silver sincere slate sober solid spry stable steady still stout sturdy sunny sure swift tidy
    tranquil true upbeat vivid warm wise witty young zesty
"""
_ANIMALS = """
    auk badger bat bear beaver bison bittern boar bobcat bream buck bunting carp cod condor coot coyote crane
    crow curlew deer dipper dove duck dunlin eagle egret elk ermine falcon ferret finch fox gannet gecko goat
    goose grouse gull hare hawk heron hoopoe ibex ibis jackdaw jay kestrel kite lark lemur linnet lynx marten
    martin merlin mole moose moth newt oriole osprey otter owl oyster pelican perch petrel pike pipit plover
    puffin quail rail raven robin rook ruff salmon seal shrew shrike siskin skua snipe sparrow stoat stork swan
    swift teal tern thrush trout vole wagtail walrus weasel whale wolf wombat wren yak zebra
"""
_SECRET = re.compile(r"(token(?![a-z])|secret|passw|api[-_]?key|credential|private)", re.IGNORECASE)
"""`hf_token` is one, `max_tokens` and `tokenizer` are not: a resumed run needs them."""


def new_name(taken: set[str]) -> str:
    """A name a person can say; drawn from the system's own randomness, never from the user's seed."""
    source = random.SystemRandom()
    adjectives, animals = _ADJECTIVES.split(), _ANIMALS.split()
    for _ in range(100):
        name = f"{source.choice(adjectives)}-{source.choice(animals)}"
        if name not in taken:
            return name
    return f"{name}-{source.randrange(1000, 9999)}"


def redact(argv: list[str]) -> list[str]:
    """Arguments with the values of anything that sounds like a secret left out."""
    kept: list[str] = []
    hide_next = False
    for word in argv:
        key, equals, _value = word.partition("=")
        if hide_next:
            kept.append("***")
            hide_next = False
        elif equals and _SECRET.search(key):
            kept.append(f"{key}=***")
        else:
            kept.append(word)
            hide_next = word.startswith("-") and not equals and bool(_SECRET.search(word))
    return kept


def write_json(path: Path, data: dict[str, Any], *, durable: bool = True) -> None:
    """Replace a file whole: a reader sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=2, default=str)
        file.write("\n")
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file we may not have written; None if it is anything else."""
    try:
        if path.stat().st_size > _MAX_JSON:
            return None
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def whole(value: object, default: int = 0) -> int:
    """A count from a file we may not have written: anything that is not one is `default`."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def number(value: object, default: float = 0.0) -> float:
    """The same for an amount."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def sync_folder(path: Path) -> None:
    """Make renames inside a folder durable, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal: IO[str] | None = None
        self._metrics: IO[str] | None = None
        self._lock: IO[str] | None = None

    # -- finding and making --------------------------------------------------------------------------------

    @classmethod
    def create(cls, root: Path, workload: str, info: dict[str, Any]) -> RunFolder:
        """A new run under `root`, named so that a person can say it and a folder listing sorts it."""
        try:
            root.mkdir(parents=True, exist_ok=True)
            taken = {name_of(entry) for entry in root.iterdir() if entry.is_dir()}
            name = new_name(taken)
            stamp = datetime.now().strftime("%Y%m%d-%H%M")
            path = root / f"{workload}-{stamp}-{name}"
            path.mkdir(mode=0o700)
        except OSError as error:
            raise UserError(
                f"cannot create a run folder in {root}",
                cause=str(error.strerror or error),
                hints=["choose another place with `run.folder=PATH`"],
            ) from None
        folder = cls(path)
        for part in ("checkpoints", "faults"):
            (path / part).mkdir(mode=0o700)
        folder.write_info({"schema": 1, "format": FORMAT, "run": name, "workload": workload, **info})
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run; UserError if the folder is not one or was made by a newer holdfast."""
        info = read_json(path / "run.json")
        if info is None:
            raise UserError(f"{path} is not a run folder", cause="it has no readable run.json")
        version = info.get("format")
        if not isinstance(version, int):
            raise UserError(f"{path} is not a run folder", cause="its run.json names no format")
        if version > FORMAT:
            raise UserError(
                f"{path} was written by a newer holdfast",
                cause=f"its format is {version}, this holdfast reads up to {FORMAT}",
                hints=["update holdfast: `pip install -U holdfast`"],
            )
        return cls(path)

    @property
    def name(self) -> str:
        return name_of(self.path)

    # -- the lock ------------------------------------------------------------------------------------------

    def lock(self, *, wait: float = 0.5) -> None:
        """Take the run for this process; UserError naming the holder if another has it.

        `wait` gives a keeper that outlived its supervisor the time to save the last snapshot.
        """
        deadline = time.monotonic() + wait
        try:
            file = open(self.path / "lock", "a+", encoding="utf-8")  # noqa: SIM115 - held for the run's life
        except OSError as error:
            raise UserError(f"{self.path} is not writable", cause=str(error.strerror or error)) from None
        while not _try_lock(file):
            if time.monotonic() >= deadline:
                file.seek(0)
                holder = file.read(200).strip()
                file.close()
                raise UserError(
                    f"{self.name} is in use",
                    cause=f"it is held by {holder}" if holder else "another process holds its lock",
                    hints=[
                        f"watch it with `holdfast status {self.name}`",
                        f"stop it with `holdfast stop {self.name}`",
                    ],
                )
            time.sleep(0.05)
        file.seek(0)
        file.truncate()
        file.write(f"pid {os.getpid()}\n")
        file.flush()
        self._lock = file

    @property
    def lock_fd(self) -> int | None:
        return None if self._lock is None else self._lock.fileno()

    def in_use(self) -> bool:
        """True while a supervisor, or a keeper that outlived it, holds the lock."""
        for mode in ("r+", "r"):  # a read-only copy cannot be opened otherwise; a lock that is not there is not made
            try:
                with open(self.path / "lock", mode, encoding="utf-8", opener=_plainly) as file:
                    return not _try_lock(file)
            except OSError:
                continue
        return False

    # -- run.json ------------------------------------------------------------------------------------------

    @property
    def info(self) -> dict[str, Any]:
        return read_json(self.path / "run.json") or {}

    def write_info(self, info: dict[str, Any]) -> None:
        write_json(self.path / "run.json", info)

    def update_info(self, **changes: Any) -> None:
        self.write_info({**self.info, **changes})

    def state(self) -> str:
        """The state a person should read: what run.json says, or CRASHED if nobody is there to say it."""
        said = str(self.info.get("state", "CRASHED"))
        return "CRASHED" if said in LIVE_STATES and not self.in_use() else said

    # -- appending -----------------------------------------------------------------------------------------

    def append(self, event: Event) -> None:
        if self._journal is None:
            self._journal = _open_lines(self.path / "journal.jsonl")
        self._journal.write(event.to_line() + "\n")
        self._journal.flush()
        if event.kind in DURABLE:
            os.fsync(self._journal.fileno())

    def append_metrics(self, record: dict[str, Any]) -> None:
        if self._metrics is None:
            self._metrics = _open_lines(self.path / "metrics.jsonl")
        self._metrics.write(json.dumps(record) + "\n")
        self._metrics.flush()

    def write_beat(self, beat: dict[str, Any]) -> None:
        write_json(self.path / "beat.json", beat, durable=False)

    def next_fault_folder(self) -> Path:
        """faults/01, faults/02, …: where the evidence of one fault is kept."""
        root = self.path / "faults"
        root.mkdir(exist_ok=True)
        numbers = [int(entry.name) for entry in root.iterdir() if entry.name.isdigit()]
        folder = root / f"{max(numbers, default=0) + 1:02d}"
        folder.mkdir(mode=0o700)
        return folder

    def close(self) -> None:
        for file in (self._journal, self._metrics, self._lock):
            if file is not None:
                file.close()
        self._journal = self._metrics = self._lock = None

    # -- reading -------------------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        yield from read_events(self.path / "journal.jsonl")

    def metrics(self) -> list[dict[str, Any]]:
        """What the script logged; a step that was repeated after a fault counts once, with its last values."""
        merged: dict[tuple[Any, Any], dict[str, Any]] = {}
        for record in read_lines(self.path / "metrics.jsonl"):
            key = (record.get("step"), record.get("epoch"))
            merged.setdefault(key, {}).update(record)
        return list(merged.values())

    def receipt(self) -> dict[str, Any] | None:
        return read_json(self.path / "receipt.json")


def name_of(path: Path) -> str:
    """calm-heron, from eeg-20261115-0912-calm-heron."""
    match = re.search(r"\d{8}-\d{4}-(.+)$", path.name)
    return match.group(1) if match else path.name


def _open_lines(path: Path) -> IO[str]:
    """Append to a file of lines. One that was cut off by a power cut is ended first, or it would swallow ours."""
    with open(path, "ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
    return open(path, "a", encoding="utf-8")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """JSON objects of an appended file; torn and foreign lines are passed over."""
    try:
        file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115
    except OSError:
        return
    with file:
        for line in file:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield record


def read_events(path: Path) -> Iterator[Event]:
    for record in read_lines(path):
        kind, when = record.pop("event", None), str(record.pop("time", ""))
        if isinstance(kind, str):
            yield Event(kind, when, record)


def list_runs(root: Path) -> list[RunFolder]:
    """Every run under `root`, the newest last."""
    try:
        entries = [entry for entry in root.iterdir() if (entry / "run.json").is_file()]
    except OSError:
        return []
    runs = [RunFolder(entry) for entry in entries]
    return sorted(runs, key=lambda run: (str(run.info.get("created", "")), run.path.name))


def find_run(root: Path, wanted: str) -> RunFolder:
    """A run by name, folder, part of a folder name, or `latest`."""
    if (Path(wanted) / "run.json").is_file():
        return RunFolder.open(Path(wanted))
    runs = list_runs(root)
    if wanted == "latest" and runs:
        return RunFolder.open(runs[-1].path)
    for run in reversed(runs):
        if wanted in (run.name, run.path.name):
            return RunFolder.open(run.path)
    import difflib

    close = difflib.get_close_matches(wanted, [run.name for run in runs], n=1)
    hints = [f"a similar run exists: `{close[0]}`"] if close else ["`holdfast list` shows the runs there are"]
    raise UserError(f"no run `{wanted}` in {root}", hints=hints)


def _plainly(path: str, flags: int) -> int:
    """A link, or a pipe that nobody writes to, may stand where our file should be."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _try_lock(file: IO[str]) -> bool:
    if sys.platform == "win32":
        import msvcrt

        try:
            file.seek(1 << 20)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
