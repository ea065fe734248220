"""What the hook inside a script wrote down, and which fault it is.

    notes = Notes(folder)                       # made anew for each process of the script
    notes.environment()                         # what the script needs in its environment to find the hook
    notes.who(), notes.board.read()             # who makes steps, on which device, how many
    fault = judge(notes, code, words, ...)      # None: the script itself decided to end, and that is passed on

The script is the user's: what it wrote is read like a file from anywhere. An exception is rebuilt as a class of the
same names, so that the rules for our own workers decide about it as well.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import itertools
import mmap
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.base.board import Board
from holdfast.base.cgroup import Limit
from holdfast.base.dataclass_json import read
from holdfast.base.files import open_regular, read_json, remove
from holdfast.faults.classification import Fault, Kind, classify_exception, classify_exit

HOOK = Path(__file__).parent / "hook"
FITS, TORCH, MARKS, MARKED = 40, 41, 192, 96
"""Words of the board that only the hook writes: calls of `fit`, is torch imported, when the last steps were."""
_FULL = ("No space left on device", "Disk quota exceeded")
_AT_THE_END = re.compile(r"^(basic_ios|ios_base)::clear: ")
"""What the C++ library says of any file; from torch.save, of one so small that it is written at once, at its end."""
_TORN_SAVE = ("inline_container.cc", "PytorchStreamWriter failed writing file")
"""How torch.save says that the disk is full."""
_LAST_LINE = re.compile(
    r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Failure|Exit))(?:: (?P<text>.*))?$"
)


@dataclass(frozen=True)
class Who:
    """The process that makes steps, as it told of itself."""

    pid: int | None = None
    device: str | None = None
    frameworks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Raised:
    """One exception of a chain, as the hook wrote it down."""

    types: tuple[str, ...] = ()
    """The names of its class and of those it is derived from."""
    text: str = ""
    where: str = ""
    error_code: int | None = None
    errno: int | None = None
    returncode: int | None = None
    """Of a child that it tells of."""
    by_loader: bool = False


@dataclass(frozen=True)
class ErrorNote:
    """The exceptions that ended a process of the script; each is the cause of the one before it."""

    chain: tuple[Raised, ...]
    pid: int | None = None


class Notes:
    """The folder one process of the script shares with us."""

    def __init__(self, folder: Path, *, generation: int = 0, step: int = 0) -> None:
        self.folder = folder
        remove(folder)
        folder.mkdir(mode=0o700)
        self.board = Board.create(generation=generation, path=folder / "board")
        self.begun_at = step
        self.board.commit(step, 0)
        self._words = memoryview(mmap.mmap(self.board.fd, 4096)).cast("q")

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """`base` with the hook first on Python's path. A script that clears its environment is only not counted."""
        path = base.get("PYTHONPATH")
        return {
            **base,
            "PYTHONPATH": os.pathsep.join([str(HOOK), *([path] if path else [])]),
            "HOLDFAST_HOOK": str(self.folder.absolute()),
        }

    def marks(self, after: int) -> list[tuple[int, int]]:
        """(nanoseconds of the clock, step) of steps made after `after`, as far back as is remembered."""
        words = self._words[MARKS : MARKS + 2 * MARKED].tolist()
        pairs = zip(words[1::2], words[::2], strict=True)
        return sorted((when, step) for when, step in pairs if step > after and when > 0)

    @property
    def torch_seen(self) -> bool:
        return bool(self._words[TORCH])

    @property
    def fits(self) -> int:
        return int(self._words[FITS])

    @property
    def fitted(self) -> str:
        """Whose `fit` or `train` was called first; empty if none was."""
        return str((read_json(self.folder / "fitted.json") or {}).get("framework") or "")

    def who(self) -> Who:
        """The process that makes steps; nothing is known before the first one."""
        return read(Who, read_json(self.folder / "who.json")) or Who()

    @property
    def frameworks(self) -> list[str]:
        return list(self.who().frameworks)

    @property
    def device(self) -> str | None:
        said = self.who().device
        return said if said is not None and re.fullmatch(r"[a-z]+(:\d+)?", said) else None

    @property
    def batch(self) -> int | None:
        """The batch of a Trainer that can be divided."""
        size = (read_json(self.folder / "batch.json") or {}).get("batch")
        return size if isinstance(size, int) and size > 1 else None

    def ended(self, pid: int) -> bool:
        """Did this process come to its end by itself?"""
        return (self.folder / f"ended-{pid}.json").exists()

    def errors(self) -> list[ErrorNote]:
        """Exceptions that ended processes of the script, the first one first."""
        paths = sorted(self.folder.glob("error-*.json"), key=_age)
        notes = (read(ErrorNote, read_json(path)) for path in paths)
        return [note for note in notes if note is not None and note.chain]

    def crash(self) -> str:
        """What faulthandler wrote when a process crashed."""
        return self._texts("crash-*.txt")

    def _texts(self, pattern: str) -> str:
        texts = []
        for path in sorted(self.folder.glob(pattern)):
            with contextlib.suppress(OSError):
                with open_regular(path) as file:
                    text = file.read(1 << 18).decode(errors="replace")
                texts += [f"process {path.stem.partition('-')[2]}", text] if text.strip() else []
        return "\n".join(texts)

    def stacks_path(self, pid: int) -> Path:
        return self.folder / f"stacks-{pid}.txt"

    def close(self) -> None:
        self._words.release()
        self.board.close()
        remove(self.folder)


