"""The worker: the one process that touches the device and runs the user's code.

Forked from the nursery, or spawned where fork is not safe. It may crash, hang or be killed at any moment:
what it has committed lives in slots it does not own. Its last words are a message (`done`, `stopped`,
`failed`, `lost`), or none, and then its exit status speaks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import inspect
import io
import mmap
import multiprocessing
import multiprocessing.util
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

from holdfast.base import processes
from holdfast.base.board import Board
from holdfast.base.channel import Channel, Closed, connect_back
from holdfast.base.dataclass_json import read_strictly
from holdfast.base.errors import HoldfastError, InternalError, UserError
from holdfast.base.folders import open_growing
from holdfast.base.scratch import Scratch
from holdfast.data import sample_marks
from holdfast.data.loader import LoaderFailed
from holdfast.data.loader_child import FromChild
from holdfast.devices import flags
from holdfast.faults.bad_samples import BadSamples, charge_of
from holdfast.faults.classification import Fault, Kind, classify_exception
from holdfast.run import script
from holdfast.run.messages import Done, Failed, Instead, Lost, Message, Note, Refused, SlotsWanted, Started
from holdfast.run.settings import Settings
from holdfast.run.worker_config import WorkerConfig
from holdfast.state import checkpoint
from holdfast.state.slots import Arena
from holdfast.worker.precision import force_fp32
from holdfast.worker.session import LostWorker, Run, Session, StopRun

STACK_SIGNAL = getattr(signal, "SIGUSR2", None)
"""Asks a worker for its stacks. Handled in C, so it works while the GIL is held."""
FAILED, LOST, STOPPED = 1, 76, 0


class SupervisedLink:
    """The session's way to its supervisor."""

    def __init__(self, channel: Channel, board: Board, generation: int, arenas: list[Arena]) -> None:
        self.channel = channel
        self.board = board
        self.generation = generation
        self.arenas = arenas
        self.checkpoint: Path | None = None

    def arena(self, capacity: int) -> Arena:
        """Slots that hold `capacity` bytes each: the ones there are, or new ones."""
        for arena in reversed(self.arenas):
            if arena.capacity >= capacity:
                return arena
        self.send(SlotsWanted(capacity))
        arena = Arena.open_answer(*self.channel.receive())
        self.arenas.append(arena)
        return arena

    def newest(self) -> memoryview | None:
        found = [(arena, commit) for arena in self.arenas if (commit := arena.newest()) is not None]
        if found:
            arena, commit = max(found, key=lambda pair: pair[1].sequence)
            return arena.slots[commit.slot].payload(commit.size)
        return None if self.checkpoint is None else map_file(self.checkpoint)

    def older(self, why: str) -> memoryview | None:
        """The checkpoint before the one that `newest` gave and that cannot be used; None if there is none."""
        if self.checkpoint is None or any(arena.newest() is not None for arena in self.arenas):
            return None
        good = checkpoint.instead_of(self.checkpoint.parent, why, lambda text: self.send(Note(text)))
        if good is None:
            return None
        self.checkpoint = good.state
        self.send(Instead(good.step))
        return map_file(good.state)

    def committed(self, step: int) -> None:
        """The supervisor reads the slots. Those the state has outgrown are let go here as there."""
        if len(self.arenas) < 2 or self.arenas[-1].newest() is None:
            return
        if not torch.cuda.is_initialized():  # there they are page-locked, and stay until this process ends
            outgrown, self.arenas = self.arenas[:-1], self.arenas[-1:]
            for arena in outgrown:
                arena.close()

    def send(self, message: Message) -> None:
        self.channel.send(message.to_json())


def map_file(path: Path) -> memoryview:
    """A checkpoint's bytes, private to this process: writing to them never reaches the file."""
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def open_forked(config: WorkerConfig, fds: list[int]) -> tuple[Channel, Board, list[Arena]]:
    """What a process that came from the nursery was given: its way to the supervisor, its board, and the slots."""
    if sys.platform != "win32":
        os.setpgid(0, 0)
    channel = Channel.from_fd(fds[0])
    board = Board.open(fds[1])
    rest = fds[2:]
    arenas = [Arena.open_at(each, rest) for each in config.arenas]
    multiprocessing.set_start_method("fork", force=True)
    return channel, board, arenas


def run_spawned() -> int:
    """The life of a worker that is a fresh interpreter: the configuration comes over loopback."""
    channel = connect_back(int(os.environ["HOLDFAST_PORT"]), os.environ.pop("HOLDFAST_TOKEN"))
    config = read_strictly(WorkerConfig, channel.receive()[0])
    _end_without_supervisor(int(os.environ["HOLDFAST_SUPERVISOR"]))
    assert config.board is not None
    board = Board.open_path(Path(config.board))
    arenas = [Arena.open_at(each, []) for each in config.arenas]
    return live(config, channel, board, arenas)


