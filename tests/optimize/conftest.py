from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="needs the extra `optimize`")
pytest.importorskip("onnx", reason="needs the extra `optimize`")

from tests.optimize import small


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle to read; tests that change one copy it first."""
    return small.make(tmp_path_factory.mktemp("made"))
