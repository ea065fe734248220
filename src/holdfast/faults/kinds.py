"""The kinds of fault: their words, their codes, what each leaves of a process, and what is said about it.

    Kind.HANG, CODES[Kind.HANG]             # the word on the screen, in JSON and in the docs; "F005", never used again
    Kind("licence_lost")                    # one that a file adds (added_kinds.py): a kind without a name in the code
    health_of(Kind.OUT_OF_MEMORY)           # Health.ALIVE: the process can be used
    explanations()                          # the texts of `faults.toml`, as `holdfast explain F005` prints them

A kind that the code has to know by its name is a member of `Kind`. One that needs no more than its messages and a row
of the ladder is a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from holdfast.base import toml_file
from holdfast.base.errors import UserError
from holdfast.base.text_enum import TextEnum
from holdfast.faults.added_kinds import Added
from holdfast.faults.added_kinds import read as read_added
from holdfast.faults.terms import Health

_HERE = Path(__file__).parent


class Kind(TextEnum):
    """The kinds of fault. The value is the word on the screen, in JSON and in the docs."""

    OUT_OF_MEMORY = "out_of_memory"
    """The device's memory is full."""
    CRASH = "crash"
    """The worker ended by SIGSEGV, SIGABRT, SIGBUS, SIGILL or SIGFPE."""
    DEVICE_LOST = "device_lost"
    """A sticky error: the context is dead and everything on the device with it."""
    TRANSIENT = "transient"
    """The device reported an error and the process can still use it."""
    HANG = "hang"
    """No progress for longer than the phase allows."""
    HOST_MEMORY = "host_memory"
    """The machine or the container is out of memory."""
    KILLED = "killed"
    """Somebody else ended the worker: SIGKILL, SIGTERM."""
    EXIT = "exit"
    """The worker ended by itself without saying why."""
    UNSUPPORTED = "unsupported"
    """This torch build has no code for this device, or lacks an operation there."""
    DRIVER = "driver"
    """The driver or the card needs a reset, a reboot or a repair."""
    LOADER_DIED = "loader_died"
    LOADER_STUCK = "loader_stuck"
    NURSERY_DIED = "nursery_died"
    KEEPER_DIED = "keeper_died"
    SUPERVISOR_DIED = "supervisor_died"
    USER_ERROR = "user_error"
    """The script's own error. Never retried."""
    NON_FINITE = "non_finite"
    """A loss or a gradient is infinite or not a number."""
    WRONG_NUMBERS = "wrong_numbers"
    """The device computes something else than the CPU."""
    BAD_DATA = "bad_data"
    """Some samples fail wherever they are computed, and the others do not."""
    MACHINE_DOWN = "machine_down"
    """The whole machine went down while the run was on it."""
    DISK_FULL = "disk_full"
    """A script of `holdfast run` could not write: no space is left."""

    @classmethod
    def _missing_(cls, value: object) -> Kind | None:
        """One that a file adds; from then on the same object each time."""
        if not isinstance(value, str) or value not in added():
            return None
        kind = str.__new__(cls, value)
        kind._name_, kind._value_ = value.upper(), value
        cls._value2member_map_[value] = kind
        return kind


@lru_cache(maxsize=1)
def added() -> Mapping[str, Added]:
    """The kinds that files add, by their words.

    None where a file has gone, or gone bad, since the command began: in the middle of a fault is no time to fail.
    """
    try:
        return check_added()
    except UserError:
        return {}


def check_added() -> Mapping[str, Added]:
    """The same at the beginning of a command; UserError for a file that cannot be used."""
    return read_added([kind.value for kind in Kind], [*_CODES.values()])


class ByKind(dict[Kind, str]):
    """One word for each kind; for one that a file adds, the word its file has in a field."""

    def __init__(self, words: Mapping[Kind, str], field: str) -> None:
        super().__init__(words)
        self.field = field

    def __missing__(self, kind: Kind) -> str:
        return str(getattr(added()[kind.value], self.field))


_CODES = {
    Kind.OUT_OF_MEMORY: "F001",
    Kind.CRASH: "F002",
    Kind.DEVICE_LOST: "F003",
    Kind.TRANSIENT: "F004",
    Kind.HANG: "F005",
    Kind.HOST_MEMORY: "F006",
    Kind.KILLED: "F007",
    Kind.EXIT: "F008",
    Kind.UNSUPPORTED: "F009",
    Kind.DRIVER: "F010",
    Kind.LOADER_DIED: "F011",
    Kind.LOADER_STUCK: "F012",
    Kind.NURSERY_DIED: "F013",
    Kind.KEEPER_DIED: "F014",
    Kind.SUPERVISOR_DIED: "F015",
    Kind.USER_ERROR: "F016",
    Kind.NON_FINITE: "F017",
    Kind.WRONG_NUMBERS: "F018",
    Kind.BAD_DATA: "F019",
    Kind.MACHINE_DOWN: "F020",
    Kind.DISK_FULL: "F021",
}
CODES: Mapping[Kind, str] = ByKind(_CODES, "code")
"""Public and stable: a new kind takes the next number, and none is ever used again."""


_HEALTH = {
    Kind.OUT_OF_MEMORY: Health.ALIVE,
    Kind.TRANSIENT: Health.ALIVE,
    Kind.HOST_MEMORY: Health.ALIVE,
    Kind.LOADER_DIED: Health.ALIVE,
    Kind.LOADER_STUCK: Health.ALIVE,
    Kind.KEEPER_DIED: Health.ALIVE,
    Kind.UNSUPPORTED: Health.ALIVE,
    Kind.USER_ERROR: Health.ALIVE,
    Kind.BAD_DATA: Health.ALIVE,
    Kind.DRIVER: Health.MACHINE,
}


def health_of(kind: Kind) -> Health:
    row = added().get(kind.value) if kind not in _CODES else None
    return _HEALTH.get(kind, Health.DEAD) if row is None else Health(row.health)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `holdfast explain` and docs/faults.md say about one kind of fault."""

    kind: Kind
    code: str
    slug: str
    level: str
    """note, warning or error."""
    title: str
    seen: str
    means: str
    does: str
    you_can: str


@lru_cache(maxsize=1)
def explanations() -> tuple[Explanation, ...]:
    """The texts of `faults.toml` and of files that add a kind, in the order of their codes."""
    data = toml_file.load(_HERE / "faults.toml")
    rows = [Explanation(kind=Kind(kind), **_stripped(row)) for kind, row in data.items()]
    rows += [Explanation(kind=Kind(name), code=row.code, **row.texts) for name, row in added().items()]
    return tuple(sorted(rows, key=lambda row: row.code))


def _stripped(row: dict[str, str]) -> dict[str, str]:
    return {name: text.strip() for name, text in row.items()}
