"""Which checkpoint a framework's Trainer begins at: the script's own, or the state of our last commit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import holdfast.supervisor.scripts


@pytest.fixture
def hook() -> ModuleType:
    path = Path(holdfast.supervisor.scripts.__file__).parent / "hook" / "_holdfast_hook.py"
    spec = importlib.util.spec_from_file_location("_hook_of_this_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fit(model: str, ckpt_path: str | None = None) -> str | None:
    return ckpt_path


@pytest.mark.parametrize(
    ("exact", "own", "begins_at"),
    [
        (False, None, "ours"),
        (False, "last", "last"),  # a file that we found: the script knows better
        (True, None, "ours"),
        (True, "last", "ours"),  # the state at the fault: whatever the script has is older
    ],
)
def test_a_commit_comes_before_the_scripts_own(hook: ModuleType, exact: bool, own: str | None, begins_at: str) -> None:
    hook._exact = exact  # type: ignore[attr-defined]
    begin = hook._by_argument(fit, "ckpt_path")
    assert begin(fit, "ours", ("model",), {"ckpt_path": own}) == begins_at
