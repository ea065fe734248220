"""Shifts the wall clock of a Python process by HOLDFAST_TEST_CLOCK seconds: `popen(..., clock=3600)` of machines.py.

`time.time`, `time.time_ns` and `datetime.now` are shifted. Times that the kernel writes (of files, for example) are
not, like those of a file server that has the right time.
"""

import datetime
import os
import time

_SHIFT = float(os.environ.get("HOLDFAST_TEST_CLOCK", "0"))
_time, _time_ns, _datetime = time.time, time.time_ns, datetime.datetime


class _Shifted(_datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls):
        return cls.fromtimestamp(time.time(), datetime.timezone.utc).replace(tzinfo=None)

    @classmethod
    def today(cls):
        return cls.now()


if _SHIFT:
    time.time = lambda: _time() + _SHIFT
    time.time_ns = lambda: _time_ns() + int(_SHIFT * 1e9)
    _Shifted.__name__ = _Shifted.__qualname__ = "datetime"
    _Shifted.__module__ = "datetime"
    datetime.datetime = _Shifted
