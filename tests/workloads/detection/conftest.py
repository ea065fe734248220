from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

MISSING = [name for name in ("torchvision", "PIL", "pycocotools", "yaml") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_[!i]*.py"] if MISSING else []
"""All but test_installed.py, which tells why."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Indices of these tests are kept apart from those of the user."""
    monkeypatch.setenv("HOLDFAST_DETECTION_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
