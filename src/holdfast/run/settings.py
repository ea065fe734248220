"""The settings in force: every value, and where it came from. What each one means is in `holdfast.run.setting_groups`.

    settings = Settings.load({"run.seed": "7"})          # the command line's `run.seed=7`
    settings.watchdog.floor                              # 5.0 (durations are seconds, sizes are bytes)
    settings.source("watchdog.floor")                    # "./holdfast.toml:7", or "default"
    Settings.from_json(settings.to_json()) == settings   # how another process gets the same settings

A value is taken from the first place that has it: the command line (`section.key=value`), the environment
(`HOLDFAST_SECTION_KEY`), `./holdfast.toml`, `[tool.holdfast]` of `./pyproject.toml`, the user's file
(`~/.config/holdfast/config.toml`), the default. Unknown names and bad values are `UserError`s that name the
setting, the value, what is allowed and what was probably meant.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from holdfast.base import toml_file
from holdfast.base.errors import UserError
from holdfast.run import setting_groups
from holdfast.run.setting_groups import (
    BlameSettings,
    CheckpointSettings,
    DataSettings,
    ExternalSettings,
    LimitsSettings,
    LoaderSettings,
    NotifySettings,
    OomSettings,
    PlanSettings,
    ProbationSettings,
    RetrySettings,
    RunSettings,
    SentinelSettings,
    SnapshotSettings,
    TrackSettings,
    WatchdogSettings,
)
from holdfast.run.setting_values import Choice, Kind

PROJECT_FILE = "holdfast.toml"
PREFIX = "HOLDFAST_"
OTHERS = frozenset(
    {
        *("HOLDFAST_STATE", "HOLDFAST_BOOT_ID", "HOLDFAST_PRETEND", "HOLDFAST_PRETEND_CARDS", "HOLDFAST_SENSORS"),
        *("HOLDFAST_HOOK", "HOLDFAST_RESUME", "HOLDFAST_ATTACH", "HOLDFAST_PIECES", "HOLDFAST_ADD"),
        "HOLDFAST_KNOWLEDGE",
    }
)
"""Variables that are none of the settings: where the user's ledger is, what tests pretend, what `holdfast run` tells
the script inside it, where files are that add to holdfast, and what is known about cards."""
COMMAND_LINE = "command line"
DEFAULT = "default"


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """All settings of a run, frozen. Build it with `Settings.load`; `Settings()` is all defaults."""

    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    retry: RetrySettings = field(default_factory=RetrySettings)
    loader: LoaderSettings = field(default_factory=LoaderSettings)
    data: DataSettings = field(default_factory=DataSettings)
    run: RunSettings = field(default_factory=RunSettings)
    oom: OomSettings = field(default_factory=OomSettings)
    probation: ProbationSettings = field(default_factory=ProbationSettings)
    blame: BlameSettings = field(default_factory=BlameSettings)
    sentinel: SentinelSettings = field(default_factory=SentinelSettings)
    limits: LimitsSettings = field(default_factory=LimitsSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    track: TrackSettings = field(default_factory=TrackSettings)
    external: ExternalSettings = field(default_factory=ExternalSettings)
    plan: PlanSettings = field(default_factory=PlanSettings)
    sources: Mapping[str, str] = field(default_factory=_nothing, compare=False, repr=False)
    """Where each value that was set came from, by key. A key that is not here has its default."""

    @classmethod
    def load(
        cls,
        overrides: Mapping[str, object] = MappingProxyType({}),
        cwd: str | os.PathLike[str] = ".",
        env: Mapping[str, str] | None = None,
    ) -> Settings:
        """The settings in force in `cwd`, with `overrides` (`{"watchdog.floor": "10s"}`) on top."""
        env = os.environ if env is None else env
        settings = cls()
        for key, value, source in _weakest_first(overrides, Path(cwd), env):
            settings = settings._with(key, value, source)
        return settings

    def override(self, changes: Mapping[str, object], source: str) -> Settings:
        """These settings with `changes` on top; `source` says who wants them ("the plan")."""
        settings = self
        for key, value in changes.items():
            settings = settings._with(key, value, source)
        return settings

    def get(self, key: str) -> Any:
        """The value of `section.key`; UserError with a suggestion if there is no such setting."""
        known(key)
        section, name = key.split(".")
        return getattr(getattr(self, section), name)

    def shown(self, key: str) -> str:
        """The value as a person would write it: "1h 30m", "4 GB", "true"."""
        return known(key).show(self.get(key))

    def source(self, key: str) -> str:
        """Where the value came from: "command line", "HOLDFAST_RUN_SEED", "./holdfast.toml:7", "default"."""
        return self.sources.get(key, DEFAULT)

    def changed(self) -> list[str]:
        """The keys whose value differs from the default, in the order of the groups."""
        default = Settings()
        return [key for key in kinds() if self.get(key) != default.get(key)]

    def to_json(self) -> dict[str, Any]:
        """Sections of plain values (seconds, bytes) and `sources`."""
        data: dict[str, Any] = {}
        for key in kinds():
            section, name = key.split(".")
            data.setdefault(section, {})[name] = self.get(key)
        return {**data, "sources": dict(self.sources)}

    def recorded(self) -> dict[str, Any]:
        """What a run writes down: everything but whom to tell, which may be secret and is not the run's affair."""
        data = self.to_json()
        del data["notify"]
        return {**data, "sources": {key: text for key, text in self.sources.items() if not key.startswith("notify.")}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """The settings that `to_json` gave, checked again: the text may come from an edited file."""
        sources = data.get("sources", {})
        settings = cls()
        for section, values in data.items():
            if section == "sources":
                continue
            for name, value in values.items():
                key = f"{section}.{name}"
                settings = settings._with(key, value, sources.get(key, DEFAULT))
        return settings

    def _with(self, key: str, value: object, source: str) -> Settings:
        kind = known(key, source)
        try:
            parsed = kind.parse(value)
        except ValueError:
            raise _bad_value(key, value, source, kind) from None
        section, name = key.split(".")
        group = replace(getattr(self, section), **{name: parsed})
        sources = dict(self.sources)
        if source != DEFAULT:
            sources[key] = source
        return replace(self, **{section: group}, sources=MappingProxyType(sources))


# Names ----------------------------------------------------------------------------------------------------


@functools.cache
def sections() -> Mapping[str, type]:
    """The groups of settings by name."""
    default = Settings()
    names = [item.name for item in fields(default) if item.name != "sources"]
    return MappingProxyType({name: type(getattr(default, name)) for name in names})


@functools.cache
def kinds() -> Mapping[str, Kind]:
    """Every setting as `section.key`, with what it accepts, in the order of the groups."""
    return MappingProxyType(
        {
            f"{section}.{item.name}": item.metadata["kind"]
            for section, group in sections().items()
            for item in fields(group)
        }
    )


def known(key: str, source: str | None = None) -> Kind:
    """The kind of `key`, or a UserError that says what was probably meant."""
    kind = kinds().get(key)
    if kind is None:
        raise _unknown(key, source)
    return kind


def parse_overrides(words: Iterable[str]) -> dict[str, str]:
    """`["run.seed=7", "oom.split=false"]` from a command line, as `Settings.load` takes it."""
    overrides = {}
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not key:
            raise UserError(
                f"`{word}` is not a setting",
                cause="settings are written as section.key=value",
                hints=[f"for example `{key if key in kinds() else 'run.seed'}=...`"],
            )
        known(key, COMMAND_LINE)
        overrides[key] = value
    return overrides


def variable(key: str) -> str:
    """The environment variable of a setting: `HOLDFAST_RUN_SEED` for `run.seed`."""
    return PREFIX + key.replace(".", "_").upper()


def describe(key: str) -> str:
    """The text under the field of `key`."""
    known(key)
    return _descriptions().get(key, "")


@functools.cache
def _descriptions() -> dict[str, str]:
    """Python drops a string under a field, so it is read from the source; without the source it is empty."""
    import ast

    try:
        tree = ast.parse(Path(setting_groups.__file__).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    names = {group.__name__: section for section, group in sections().items()}
    found = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name not in names:
            continue
        for item, below in zip(node.body, node.body[1:], strict=False):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                text = below.value if isinstance(below, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found[f"{names[node.name]}.{item.target.id}"] = " ".join(text.value.split())
    return found


# Places ---------------------------------------------------------------------------------------------------


def user_file(env: Mapping[str, str]) -> Path:
    """The user's own settings: `~/.config/holdfast/config.toml`, or what XDG or Windows say instead."""
    if sys.platform == "win32" and env.get("APPDATA"):
        return Path(env["APPDATA"], "holdfast", "config.toml")
    xdg = env.get("XDG_CONFIG_HOME", "")  # its specification says to ignore a relative path
    base = Path(xdg) if os.path.isabs(xdg) else _home(env) / ".config"
    return base / "holdfast" / "config.toml"


def _home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or os.path.expanduser("~"))


def _weakest_first(
    overrides: Mapping[str, object], cwd: Path, env: Mapping[str, str]
) -> Iterator[tuple[str, object, str]]:
    """(key, value, source) of everything that was set: what comes later wins."""
    user = user_file(env)
    yield from _from_file(user, _short(user, env), ())
    yield from _from_file(cwd / "pyproject.toml", "./pyproject.toml", ("tool", "holdfast"))
    yield from _from_file(cwd / PROJECT_FILE, f"./{PROJECT_FILE}", ())
    yield from _from_environment(env)
    for key, value in overrides.items():
        yield key, value, COMMAND_LINE


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    names = {variable(key): key for key in kinds()}
    if env.get("HOLDFAST_PORTABLE"):  # the short form, weaker than HOLDFAST_RUN_PORTABLE
        yield "run.portable", env["HOLDFAST_PORTABLE"], "HOLDFAST_PORTABLE"
    for name, value in env.items():
        if not name.startswith(PREFIX) or not value or name in OTHERS:
            continue
        if name in names:
            yield names[name], value, name
        elif _looks_like_a_setting(name, names):
            raise _unknown_variable(name, names)


def _looks_like_a_setting(name: str, names: Iterable[str]) -> bool:
    """Other HOLDFAST_ variables exist: only one of a section, or a slip away from a setting, is an error."""
    prefixes = tuple(f"{PREFIX}{section.upper()}_" for section in sections())
    return name.startswith(prefixes) or bool(_close(name, names, 0.9))


def _from_file(path: Path, shown: str, table: tuple[str, ...]) -> Iterator[tuple[str, object, str]]:
    for parts, value, line in toml_file.read(path, shown, table):
        yield ".".join(parts), value, f"{shown}:{line}"


def _short(path: Path, env: Mapping[str, str]) -> str:
    try:
        return "~/" + path.relative_to(_home(env)).as_posix()
    except ValueError:
        return str(path)


# Errors ---------------------------------------------------------------------------------------------------


def _bad_value(key: str, value: object, source: str, kind: Kind) -> UserError:
    text = value if isinstance(value, str) else _as_toml(value)
    hints = [f"use {kind.allowed}; the default is {Settings().shown(key)}"]
    if isinstance(kind, Choice):
        close = _close(text, kind.options, 0.6)
        hints = [f"did you mean `{close[0]}`?", *hints] if close else hints
    return UserError(f'{key} is "{text}", which is not allowed', cause=_set_by(source), hints=hints)


def _as_toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(key: str, source: str | None) -> UserError:
    hints = [*_similar(key), "`holdfast config` lists every setting"]
    return UserError(f"unknown setting `{key}`", cause=_set_by(source), hints=hints)


def _unknown_variable(name: str, names: Mapping[str, str]) -> UserError:
    close = _close(name, names, 0.6)
    hints = [f"a similar one exists: `{close[0]}`"] if close else []
    return UserError(
        f"the environment variable {name} is not the name of a setting",
        hints=[*hints, f"unset it with `unset {name}`, or see `holdfast config`"],
    )


def _set_by(source: str | None) -> str | None:
    if source is None:
        return None
    return "set on the command line" if source == COMMAND_LINE else f"set by {source}"


def _similar(key: str) -> list[str]:
    """A hint with the setting that was probably meant, or with the settings of the section that was named."""
    section, _, name = key.partition(".")
    group = [known for known in kinds() if known.startswith(f"{section}.")]
    if group:  # the section is right: compare what follows it, or every name in it looks alike
        close = [f"{section}.{found}" for found in _close(name, [known.split(".")[1] for known in group], 0.6)]
    else:
        same_name = [known for known in kinds() if known.endswith("." + (name or section))]
        close = same_name if len(same_name) == 1 else _close(key, kinds(), 0.6)
    if close:
        return [f"a similar setting exists: `{close[0]}`"]
    return [f"settings of `{section}`: {', '.join(group)}"] if group else []


def _close(word: str, words: Iterable[str], cutoff: float) -> list[str]:
    """The word that is most alike, if any. difflib is imported late: it is needed only to complain."""
    import difflib

    return difflib.get_close_matches(word, list(words), n=1, cutoff=cutoff)
