"""A zoo of silent scripts: whoever waits for something that comes is left alone, whoever is stuck is found.

Each is a real process under `holdfast run`, with limits of seconds instead of minutes; all of one kind run at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from holdfast.base import processes
from holdfast.run.folder import list_runs

from .driving import HERE, SOURCE, Ran

ZOO = HERE / "zoo"
WAIT = 9.0
"""Seconds an honest script waits: three times what a stuck one gets."""
LOOP, EVALUATE, LONGEST = 3.0, 8.0, 300.0
HONEST = (f"watchdog.loop={LOOP}s", f"watchdog.evaluate={20 * EVALUATE}s", f"watchdog.wait={LONGEST}s")
STUCK = (
    f"watchdog.loop={LOOP}s", f"watchdog.evaluate={EVALUATE}s", f"watchdog.wait={LONGEST}s",
    "watchdog.term_grace=0.2s", "external.restart=false",
)  # fmt: skip
pytestmark = pytest.mark.skipif(not processes.LINUX, reason="processes are looked at through /proc, which Linux has")


def names(file: str) -> list[str]:
    lines = (ZOO / file).read_text().splitlines()
    return [line[4 : line.index("(")] for line in lines if line.startswith("def ") and not line.startswith("def _")]


class Animal:
    """One script of the zoo, which runs in a folder of its own."""

    def __init__(self, folder: Path, file: str, name: str, settings: tuple[str, ...], *words: object, port: int = 0):
        folder.mkdir()
        self.folder, self.name = folder, name
        path = os.pathsep.join([str(ZOO / "library"), str(ZOO), str(SOURCE)])
        env = {"PYTHONPATH": path, "NO_COLOR": "1", "ZOO_PORT": str(port), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(ZOO / file), name, *map(str, words)]
        self.job: dict[str, Any] = {"folder": str(folder), "env": env, "words": ["run", *settings, "--", *command]}

    @property
    def over(self) -> bool:
        return (self.folder / "code").exists()

    def ran(self) -> Ran:
        code = int((self.folder / "code").read_text()) if self.over else -1
        out, err = ((self.folder / name).read_bytes() for name in ("out", "err"))
        runs = list_runs(self.folder / "runs")
        return Ran(code, out, err, 0.0, self.folder, runs[-1] if runs else None)

    def silences(self) -> list[str]:
        """What was said about it before anything was done."""
        return [str(event.data["text"]) for event in self.ran().events if event.kind == "silent"]

    def began(self) -> bool:
        out = self.folder / "out"
        return self.over or (out.exists() and b"steps 5" in out.read_bytes())


@contextmanager
def kept(folder: Path, animals: dict[str, Animal]) -> Iterator[None]:
    """All of them at once; none is left behind."""
    (folder / "jobs.json").write_text(json.dumps([animal.job for animal in animals.values()]))
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    keeper = subprocess.Popen([sys.executable, str(ZOO / "keeper.py"), str(folder / "jobs.json")], env=env)
    try:
        yield
    finally:
        for animal in animals.values():
            for run in [] if animal.over else list_runs(animal.folder / "runs"):
                processes.send(int(run.info.get("pid") or 0) or keeper.pid, signal.SIGKILL)
        keeper.kill()
        keeper.wait()


def until(condition: Callable[[], bool], patience: float = 120.0) -> None:
    deadline = time.monotonic() + patience
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


# -- whoever comes after a while ---------------------------------------------------------------------------------


def serve(server: socket.socket) -> None:
    """The other side of the network: it takes what is sent slowly, or answers late."""
    while True:
        try:
            link, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(link,), daemon=True).start()


def answer(link: socket.socket) -> None:
    with link:
        head = b""
        while not head.endswith(b"\n"):
            head += link.recv(1)
        how, seconds = head.split()
        if how == b"late":
            time.sleep(float(seconds))
            link.sendall(b"here")
            return
        end = time.monotonic() + float(seconds)
        while link.recv(1 << 14 if time.monotonic() < end else 1 << 20):
            time.sleep(0.05 if time.monotonic() < end else 0)
        link.sendall(b"taken")


@contextmanager
def network() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


def release(animal: Animal, held: dict[str, IO[Any]]) -> None:
    held.pop(animal.name).close()


def finish_fifo(animal: Animal, held: dict[str, IO[Any]]) -> None:
    os.write(held["slow_fifo"].fileno(), b"of it")
    release(animal, held)


def connect(animal: Animal, held: dict[str, IO[Any]]) -> None:
    socket.create_connection(("127.0.0.1", int((animal.folder / "port").read_text()))).close()


BRINGS: dict[str, Callable[[Animal, dict[str, IO[Any]]], object]] = {
    "barrier": lambda animal, held: (animal.folder / "barrier").touch(),
    "lock_of_a_file": release,
    "prompt": lambda animal, held: (animal.folder / "typed").write_bytes(b"yes\n"),
    "slow_fifo": finish_fifo,
    "server": connect,
}
"""What comes from outside, once somebody was told that the script waits for it."""


def prepare(animals: dict[str, Animal]) -> dict[str, IO[Any]]:
    file = open(animals["lock_of_a_file"].folder / "locked", "w")  # noqa: SIM115
    fcntl.flock(file, fcntl.LOCK_EX)
    os.mkfifo(animals["slow_fifo"].folder / "fifo")
    return {"lock_of_a_file": file}


@pytest.mark.long
def test_whoever_waits_for_something_that_comes_is_left_alone(tmp_path: Path) -> None:
    with network() as port:
        folder = tmp_path / "zoo"
        folder.mkdir()
        animals = {
            name: Animal(folder / name, "honest.py", name, HONEST, WAIT, port=port) for name in names("honest.py")
        }
        assert len(animals) >= 25
        held = prepare(animals)
        with kept(folder, animals):
            held["slow_fifo"] = open(folder / "slow_fifo" / "fifo", "wb")  # noqa: SIM115 - waits for its reader
            os.write(held["slow_fifo"].fileno(), b"all ")
            until(lambda: all(animal.began() for animal in animals.values()))
            until(lambda: all(animals[name].silences() for name in BRINGS), 60.0)
            told = {name: animals[name].silences() for name in BRINGS}
            for name, brings in BRINGS.items():
                brings(animals[name], held)
            until(lambda: all(animal.over for animal in animals.values()))
            ran = {name: animal.ran() for name, animal in animals.items()}
    wrong = {name: each.story() for name, each in ran.items() if each.code or each.faults or b"done" not in each.out}
    assert not wrong, "\n\n".join(f"=== {name}\n{text}" for name, text in wrong.items())
    assert all(texts and "holdfast waits" in texts[0] for texts in told.values()), told


@pytest.mark.long
def test_whoever_is_stuck_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "zoo"
    folder.mkdir()
    animals = {name: Animal(folder / name, "stuck.py", name, STUCK) for name in names("stuck.py")}
    assert len(animals) >= 25
    told = animals["own_lock"].folder / "told"
    animals["own_lock"].job["env"] |= {"HOLDFAST_NOTIFY_COMMAND": f"tee -a {told}"}
    with kept(folder, animals):
        until(lambda: all(animal.over for animal in animals.values()))
        until(lambda: told.exists() and "gave up" in told.read_text(), 60.0)
        ran = {name: animal.ran() for name, animal in animals.items()}
    wrong = {name: each.story() for name, each in ran.items() if each.code != 4 or each.faults != ["hang"]}
    assert not wrong, "\n\n".join(f"=== {name}\n{text}" for name, text in wrong.items())
    for name, animal in animals.items():  # whoever is ended was told before
        assert animal.silences(), name
        kinds = [event.kind for event in ran[name].events if event.kind in ("silent", "fault")]
        assert kinds[0] == "silent" and kinds[-1] == "fault", (name, kinds)
    message = told.read_text()
    assert "is silent" in message and "holdfast will treat it as hung and end it after" in message, message
