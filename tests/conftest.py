"""What every test shares: a ledger of its own, so that none meets another's faults or touches the user's.

And an end: a test that no time-out can stop shows its stacks and takes its process along, and the rest goes on.

Each test is in one of three tiers, and three targets run them: `make test` the first, `make test-all` (which CI runs)
the first two, `make test-long` all three. A test without a mark is in the first, one marked `all` in the second, one
marked `long` in the third. `sample(n)` leaves one in n cases of a test in its tier, always the same ones, and takes the
others into the third; with `sample(n, m)` the first two tiers together have one in m. `--rest` runs the second tier
alone, `--long` the third, `--everything` all of them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib.util
import itertools
import math
import os
import shutil
import signal
import sys
import tempfile
import zlib
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ROOM = 6 << 30
"""Bytes that a disk in memory has to have for the tests to use it."""
GRACE = 60.0
"""Seconds after the time-out of a test before its whole process is ended: then it hangs where no signal arrives."""

# On a busy machine an example takes seconds, and that is no fault of what is tested.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")

_numbers = itertools.count(1)
_states = pytest.StashKey[Path]()
_frozen = pytest.StashKey[int]()
_screen = os.dup(2)  # before pytest captures it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rest", action="store_true", help="only the tests that `make test-all` adds to `make test`")
    parser.addoption("--long", action="store_true", help="only the tests that `make test-long` adds to `make test-all`")
    parser.addoption("--everything", action="store_true", help="the tests of all tiers")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    gc.disable()  # what collecting makes stays
    try:
        _compile_a_part(session.config)
        return (yield)
    finally:
        gc.enable()
        _freeze_modules(session.config)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)  # the cores are shared: threads that wait for each other take as much time again


def _freeze_modules(config: pytest.Config) -> None:
    """Modules stay: sessions collect garbage and look for objects, and need not look through all of torch each time."""
    if len(sys.modules) > config.stash.get(_frozen, 0) + 100:
        config.stash[_frozen] = len(sys.modules)
        gc.collect()
        gc.freeze()


def _compile_a_part(config: pytest.Config) -> None:
    """pytest rewrites the asserts of a file once and keeps that: in a fresh clone each process does its part."""
    given = getattr(config, "workerinput", None)
    if given is None:
        return
    files = sorted(config.rootpath.glob("tests/**/test_*.py"))
    for path in files[int(given["workerid"].removeprefix("gw")) :: given["workercount"]]:
        _compile(config, path)


def _compile(config: pytest.Config, path: Path) -> None:
    hook = config.pluginmanager.rewrite_hook
    name = ".".join(path.relative_to(config.rootpath).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, path, loader=hook)
    if spec is None or not hasattr(hook, "exec_module"):  # started with --assert=plain
        return
    module = importlib.util.module_from_spec(spec)
    module.__dict__[
        "__builtins__"
    ] = {}  # nothing can be imported: the code is made and kept, and ends at its first line
    with contextlib.suppress(ImportError):
        hook.exec_module(module)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _longest_first(items)
    if config.getoption("everything") or any("::" in argument for argument in config.args):
        return  # a test that is named runs
    wanted = 2 if config.getoption("long") else 1 if config.getoption("rest") else 0
    tiers = _tiers(items)
    left_out = [item for item in items if tiers[item] != wanted]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if tiers[item] == wanted]


def _longest_first(items: list[pytest.Item]) -> None:
    """Files with the longest time limits come first: at the end no process is left alone with a long one."""
    limits: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        seconds = float(mark.args[0]) if mark and mark.args else 0.0
        limits[item.path] = max(seconds, limits.get(item.path, 0.0))
    items.sort(key=lambda item: -limits[item.path])  # the order inside of a file stays


def _tiers(items: list[pytest.Item]) -> dict[pytest.Item, int]:
    """The tier of each test: 0, 1 or 2. A sample goes by digests of names: it is the same everywhere."""
    tiers = {
        item: 2 if item.get_closest_marker("long") else int(bool(item.get_closest_marker("all"))) for item in items
    }
    cases: dict[str, list[pytest.Item]] = {}
    for item, tier in tiers.items():
        if tier < 2 and item.get_closest_marker("sample"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_one_test in cases.values():
        mark = of_one_test[0].get_closest_marker("sample")
        assert mark is not None
        of_one_test.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        first, second = (math.ceil(len(of_one_test) / number) for number in (mark.args[0], mark.args[-1]))
        tiers.update(dict.fromkeys(of_one_test[first:], 1))
        tiers.update(dict.fromkeys(of_one_test[second:], 2))
    return tiers


_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def _memory_disk() -> str | None:
    """A disk in memory with room for what the tests write: sessions sync thousands of files, and a disk takes time."""
    with contextlib.suppress(OSError, AttributeError):
        found = os.statvfs("/dev/shm")
        if found.f_bavail * found.f_frsize >= ROOM and not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY):
            return "/dev/shm"
    return None


_MEMORY = _memory_disk()


def pytest_configure(config: pytest.Config) -> None:
    _hear_signals()
    if hasattr(os, "register_at_fork"):  # a child that a test aborts on purpose need not show where it was
        os.register_at_fork(after_in_child=faulthandler.disable)
    if _MEMORY is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)
    config.stash[_states] = Path(tempfile.mkdtemp(prefix="holdfast-test-state-", dir=_MEMORY))
    os.environ["XDG_CACHE_HOME"] = str(config.stash[_states] / "cache")
    if config.option.markexpr != "hardware" and any(os.path.exists(driver) for driver in _DRIVERS):
        # The other tests are about the CPU. "-1" and not "": a test that pretends a card takes "" for a hidden one.
        os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
    _set_state(config)


def pytest_runtest_setup(item: pytest.Item) -> None:
    _set_state(item.config)
    _freeze_modules(item.config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0] if mark and mark.args else item.config.getini("timeout") or 0)
    if seconds:
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=_screen)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


class Files(LoadFileScheduling):
    """When a process dies: the test it was in has failed and is not tried again, what is left goes on to the end."""

    def remove_node(self, node: WorkerController) -> str | None:
        units = self.assigned_work.pop(node)
        fatal = next((test for unit in units.values() for test, done in unit.items() if not done), None)
        for name, unit in units.items():
            if fatal in unit:
                unit[fatal] = True
            if not all(unit.values()):
                self.workqueue[name] = unit
        for other in self.assigned_work if fatal else ():
            self._reschedule(other)
        return fatal

    def schedule(self) -> None:
        """A new process that is given a single test would wait for a second: it is told that there is none."""
        super().schedule()
        if not self.workqueue:
            for node in self.nodes:
                node.shutdown()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Files | None:
    config.option.loadscopereorder = False  # _longest_first has ordered the files, and not by how many tests they have
    return Files(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_states], ignore_errors=True)


def _hear_signals() -> None:
    """Started by nohup or as a job in the background, we would hand on to every child that it ignores some signals."""
    for name, default in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)


def _set_state(config: pytest.Config) -> None:
    """A folder that nothing has used yet. It is an environment variable, so that processes have it as well."""
    os.environ["HOLDFAST_STATE"] = str(config.stash[_states] / str(next(_numbers)))
