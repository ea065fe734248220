"""A large package beside the script is looked at, and saved where it changes."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

from holdfast.integrations.exact.packages import LARGE, Packages


@pytest.fixture
def package() -> Iterator[types.ModuleType]:
    """A package with a table, an object with a counter, and nothing on disk."""
    made, inner = types.ModuleType("bigpackage"), types.ModuleType("bigpackage.inner")
    made.__path__ = []
    made.table = {number: [number] for number in range(LARGE)}  # type: ignore[attr-defined]
    inner.state = types.SimpleNamespace(count=10**9, held={"a": 1})  # type: ignore[attr-defined]
    inner.number = 3  # type: ignore[attr-defined]
    sys.modules |= {"bigpackage": made, "bigpackage.inner": inner}
    yield inner
    del sys.modules["bigpackage"], sys.modules["bigpackage.inner"]


NAMES = ["bigpackage", "bigpackage.inner"]


@pytest.mark.all
def test_a_table_that_nobody_changes_is_not_saved(package: types.ModuleType) -> None:
    packages = Packages()
    assert packages.saved(["helpers", *NAMES]) == ["helpers"], "a module that is no package is always saved"
    assert packages.saved(NAMES) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda module: setattr(module, "number", 4),
        lambda module: setattr(module.state, "count", 10**9 + 1),
        lambda module: module.state.held.update(b=2),
        lambda module: module.state.held.update(a=2),
        lambda module: setattr(module, "late", []),
    ],
)
def test_a_module_that_changes_is_saved_from_then_on(package: types.ModuleType, change: object) -> None:
    packages = Packages()
    assert packages.saved(NAMES) == []
    change(package)  # type: ignore[operator]
    assert packages.saved(NAMES) == ["bigpackage.inner"]
    assert packages.saved(NAMES) == ["bigpackage.inner"]


def test_what_another_process_saved_is_saved_here_too(package: types.ModuleType) -> None:
    packages = Packages()
    assert packages.saved(NAMES) == []
    packages.changed(["bigpackage"])
    assert packages.saved(NAMES) == ["bigpackage"]


def test_a_small_package_is_saved_whole(package: types.ModuleType) -> None:
    sys.modules["bigpackage"].table.clear()
    assert Packages().saved(NAMES) == NAMES