def _age(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


# -- which fault it is -------------------------------------------------------------------------------------------


def judge(
    notes: Notes, code: int, words: str, *, device: str, oom_kills: int, limit: Limit | None = None
) -> Fault | None:
    """The fault behind the end of a script; None if it is the script's own: an exception, `sys.exit(3)`, success."""
    if code == 0:
        return None
    child = _end_of_its_child(notes) if code > 0 else None
    known = _by_exception(notes, words, device) if child is None else None
    exited = classify_exit(
        exitcode=code if child is None else child, last_words=words, oom_kills=oom_kills, device=device, limit=limit
    )
    if known is not None:
        return replace(known, evidence={**known.evidence, **exited.evidence})
    if exited.kind is Kind.EXIT:
        return None
    return exited if child is None else exited.at(process=notes.who().pid)


def _end_of_its_child(notes: Notes) -> int | None:
    """torchrun and `accelerate launch` start the process that trains, and end with a code of their own when a signal
    has ended it. Which one, their exception says. (A shell says it by 128 + signal, which is understood anyway.)"""
    trains = notes.who().pid
    if trains is not None and notes.ended(trains):
        return None
    errors = notes.errors()
    own = any(note.pid == trains for note in errors)  # one of its own, which is judged
    for raised in (raised for note in errors for raised in note.chain):
        ended = raised.returncode
        by_torchrun = "ChildFailedError" in str(raised.types)  # it knows more than any one of its processes
        if ended is not None and ended < 0 and (by_torchrun or (trains is not None and not own)):
            return ended
    return None


def own_error(notes: Notes) -> tuple[str, str] | None:
    """The script's own exception in one line, and where it was raised; None if it ended without one."""
    errors = notes.errors()
    if not errors:
        return None
    first = errors[0].chain[0]
    name = first.types[0].removeprefix("builtins.") if first.types else "an error"
    text = first.text.partition("\n")[0]
    return (f"{name}: {text}" if text else name)[:300], first.where


def _by_exception(notes: Notes, words: str, device: str) -> Fault | None:
    """What an exception says that ended a process, or its last line where the hook could not see it."""
    errors = [rebuild(note.chain) for note in notes.errors()]
    if not errors:
        errors = [error for error in [_from_text(words)] if error is not None]
    for error in errors:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            continue
        if full_disk(error):
            return Fault(Kind.DISK_FULL, device=device, message=str(error)[:2000], evidence=_kind_of(error))
        fault = classify_exception(error, device=device)
        if fault is not None:
            return fault
    return None


def device_words(notes: Notes, words: str) -> str | None:
    """What a script that computed on the CPU said of a device it did not use: its own error, but a strange one."""
    fault = _by_exception(notes, words, "cuda:0")
    if fault is None or fault.kind is Kind.DISK_FULL or _by_exception(notes, words, "cpu") is not None:
        return None
    return fault.message.partition("\n")[0][:200]


def full_disk(error: BaseException) -> bool:
    """Did it fail because a disk is full? torch.save says so in words that do not speak of space."""
    link: BaseException | None = error
    for _ in range(20):
        if link is None:
            return False
        text = str(link)
        number = getattr(link, "errno", None)
        if number in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)) or any(part in text for part in _FULL):
            return True
        if _AT_THE_END.match(text) and re.search(r"torch[/\\]serialization\.py:\d+$", getattr(link, "where", "")):
            return True
        if all(part in text for part in _TORN_SAVE) or (_TORN_SAVE[0] in text and "unexpected pos" in text):
            return True
        link = link.__cause__
    return False


