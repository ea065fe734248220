"""The shapes of knowledge.json and its reading: cards, wheels, support, bugs, and where each fact is from.

    by_arch()["gfx1010"].sources[0].cite()     # "ROCm/TheRock cmake/therock_amdgpu_targets.cmake …, 2026-08-22"
    bugs(), sources(), wheels()                # all of them, in the order of the file

The file is part of the package and is reviewed like code, or a newer one that was named (`knowledgefile`); whoever
looks things up uses `knowledge`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from holdfast.devices import knowledge_file
from holdfast.devices.findings import Cure

_CONDITIONS = ("archs", "names", "claimed", "os", "env", "env_text", "torch", "rocm", "cuda", "driver", "kernel")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fact is from."""

    id: str
    title: str
    kind: str
    """code, document, report or computed."""
    published: str | None = None
    read: str | None = None
    """Where the source has no date of its own."""
    sure: bool = True

    @property
    def date(self) -> str:
        return self.published or self.read or ""

    def cite(self) -> str:
        """ "ROCm/ROCm issue 887, 2025-07-20"; one without a date of its own: "…, read 2026-11"."""
        return f"{self.title}, {self.published or f'read {self.read}'}"


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """An architecture and what is sold with it."""

    arch: str
    vendor: str
    sources: tuple[Source, ...]
    products: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    """Device ids, or ranges of them, in hexadecimal."""
    integrated: bool | None = None
    notes: tuple[Note, ...] = ()
    known: str = ""
    """How, in the words of knowledgefile.KNOWN; and when that was last looked at:"""
    checked: str = ""


@dataclass(frozen=True, slots=True)
class Support:
    """What the maker of a toolkit says about an architecture."""

    status: str
    """yes, no, some (of its cards), deprecated, preview, runtime, community, built, untested (but published)."""
    toolkit: str
    source: Source
    os: tuple[str, ...] = ()
    channel: str = ""
    """release (AMD's numbered releases up to 7.2) or stable (the line of TheRock, from 7.13 on)."""
    known: str = ""
    checked: str = ""


@dataclass(frozen=True, slots=True)
class Wheel:
    """Builds of torch that are published, and what they have code for."""

    name: str
    toolkit: str
    archs: tuple[str, ...]
    os: tuple[str, ...]
    source: Source
    machine: str | None = None
    index: str | None = None
    extra: bool = False
    """One package for all, with the card named as an extra."""
    channel: str = ""
    """stable, nightly, pytorch.org or pypi."""
    since: str = ""
    """The first version of its toolkit that it has."""
    driver: str = ""
    """The oldest driver that runs it."""
    known: str = ""
    checked: str = ""

    def install(self, arch: str) -> str | None:
        """The command, or None where only the page of the publisher says it."""
        if self.extra:
            return f'pip install --index-url {self.index} "torch[device-{plain(arch)}]"'
        if self.index:
            return f"pip install torch --index-url {self.index}"
        return "pip install torch" if self.name.startswith("PyPI") else None


@dataclass(frozen=True, slots=True)
class Override:
    """What comes of a card that is made to run as another."""

    means: str
    """tolerated, dangerous or refused."""
    text: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Bug:
    """A fault that others have reported."""

    id: str
    title: str
    text: str
    sources: tuple[Source, ...]
    cure: Cure | None = None
    remedies: tuple[str, ...] = ()
    """Names in remedies.toml that are worth trying first."""
    dtypes: tuple[str, ...] = ()
    """Where it shows in these precisions alone."""
    quiet: bool = False
    """It holds for so many devices that it is worth a word only when something fails."""
    when: Mapping[str, Any] = field(default_factory=dict)
    """The conditions, as in the file."""
    guard: str = ""
    """The remedy that workers have on such a device until it has passed a probe without it."""
    says: tuple[str, ...] = ()
    """Patterns of messages that go with it."""
    shows: tuple[str, ...] = ()
    """How a training ends: raised, crashed, hung, froze, wrong, slow, missing."""
    rebuild: bool = False
    """Its cure is the build for exactly this card."""
    lost_when_ended: bool = False
    """Ending a process that hangs on it loses the device until the machine is rebooted."""
    known: str = ""
    checked: str = ""


