"""A run in a cloud: the task file SkyPilot reads, what it costs at most, and what is missing to start it. No torch.

    task = Task("job-calm-heron", "my_script.py", ["epochs=3"], gpu="L4", spot=True, bucket="mine", cap=5.0, price=0.31)
    task.to_yaml()                        # resources, mounts, set-up, and a run that goes on by itself
    task.hours                            # 16.1: the cap ends the task, wherever it is
    check_ready(task, Path.home())        # UserError that says what to run first

A recovered task finds its run folder in the bucket and resumes it. Exit code 75 (stopped, state saved) means recovery,
every other code is final. The cap is a point in time, written down when the task first starts, so that recoveries do
not renew it.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import UserError

RUNS = "/holdfast-runs"
"""Where the bucket is mounted."""
SYNCED = "~/holdfast-runs"
"""Where runs are without one: on the machine's own disk, for `holdfast pull`."""
WITHOUT_MOUNT = ("vast", "runpod")
"""Clouds that cannot mount a bucket, and know no tasks of several machines."""
CREDENTIALS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "aws": ((".aws/credentials", ".aws/config"), "pip install 'skypilot[aws]' && aws configure"),
    "gcp": (
        (".config/gcloud/application_default_credentials.json",),
        "pip install 'skypilot[gcp]' && gcloud auth application-default login",
    ),
    "azure": ((".azure/azureProfile.json",), "pip install 'skypilot[azure]' && az login"),
    "lambda": ((".lambda_cloud/lambda_keys",), "mkdir -p ~/.lambda_cloud && nano ~/.lambda_cloud/lambda_keys"),
    "runpod": ((".runpod/config.toml",), "pip install 'skypilot[runpod]' && runpod config"),
    "vast": (
        (".config/vastai/vast_api_key", ".vast_api_key"),
        "pip install 'skypilot[vast]' && vastai set api-key KEY",
    ),
    "kubernetes": ((".kube/config",), "pip install 'skypilot[kubernetes]'"),
}
"""Where each cloud keeps its key, and the command that puts it there."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task, as it was asked for."""

    name: str
    script: str
    """Relative to the folder that is sent along."""
    words: Sequence[str] = ()
    gpu: str = "L4"
    gpus: int = 1
    nodes: int = 1
    spot: bool = False
    cloud: str | None = None
    bucket: str | None = None
    workdir: str = "."
    setup: str = "pip install holdfast"
    price: float | None = None
    """Dollars an hour, for all machines together."""
    cap: float = 5.0
    """Dollars the task may cost at most."""
    idle_minutes: int = 10
    staged: str | None = None
    """A folder here whose content is to be where runs are there: a run that goes on, under the name of the task."""

    def __post_init__(self) -> None:
        if self.bucket and self.cloud in WITHOUT_MOUNT:
            raise UserError(
                f"{self.cloud} cannot mount a bucket",
                hints=["leave out --bucket: the run folder stays on the machine, `holdfast pull` fetches it"],
            )
        if self.nodes > 1 and self.cloud in WITHOUT_MOUNT:
            raise UserError(f"{self.cloud} has no tasks of several machines", hints=["choose another --infra"])
        if self.spot and not self.bucket:
            raise UserError(
                "--spot needs --bucket",
                cause="a spot machine is taken away with its disk, and the run folder with it",
                hints=["`--bucket NAME` keeps it; SkyPilot makes the bucket if there is none"],
            )

    @property
    def runs(self) -> str:
        return RUNS if self.bucket else SYNCED

    @property
    def hours(self) -> float | None:
        """How long the cap lasts; None if nobody knows the price."""
        return self.cap / self.price if self.price else None

    @property
    def command(self) -> list[str]:
        """What starts it: a job that SkyPilot watches and recovers, or a machine that it turns off again."""
        if self.spot:
            return ["sky", "jobs", "launch", "--yes", "--name", self.name]
        return ["sky", "launch", "--yes", "--cluster", self.name, "--down", "-i", str(self.idle_minutes)]

    def to_yaml(self) -> str:
        """The whole file. Every value is written as JSON, which YAML reads."""
        return "\n".join(
            [
                f"# Written by holdfast. Start it with: {shlex.join(self.command)} THIS_FILE",
                f"name: {json.dumps(self.name)}",
                f"num_nodes: {self.nodes}",
                f"workdir: {json.dumps(self.workdir)}",
                "resources:",
                *_nested(self._resources()),
                *self._mounts(),
                "setup: |",
                *(f"  {line}" for line in self.setup.splitlines()),
                "run: |",
                *(f"  {line}".rstrip() for line in self._run().splitlines()),
                "",
            ]
        )

    def _resources(self) -> dict[str, Any]:
        wanted: dict[str, Any] = {
            "accelerators": {self.gpu: self.gpus},
            "use_spot": self.spot,
            "autostop": {"idle_minutes": self.idle_minutes, "down": True},
        }
        if self.cloud:
            wanted["infra"] = self.cloud
        if self.spot:
            wanted["job_recovery"] = {
                "strategy": "EAGER_NEXT_REGION",
                "max_restarts_on_errors": 0,
                "recover_on_exit_codes": [75],
            }
        return wanted

    def _mounts(self) -> list[str]:
        mounts: dict[str, Any] = {}
        if self.bucket:
            storage: dict[str, Any] = {"name": self.bucket, "mode": "MOUNT_CACHED"}
            if self.staged:
                storage["source"] = self.staged
            mounts[RUNS] = storage
        elif self.staged:
            mounts[SYNCED] = self.staged
        return ["file_mounts:", *_nested(mounts)] if mounts else []

    def _run(self) -> str:
        words = shlex.join([self.script, *self.words])
        several = (
            '--nodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK" '
            '--master "$(echo "$SKYPILOT_NODE_IPS" | head -n1)" '
            '--nproc "$SKYPILOT_NUM_GPUS_PER_NODE" '
        )
        single = self.nodes == 1 and self.gpus == 1
        start = "holdfast train" if single else f"holdfast launch {several}"
        script = shlex.quote(self.script)
        resume = "holdfast resume latest" if single else f"holdfast launch {several}--resume latest"
        ends = "" if self.hours is None else str(int(self.hours * 3600))
        return "\n".join(
            [
                f"runs={self.runs}/{self.name}",
                'mkdir -p "$runs"',
                *_until(ends),
                'if ls "$runs"/*/run.json > /dev/null 2>&1; then',
                f'  $limit {resume} --script {script} --folder "$runs"',
                "else",
                f'  $limit {start.strip()} {words} run.folder="$runs"',
                "fi",
            ]
        )


