"""Scripts that wait for what never comes, or turn in a circle: each of them hangs."""

import array as _array
import asyncio as _asyncio
import concurrent.futures as _futures
import ctypes as _ctypes
import fcntl as _fcntl
import multiprocessing as _processes
import os as _os
import queue as _queue
import re as _re
import signal as _signal
import socket as _socket
import subprocess as _subprocess
import sys as _sys
import threading as _threading
import time as _time

import cage as _cage


def two_threads():
    """Each holds the lock the other one wants."""
    first, second = _threading.Lock(), _threading.Lock()
    both = _threading.Barrier(2)

    def take(one, other):
        with one:
            both.wait()
            other.acquire()

    thread = _threading.Thread(target=take, args=(second, first))
    thread.start()
    take(first, second)


def own_lock():
    lock = _threading.Lock()
    lock.acquire()
    lock.acquire()


def loop():
    _os.nice(19)
    while True:
        pass


def loop_in_c():
    """Computes for ever in C, with the interpreter's lock free."""
    _os.nice(19)
    library = _ctypes.CDLL(None)
    compare = _ctypes.CFUNCTYPE(_ctypes.c_int, _ctypes.c_void_p, _ctypes.c_void_p)(lambda a, b: 0)
    while True:
        library.qsort((_ctypes.c_int * 100_000)(), 100_000, 4, compare)


def expression_without_end():
    """Holds the interpreter's lock."""
    _os.nice(19)
    _re.match(r"(a+)+$", "a" * 60 + "b")


def semaphore_in_c():
    semaphore = _ctypes.create_string_buffer(64)
    library = _ctypes.CDLL(None)
    library.sem_init(semaphore, 0, 0)
    library.sem_wait(semaphore)


def semaphore_in_c_with_the_lock():
    """And no other thread of Python runs any more; one of them keeps asking for the interpreter."""
    _threading.Thread(target=lambda: [_time.sleep(0.05) for _ in iter(int, 1)], daemon=True).start()
    semaphore = _ctypes.create_string_buffer(64)
    library = _ctypes.PyDLL(None)
    library.sem_init(semaphore, 0, 0)
    library.sem_wait(semaphore)


def own_pipe():
    read, _write = _os.pipe()
    _os.read(read, 1)


def own_sockets():
    one, _other = _socket.socketpair()
    one.recv(1)


def stopped():
    _os.kill(_os.getpid(), _signal.SIGSTOP)


def thread_that_turns():
    _os.nice(19)

    def turn():
        while True:
            pass

    thread = _threading.Thread(target=turn)
    thread.start()
    thread.join()


def queue_without_producers():
    _queue.Queue().get()


def queue_of_processes_without_producers():
    _processes.get_context("fork").Queue().get()


def stopped_child():
    child = _subprocess.Popen([_sys.executable, "-S", "-c", "import os; os.kill(os.getpid(), 19)"])
    child.wait()


def semaphore():
    _threading.Semaphore(0).acquire()


def condition():
    ready = _threading.Condition()
    with ready:
        ready.wait()


def two_processes():
    """Each waits for a word of the other."""
    here, there = _processes.get_context("fork").Pipe()
    process = _processes.get_context("fork").Process(target=there.recv)
    process.start()
    here.recv()


def deaf_to_signals():
    """It waits for a signal and has blocked all of them."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    _signal.pause()


# -- written after the code that judges them ---------------------------------------------------------------------


def condition_of_numbers():
    """Turns until a number is what it never is."""
    _os.nice(19)
    values = _array.array("d", [0.5] * 1000)
    while sum(values) > 0:
        values = _array.array("d", [abs(value) for value in values])


def own_lock_of_a_file():
    with open("mine", "w") as one, open("mine", "w") as other:
        _fcntl.flock(one, _fcntl.LOCK_EX)
        _fcntl.flock(other, _fcntl.LOCK_EX)


def event_that_nobody_sets():
    async def wait():
        await _asyncio.Event().wait()

    _asyncio.run(wait())


def pool_whose_task_is_lost():
    """The process that computed a result was killed; the pool has a new one, and waits for the result."""
    pool = _processes.get_context("fork").Pool(1)
    pool.apply_async(_os._exit, (1,)).get()


def pool_that_waits_for_itself():
    with _futures.ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: pool.submit(int).result()).result()


def barrier_with_one_missing():
    _threading.Barrier(2).wait()


def loader_of_data_that_stopped():
    """As torch's DataLoader waits, for a child that was stopped."""
    context = _processes.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=lambda: (_os.kill(_os.getpid(), _signal.SIGSTOP), queue.put(1)))
    child.start()
    while True:
        try:
            queue.get(timeout=5.0)
        except _queue.Empty:
            continue


def own_full_pipe():
    _read, write = _os.pipe()
    while True:  # a signal ends a write that has put something into the pipe
        _os.write(write, bytes(1 << 20))


def child_that_waits_for_itself():
    code = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"
    _subprocess.run([_sys.executable, "-S", "-c", code], capture_output=True, check=True)


def shell_with_a_stuck_child():
    _os.system(f"{_sys.executable} -S -c 'import os; r, w = os.pipe(); os.read(r, 1)'; true")


def progress_bar_beside_a_lock():
    """A helper thread that only keeps time does not make a lock free."""
    _threading.Thread(target=lambda: [_threading.Event().wait(5) for _ in iter(int, 1)], daemon=True).start()
    own_lock()


def server_beside_a_lock():
    """Nor does one that listens."""
    listening = _socket.create_server(("127.0.0.1", 0))
    _threading.Thread(target=listening.accept, daemon=True).start()
    own_lock()


if __name__ == "__main__":
    _cage.main(_cage.animals(globals()))
