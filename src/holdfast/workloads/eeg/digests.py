"""What recordings hold, as digests: part of a cache's key. Files that did not change are not read again.

digests.of(recordings, subjects, cache_folder / "digests.json")      # [[name, sha256, sha256, ...], ...]
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.base import files
from holdfast.workloads.eeg import mains, pool
from holdfast.workloads.eeg.bids import Recording, Subject

Progress = Callable[[int, int, str], None]


def of(
    recordings: Sequence[Recording],
    subjects: dict[str, Subject],
    index: Path,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[list[str]]:
    """For each recording its name and the digests of its files and of what else is known of it."""
    known = files.read_json(index) or {}
    fresh: dict[str, Any] = {}

    def look(path: Path | None) -> str:
        if path is None:
            return ""
        key = str(path.absolute())
        digest, entry = _digest(path, known.get(key))
        if entry is not None:
            fresh[key] = entry
        return digest

    def one(recording: Recording) -> list[str]:
        beside = recording.path.with_suffix(".fdt")  # EEGLAB keeps signals there, if it was told to
        paths = [recording.path, beside if beside.exists() else None, recording.events, recording.channels]
        labels = json.dumps([asdict(subjects[recording.name]), mains.stated(recording.sidecar)], sort_keys=True)
        return [recording.name, *(look(path) for path in paths), hashlib.sha256(labels.encode()).hexdigest()]

    content = []
    # hashlib lets other threads run while it works, so threads are enough
    with ThreadPoolExecutor(workers or pool.usual_workers()) as threads:
        for number, each in enumerate(threads.map(one, recordings), 1):
            content.append(each)
            if progress is not None and number % 50 == 0:
                progress(number, len(recordings), "reading what is there")
    if any(known.get(key) != entry for key, entry in fresh.items()):
        files.write_json(index, {**known, **fresh}, durable=False)
    return content


def _digest(path: Path, known: Any) -> tuple[str, list[Any] | None]:
    try:
        with files.open_regular(path) as file:
            status = os.fstat(file.fileno())
            stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
            if isinstance(known, list) and known[:3] == stamp and len(known) == 4 and isinstance(known[3], str):
                return known[3], known
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:  # it is left out later, with its reason; a file that comes back is another content
        return f"unreadable: {error.errno}", None
    return digest.hexdigest(), [*stamp, digest.hexdigest()]
