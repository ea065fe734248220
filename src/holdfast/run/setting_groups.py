"""The settings by group: the type of each, its default, and what it means.

    class RetrySettings:
        same_step: int = setting(3, at_least(1, "a whole number of tries"))

The text under a field is its documentation: `holdfast config -v` and the page of settings print it. How a value is
found, and what is said of a wrong one, is in `holdfast.run.settings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.run.setting_values import (
    BOOL,
    BYTES,
    DURATION,
    Choice,
    CommandLine,
    Float,
    OrAuto,
    OrOff,
    Text,
    at_least,
    between,
    setting,
)

Auto = Literal["auto"]

FACTOR = Float("a number, 1 or more", low=1.0)
PERCENT = Float("a number of percent, 0 or more", low=0.0)
DEGREES = OrOff(Float("a number of °C above zero", low=1.0))
WATTS = OrOff(Float("a number of watts above zero", low=1.0))
FULL = OrOff(Float("a number of percent above zero", low=1.0))
COMMAND = OrOff(CommandLine("a program and its arguments; no shell reads them, `sh -c '…'` starts one"))
ADDRESS = OrOff(Text("an address that begins with https:// or http://", pattern=r"https?://\S+"))
PATH = Text("the path of a folder")
TRACKERS = OrOff(
    Text("mlflow, wandb, trackio, tensorboard or several of them", r"((mlflow|wandb|trackio|tensorboard)(,(?!$)|$))+")
)
PROJECT = Text("a name of letters, digits, blanks, dots and hyphens", pattern=r"\w[\w .-]{0,90}")
TRACKING = OrOff(Text("an address without a password in it (MLFLOW_TRACKING_PASSWORD is for that)", r"[^\s@]+"))
FILE = OrOff(Text("the path of a file"))
DOLLARS = OrOff(Float("a number of dollars, 0 or more", low=0.0))
METRIC = Text("auto, none, or the name of a metric", pattern=r"[A-Za-z_][\w./-]*")
DEVICE = Text("auto, cpu, or a device such as cuda:0", pattern=r"[a-z]+(:\d+)?")
DEVICES = OrOff(Text("devices with commas between them, such as cuda:0,cpu", r"[a-z-]+(:\d+)?(,[a-z-]+(:\d+)?)*"))
SHARES = Text(
    "auto, equal, measured, or a number for each rank such as 3:1", r"auto|equal|measured|[1-9]\d*(:[1-9]\d*)+"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchdogSettings:
    """When a silent worker is called hung, and how it is ended."""

    floor: float = setting(5.0, DURATION)
    """The shortest silence that is called a hang, however fast the steps are; a deadlock is seen earlier."""
    factor: float = setting(4.0, FACTOR)
    """A phase may take this many times its slowest recent duration before it is called hung."""
    first_step: float = setting(180.0, DURATION)
    """How long each phase of a worker's first step may take: kernels are chosen, loaded and built there."""
    setup: float = setting(1800.0, DURATION)
    """How long a script may prepare without a sign of life; each `session.progress()` is one."""
    loop: float = setting(60.0, DURATION)
    """The shortest silence called a hang in your own code between steps, which may save or draw, and in evaluations."""
    evaluate: float = setting(600.0, DURATION)
    """How long the first evaluation may take; the limit of later ones follows from what was measured."""
    compile: float = setting(1800.0, DURATION)
    """How long `torch.compile` may work before it is called hung."""
    wait: float = setting(3600.0, DURATION)
    """How long a process may wait in silence for something outside: a socket, a file, a lock, a timer of its own."""
    term_grace: float = setting(2.0, DURATION)
    """How long a hung worker has to end after SIGTERM before it gets SIGKILL."""
    kill_grace: float = setting(10.0, DURATION)
    """How long a worker has to vanish after SIGKILL before it is abandoned. Large processes get longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotSettings:
    """The copy of the training state in memory that outlives the worker."""

    every: int | Auto = setting("auto", OrAuto(at_least(1, "a whole number of steps")))
    """Steps between two snapshots: at 1 a fault costs one step. With auto, `lose` and `cost` decide while it runs."""
    lose: float = setting(1.0, DURATION)
    """How much work a fault may cost, at least one step. The default gives way where it would take more than `cost`."""
    cost: float = setting(1.0, PERCENT)
    """The share of the training time that snapshots may take, in percent. A `lose` that you set comes before it."""
    slots: int = setting(5, between(3, 16))
    """Copies kept at once: being written, the newest, being saved, perhaps the best, the last checked on the CPU."""
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
    """How often the run tries again after a fault before it gives up."""

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
    """Whether samples that twice end or hang the process that reads them are left out. False brings them back."""
    skip_bad: bool = setting(False, BOOL)
    """Whether samples that raise an error are left out too, where the others of their batch can be read."""
    outside: bool = setting(False, BOOL)
    """Whether lists, names and links in a data set of images may point outside of its folder."""
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
    """CPU threads for torch. Auto is OMP_NUM_THREADS if that is set, else the number of CPUs that the run may use.
    Recorded with the run: another number gives other last bits."""
    device: str = setting("auto", DEVICE)
    """The device to train on. Auto is the best one that works; the CPU stays as the last resort."""
    devices: str | None = setting(None, DEVICES)
    """For `holdfast launch`: a rank on each of these devices. A CPU beside others trains only if steps get faster."""
    shares: str = setting("auto", SHARES)
    """Which part of each batch a rank computes. Auto is equal parts, and measured ones where devices are of different
    kinds or a rank holds the others up. Measured parts follow the clock, so two runs have other last bits."""
    portable: bool = setting(False, BOOL)
    """Use only what every system has: no fork, no /proc, plain files. `HOLDFAST_PORTABLE=1` does it too."""
    stacks: bool = setting(True, BOOL)
    """Keep the stacks of a hung worker. Native stacks need `pip install 'holdfast[stacks]'`."""
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
    """Steps that must succeed in pieces before larger ones are tried again, half as many."""


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
    """Whether the step a worker was lost in is computed on the CPU, beside the worker that goes on."""
    budget: float = setting(20.0, DURATION)
    """How long the replay on the CPU may take. What is not done by then stays unknown."""
    non_finite: Literal["stop", "ignore"] = setting("stop", Choice("stop", "ignore"))
    """What a loss or gradient that is not finite means. With stop it is a fault, and no such step is ever kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SentinelSettings:
    """Looks now and then whether operators give the same on the device as on the CPU."""

    enabled: Literal["auto", "always", "never"] = setting("auto", Choice("auto", "always", "never"))
    """Auto watches every device but the CPU itself."""
    cost: float = setting(0.8, PERCENT)
    """The share of the training time that looks may take, in percent; from 100 on every step is looked at and waits."""
    samples: int = setting(4, at_least(1, "a whole number of samples"))
    """How many samples of a large convolution or pool are computed again in a look."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitsSettings:
    """Limits of heat, power, memory and disk. Past one the run warns, then slows down or pauses, then goes on."""

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
    """How long a limit may be passed before more than a warning follows, and must be kept before the run goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotifySettings:
    """Which messages go where. Never written into a run folder: addresses are secrets, and a folder may be shared."""

    level: Literal["note", "result", "alert"] = setting("result", Choice("note", "result", "alert"))
    """The least important messages that are sent: alert is only what needs you; note adds faults that were mended."""
    command: str | None = setting(None, COMMAND)
    """A command that gets the message on its standard input and in HOLDFAST_MESSAGE. No shell reads it: for pipes or
    variables write `sh -c '…'`."""
    webhook: str | None = setting(None, ADDRESS)
    """An address that the message is posted to, as JSON."""
    format: Literal["auto", "json", "slack", "discord"] = setting("auto", Choice("auto", "json", "slack", "discord"))
    """The form of the message for the webhook. Auto goes by the host of its address."""
    bell: bool = setting(False, BOOL)
    """Whether the terminal of `holdfast train` and `watch` rings its bell."""
    digest: float = setting(3600.0, DURATION)
    """How long mended faults are collected before they are sent as one message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackSettings:
    """Which experiment trackers get the run's numbers, events and files. The training never waits for them."""

    to: str | None = setting(None, TRACKERS)
    """The trackers, with commas between them. Each but tensorboard is an extra: `pip install 'holdfast[mlflow]'`."""
    project: str = setting("holdfast", PROJECT)
    """The project of the run in W&B and Trackio, and its experiment in MLflow."""
    mlflow: str | None = setting(None, TRACKING)
    """The address of the MLflow server, or sqlite:///FILE. Off uses the variable MLFLOW_TRACKING_URI."""
    tensorboard: str | None = setting(None, OrOff(PATH))
    """A folder that gets event files of every run, in a folder with the run's name. Off is `tb/` of the run folder."""
    artefacts: bool = setting(True, BOOL)
    """Whether the report and the best weights are sent when the run ends."""
    patience: float = setting(3600.0, DURATION)
    """How long after the end of the run a tracker that is away is tried; `holdfast track` sends the rest later."""


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
    """How long `holdfast plan` measures, and the prices it uses."""

    measure: float = setting(30.0, DURATION)
    """How long all trials of a plan may take together, preparation of data not counted."""
    electricity: float | None = setting(None, DOLLARS)
    """Dollars for a kilowatt-hour. Without it, local rows show energy and no cost."""
    prices: str | None = setting(None, FILE)
    """A CSV with your own prices of rented GPUs: gpu, cloud, usd_per_hour."""
