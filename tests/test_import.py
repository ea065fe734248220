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
    "holdfast.distributed.nest",
    "holdfast.distributed.place",
    "holdfast.distributed.rank",  # torch comes when it trains
    "holdfast.distributed.sky",
    "holdfast.distributed.torchrun",
    "holdfast.distributed.watch",
    "holdfast.errors",
    "holdfast.events",
    "holdfast.external.supervising",
    "holdfast.settings",
    "holdfast.files",
    "holdfast.eventfile",
    "holdfast.linefile",
    "holdfast.monitor.reader",
    "holdfast.monitor.report",
    "holdfast.runfolder",
    "holdfast.runtime.accounts",
    "holdfast.runtime.affairs",
    "holdfast.runtime.board",
    "holdfast.runtime.channel",
    "holdfast.runtime.checkpoint",
    "holdfast.runtime.crew",
    "holdfast.runtime.ending",
    "holdfast.runtime.digests",
    "holdfast.runtime.evidence",
    "holdfast.runtime.holding",
    "holdfast.runtime.faults",
    "holdfast.runtime.keeper",
    "holdfast.runtime.keeping",
    "holdfast.runtime.ladder",
    "holdfast.runtime.launch",
    "holdfast.runtime.layout",
    "holdfast.runtime.limits",
    "holdfast.runtime.listening",
    "holdfast.runtime.memory",
    "holdfast.runtime.moving",
    "holdfast.runtime.nursery",  # it imports torch later, by itself, after looking around
    "holdfast.runtime.process",
    "holdfast.runtime.recovering",
    "holdfast.runtime.rescue",
    "holdfast.runtime.saving",
    "holdfast.runtime.scalars",
    "holdfast.runtime.script",
    "holdfast.runtime.sensing",
    "holdfast.runtime.slots",
    "holdfast.runtime.spending",
    "holdfast.runtime.storage",
    "holdfast.runtime.supervisor",
    "holdfast.runtime.audit",
    "holdfast.runtime.telling",
    "holdfast.runtime.watchdog",
    "holdfast.runtime.weights",
    "holdfast.runtime.watching",
    "holdfast.devices.battery",
    "holdfast.devices.hosting",
    "holdfast.monitor.bottleneck",
    "holdfast.monitor.devices",
    "holdfast.monitor.notebook",
    "holdfast.monitor.notify",
    "holdfast.monitor.terminal.scene",
    "holdfast.devices.identity",
    "holdfast.devices.inventory",
    "holdfast.devices.ledger",
    "holdfast.devices.probes.catalog",
    "holdfast.devices.probes.child",  # as the nursery
    "holdfast.devices.probing",
    "holdfast.devices.sensors",
    "holdfast.devices.trust",
    "holdfast.devices.turn",
    "holdfast.testing.symptoms",
    "holdfast.workloads.registry",
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
