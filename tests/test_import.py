"""What importing costs: the supervisor's side never imports torch or numpy, and `import holdfast` changes nothing."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import holdfast
import holdfast.cli

HEAVY = ("torch", "numpy", "safetensors")
SUPERVISOR_SIDE = [
    "holdfast",
    "holdfast.distributed.job",
    "holdfast.distributed.rank_nursery",
    "holdfast.distributed.place",
    "holdfast.distributed.rank",  # torch comes when it trains
    "holdfast.distributed.sky",
    "holdfast.distributed.torchrun",
    "holdfast.distributed.rank_watch",
    "holdfast.base.errors",
    "holdfast.run.events",
    "holdfast.supervisor.scripts.script_supervisor",
    "holdfast.run.settings",
    "holdfast.base.files",
    "holdfast.run.tensorboard_file",
    "holdfast.base.line_file",
    "holdfast.monitor.reader",
    "holdfast.monitor.report",
    "holdfast.run.folder",
    "holdfast.record.receipt",
    "holdfast.supervisor.run_context",
    "holdfast.base.board",
    "holdfast.base.channel",
    "holdfast.state.checkpoint",
    "holdfast.supervisor.workers",
    "holdfast.supervisor.run_end",
    "holdfast.run.digests",
    "holdfast.record.evidence",
    "holdfast.supervisor.throttle",
    "holdfast.faults.classification",
    "holdfast.supervisor.keeper",
    "holdfast.supervisor.keeper_client",
    "holdfast.faults.ladder",
    "holdfast.supervisor.process_start",
    "holdfast.state.layout",
    "holdfast.supervisor.limits",
    "holdfast.supervisor.signal_queue",
    "holdfast.state.slot_memory",
    "holdfast.record.transfer",
    "holdfast.worker.nursery",  # it imports torch later, by itself, after looking around
    "holdfast.base.processes",
    "holdfast.supervisor.recovery",
    "holdfast.supervisor.rescue_folder",
    "holdfast.supervisor.saves",
    "holdfast.record.tensorboard",
    "holdfast.run.script",
    "holdfast.supervisor.sensors",
    "holdfast.state.slots",
    "holdfast.record.time_spent",
    "holdfast.run.disk_trouble",
    "holdfast.supervisor.supervisor",
    "holdfast.record.audit",
    "holdfast.record.reporter",
    "holdfast.supervisor.watchdog",
    "holdfast.state.weights_file",
    "holdfast.supervisor.worker_watch",
    "holdfast.devices.battery",
    "holdfast.devices.probe_host",
    "holdfast.monitor.bottleneck",
    "holdfast.monitor.devices",
    "holdfast.programs.calling",
    "holdfast.monitor.notebook",
    "holdfast.monitor.notify",
    "holdfast.monitor.terminal.scene",
    "holdfast.devices.identity",
    "holdfast.devices.inventory",
    "holdfast.devices.ledger",
    "holdfast.devices.probe_catalog",
    "holdfast.probes.child",  # as the nursery
    "holdfast.devices.probe_process",
    "holdfast.devices.device_sensors",
    "holdfast.devices.trust_rules",
    "holdfast.devices.probe_turn",
    "holdfast.injection.symptoms",
    "holdfast.run.workload_registry",
    "holdfast.workloads.eeg.closing",
    "holdfast.workloads.eeg.submission",
]
COMMANDS = [f"holdfast.cli.{module.name}" for module in pkgutil.iter_modules(holdfast.cli.__path__)]

LOOK = """
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    importlib.import_module(name)
    heavy = sorted({word.partition(".")[0] for word in sys.modules} & {"torch", "numpy", "safetensors"})
    if heavy:
        found[name] = heavy
        break
print(json.dumps(found))
"""


def imported_by(modules: list[str]) -> dict[str, list[str]]:
    """The first of the modules that brings in something heavy, and what."""
    told = subprocess.run([sys.executable, "-c", LOOK, *modules], capture_output=True, text=True, check=True)
    return json.loads(told.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("modules", [["holdfast"], SUPERVISOR_SIDE, COMMANDS], ids=["holdfast", "supervisor", "cli"])
def test_no_torch_and_no_numpy(modules: list[str]) -> None:
    assert imported_by(modules) == {}


def test_the_command_line_has_modules() -> None:
    assert {"holdfast.cli.main", "holdfast.cli.train"} <= set(COMMANDS)


def test_importing_changes_nothing_in_the_process() -> None:
    """No environment, no log handler, no signal handler, no thread, no exit hook, no warning filter."""
    code = """
import atexit, logging, os, signal, sys, threading, warnings
def seen():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    return (dict(os.environ), list(logging.root.handlers), logging.root.level, handlers, threading.active_count(),
            atexit._ncallbacks(), list(warnings.filters), sys.excepthook, list(sys.path))
before = seen()
import holdfast
assert seen() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_is_what_there_is() -> None:
    assert sorted(holdfast.__all__) == dir(holdfast)
    assert len(set(holdfast.__all__)) == len(holdfast.__all__)
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    public = {name for name in vars(holdfast) if not name.startswith("_")}
    modules = {name for name in public if isinstance(getattr(holdfast, name), type(holdfast))}
    assert public - modules - {"annotations", "Any", "TYPE_CHECKING"} <= set(holdfast.__all__)


def test_lazy_names_are_in_all_and_mean_what_the_types_say() -> None:
    assert set(holdfast._LAZY) < set(holdfast.__all__)
    for name, module in holdfast._LAZY.items():
        assert getattr(holdfast, name) is getattr(importlib.import_module(module), name)


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Sesion'"):
        holdfast.Sesion  # noqa: B018


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert holdfast.__version__ == version("holdfast")