def _end_without_supervisor(pid: int) -> None:
    """Where the kernel cannot end us with our parent, a thread looks once a second."""
    processes.die_with_parent()

    def watch() -> None:
        while processes.exists(pid):
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="holdfast-parent").start()


def live(config: WorkerConfig, channel: Channel, board: Board, arenas: list[Arena]) -> int:
    """The life of a worker; returns its exit code."""
    board.identify(os.getpid())
    folder = Path(config.folder)
    _redirect_output(folder / "output.log")
    Scratch(Path(config.scratch)).adopt()
    _prepare_stacks(folder / f"stacks-{config.generation}.txt")
    link = SupervisedLink(channel, board, config.generation, arenas)
    if config.checkpoint:
        link.checkpoint = Path(config.checkpoint)
    code = LOST
    try:
        code = _train(config, link)
    except StopRun:
        code = STOPPED
    except Closed:  # nobody listens: this worker was abandoned and has come back; its run goes on without it
        code = LOST
    except LostWorker as lost:
        link.send(Lost(lost.fault))
    except (LoaderFailed, BadSamples) as error:  # the ladder decides: a new worker, and new children, may read it
        code = _last_words(link, error, config.device)
    except HoldfastError as error:
        code = FAILED
        link.send(Refused(error.to_json()))
    except BaseException as error:  # the edge of the process: keep everything, decide nothing
        code = _last_words(link, error, config.device)
    _end_children()
    return code


def _last_words(link: SupervisedLink, error: BaseException, device: str) -> int:
    """An error out of the script: the device's, or its own."""
    fault = classify_exception(error, device=device) if isinstance(error, Exception) else None
    charge = charge_of(error)
    if fault is not None and not (_is_data(charge) and fault.kind in _ALSO_SAMPLES):
        beat = link.board.read()
        fault = fault.at(step=beat.at, phase=beat.phase.label)
        link.send(Lost(fault))
        return LOST
    text = _own_traceback(error)
    print(text, file=sys.stderr, flush=True)
    if charge is not None and (_is_data(charge) or isinstance(error, BadSamples)):
        _accuse(link, charge, device)
        return LOST
    if isinstance(error, SystemExit) and error.code in (None, 0):
        link.send(Refused(UserError("the script called sys.exit()", cause="the run is not over").to_json()))
        return FAILED
    if charge is None and _raised_here(error):
        link.send(Refused(InternalError("holdfast failed, not the script", cause=repr(error)).to_json()))
        return FAILED
    summary = _summary(error)
    where = _place(error)
    if charge is not None:
        where = f"{where}; {charge['cause']}" if where else charge["cause"]
    link.send(Failed(summary, text, where, link.board.read().step, charge))
    return FAILED


_ALSO_SAMPLES = (Kind.HOST_MEMORY, Kind.LOADER_DIED, Kind.LOADER_STUCK)
"""What an error of one sample may look like: a damaged header asks for a petabyte, a short file ends too soon."""


def _is_data(charge: dict[str, Any] | None) -> bool:
    """Were others tried, and could they be read?"""
    return charge is not None and charge["blame"] == "data"


def _accuse(link: SupervisedLink, charge: dict[str, Any], device: str) -> None:
    """It is in the data, or no sample at all can be read: a verdict that needs no replay."""
    beat = link.board.read()
    kind = Kind.BAD_DATA if charge["blame"] == "data" else Kind.USER_ERROR
    fault = Fault(kind, device, beat.at, beat.phase.label, message=charge["sentence"], evidence={"verdict": charge})
    link.send(Lost(fault))


def _summary(error: BaseException) -> str:
    """The last line of a traceback, without the notes that may stand below it."""
    notes = vars(error).pop("__notes__", None)
    try:
        return traceback.format_exception_only(type(error), error)[-1].strip()
    finally:
        if notes is not None:
            vars(error)["__notes__"] = notes


def _place(error: BaseException) -> str | None:
    """Where in the script it happened: the last frame that is not a library's."""
    own = str(Path(sys.argv[0]).resolve())
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if str(Path(frame.filename).resolve()) == own
    ]
    return f"line {frames[-1].lineno}, in {frames[-1].name}: {frames[-1].line}" if frames else None


def _own_traceback(error: BaseException) -> str:
    """The user's traceback, from the first frame of their own code on."""
    frame = error.__traceback__
    while frame is not None and _is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame or error.__traceback__)).rstrip()


def _raised_here(error: BaseException) -> bool:
    """Holdfast's own code raised what it never raises on purpose: our bug, which is not the script's to explain."""
    if isinstance(error.__cause__, FromChild):  # the dataset raised it in a loader child; we only hand it on
        return False
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and _is_of_runtime(frame.tb_frame.f_code.co_filename)


def _is_ours(filename: str) -> bool:
    """A frame on the way from the worker to the script: this package, or the import of the script."""
    return _is_of_runtime(filename) or filename.startswith("<frozen importlib")


_RUNTIME = {Path(__file__).parent.with_name(floor) for floor in ("worker", "data", "state", "faults", "record")}
"""The folders of the code that surrounds a script in its process. Workloads and integrations are scripts to it."""


