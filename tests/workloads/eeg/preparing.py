"""The cache of a small data set, as served: nothing filtered, nothing repaired, by one process.

    report = prepared(make_set(tmp_path / "data"), tmp_path / "cache")
    prepared(data, folder, "challenge2", bad="zero")    # another kind, or anything else that prepare() takes

Shared by the tests of what is in a cache, of what is refused, and of how it is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.workloads.eeg import prepare

SERVED: dict[str, Any] = {"band": None, "notch": None, "bad": "keep", "workers": 1}


def prepared(data: Path, folder: Path, kind: str = "challenge1", **options: Any) -> Any:
    return prepare.prepare(data, folder, kind=kind, **{**SERVED, **options})
