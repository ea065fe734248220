"""What the tests of checkpoints share: a folder with three of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.state import checkpoint
from tests.state.checkpoints import payload


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three checkpoints, steps 10, 20 and 30."""
    for step in (10, 20, 30):
        checkpoint.write(tmp_path, payload(step), step=step)
    return tmp_path
