"""`holdfast doctor`: what each device can really do, from isolated probes; findings with evidence and remedies.

holdfast doctor                        every device, quickly
holdfast doctor --device cuda:0        one of them
holdfast doctor --full                 every check there is, in minutes
holdfast doctor --fresh                probe again what is known already
holdfast doctor --script job.py        and one step of your own script, against the CPU
holdfast doctor --workload eeg         and one step of a workload that comes with holdfast
holdfast doctor --knowledge FILE       with a newer file of what is known about cards
holdfast doctor --recorded FOLDER      what there is to say about a machine that was written down
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import platform
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import __version__
from holdfast.base import processes
from holdfast.base.errors import ExitCode
from holdfast.cli import doctor_text
from holdfast.console.output import Output, add_flags, duration
from holdfast.console.text import without_control
from holdfast.console.usage import Parser, UsageError, similar
from holdfast.devices import inventory, inventory_findings, knowledge_file
from holdfast.devices.advice import advice
from holdfast.devices.doctor import Doctor, summary
from holdfast.devices.examined import Examined, Listener, Patient
from holdfast.devices.findings import Finding, finding
from holdfast.devices.remedies import BACKENDS, Remedy
from holdfast.faults.terms import Level
from holdfast.run import machine

if TYPE_CHECKING:
    from holdfast.devices.probe_catalog import Probe
    from holdfast.devices.results import ProbeResult
    from holdfast.devices.survey.records import Device, Inventory

_BAR = 24


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "doctor",
        description="""\
Test each device of this machine: does it crash, hang or compute wrong numbers?

examples:
  holdfast doctor                     test every device quickly
  holdfast doctor --device cuda:0     test one device
  holdfast doctor --full              run every test (minutes)
  holdfast doctor --fresh             test again, even if a verdict is stored
  holdfast doctor --script job.py     also run one step of your own script on each device
  holdfast doctor --workload eeg      also run one step of a built-in workload
  holdfast doctor -v                  show notes, and every test with its time
  holdfast doctor --knowledge FILE    use a newer file of known cards and bugs
  holdfast doctor --recorded FOLDER   judge another machine from its files; runs nothing

The doctor trains small models in separate processes and compares the numbers with the CPU's. When a test fails, it
tries known remedies. `holdfast train` uses the verdicts, which stay valid for 30 days.
""",
    )
    parser.add_argument("--full", action="store_true", help="run every test (minutes)")
    parser.add_argument("--device", metavar="D", help="test only this device: cpu, cuda:0, …")
    parser.add_argument("--fresh", action="store_true", help="test again, even if a verdict is stored")
    parser.add_argument("--again", action="store_true", help="also run tests that took this machine down before")
    parser.add_argument(
        "--script", metavar="SCRIPT", help="also run one step of this script and compare it with the CPU"
    )
    parser.add_argument("--workload", metavar="NAME", help="also run one step of a workload: eeg, detection, ecosystem")
    parser.add_argument("--knowledge", metavar="FILE", help="read the known cards and bugs from this file")
    parser.add_argument("--recorded", metavar="FOLDER", help="judge a machine from its recorded files; runs nothing")
    parser.add_argument("--message", metavar="TEXT", help="with --recorded: the error message of the failure")
    parser.add_argument("words", nargs="*", default=[], metavar="KEY=VALUE", help="arguments of the script's train()")
    add_flags(parser, progress=True)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Look around, examine each device, say what was found."""
    output = Output.from_args(args)
    if args.knowledge:
        knowledge_file.use(Path(args.knowledge))
    if args.recorded:
        from holdfast.cli import recorded

        return recorded.show(args, output)
    asked = inventory.check(args.device) if args.device and args.device != "auto" else None
    script = _script(args.script, args.workload, args.words)
    bar = Bar(output)
    flags = {"full": args.full, "fresh": args.fresh, "again": args.again}
    with contextlib.closing(bar), Doctor(listener=bar, script=script, **flags) as doctor:
        for settled in doctor.ledger.settle(processes.boot_id()):
            output.note(without_control(f"• {settled.sentence}"))
        likely = [asked] if asked else inventory.candidates()
        if (script or not all(doctor.remembered(label) for label in likely)) and machine.torch_build()["version"]:
            doctor.warm()
        bar.says("looking for devices")
        here = _survey()
        found = inventory_findings.of_inventory(here, os.environ, shm_bytes=machine.memory()["shm_bytes"])
        seen = doctor.examine_all(patients(here, found, asked))
        bar.close()
        rate, trouble = disk_speed(here)
        problem = doctor.verdicts.problem
    usable = [each.verdict.device for each in seen if each.verdict.trainable]
    system = [
        *(each for each in found if each.device in (inventory_findings.SYSTEM, inventory_findings.DISK)),
        *trouble,
    ]
    last = None if asked else inventory_findings.overall(here, usable)
    system += [last] if last else []
    lines = [] if asked else advice(here, usable)
    if output.as_json:
        output.json(_data(here, seen, usable, system, lines))
    else:
        view = doctor_text.View(
            version=__version__,
            python=platform.python_version(),
            inventory=here,
            seen=seen,
            machine=system,
            disk_bytes_s=rate,
            advice=lines,
            script=args.script or args.workload or "my_script.py",
            by="--workload" if args.workload else "--script",
            plan=importlib.util.find_spec("holdfast.cli.plan") is not None,
            asked=asked,
            problem=problem,
            verbose=bool(output.verbose),
            knowledge=knowledge_file.sentence(knowledge_file.current(), date.today()),
            width=min(doctor_text.WIDTH, max(output.out.width - 1, 40)),
        )
        for line in doctor_text.page(view):
            output.print(line)
    return ExitCode.OK if usable else ExitCode.NO


