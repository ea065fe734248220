"""The process of a probe. It says what it is about to do before it does it, because it may never say anything again.

    python -m holdfast.probes.child serve FD PARENT     torch imported, device never touched; forks per probe
    python -m holdfast.probes.child one CONFIG PARENT   a fresh interpreter, where forking is not possible

Its words are lines of JSON in a file of its folder: {"check": "backward"} before, {"done": "backward", ...} after.
Where somebody keeps a ledger, it waits after the first for a file that says that this is on record.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base import processes
from holdfast.base.channel import Channel
from holdfast.base.line_file import objects
from holdfast.devices.probe_host import LEAVE
from holdfast.worker.nursery import Nursery

if TYPE_CHECKING:
    from holdfast.probes.compare import Outcome

WORDS, OUTPUT = "words.jsonl", "output.txt"
_HERE = "holdfast.probes"
_CACHES = {
    "MIOPEN_USER_DB_PATH": "miopen-db",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen",
    "AMD_COMGR_CACHE_DIR": "comgr",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "SYCL_CACHE_DIR": "sycl",
}
"""Kernels that probes compile are their own: they neither trust nor spoil those of the user."""


THREADS = 4
_COMPILE = ("compare.compiled", "script_step.script")
"""Functions of probes that need `torch._dynamo`: to compile, or for the optimizer of a script."""


class ProbeNursery(Nursery):
    """Has what probes need, and forks one per message.

    `torch._dynamo` takes as long to import as torch itself, and the quick set does without. A probe that compiles or
    runs a script is forked after that import, and all others before it where there is a choice.
    """

    first = (
        *(["numpy"] if importlib.util.find_spec("numpy") else []),
        "torch",
        *(f"{_HERE}.{name}" for name in ("compare", "memory", "behaviour")),
        "holdfast.probes.wrong_kernels",
    )
    _complete = False

    def _fork(self, config: dict[str, Any], fds: list[int]) -> None:
        if config["probe"]["function"] in _COMPILE and not config.get("occupy"):
            self._import_rest()
        super()._fork(config, fds)
        # Probes of two devices may wait: none of them for an import it does not need.
        if config.get("full") and not self.channel.has_news():
            self._import_rest()

    def _import_rest(self) -> None:
        if not self._complete:
            self._complete = True
            importlib.import_module("torch._dynamo")
            gc.collect()
            gc.freeze()

    def _live(self, config: dict[str, Any], fds: list[int]) -> int:
        return run(config)


def run(config: dict[str, Any]) -> int:
    """One probe, from its first word to its last; and then others, if it is to stay."""
    with contextlib.suppress(OSError):
        if sys.platform != "win32":
            os.setsid()  # a group of its own, to be ended as one
    with contextlib.suppress(OSError):
        if sys.platform != "win32":
            os.nice(5)
    for name, place in _CACHES.items():
        os.environ[name] = os.path.join(config["caches"], place)
        os.makedirs(os.environ[name], exist_ok=True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    _switch()
    orders = _orders(Path(config["stay"])) if config.get("stay") else iter(())
    for each in itertools.chain([config], orders):
        processes.redirect_output(
            Path(each["folder"]) / OUTPUT
        )  # whatever libraries print is evidence, and belongs nowhere else
        with open(Path(each["folder"]) / WORDS, "a", encoding="utf-8", buffering=1) as file:
            Speaker(each, file).speak()
    return 0


def _switch() -> None:
    """Remedies that are switches of torch, once in a process."""
    from holdfast.devices import flags

    flags.apply()


def _orders(folder: Path) -> Iterator[dict[str, Any]]:
    """What comes next, one file after the other, until we are sent away."""
    for number in itertools.count(1):
        path = folder / f"next-{number}.json"
        while not path.exists():
            if (folder / LEAVE).exists() or not folder.exists():
                return
            time.sleep(0.002)
        yield json.loads(path.read_text(encoding="utf-8"))


class Speaker:
    """Runs the checks of a probe and says how each one went."""

    def __init__(self, config: dict[str, Any], file: Any) -> None:
        self.config = config
        self.spec: dict[str, Any] = {**config["probe"], "full": bool(config.get("full"))}
        self.spec["options"] = {**self.spec["options"], "folder": config["folder"]}
        self.check: str | None = None
        self._file = file
        self._turn = 0
        self._said_done = False
        self._began = time.perf_counter()

    def speak(self) -> int:
        try:
            self._run()
        except _Stop:
            pass
        except Exception as problem:  # whatever a device or its driver raises is the result
            self._failed(problem)
        self._say(end=True)
        return 0

    def _run(self) -> None:
        from holdfast.probes import behaviour, wrong_kernels

        self._prepare()
        if not self.config.get("occupy"):
            self._tell(str(self.spec["checks"][0]))  # opening a device is the first risk
        device = wrong_kernels.open_bench(self.config["device"], self._tell)
        device.small = not (device.real and self.spec["full"])
        if self.config.get("occupy"):
            device.wait()
            self._say(check="occupying")
            behaviour.occupy(device, float(self.config["occupy"]))
            return
        for outcome in self._function()(device, self.spec):
            self._done(outcome)
            if not outcome.ok:
                return

    def _prepare(self) -> None:
        import torch

        here = self.config["device"].partition(":")[0] in ("cpu", "pretend")
        if not here:
            torch.set_num_threads(min(THREADS, torch.get_num_threads()))  # the CPU only has to know the answer
        elif self.config["device"] != "cpu" or self.spec["layer"] != "network":
            torch.set_num_threads(1)  # what is small is done sooner by one

    def _function(self) -> Any:
        place = str(self.spec["function"])
        file, colon, name = place.rpartition(":")
        if colon:  # added from outside
            from holdfast.devices.probe_catalog import load_file

            return getattr(load_file(Path(file)), name)
        module, _, name = place.rpartition(".")
        return getattr(importlib.import_module(f"{_HERE}.{module}"), name)

    def _tell(self, check: str) -> None:
        """The next check begins when it is on record."""
        if check == self.config.get("stop_at"):
            raise _Stop
        if check == self.check and not self._said_done:
            self._began = time.perf_counter()
            return
        self._said_done = False
        self._turn += 1
        self.check = check
        self._say(check=check)
        if self.config.get("gate"):
            gate = Path(self.config["folder"], f"go-{self._turn}")
            while not gate.exists():
                time.sleep(0.001)
        self._began = time.perf_counter()

    def _done(self, outcome: Outcome) -> None:
        error = outcome.error if outcome.error is not None and math.isfinite(outcome.error) else None
        facts = dict(outcome.facts)
        if error is None and outcome.error is not None:
            facts["finite"] = False
        self._end(ok=outcome.ok, error=error, bound=outcome.bound, facts=facts, skip=outcome.skip, why=outcome.why)

    def _failed(self, problem: Exception) -> None:
        from holdfast.probes.bench import Skip, first_line, is_missing, is_out_of_memory

        if isinstance(problem, Skip):
            self._end(ok=True, skip=str(problem))
            return
        if is_missing(problem, str(self.spec["precision"])):
            self._end(ok=True, skip=f"this device has no kernel for it in {self.spec['precision']}")
            return
        facts = {"raised": type(problem).__name__, "out_of_memory": is_out_of_memory(problem)}
        code = getattr(problem, "error_code", None)
        if isinstance(code, int):
            facts["error_code"] = code
        self._end(ok=False, why=first_line(problem), facts=facts)

    def _end(self, **said: Any) -> None:
        check = self.check if self.check is not None else str(self.spec["checks"][0])
        self._said_done = True
        self._say(done=check, seconds=round(time.perf_counter() - self._began, 4), **said)

    def _say(self, **words: Any) -> None:
        self._file.write(json.dumps(words, default=str) + "\n")
        self._file.flush()


class _Stop(Exception):
    """The next check is not to be done."""


def words_of(text: str) -> Iterator[dict[str, Any]]:
    """What was said so far, in whole lines."""
    return objects(text.splitlines())


def main(argv: list[str]) -> int:
    how, what, parent = argv[0], argv[1], int(argv[2])
    processes.die_with_parent(parent)
    if how == "serve":
        return ProbeNursery(Channel.from_fd(int(what)), []).serve()
    config = json.loads(Path(what).read_text(encoding="utf-8"))
    return run(config)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # nothing here is worth the time that Python takes to unload torch, and a sick driver may hang there