def _kind_of(error: BaseException) -> dict[str, object]:
    return {"exception": f"{type(error).__module__}.{type(error).__qualname__}"}


def rebuild(chain: Sequence[Raised]) -> BaseException:
    """Exceptions with the names, texts and numbers that were written down, linked as causes of each other."""
    links = [_rebuild_one(raised) for raised in chain]
    for error, cause in itertools.pairwise(links):
        error.__cause__ = cause
    return links[0]


def _rebuild_one(raised: Raised) -> BaseException:
    names = raised.types
    base: type[BaseException] = (
        next((_builtin(name) for name in names if _builtin(name) is not None), None) or Exception
    )
    made: type[BaseException] = base
    for name in reversed(names[: _first_builtin(names)]):
        module, _, qualified = name.rpartition(".")
        made = type(qualified, (made,), {"__module__": module})
    text = raised.text
    if issubclass(made, UnicodeError):  # its constructor wants five arguments
        made = type(made.__name__, (ValueError,), {"__module__": made.__module__})
    error = made(text)
    error.where = raised.where  # type: ignore[attr-defined]
    for name, number in (("error_code", raised.error_code), ("errno", raised.errno)):
        if number is not None:
            with contextlib.suppress(AttributeError):
                setattr(error, name, number)
    if raised.by_loader and isinstance(error, ConnectionError | EOFError):
        error = _LoaderLost(text)
    return error


class _LoaderLost(RuntimeError):
    """A loader's child was killed: what its parent saw was only a broken pipe."""

    def __init__(self, text: str) -> None:
        super().__init__(f"DataLoader worker (pid 0) is killed by signal: {text}")


def _builtin(name: str) -> type[BaseException] | None:
    module, _, plain = name.rpartition(".")
    found = getattr(builtins, plain, None) if module == "builtins" else None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _first_builtin(names: Sequence[str]) -> int:
    return next((number for number, name in enumerate(names) if _builtin(name) is not None), len(names))


def _from_text(words: str) -> BaseException | None:
    """The last line of a traceback: `torch.OutOfMemoryError: CUDA out of memory.`"""
    if "Traceback (most recent call last)" not in words:
        return None
    for line in reversed(words.splitlines()):
        match = _LAST_LINE.match(line.strip())
        if match:
            name = match["type"]
            full = name if "." in name else f"builtins.{name}"
            family = () if _builtin(full) else ("builtins.RuntimeError",)
            return _rebuild_one(Raised((full, *family), match["text"] or ""))
    return None


__all__ = ["HOOK", "Notes", "Raised", "device_words", "judge", "own_error", "rebuild"]
