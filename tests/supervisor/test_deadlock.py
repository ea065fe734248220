"""What is a deadlock for sure, and what only looks like one: real processes, each with its own way to wait."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.supervisor.waits import Deadlock
from holdfast.supervisor.waits.syscalls import NAMES
from holdfast.supervisor.waits.threads import main_thread

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not NAMES, reason="the waits of threads are only seen on Linux, on x86-64 and ARM64"
)

FOR_EVER = {
    "a lock that it holds": "lock = threading.Lock(); lock.acquire(); say(); lock.acquire()",
    "two locks, crosswise": """
one, two = threading.Lock(), threading.Lock()
meet = threading.Barrier(2)
def take(first, second):
    with first:
        meet.wait()
        second.acquire()
threading.Thread(target=take, args=(one, two), daemon=True).start()
say(); take(two, one)""",
    "a queue that nobody fills": "say(); queue.Queue().get()",
    "a thread that waits itself": """
waits = threading.Thread(target=threading.Event().wait); waits.start()
say(); waits.join()""",
    "a semaphore, with the interpreter's lock": """
library, semaphore = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
library.sem_init(semaphore, 0, 0); say(); library.sem_wait(semaphore)""",
}
FOR_NOW = {
    "a deadline": "lock = threading.Lock(); lock.acquire(); say(); lock.acquire(timeout=300)",
    "a thread that sleeps": """
event = threading.Event()
threading.Thread(target=lambda: (time.sleep(300), event.set()), daemon=True).start()
say(); event.wait()""",
    "a thread that looks every now and then": """
event = threading.Event()
def tick():
    for _ in range(10**6): time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
say(); event.wait()""",
    "a thread that reads from somebody": """
event = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(1), event.set()), daemon=True).start()
say(); event.wait()""",
    "a thread that computes": """
event = threading.Event()
def count():
    while True: pass
threading.Thread(target=count, daemon=True).start()
say(); event.wait()""",
    "a lock that it shares with a child": """
lock = multiprocessing.get_context("fork").Lock(); lock.acquire()
say(); lock.acquire()""",
    "a child": "say(); subprocess.run([sys.executable, '-c', 'input()'])",
    "its own timer": """
event = threading.Event(); signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
say(); event.wait()""",
    "its own alarm": """
event = threading.Event(); signal.signal(signal.SIGALRM, lambda *_: event.set()); signal.alarm(300)
say(); event.wait()""",
    "nothing, it sleeps": "say(); time.sleep(300)",
    "nothing, it computes": "say()\nwhile True: pass",
}
HEAD = (
    "import ctypes, multiprocessing, queue, signal, subprocess, sys, threading, time\nsay = lambda: print(flush=True)\n"
)


@contextmanager
def process(code: str) -> Iterator[int]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HEAD + code], stdin=pipe, stdout=pipe) as child:
        try:
            assert child.stdout is not None and child.stdout.readline()
            yield child.pid
        finally:
            child.kill()


@pytest.mark.parametrize("name", FOR_EVER)
def test_threads_that_wait_for_each_other_are_a_deadlock_at_the_second_look(name: str) -> None:
    with process(FOR_EVER[name]) as pid:
        deadlock, deadline = Deadlock(), time.monotonic() + 60
        while not deadlock.suspected and time.monotonic() < deadline:
            assert not deadlock.proven(pid), "one look is no proof"
            time.sleep(0.02)
        while not (proven := deadlock.proven(pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert proven


@pytest.mark.parametrize("name", FOR_NOW)
def test_what_somebody_may_still_wake_is_no_deadlock(name: str) -> None:
    with process(FOR_NOW[name]) as pid:
        deadlock = Deadlock()
        for _ in range(25):
            time.sleep(0.02)
            assert not deadlock.proven(pid), [main_thread(pid)]


def test_a_process_that_has_moved_in_between_is_looked_at_anew() -> None:
    """The first look finds all threads waiting; before the second one they have gone on, to the next wait."""
    code = """
gates = [threading.Event() for _ in range(2)]
def on(*_): gates.pop(0).set()
signal.signal(signal.SIGUSR1, on)
first, second = gates
say(); first.wait(); say(); second.wait()"""
    with process(code) as pid:
        deadlock, deadline = Deadlock(), time.monotonic() + 60
        while not deadlock.suspected and time.monotonic() < deadline:
            deadlock.proven(pid)
        before = main_thread(pid)
        subprocess.run(["kill", "-USR1", str(pid)], check=True)
        while main_thread(pid) == before and time.monotonic() < deadline:
            time.sleep(0.005)
        while (now := main_thread(pid)) is not None and now.call != "futex" and time.monotonic() < deadline:
            time.sleep(0.005)
        assert not deadlock.proven(pid)


def test_forgetting_starts_anew() -> None:
    with process(FOR_EVER["a lock that it holds"]) as pid:
        deadlock, deadline = Deadlock(), time.monotonic() + 60
        while not deadlock.suspected and time.monotonic() < deadline:
            deadlock.proven(pid)
        deadlock.forget()
        assert not deadlock.suspected
        assert not deadlock.proven(pid)
        assert deadlock.proven(pid)


def test_a_process_that_is_gone_is_no_deadlock() -> None:
    with process("say()") as pid:
        pass
    deadlock = Deadlock()
    assert not deadlock.proven(pid)
    assert not deadlock.proven(pid)
