"""The windows of a stage: a cache that `holdfast eeg prepare` made, or the simulated set if none is named.

windows = windows_for(session, "challenge1", data="")           # simulated, made once, with progress
windows = windows_for(session, "challenge1", data="cache")      # cache/challenge1…, or cache itself
say(session, "tempo: 9,000 parameters")                         # once, however many workers the run needs
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import holdfast
from holdfast.base.errors import UserError
from holdfast.base.human import shorten
from holdfast.workloads.eeg import cache

DEMO = "HOLDFAST_EEG_DEMO"
"""Where the simulated set is kept, if not in the user's cache folder."""
DEMO_SEED = 0
"""Not the seed of the run: runs with other seeds are compared on the same data."""


def windows_for(session: holdfast.Session, kind: str, data: str) -> Any:
    """Open, or simulate and prepare first; long work reports its progress."""
    windows = opened(data, kind) if data else _of_demo(session, kind)
    say(session, f"{windows.words()}, in {shorten(str(windows.folder))}")
    return windows


def opened(data: str, kind: str) -> Any:
    """The cache of this kind in a folder; UserError, with a command that works, if there is none or it is empty."""
    windows = cache.open(_folder(Path(data).expanduser(), kind))
    if not len(windows):
        report = Path(windows.folder) / "report.json"
        raise UserError(
            f"there are no windows in {windows.folder}",
            cause="every recording was left out when it was made",
            hints=[f"{report} has the reason for each recording"],
        )
    return windows


def say(session: holdfast.Session, line: str) -> None:
    """A line about the run as a whole: its first worker says it, and those that replace that one do not repeat it."""
    if session.run.generation == 0 and not session.run.resumed:
        print(line, flush=True)


def _folder(folder: Path, kind: str) -> Path:
    """The cache itself, or the one of this kind inside."""
    if (folder / cache.META).exists() or not folder.is_dir():
        return folder
    found = sorted(each.parent for each in folder.glob(f"*/{cache.META}") if each.parent.name.startswith(kind))
    if kind == "pretrain" and not found:
        return _folder(folder, "challenge2")
    if not found:
        raise _none(folder, kind)
    return found[0]


def _none(folder: Path, kind: str) -> UserError:
    from holdfast.workloads.eeg import bids, suggestions

    try:
        dataset = bids.look(folder)
    except UserError:
        dataset = None
    if dataset is not None and dataset.recordings:
        return UserError(
            f"{folder} holds recordings, and no windows for {kind}",
            hints=[f"make windows of them: `{suggestions.preparing(dataset, kind)}`, then `data=CACHE`"],
        )
    there = sorted(each.parent.name for each in folder.glob(f"*/{cache.META}"))
    return UserError(
        f"{folder} holds no windows for {kind}",
        cause=f"it holds {', '.join(there)}" if there else "it holds no windows at all",
        hints=[f"make them with `holdfast eeg prepare DATA {folder} --kind {kind}`"],
    )


def _of_demo(session: holdfast.Session, kind: str) -> Any:
    from holdfast.workloads.eeg.demo import demo_data

    return demo_data(demo_folder(), DEMO_SEED, kinds=[kind], progress=session.progress)[kind]


def demo_folder() -> Path:
    """The same for all runs of a user: it is made once."""
    if os.environ.get(DEMO):
        return Path(os.environ[DEMO])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "holdfast" / "eeg-demo"