def _is_of_runtime(filename: str) -> bool:
    return Path(filename).parent in _RUNTIME


def begin_run(config: WorkerConfig, *, threads: int | None, resumed: bool) -> Run:
    """The run as its script sees it; random numbers and threads are as they are to be."""
    seed_everything(config.seed)
    if threads:
        torch.set_num_threads(threads)
    return Run(
        name=config.name,
        folder=Path(config.folder),
        seed=config.seed,
        generation=config.generation,
        resumed=resumed,
    )


def _train(config: WorkerConfig, link: SupervisedLink) -> int:
    settings = Settings.from_json(config.settings)
    rung = config.rungs[config.rung]
    flags.apply()
    device = open_device(rung.device)
    flags.keep_free(device)
    run = begin_run(config, threads=config.threads, resumed=link.newest() is not None)
    session = Session(link, run=run, rungs=list(config.rungs), rung=config.rung, settings=settings, device=device)
    session.begin_with(
        pieces=config.pieces,
        cpu_batch=config.cpu_batch,
        trial=config.trial,
        probation=config.probation,
        sentinel=config.sentinel,
        leave_out=config.leave_out,
        between_faults=config.between_faults,
        workers_lost=config.workers_lost,
        watched_s=config.watched_s,
    )
    if rung.precision == "fp32":
        force_fp32()
    if config.chaos:
        from holdfast.injection.chaos import arm

        arm(session, config.chaos, config.pids)
    if rung.device.startswith("pretend"):
        from holdfast.injection import pretend

        pretend.arm(session, rung.device, config.pretend)
    sample_marks.begin(run.folder, policy=sample_marks.Policy.of(settings.data), beat=link.board.beat, tell=link.send)
    train = load_train(Path(config.script), list(config.argv))
    link.send(Started(os.getpid(), rung.device, torch.__version__))
    try:
        train(session, **bind(train, config.arguments))
    except Exception as error:
        session._explain(error)
        raise
    session._finish()
    sample_marks.end()
    link.send(Done(session.step_count))
    return 0


def open_device(label: str) -> torch.device:
    """The torch device of a rung. `pretend:0` computes on the CPU and fails on request (holdfast.injection.pretend)."""
    if label.startswith("pretend"):
        from holdfast.injection import late, pretend

        return late.DEVICE if label.startswith(late.NAME) else pretend.DEVICE
    device = torch.device(label)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    return device


def seed_everything(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def load_train(path: Path, argv: list[str]) -> Callable[..., None]:
    """Import the script and find its `train(session)`. `if __name__ == "__main__"` does not run."""
    sys.argv = [str(path), *argv]
    packaged = script.packaged_name(path)
    if packaged is not None:  # a workload of ours: imported by its own name, its folder shadows nobody's modules
        return importlib.import_module(packaged).train  # type: ignore[no-any-return]
    name = script.module_name(path)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    train = getattr(module, "train", None)
    if not callable(train):
        raise script.no_train(path)
    return train  # type: ignore[no-any-return]


def bind(train: Callable[..., None], arguments: dict[str, str]) -> dict[str, Any]:
    """`key=value` words as the keyword arguments of the script's `train`, read by their defaults' types."""
    parameters = inspect.signature(train).parameters
    return {key: script.convert(key, text, parameters[key].default) for key, text in arguments.items()}


def _redirect_output(path: Path) -> None:
    """What the script prints goes to a file that outlives us; the supervisor shows it."""
    fd = _open_or_nowhere(path)
    for stream in (1, 2):
        os.dup2(fd, stream)
    os.close(fd)
    sys.stdout, sys.stderr = _Unfailing.text(1), _Unfailing.text(2)


class _Unfailing(io.FileIO):
    """A disk that is full is no reason for a `print` in the script to raise."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)

    @classmethod
    def text(cls, fd: int) -> io.TextIOWrapper:
        buffered = io.BufferedWriter(cls(fd, "w", closefd=False))
        return io.TextIOWrapper(buffered, encoding="utf-8", errors="replace", line_buffering=True)


def _open_or_nowhere(path: Path, *, empty: bool = False) -> int:
    """A run folder that is full or gone must not keep a worker from starting."""
    try:
        return open_growing(path, empty=empty)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _prepare_stacks(path: Path) -> None:
    fd = _open_or_nowhere(path, empty=True)
    file = open(fd, "w", encoding="utf-8")  # noqa: SIM115 - open for the process's life: faulthandler needs the fd
    faulthandler.enable(file=file, all_threads=True)
    if STACK_SIGNAL is not None and hasattr(faulthandler, "register"):
        faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)


def _end_children() -> None:
    """Loader processes and the like end with us."""
    with contextlib.suppress(Exception):  # an exit handler of any library may raise; we are leaving anyway
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]


if __name__ == "__main__":
    worker_code = run_spawned()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(worker_code)
