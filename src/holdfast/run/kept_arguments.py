"""The words a run was started with, where some of them are secret: in the user's state folder, not in the run's.

    keep(run.path, info, argv=["--token", "hf_x1y2"])        # nothing is written if nothing in them is secret
    words = find(run.path, info, "argv", info["argv"])       # the real ones, or None

run.json holds `***` in the place of a secret, so that a run folder can be shown and sent. What is needed to go on is in
a file that only the user can read. It is found by the number that the file system gave the folder and by when the run
was made: a copy of the folder has another number, and asks for the words again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.base import files
from holdfast.base.secret_words import HIDDEN, redact
from holdfast.base.state_folder import state_folder

KEEP_DAYS = 180


def keep(folder: Path, info: Mapping[str, Any], **words: Sequence[str]) -> None:
    """Remember these words for this run, if they hold a secret. A state folder that takes nothing is no error."""
    secret = {name: list(each) for name, each in words.items() if redact(list(each)) != list(each)}
    if not secret:
        return
    with contextlib.suppress(OSError):
        place = _place(folder, info)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.parent.chmod(0o700)
        known = (files.read_json(place) or {}).get("words")
        known = known if isinstance(known, dict) else {}
        files.write_json(place, {"folder": str(folder.absolute()), "words": {**known, **secret}})
        _forget_old(place.parent)


def find(folder: Path, info: Mapping[str, Any], name: str, shown: Sequence[str]) -> list[str] | None:
    """The words that `shown` stands for; None if none are known, or others than those that run.json shows."""
    if not any(HIDDEN in word for word in shown):
        return None
    try:
        data = files.read_json(_place(folder, info)) or {}
    except OSError:
        return None
    words = data.get("words")
    kept = words.get(name) if isinstance(words, dict) else None
    if not isinstance(kept, list) or not all(isinstance(word, str) for word in kept):
        return None
    return kept if redact(kept) == list(shown) else None


def _place(folder: Path, info: Mapping[str, Any]) -> Path:
    mark = f"{folder.stat().st_ino} {info.get('created')}"
    return state_folder() / "arguments" / f"{hashlib.sha256(mark.encode()).hexdigest()[:32]}.json"


def _forget_old(folder: Path) -> None:
    oldest = time.time() - KEEP_DAYS * 86400
    for path, status in files.in_folder(folder, "*.json"):
        if status.st_mtime < oldest:
            with contextlib.suppress(OSError):
                os.unlink(path)