def _script(asked: str | None, workload: str | None, words: list[str]) -> Probe | None:
    """A probe of the user's own; UserError for a script that cannot be one."""
    if asked and workload:
        raise UsageError("--script and --workload cannot be combined", command="doctor", tips=["use only one of them"])
    if not asked and not workload:
        if words:
            tips = ["name a script: `--script`"]
            raise UsageError(f"unexpected argument `{words[0]}`", command="doctor", tips=tips)
        return None
    from holdfast.console.order import read_script, split_words
    from holdfast.devices.probe_catalog import script_probe
    from holdfast.run import script

    arguments, _ = split_words(words, "doctor")
    facts = read_script(str(workload_script(workload)) if workload else str(asked), "doctor")
    script.check_arguments(facts, arguments)
    return script_probe(facts.path, arguments, called=workload or "")


def workload_script(name: str) -> Path:
    """The script of a workload; of one that is made of several runs, the first, which needs none before it.

    A path is taken as it is. UsageError for a name that nobody registered.
    """
    if name.endswith(".py"):
        return Path(name)
    from holdfast.run import workload_registry

    known, chosen = workload_registry.names(), workload_registry.find(name)
    if chosen is not None and chosen.script is None and chosen.stages:
        chosen = workload_registry.find(chosen.stages[0])
    if chosen is None or chosen.script is None:
        tips = [*similar(name, known, "workload"), "a script of your own: `--script my_script.py`"]
        there = f"the workloads are {', '.join(known)}"
        raise UsageError(f"unknown workload `{name}`", command="doctor", cause=there, tips=tips)
    chosen.check_installed()
    return Path(chosen.script)


def _survey() -> Inventory:
    from holdfast.devices import survey
    from holdfast.run.settings import Settings

    return survey.take(folder=Path(Settings.load().run.folder))


def patients(here: Inventory, found: Sequence[Finding], asked: str | None = None) -> list[Patient]:
    """Every device of the machine, the CPU first, as the screen shows them; or the one that was asked for."""
    listed = sorted(here.devices, key=lambda device: device.kind != "cpu")
    known = [_patient(device, here, found) for device in listed if asked in (None, device.id)]
    if asked is None or known:
        return known
    missing = (
        "" if asked.startswith("pretend") else f"no such device was found; this machine has {', '.join(here.visible)}"
    )
    return [Patient(asked, unusable=missing)]


