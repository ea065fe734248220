"""Scripts that wait for something that comes: none of them hangs. Each gets the seconds that it has to wait."""

import asyncio as _asyncio
import concurrent.futures as _futures
import ctypes as _ctypes
import fcntl as _fcntl
import gzip as _gzip
import multiprocessing as _processes
import os as _os
import queue as _queue
import select as _select
import signal as _signal
import socket as _socket
import subprocess as _subprocess
import sys as _sys
import threading as _threading
import time as _time

import cage as _cage


def _server():
    return ("127.0.0.1", int(_os.environ["ZOO_PORT"]))


def upload(seconds):
    """The other side takes its bytes slowly, and answers when it has all of them."""
    with _socket.create_connection(_server()) as link:
        link.sendall(b"slow %d\n" % seconds + b"x" * (8 << 20))
        link.shutdown(_socket.SHUT_WR)
        assert link.recv(10) == b"taken"


def download(seconds):
    with _socket.create_connection(_server()) as link:
        link.sendall(b"late %d\n" % seconds)
        assert link.recv(10) == b"here"


def barrier(seconds):
    while not _os.path.exists("barrier"):
        _time.sleep(0.5)


def lock_of_a_file(seconds):
    with open("locked", "w") as file:
        _fcntl.flock(file, _fcntl.LOCK_EX)


def prompt(seconds):
    assert input("go on? ") == "yes"


def rate_limit(seconds):
    _time.sleep(seconds)


def _compute(seconds):
    _os.nice(10)
    end = _time.monotonic() + seconds
    while _time.monotonic() < end:
        sum(range(10_000))


def evaluation(seconds):
    _compute(seconds)


def compiler(seconds):
    """The first call of something that is compiled: children work, one after the other."""
    code = "import time, os; os.nice(10); end = time.monotonic() + %f\nwhile time.monotonic() < end: pass" % (
        seconds / 2
    )
    for _ in range(2):
        _subprocess.run([_sys.executable, "-S", "-c", code], capture_output=True, check=True)


def child(seconds):
    _subprocess.run(["sleep", str(seconds)], check=True)


def queue_of_a_busy_worker(seconds):
    queue = _processes.get_context("fork").Queue()
    worker = _processes.get_context("fork").Process(target=lambda: (_compute(seconds), queue.put(1)))
    worker.start()
    assert queue.get() == 1
    worker.join()


def asyncio_sleep(seconds):
    _asyncio.run(_asyncio.sleep(seconds))


def signal_of_somebody(seconds):
    _signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGUSR1})
    _subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -USR1 {_os.getpid()}"])
    assert _signal.sigwait({_signal.SIGUSR1}) == _signal.SIGUSR1


def slow_fifo(seconds):
    with open("fifo", "rb") as file:
        assert file.read() == b"all of it"


def forked_child(seconds):
    pid = _os.fork()
    if pid == 0:
        _time.sleep(seconds)
        _os._exit(0)
    _os.waitpid(pid, 0)


def event_with_a_deadline(seconds):
    _threading.Event().wait(seconds)


def server(seconds):
    """It waits for whoever connects."""
    with _socket.create_server(("127.0.0.1", 0)) as listening:
        with open("port.part", "w") as file:
            file.write(str(listening.getsockname()[1]))
        _os.rename("port.part", "port")
        listening.accept()[0].close()


def compression(seconds):
    _os.nice(10)
    end = _time.monotonic() + seconds
    with _gzip.open("large.gz", "wb") as file:
        while _time.monotonic() < end:
            file.write(_os.urandom(1 << 16))


def upload_in_a_thread(seconds):
    thread = _threading.Thread(target=upload, args=(seconds,))
    thread.start()
    thread.join()


# -- written after the code that judges them ---------------------------------------------------------------------


def pipe_of_a_busy_child(seconds):
    """select() without a deadline, on a pipe that a child which computes writes into at last."""
    code = f"import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass\nprint('x')"
    with _subprocess.Popen(["nice", _sys.executable, "-S", "-c", code], stdout=_subprocess.PIPE) as child:
        assert _select.select([child.stdout], [], [])[0]


def change_of_a_file(seconds):
    """inotify, looked at again and again with a deadline."""
    library = _ctypes.CDLL(None)
    fd = library.inotify_init()
    library.inotify_add_watch(fd, b".", 0x100)
    poll = _select.poll()
    poll.register(fd, _select.POLLIN)
    _subprocess.Popen(["sh", "-c", f"sleep {seconds}; touch changed"])
    while not _os.path.exists("changed"):
        poll.poll(2000)


def pool_of_threads(seconds):
    """The main thread waits for a result; the thread that brings it waits for the network."""
    with _futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(download, [seconds, seconds]))


def pool_of_processes(seconds):
    with _processes.get_context("fork").Pool(2) as pool:
        pool.map(_time.sleep, [seconds, seconds])


def lock_of_a_child(seconds):
    """A child holds the lock of a file while it works."""
    code = "import fcntl, time; f = open('mine', 'w'); fcntl.lockf(f, 2); open('held', 'w'); time.sleep(%f)"
    _subprocess.Popen([_sys.executable, "-S", "-c", code % seconds])
    while not _os.path.exists("held"):
        _time.sleep(0.05)
    with open("mine", "w") as file:
        _fcntl.lockf(file, _fcntl.LOCK_EX)


def shell_in_between(seconds):
    _os.system(f"sh -c 'sleep {seconds}; true'; true")


def semaphore_between_processes(seconds):
    """A child that computes lets it go at last."""
    free = _processes.get_context("fork").Semaphore(0)
    _processes.get_context("fork").Process(target=lambda: (_compute(seconds), free.release())).start()
    free.acquire()


def asyncio_server(seconds):
    """An event loop without a deadline that waits for the network."""

    async def fetch():
        reader, writer = await _asyncio.open_connection(*_server())
        writer.write(b"late %d\n" % seconds)
        assert await reader.read(4) == b"here"

    _asyncio.run(fetch())


def heartbeat_beside_a_download(seconds):
    stop = _threading.Event()
    _threading.Thread(target=lambda: [stop.wait(0.5) for _ in iter(stop.is_set, True)], daemon=True).start()
    download(seconds)
    stop.set()


def loader_of_data(seconds):
    """As torch's DataLoader waits: a queue with a deadline of five seconds, again and again."""
    context = _processes.get_context("fork")
    queue = context.Queue()
    context.Process(target=lambda: (_compute(seconds), queue.put(1))).start()
    while True:
        try:
            assert queue.get(timeout=5.0) == 1
            return
        except _queue.Empty:
            continue


if __name__ == "__main__":
    _cage.main(_cage.animals(globals()))
