"""What a checkpoint costs the keeper: digests, writing, reading back, and checking it later.

from storage import storage, storage_bounds
storage(scratch, quick=False)["write"]["read_back_s"]
"""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import Bound  # first: it lets a benchmark import holdfast from src/

from holdfast.run.digests import write_file
from holdfast.state import checkpoint, layout

TENSORS = 200
TRIES = 5


def storage(scratch: Path, quick: bool) -> dict[str, Any]:
    """Digests, one checkpoint of 512 MB written with and without reading back, and its check."""
    payload = _payload((16 if quick else 512) << 20)
    size = len(payload) / 1e6
    written, bytes_read = _timed(lambda: checkpoint.write(scratch / "checkpoints", payload, step=1))
    plain, _ = _timed(lambda: _only_write(scratch / "plain", payload))
    checked, _ = _timed(lambda: checkpoint.check(scratch / "checkpoints" / "000001"))
    return {
        "megabytes": round(size, 1),
        "digest_mb_s": {name: round(size / _timed(lambda h=h: h(payload))[0]) for name, h in _DIGESTS.items()},
        "write_s": round(written, 3),
        "write_without_read_back_s": round(plain, 3),
        "read_back_s": round(written - plain, 3),
        "read_from_disk_per_byte": None if bytes_read is None else round(bytes_read / len(payload), 3),
        "check_mb_s": round(size / checked),
        "load_average": os.getloadavg()[0],
    }


def storage_bounds(measured: dict[str, Any]) -> list[Bound]:
    """SHA-256 is used because it is the fastest digest that Python has here."""
    speeds = measured["digest_mb_s"]
    fastest = max(speeds[name] for name in ("sha256", "blake2b", "sha512"))
    ratio = round(speeds["sha256"] / fastest, 2)
    return [Bound("speed of SHA-256 beside the fastest digest of hashlib", ratio, 0.8, ratio >= 0.8, quick=False)]


_DIGESTS: dict[str, Callable[[memoryview], object]] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "blake2b": lambda data: hashlib.blake2b(data).digest(),
    "sha512": lambda data: hashlib.sha512(data).digest(),
    "crc32": zlib.crc32,
}


def _payload(size: int) -> memoryview:
    """A state of equal tensors, of bytes that do not repeat within one."""
    plan = layout.plan([(f"model.{number}.weight", "U8", (size // TENSORS,)) for number in range(TENSORS)])
    data = bytearray(os.urandom(plan.total_bytes))
    data[: plan.data_start] = plan.header
    data[plan.span(layout.META)] = plan.pack_meta({"parts": {"model": "module"}})
    return memoryview(data)


def _only_write(path: Path, payload: memoryview) -> None:
    path.unlink(missing_ok=True)
    write_file(path, [payload])


def _timed(work: Callable[[], object]) -> tuple[float, int | None]:
    """The shortest of some tries, in seconds, and the bytes the disk had to give for one."""
    best = float("inf")
    before = _read_bytes()
    for _ in range(TRIES):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    after = _read_bytes()
    return best, None if before is None or after is None else (after - before) // TRIES


def _read_bytes() -> int | None:
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), None)
