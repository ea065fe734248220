"""Waits that never end and that nothing can wake, as a hang on purpose needs them. A sleep would be no hang: it ends.

endless.in_python()                          # a lock that this thread holds already
endless.in_c()                               # a semaphore nobody posts; the interpreter's lock is free
endless.in_c(holding_the_lock=True)          # and here it is not: no Python thread runs any more
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time

SEMAPHORE = 64
"""Bytes; no system has a larger one."""


def in_python() -> None:
    lock = threading.Lock()
    while lock.acquire():
        pass


def in_c(*, holding_the_lock: bool = False) -> None:
    if sys.platform == "win32":
        time.sleep(1e6)
        return
    library = (ctypes.PyDLL if holding_the_lock else ctypes.CDLL)(None)
    semaphore = ctypes.create_string_buffer(SEMAPHORE)
    made = library.sem_init(semaphore, 0, 0) == 0
    while True:  # a signal ends a wait
        if made:
            library.sem_wait(semaphore)
        else:  # macOS has no such semaphores
            library.sleep(1000)
