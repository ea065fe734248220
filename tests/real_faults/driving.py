"""How the fault tests run a job: a supervisor in this process, or `holdfast` as a process of its own.

    run = drive(runs, faults="sigkill@5,oom@9")              # here; the workers come from a nursery all tests share
    run.outcome.state, run.receipt, run.faults("killed")
    with Command(runs, "train", JOB) as command: ...         # a real process, for real signals

A shared nursery saves ten seconds a test, the import of torch. Tests about the nursery itself have their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.cli.supervise import rungs_of
from holdfast.faults.ladder import Rung
from holdfast.record.reporter import Face
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder, read_events
from holdfast.run.settings import Settings
from holdfast.run.worker_config import WorkerConfig
from holdfast.state import checkpoint, layout
from holdfast.state.slots import Arena
from holdfast.supervisor.process_start import Launcher, NurseryLauncher, WorkerProcess
from holdfast.supervisor.supervisor import Outcome, Plan, Supervisor
from holdfast.testing import FaultPlan
from tests.waiting import wait_until

JOBS = Path(__file__).parent / "jobs"
JOB = JOBS / "job.py"
EACH_STEP = {"snapshot.every": "1"}
"""Most tests say what a fault at one step does, and count what is repeated. The default is in test_cadence.py."""
QUICK = {"watchdog.first_step": "30s", "watchdog.term_grace": "0.5s", **EACH_STEP}
SOON = {"watchdog.floor": "1s"}
"""For tests that hang: after a second, where a step takes milliseconds. Others keep the default, for busy machines."""


# One nursery for many runs -----------------------------------------------------------------------------------


class Borrowed:
    """A launcher whose nursery outlives the run."""

    def __init__(self, nursery: NurseryLauncher) -> None:
        self.nursery = nursery

    @property
    def channels(self) -> list[Any]:
        return self.nursery.channels

    @property
    def pid(self) -> int | None:
        return self.nursery.pid

    @property
    def ready(self) -> float | None:
        return self.nursery.ready

    def start(self, config: WorkerConfig, arenas: list[Arena]) -> WorkerProcess:
        return self.nursery.start(config, arenas)

    def poll(self) -> list[str]:
        return self.nursery.poll()

    def warm(self) -> None:
        return None

    def close(self) -> None:
        """Nothing of this run may be left in it: wait until the last worker is reported gone."""
        assert wait_until(self._idle), "the nursery still has a worker of the last run"

    def _idle(self) -> bool:
        self.nursery.poll()
        return not self.nursery.workers and not self.nursery._forking


class Borrower(Supervisor):
    """A supervisor that takes its workers from a nursery that is already warm."""

    nursery: NurseryLauncher | None = None

    def _make_launcher(self) -> Launcher:
        if self.nursery is None or self.plan.rungs[self.rung].env:
            return super()._make_launcher()
        return Borrowed(self.nursery)


# A run in this process ---------------------------------------------------------------------------------------


class Record(Face):
    """Keeps what was shown."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.text = ""

    def event(self, event: Event) -> None:
        self.events.append(event)

    def output(self, text: str) -> None:
        self.text += text


@dataclass
class Run:
    """A run that is over, and what it left."""

    folder: Path
    outcome: Outcome
    events: list[Event] = field(default_factory=list)

    @property
    def receipt(self) -> dict[str, Any]:
        return self.outcome.receipt

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def faults(self) -> list[str]:
        return [str(event.data["kind"]) for event in self.of("fault")]

    def actions(self) -> list[str]:
        return [str(event.data["action"]) for event in self.of("fault")]

    def evidence(self, number: int = 1) -> Path:
        return self.folder / "faults" / f"{number:02d}"

    def fault(self, number: int = 1) -> dict[str, Any]:
        record = json.loads((self.evidence(number) / "fault.json").read_text())
        return dict(record["fault"])

    def story(self) -> str:
        """For the message of a failed assertion."""
        lines = [event.to_line() for event in self.events if event.kind not in ("log", "worker")]
        output = self.folder / "output.log"
        words = output.read_text(errors="replace")[-4000:] if output.exists() else ""
        return "\n".join([f"{self.outcome.state} {self.outcome.error!r} {self.receipt}", *lines, words])

    # What the run has computed.

    def checkpoint(self) -> checkpoint.Checkpoint:
        good, rejected = checkpoint.newest_good(self.folder / "checkpoints")
        assert good is not None and not rejected, rejected
        return good

    def state(self) -> dict[str, Any]:
        """Everything in the last checkpoint: digests of tensors by name, and what is not a tensor as it is."""
        data = self.checkpoint().state.read_bytes()
        entries, start = layout.parse_header(data)
        tensors = {
            entry.name: hashlib.sha256(data[start + entry.start : start + entry.stop]).hexdigest()
            for entry in entries
            if entry.name not in (layout.META, layout.LOSS)
        }
        meta = layout.read_meta(memoryview(data))
        meta["session"].pop("unheard", None)  # when the supervisor reads its mail is no part of the state
        for name in layout.PLACE:  # the last epoch's checkpoint is the last one of a run where nothing came after it
            meta["session"].pop(name, None)
        return {"tensors": tensors, "meta": meta}

    def diary(self) -> dict[str, Any]:
        text = json.dumps(self.state()["meta"])
        assert '"samples"' in text
        return dict(self.state()["meta"]["state"]["diary"])

    def witness(self) -> Counter[int]:
        """How often the loss of each step was computed."""
        lines = (self.folder / "witness.txt").read_text().splitlines()
        return Counter(int(line.split()[1]) for line in lines)


