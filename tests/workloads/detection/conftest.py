from __future__ import annotations

from pathlib import Path

import pytest

for _needed in ("torchvision", "PIL", "pycocotools", "yaml"):
    pytest.importorskip(_needed, reason=f"{_needed} is not installed: pip install 'holdfast[detection]'")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Indices of these tests are kept apart from those of the user."""
    monkeypatch.setenv("HOLDFAST_DETECTION_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