def _patient(device: Device, here: Inventory, found: Sequence[Finding]) -> Patient:
    mine = tuple(each for each in found if each.device == device.id)
    unusable = ""
    if here.torch.version is None:
        unusable = "torch is not installed"
    elif not device.visible:
        worse = [each.sentence() for each in mine if each.level != Level.NOTE] or [each.sentence() for each in mine]
        unusable = next(iter([*worse, *device.notes]), "torch does not see it")
    return Patient(device.id, device.name, device.arch, BACKENDS.get(device.kind), mine, unusable)


# The disk -----------------------------------------------------------------------------------------------------------


def disk_speed(here: Inventory, limit: int = 32 << 20, seconds: float = 1.0) -> tuple[float | None, list[Finding]]:
    """Bytes a second that a file in the run folder takes until it is on the disk; not asked of a network's disk."""
    disk = here.disk
    if disk is None or disk.over_network:
        return None, []
    folder = Path(disk.folder).expanduser().absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    path = folder / f".holdfast-doctor-{os.getpid()}"
    block = os.urandom(1 << 20)
    written = 0
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            began = time.perf_counter()
            while written < limit and time.perf_counter() - began < seconds:
                written += os.write(fd, block)
            os.fsync(fd)
            rate = written / max(time.perf_counter() - began, 1e-9)
            return rate, inventory_findings.of_disk(disk.folder, rate)
        finally:
            os.close(fd)
    except OSError as error:
        evidence = {"folder": disk.folder, "why": error.strerror or str(error)}
        return None, [finding("disk-cannot-be-written", inventory_findings.DISK, evidence)]
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


# JSON ---------------------------------------------------------------------------------------------------------------


def _data(
    here: Inventory, seen: Sequence[Examined], usable: list[str], system: Sequence[Finding], lines: Sequence[str]
) -> dict[str, Any]:
    devices = []
    for each in seen:
        device = here.device(each.verdict.device)
        devices.append(
            {
                **each.verdict.to_json(),
                "kind": device.kind if device else None,
                "memory_bytes": device.memory_bytes if device else None,
                "driver": device.driver if device else None,
                "remembered": each.remembered,
                "script": summary([each.script]) if each.script else None,
                "seconds": round(each.seconds, 2),
                "checks": summary(each.results),
                "cures": [cure.to_json() for cure in each.found.cures],
                "tried": [attempt.remedy.name for attempt in each.found.attempts],
            }
        )
    return {
        "devices": devices,
        "usable": usable,
        "machine": [each.to_json() for each in system],
        "advice": [*lines],
        "inventory": here.to_json(),
        "knowledge": knowledge_file.current().to_json(),
    }


# Progress -----------------------------------------------------------------------------------------------------------


class Bar(Listener):
    """One line on stderr that is drawn over; in a pipe, a line for each device when it is done."""

    def __init__(self, output: Output) -> None:
        self._screen = output.err
        self._live = output.progress and not output.quiet and self._screen.tty
        self._quiet = output.quiet or not output.progress
        self._total: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._began: dict[str, float] = {}

    def says(self, text: str) -> None:
        if self._live:
            self._screen.redraw(text)

    def begins(self, device: str, checks: int) -> None:
        self._total[device], self._done[device], self._began[device] = checks, 0, time.monotonic()
        self.says(f"{device}  importing torch")

    def checks(self, device: str, name: str) -> None:
        self._draw(device, name)

    def result(self, result: ProbeResult) -> None:
        self._done[result.device] = self._done.get(result.device, 0) + 1
        self._draw(result.device, result.probe)

    def tries(self, device: str, remedy: Remedy, probe: str) -> None:
        self.says(f"{device}  {probe}: trying {remedy.text}")

    def ends(self, seen: Examined) -> None:
        verdict = seen.verdict
        if not self._live and not self._quiet and not seen.remembered:
            self._screen.write(without_control(f"{verdict.device}: {verdict.words}, {duration(seen.seconds)}"))

    def close(self) -> None:
        if self._live:
            self._screen.wipe()

    def _draw(self, device: str, name: str) -> None:
        done = self._done.get(device, 0)
        total = max(self._total.get(device, 0), done, 1)
        full = done * _BAR // total
        bar = "━" * full + "─" * (_BAR - full)
        now = time.monotonic()
        self.says(f"{device}  {bar}  {done}/{total}  {duration(now - self._began.get(device, now))}  {name}")