def drive(
    runs: Path,
    script: Path = JOB,
    *,
    nursery: NurseryLauncher | None,
    faults: str | FaultPlan = "",
    device: str = "cpu",
    rungs: Sequence[Rung] = (),
    settings: Mapping[str, str] | None = None,
    resume: Path | None = None,
    preload: list[str] | None = None,
    meanwhile: Callable[[Supervisor], None] | None = None,
    **arguments: Any,
) -> Run:
    """One run to its end. `meanwhile` is called in a thread of its own, with the supervisor."""
    plan = FaultPlan.parse(faults) if isinstance(faults, str) else faults
    folder = RunFolder.create(runs, script.stem, {}) if resume is None else RunFolder.open(resume)
    folder.lock(wait=30.0)
    good, _ = checkpoint.newest_good(folder.path / "checkpoints") if resume else (None, [])
    names = ["cpu"] if device == "cpu" else [device, "cpu"]
    rungs = list(rungs) or [rung for name in names for rung in rungs_of(name)]
    record = Record()
    supervisor = Borrower(
        folder,
        Plan(
            script,
            arguments={key: str(value) for key, value in arguments.items()},
            rungs=rungs,
            threads=1,
            chaos=plan.to_json(folder.path / ("chaos" if resume is None else "chaos-again")) if plan.faults else None,
            resume=good,
            preload=preload or [],
        ),
        Settings.load({**QUICK, **(settings or {})}, cwd=runs, env={}),
        record,
    )
    supervisor.nursery = nursery
    try:
        with _beside(meanwhile, supervisor):
            outcome = supervisor.run()
    finally:
        folder.close()
    return Run(folder.path, outcome, record.events)


@contextlib.contextmanager
def _beside(work: Callable[[Supervisor], None] | None, supervisor: Supervisor) -> Iterator[None]:
    if work is None:
        yield
        return
    failed: list[BaseException] = []

    def target() -> None:
        try:
            work(supervisor)
        except BaseException as error:
            failed.append(error)
            if callable(signal.getsignal(signal.SIGTERM)):  # the run may wait for what now never comes
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    yield
    thread.join(100.0)
    assert not thread.is_alive(), "what was to happen meanwhile did not end with the run"
    if failed:
        raise failed[0]


# A run as a process of its own ---------------------------------------------------------------------------------


class Command:
    """`holdfast …` as a process, ended by the signals of the test."""

    def __init__(self, runs: Path, *words: object, env: Mapping[str, str] | None = None, **more: Any) -> None:
        self.runs = runs
        settings = [name for name in os.environ if name.startswith("HOLDFAST_") and name != "HOLDFAST_STATE"]
        clean = {name: value for name, value in os.environ.items() if name not in settings}
        cadence = {} if any(str(word).startswith("snapshot.every=") for word in words) else EACH_STEP
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *map(str, words), f"run.folder={runs}", "run.threads=1"],
            env={
                **clean,
                **{f"HOLDFAST_{key.replace('.', '_').upper()}": each for key, each in cadence.items()},
                **(env or {}),
            },
            cwd=runs,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
        )
        self.family: set[int] = {self.process.pid}

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.note_family()
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    @property
    def folder(self) -> Path:
        found = [entry for entry in self.runs.iterdir() if (entry / "run.json").exists()]
        assert len(found) == 1, found
        return found[0]

    def step(self) -> int:
        """The newest step the witness has seen."""
        with contextlib.suppress(OSError, AssertionError, IndexError, ValueError):
            return int((self.folder / "witness.txt").read_text().splitlines()[-1].split()[1])
        return 0

    def wait_for_step(self, step: int) -> None:
        assert wait_until(lambda: self.step() >= step or self.process.poll() is not None, 100.0)
        assert self.process.poll() is None, self.words()

    def note_family(self) -> set[int]:
        """Remember every process this one has started, directly or not."""
        self.family |= descendants(self.process.pid)
        return self.family

    def signal(self, number: int) -> None:
        self.note_family()
        self.process.send_signal(number)

    def end(self, timeout: float = 60.0) -> int:
        return self.process.wait(timeout)

    def words(self) -> str:
        """What it printed; it has ended."""
        out, err = self.process.communicate(timeout=60.0)
        return f"{(out or b'').decode()}\n{(err or b'').decode()}"

    def run(self) -> Run:
        """What it left, read from the run folder."""
        return read_run(self.folder)


