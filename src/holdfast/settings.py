"""Every setting of holdfast: its type, default, meaning, and where the value in force came from.

    settings = Settings.load({"run.seed": "7"})          # the command line's `run.seed=7`
    settings.watchdog.floor                              # 5.0 (durations are seconds, sizes are bytes)
    settings.source("watchdog.floor")                    # "./holdfast.toml:7", or "default"
    Settings.from_json(settings.to_json()) == settings   # how another process gets the same settings

A value is taken from the first place that has it: the command line (`section.key=value`), the environment
(`HOLDFAST_SECTION_KEY`), `./holdfast.toml`, `[tool.holdfast]` of `./pyproject.toml`, the user's file
(`~/.config/holdfast/config.toml`), the default. Unknown names and bad values are `UserError`s that name the
setting, the value, what is allowed and what was probably meant.

The text under a field is its documentation: `holdfast config -v` prints it.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from holdfast import tomlfile
from holdfast.errors import UserError
from holdfast.values import (
    BOOL,
    BYTES,
    DURATION,
    Choice,
    Float,
    Kind,
    OrAuto,
    OrOff,
    Text,
    at_least,
    between,
    setting,
)

Auto = Literal["auto"]

PROJECT_FILE = "holdfast.toml"
PREFIX = "HOLDFAST_"
OTHERS = frozenset(
    {
        *("HOLDFAST_STATE", "HOLDFAST_BOOT_ID", "HOLDFAST_PRETEND", "HOLDFAST_SENSORS"),
        *("HOLDFAST_HOOK", "HOLDFAST_RESUME", "HOLDFAST_ATTACH", "HOLDFAST_PIECES", "HOLDFAST_ADD"),
    }
)
"""Variables that are none of the settings: where the user's ledger is, what tests pretend, what `holdfast run` tells
the script inside it, and where files are that add to holdfast."""
COMMAND_LINE = "command line"
DEFAULT = "default"

FACTOR = Float("a number, 1 or more", low=1.0)
PERCENT = Float("a number of percent, 0 or more", low=0.0)
DEGREES = OrOff(Float("a number of °C above zero", low=1.0))
WATTS = OrOff(Float("a number of watts above zero", low=1.0))
FULL = OrOff(Float("a number of percent above zero", low=1.0))
COMMAND = OrOff(Text("a command line"))
ADDRESS = OrOff(Text("an address that begins with https:// or http://", pattern=r"https?://\S+"))
PATH = Text("the path of a folder")
FILE = OrOff(Text("the path of a file"))
DOLLARS = OrOff(Float("a number of dollars, 0 or more", low=0.0))
METRIC = Text("auto, none, or the name of a metric", pattern=r"[A-Za-z_][\w./-]*")
DEVICE = Text("auto, cpu, or a device such as cuda:0", pattern=r"[a-z]+(:\d+)?")


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


# The settings ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchdogSettings:
    """When a silent worker is called hung, and how it is ended."""

    floor: float = setting(5.0, DURATION)
    """The shortest silence that is ever called a hang, however fast the steps are."""
    factor: float = setting(4.0, FACTOR)
    """A phase may take this many times its slowest recent duration before it is called hung."""
    first_step: float = setting(180.0, DURATION)
    """How long each phase of a worker's first step may take: kernels are chosen, loaded and built there."""
    setup: float = setting(1800.0, DURATION)
    """How long a script may prepare without a sign of life; each `session.progress()` is one."""
    loop: float = setting(60.0, DURATION)
    """The shortest silence called a hang in your own code between steps and in evaluations: it may save or draw."""
    evaluate: float = setting(600.0, DURATION)
    """How long the first evaluation may take; later ones are held to what was measured."""
    compile: float = setting(1800.0, DURATION)
    """How long `torch.compile` may work before it is called hung."""
    term_grace: float = setting(2.0, DURATION)
    """How long a hung worker has to end after SIGTERM before it gets SIGKILL."""
    kill_grace: float = setting(10.0, DURATION)
    """How long a worker has to vanish after SIGKILL before it is abandoned. Large processes get longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotSettings:
    """The copy of the training state in memory that outlives the worker."""

    every: int = setting(1, at_least(1, "a whole number of steps"))
    """Steps between two snapshots. At 1 a fault costs one step; more makes tiny, fast steps cheaper."""
    slots: int = setting(5, between(3, 16))
    """Copies kept at once: one being written, the newest, one being saved, one perhaps the best, one agreed on."""
    memory: int | Auto = setting("auto", OrAuto(BYTES))
    """The most shared memory the slots may take. With auto, what the machine and its limits have to spare."""
    where: Literal["auto", "memory", "file"] = setting("auto", Choice("auto", "memory", "file"))
    """Where the slots live: shared memory, or a file in the run folder. Auto is memory where it fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSettings:
    """What is written to disk, how often, and what is kept."""

    every: float = setting(60.0, DURATION)
    """Time between two checkpoints: what the loss of the whole machine may cost."""
    at_epochs: bool = setting(True, BOOL)
    """Whether the end of an epoch is saved as well."""
    keep: int = setting(3, at_least(1))
    """How many checkpoints stay on disk, the newest first. The best one is kept beside them."""
    best: str = setting("auto", METRIC)
    """The metric that decides which weights are the best. Auto takes the first validation metric logged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrySettings:
    """How often a fault is met with another try before the run gives up."""

    same_step: int = setting(3, at_least(1, "a whole number of tries"))
    """Tries at one step when no other device is left."""
    without_progress: int = setting(10, at_least(1, "a whole number of tries"))
    """Workers replaced in a row without one committed step between them, whatever ended them."""
    in_a_row: int = setting(4, at_least(1, "a whole number of faults"))
    """Faults of a device, each within 20 steps of the last, after which the run leaves it for the next one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderSettings:
    """When a data loader process is called stuck."""

    stuck_floor: float = setting(5.0, DURATION)
    """The shortest wait for a batch that is ever called stuck, however fast the data usually comes."""
    first_wait: float = setting(120.0, DURATION)
    """How long the first batch may take: files are opened and caches are cold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSettings:
    """What the training may go on without. Evaluations never go without a sample unless the script says so."""

    quarantine: bool = setting(True, BOOL)
    """Whether samples that end or hang the process that reads them, twice, are left out. Off brings them back."""
    skip_bad: bool = setting(False, BOOL)
    """Whether samples that raise an error are left out too, where the others of their batch can be read."""
    most_bad: float = setting(1.0, PERCENT)
    """The share of a dataset that may be left out, in percent; ten samples always may. Beyond that the run fails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """The run as a whole."""

    folder: str = setting("runs", PATH)
    """The folder that run folders are made in."""
    seed: int = setting(0, at_least(0))
    """The seed of every random generator and of the order of the data."""
    threads: int | Auto = setting("auto", OrAuto(at_least(1)))
    """CPU threads for torch. Recorded with the run: another number gives other last bits."""
    device: str = setting("auto", DEVICE)
    """The device to train on. Auto is the best one that works; the CPU stays as the last resort."""
    portable: bool = setting(False, BOOL)
    """Use only what every system has: no fork, no /proc, plain files. `HOLDFAST_PORTABLE=1` does it too."""
    stacks: bool = setting(True, BOOL)
    """Keep the stacks of a hung worker. The native ones need `pip install 'holdfast[stacks]'`."""
    tensorboard: bool = setting(True, BOOL)
    """Write what the script logs as TensorBoard event files too, into `tb/` of the run folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OomSettings:
    """What may be done when a batch does not fit into memory."""

    split: bool = setting(True, BOOL)
    """Whether a batch that failed twice may be computed in pieces: the same sum, other last bits."""
    allow_batchnorm_split: bool = setting(False, BOOL)
    """Whether a model with BatchNorm may be split too: its statistics are then those of the pieces."""
    grow_back_steps: int = setting(50, at_least(1, "a whole number of steps"))
    """Steps that must succeed in pieces before the whole batch is tried again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbationSettings:
    """How a device that failed comes back: after a delay, a probe, and steps that are also computed on the CPU."""

    enabled: bool = setting(True, BOOL)
    """Whether a device that failed is tried again in the same run."""
    first_delay: float = setting(60.0, DURATION)
    """How long a device that failed is left alone before it is probed."""
    factor: float = setting(2.0, FACTOR)
    """The delay grows by this factor each time the probe fails, or the device fails soon after it came back."""
    max_delay: float = setting(3600.0, DURATION)
    """The longest delay."""
    probe: float = setting(120.0, DURATION)
    """How long a probe may take, the import of torch included, before it is ended and counts as failed."""
    steps: int = setting(20, at_least(1, "a whole number of steps"))
    """Steps that must agree with the CPU before a device that came back is trusted."""
    steady: int = setting(500, at_least(1, "a whole number of steps"))
    """Steps after which a device that came back counts as steady; failing earlier counts as a failed return."""
    returns: int = setting(5, at_least(1, "a whole number of times"))
    """Failed returns after which a device is left for the rest of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlameSettings:
    """Whose fault it was: the failed step is computed again, on the device and on the CPU."""

    replay: bool = setting(True, BOOL)
    """Whether the step a worker was lost in is computed on the CPU first, and then again on the device."""
    budget: float = setting(20.0, DURATION)
    """How long the replay on the CPU may take. What is not done by then stays unknown."""
    non_finite: Literal["stop", "ignore"] = setting("stop", Choice("stop", "ignore"))
    """What a loss or gradient that is not finite means. With stop it is a fault, and no such step is ever kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SentinelSettings:
    """The check that the device computes what the CPU computes."""

    enabled: Literal["auto", "always", "never"] = setting("auto", Choice("auto", "always", "never"))
    """Auto watches every device but the CPU itself."""
    cost: float = setting(0.8, PERCENT)
    """The share of the training time the checks may take, in percent: it decides how often there is one."""
    samples: int = setting(4, at_least(1, "a whole number of samples"))
    """How many samples of a batch are computed twice in a check."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitsSettings:
    """What the machine may be asked to bear. Past a limit the run warns, then slows down or pauses, then goes on."""

    cpu_c: float | None = setting(None, DEGREES)
    """The hottest the CPU may get, in °C."""
    gpu_c: float | None = setting(None, DEGREES)
    """The hottest the accelerator of the run may get, in °C."""
    cpu_w: float | None = setting(None, WATTS)
    """The most power the CPU may draw, in watts."""
    gpu_w: float | None = setting(None, WATTS)
    """The most power the accelerator of the run may draw, in watts."""
    memory: float | None = setting(None, FULL)
    """How full the memory of the machine, or of its container, may get, in percent."""
    gpu_memory: float | None = setting(None, FULL)
    """How full the memory of the accelerator may get, in percent."""
    disk_free: int | None = setting(None, OrOff(BYTES))
    """What must stay free where the run folder is."""
    action: Literal["auto", "warn", "slow", "pause"] = setting("auto", Choice("auto", "warn", "slow", "pause"))
    """How far it may go. Auto slows for heat and power, pauses if that is not enough, and pauses for a full memory."""
    patience: float = setting(10.0, DURATION)
    """How long a limit may be passed before more than a warning follows; and kept again before the run goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotifySettings:
    """Who is told, and of what. Never written into a run folder: addresses are secrets, and a folder may be shared."""

    level: Literal["note", "result", "alert"] = setting("result", Choice("note", "result", "alert"))
    """The least that is told: note adds what was mended, as a digest; alert is only what needs you."""
    command: str | None = setting(None, COMMAND)
    """A command that is run with the message on its standard input and in HOLDFAST_MESSAGE."""
    webhook: str | None = setting(None, ADDRESS)
    """An address that the message is posted to, as JSON."""
    format: Literal["auto", "json", "slack", "discord"] = setting("auto", Choice("auto", "json", "slack", "discord"))
    """The form the webhook wants. Auto goes by the host of its address."""
    bell: bool = setting(False, BOOL)
    """Whether the terminal of `holdfast train` and `watch` rings its bell."""
    digest: float = setting(3600.0, DURATION)
    """How long what was mended is gathered before it is told as one message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExternalSettings:
    """What `holdfast run` does with a script that knows nothing of holdfast."""

    restart: bool = setting(True, BOOL)
    """Whether a script that was killed, crashed or hung is started again. Its own errors never are."""
    output: int = setting(64 << 20, BYTES)
    """How much of what a script prints is kept in the run folder. All of it is passed on."""
    room: float = setting(1800.0, DURATION)
    """How long to wait for room on a full disk before giving up."""
    hook: bool = setting(True, BOOL)
    """Whether Python scripts are watched from inside: steps, the exception they end with, stacks of a hang."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSettings:
    """What `holdfast plan` measures and reckons with."""

    measure: float = setting(30.0, DURATION)
    """How long all trials of a plan may take together, preparation of data not counted."""
    electricity: float | None = setting(None, DOLLARS)
    """Dollars for a kilowatt-hour. Without it, local rows show energy and no cost."""
    prices: str | None = setting(None, FILE)
    """A CSV with your own prices of rented GPUs: gpu, cloud, usd_per_hour."""


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
    """The text under the field of `key` in this file."""
    known(key)
    return _descriptions().get(key, "")


@functools.cache
def _descriptions() -> dict[str, str]:
    """Python drops a string under a field, so it is read from the source; without the source it is empty."""
    import ast

    try:
        tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
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
    for parts, value, line in tomlfile.read(path, shown, table):
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
        f"the environment variable {name} names no setting",
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
