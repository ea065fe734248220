"""Findings: what the doctor can find, each with a code that never changes. No torch here.

    found = finding("probe-crashed", "cuda:0", {"probe": "conv2d forward", "how": "SIGSEGV", "seconds": 4.2})
    found.code, found.level        # "D002", "error"
    found.sentence()               # "conv2d forward killed its process (SIGSEGV after 4.2 s)"
    found.to_json()                # {"code", "level", "title", "evidence", "remedy": {"text", "commands"}, "url", ...}

    explanations()                 # the texts of `devices/findings.toml`, as `holdfast explain D002` prints them

A finding says what was seen, never what is done about it: that is the verdict's. The texts are data, so that a person
can review them without reading code; `line` is the one sentence of the screen, filled in from the evidence.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.base import toml_file
from holdfast.base.human import duration, percent, size
from holdfast.faults.terms import Level

_TEXTS = Path(__file__).with_name("findings.toml")


@dataclass(frozen=True, slots=True)
class Explanation:
    """One row of `findings.toml`. The names are those of `cli.explain.Topic`."""

    code: str
    slug: str
    level: str
    """note, warning or error."""
    title: str
    line: str
    """The sentence for the screen; {name} stands for a value of the evidence."""
    seen: str
    means: str
    does: str
    you_can: str
    measured_by: str | None = None
    """The file, and the function in it, that looks for this."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the evidence that `line` shows, in its order."""
        return tuple(name for _, name, _, _ in string.Formatter().parse(self.line) if name)


@dataclass(frozen=True, slots=True)
class Cure:
    """What a person can do about it: in words, and as commands that can be pasted."""

    text: str
    commands: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that do it, where a restart with them is all it takes."""

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "commands": list(self.commands)}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was found on one device, or on the machine (`disk`, `system`)."""

    code: str
    device: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Numbers and names, as JSON has them; units are in the names."""
    remedy: Cure | None = None

    @property
    def about(self) -> Explanation:
        return explained(self.code)

    @property
    def level(self) -> Level:
        return Level(self.about.level)

    @property
    def title(self) -> str:
        return self.about.title

    def sentence(self) -> str:
        """One line for the screen, without a full stop; the title where the evidence does not fill the line."""
        about = self.about
        if any(self.evidence.get(name) is None for name in about.needs):
            return about.title
        try:
            return _LINE.vformat(about.line, (), self.evidence)
        except (ValueError, TypeError):  # evidence of an older version, from a cache
            return about.title

    def to_json(self) -> dict[str, Any]:
        """As in `holdfast doctor --json`."""
        return {
            "code": self.code,
            "slug": self.about.slug,
            "level": self.level,
            "title": self.title,
            "text": self.sentence(),
            "evidence": dict(self.evidence),
            "remedy": None if self.remedy is None else self.remedy.to_json(),
            "url": f"docs/findings/{self.code}.md",
        }

    @classmethod
    def from_json(cls, device: str, data: object) -> Finding | None:
        """A finding from a cache; None for what is none, or has a code that this version does not know."""
        code = data.get("code") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(code, str) or code not in _by_name():
            return None
        evidence, remedy = data.get("evidence"), data.get("remedy")
        cure = None
        if isinstance(remedy, dict) and isinstance(remedy.get("text"), str):
            commands = remedy.get("commands")
            listed = commands if isinstance(commands, list) else []
            cure = Cure(remedy["text"], tuple(each for each in listed if isinstance(each, str)))
        return cls(explained(code).code, device, evidence if isinstance(evidence, dict) else {}, cure)


def finding(name: str, device: str, evidence: Mapping[str, Any] | None = None, remedy: Cure | None = None) -> Finding:
    """A finding by its code or slug. KeyError for a name that does not exist: a slip in the program."""
    return Finding(explained(name).code, device, evidence or {}, remedy)


def explained(name: str) -> Explanation:
    """The texts behind a code or a slug; KeyError if there are none."""
    return _by_name()[name]


def worst(findings: list[Finding]) -> Level | None:
    """The most serious level among them, or None if there are none."""
    return max((each.level for each in findings), key=list(Level).index, default=None)


@lru_cache(maxsize=1)
def explanations() -> tuple[Explanation, ...]:
    """All texts, in the order of their codes."""
    data = toml_file.load(_TEXTS)
    rows = (Explanation(slug=slug, **{name: text.strip() for name, text in row.items()}) for slug, row in data.items())
    return tuple(sorted(rows, key=lambda row: row.code))


@lru_cache(maxsize=1)
def _by_name() -> dict[str, Explanation]:
    return {name: row for row in explanations() for name in (row.code, row.slug)}


_WORDS = ("duration", "size", "percent", "error")


class _Line(string.Formatter):
    """`{seconds:duration}`, `{limit_bytes:size}`, `{share:percent}`, `{error:error}`; lists with commas."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        # Names only: a template that reaches into attributes would be a program, not a text.
        return kwargs[field_name], field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in _WORDS and isinstance(value, str):
            return value  # "not finite" instead of a number
        if format_spec == "duration":
            return duration(float(value))
        if format_spec == "size":
            return size(float(value))
        if format_spec == "percent":
            return percent(float(value))
        if format_spec == "error":
            return f"{float(value):.2g}"
        if isinstance(value, (list, tuple)):
            return ", ".join(str(each) for each in value)
        return str(super().format_field(value, format_spec))


_LINE = _Line()