class Terminal(Command):
    """`holdfast …` in the foreground of a terminal: what is typed there comes as signals from the kernel."""

    def __init__(self, runs: Path, *words: object) -> None:
        self.master, slave = pty.openpty()
        self.shown = b""
        try:
            super().__init__(
                runs,
                *words,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
            )
        finally:
            os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is closed, or its last process has ended
            while select.select([self.master], [], [])[0] and (data := os.read(self.master, 65536)):
                self.shown += data

    def type(self, keys: bytes) -> None:
        self.note_family()
        os.write(self.master, keys)

    def close(self) -> None:
        """Close the window."""
        if self.master >= 0:
            self.note_family()
            master, self.master = self.master, -1
            os.close(master)

    def words(self) -> str:
        self.process.wait(60.0)
        self._reader.join(100.0)
        return self.shown.decode(errors="replace")

    def __exit__(self, *problem: object) -> None:
        super().__exit__(*problem)
        self.close()


def read_run(folder: Path) -> Run:
    info = json.loads((folder / "run.json").read_text())
    receipt = json.loads((folder / "receipt.json").read_text()) if (folder / "receipt.json").exists() else {}
    outcome = Outcome(str(info.get("state")), int(info.get("exit_code") or 0), None, receipt)
    return Run(folder, outcome, list(read_events(folder / "journal.jsonl")))


# Processes -------------------------------------------------------------------------------------------------------


def processes() -> dict[int, tuple[int, str]]:
    """Every process: its parent and its state."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            found[int(entry.name)] = (int(fields[1]), fields[0])
    return found


def descendants(pid: int) -> set[int]:
    """The children of a process, and theirs."""
    children: dict[int, list[int]] = {}
    for child, (parent, _) in processes().items():
        children.setdefault(parent, []).append(child)
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.add(child)
            waiting.append(child)
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that still run; a zombie does not."""
    now = processes()
    return {pid for pid in pids if pid in now and now[pid][1] != "Z"}


def kill_worker(supervisor: Supervisor, number: int = signal.SIGKILL) -> bool:
    """Signal the worker of this moment through its pidfd, which cannot mean another process."""
    worker = supervisor.worker
    if worker is None or worker.pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(worker.pidfd, number)
    except (OSError, TypeError):  # it was dropped between the two lines
        return False
    return True


# What every test of a fault says ---------------------------------------------------------------------------------


def assert_exact(run: Run, reference: Run, *, faults: int, stops: int = 0) -> None:
    """The run ended as if nothing had happened: same bits, nothing lost, nothing skipped, nothing twice.

    A fault may cost two steps done again. So may a stop one: the last batch of an epoch, whose end it did not see.
    """
    again = 2 * faults + stops
    receipt, wanted = run.receipt, reference.receipt
    assert run.outcome.state == "FINISHED", run.story()
    assert receipt["weights_sha256"] == wanted["weights_sha256"], run.story()
    assert receipt["survived"] is True
    assert receipt["steps"] == wanted["steps"]
    assert sum(receipt["faults"].values()) == faults, run.story()
    assert receipt["steps_lost"] == 0
    assert receipt["samples_skipped"] == 0
    assert receipt["samples_repeated"] == 0
    assert receipt["steps_repeated"] <= again, run.story()
    assert run.state() == reference.state(), "weights are equal, but something else is not"
    witness = run.witness()
    assert set(witness) == set(range(1, wanted["steps"] + 1))
    assert sum(witness.values()) - len(witness) <= again, witness