def plain(arch: str) -> str:
    """The architecture without features and blanks: gfx90a:sramecc+:xnack- is gfx90a, 8.6 is sm_86, M2 Pro is m2."""
    word = arch.strip().lower().partition(":")[0]
    capability = re.fullmatch(r"(?:sm_)?(\d{1,2})\.(\d)", word)
    if capability:
        return f"sm_{capability[1]}{capability[2]}"
    apple = re.match(r"(?:apple )?(m\d)\b", word)
    return apple[1] if apple else word


# Reading the file ---------------------------------------------------------------------------------------------------


def data() -> Mapping[str, Any]:
    return knowledge_file.current().data


def by_arch() -> dict[str, Card]:
    return _by_arch(knowledge_file.current().sha256)


@lru_cache(maxsize=4)
def _by_arch(sha256: str) -> dict[str, Card]:
    return {row["arch"]: _card(row) for row in data()["cards"]}


def cards() -> Sequence[Card]:
    """All of them, in the order of the file."""
    return tuple(by_arch().values())


def wheels() -> Sequence[Wheel]:
    """All of them, in the order of the file."""
    return tuple(wheel(row) for row in data()["wheels"])


def bugs() -> Sequence[Bug]:
    """All of them, in the order of the file."""
    return tuple(bug(row) for row in data()["bugs"])


def sources() -> Sequence[Source]:
    """All of them."""
    return tuple(source(each) for each in data()["sources"])


def source(name: str) -> Source:
    return Source(id=name, **data()["sources"][name])


def cited(row: Mapping[str, Any]) -> tuple[Source, ...]:
    return tuple(source(each) for each in row["sources"])


def note(row: Mapping[str, Any]) -> Note:
    return Note(row["text"], cited(row))


def _card(row: Mapping[str, Any]) -> Card:
    return Card(
        row["arch"],
        row["vendor"],
        cited(row),
        products=tuple(row.get("products", ())),
        pci=tuple(row.get("pci", ())),
        integrated=row.get("integrated"),
        notes=tuple(note(each) for each in row.get("notes", ())),
        **how(row),
    )


def how(row: Mapping[str, Any]) -> dict[str, str]:
    """How the row is known, and when it was held against its source; or that the source could not be found again."""
    sought = f", its source not found on {row['unreached']}" if "unreached" in row else ""
    return {"known": row["known"], "checked": f"{row['checked']}{sought}"}


def wheel(row: Mapping[str, Any]) -> Wheel:
    optional = {name: row[name] for name in ("machine", "index", "extra", "channel") if name in row}
    optional["since"] = row.get("from", "")
    optional["driver"] = row.get("driver", {}).get("from", "")
    archs, systems = tuple(row["archs"]), tuple(row["os"])
    said: dict[str, Any] = {**optional, **how(row)}
    return Wheel(row["name"], row["toolkit"], archs, systems, source(row["source"]), **said)


def bug(row: Mapping[str, Any]) -> Bug:
    said = row.get("cure")
    return Bug(
        id=row["id"],
        title=row["title"],
        text=row["text"],
        sources=cited(row),
        cure=Cure(said["text"], tuple(said.get("commands", ()))) if said else None,
        remedies=tuple(said.get("remedies", ())) if said else (),
        dtypes=tuple(row.get("dtypes", ())),
        quiet=row.get("quiet", False),
        when={name: row[name] for name in _CONDITIONS if name in row},
        guard=row.get("guard", ""),
        says=tuple(row.get("says", ())),
        shows=tuple(row.get("shows", ())),
        rebuild=bool(said and said.get("build")),
        lost_when_ended=row.get("lost_when_ended", False),
        **how(row),
    )