def _until(seconds: str) -> list[str]:
    """The cap, as shell: a point in time that is kept beside the run, and what is left until then."""
    if not seconds:
        return ["limit="]
    return [
        f'[ -e "$runs/ends" ] || echo $(( $(date +%s) + {seconds} )) > "$runs/ends"',
        'left=$(( $(cat "$runs/ends") - $(date +%s) ))',
        'if [ "$left" -le 0 ]; then echo "the cap of this task is spent"; exit 1; fi',
        'limit="timeout --signal TERM --kill-after 120 $left"',
    ]


def _nested(values: Mapping[str, Any]) -> list[str]:
    return [f"  {json.dumps(key) if '/' in key else key}: {json.dumps(value)}" for key, value in values.items()]


# Money ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars an hour for one machine, and who says so."""

    dollars: float
    basis: str


def catalog_price(task: Task, home: Path) -> Price | None:
    """The cheapest machine with this card in SkyPilot's catalogues, as far as they are on this machine."""
    found = [price for price in _catalog(task, home) if price.dollars > 0]
    return min(found, key=lambda price: price.dollars, default=None)


def _catalog(task: Task, home: Path) -> Iterator[Price]:
    for path in sorted((home / ".sky" / "catalogs").glob("v*/*/vms.csv")):
        cloud = path.parent.name
        if task.cloud and not task.cloud.startswith(cloud):
            continue
        try:
            with open(path, newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    price = _price_of(row, task)
                    if price is not None:
                        yield Price(price, f"{cloud} {row.get('InstanceType')}, SkyPilot's catalogue on this machine")
        except (OSError, csv.Error, UnicodeDecodeError):
            continue


def _price_of(row: Mapping[str, str | None], task: Task) -> float | None:
    try:
        if row.get("AcceleratorName") != task.gpu or float(row.get("AcceleratorCount") or 0) != task.gpus:
            return None
        return float(row.get("SpotPrice" if task.spot else "Price") or 0)
    except ValueError:
        return None


# What is missing ----------------------------------------------------------------------------------------------


def enabled(home: Path, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Clouds that a key of this user's is here for."""
    found = [name for name, (files, _) in CREDENTIALS.items() if any((home / file).exists() for file in files)]
    variables = {"aws": "AWS_ACCESS_KEY_ID", "gcp": "GOOGLE_APPLICATION_CREDENTIALS", "runpod": "RUNPOD_API_KEY"}
    found += [name for name, variable in variables.items() if environ.get(variable) and name not in found]
    return found


def check_ready(task: Task, home: Path) -> None:
    """UserError that says exactly what to run, if SkyPilot or every key is missing."""
    if shutil.which("sky") is None:
        raise UserError(
            "SkyPilot is not installed",
            cause="it starts and ends the machines",
            hints=["`pip install 'holdfast[cloud]'`", "`--dryrun` writes the task file without it"],
        )
    wanted = (task.cloud or "").partition("/")[0]
    have = enabled(home)
    if wanted and wanted in CREDENTIALS and wanted not in have:
        raise UserError(
            f"there is no key for {wanted} here", hints=[f"run `{CREDENTIALS[wanted][1]}`", "then `sky check`"]
        )
    if not have:
        raise UserError(
            "there is no key for any cloud here",
            cause="SkyPilot uses your own account",
            hints=[*(f"{name}: run `{command}`" for name, (_, command) in CREDENTIALS.items()), "then `sky check`"],
        )
