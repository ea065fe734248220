"""An enumerate counts on: seen on one of ours before any other is touched."""

from __future__ import annotations

import sys

import pytest

from holdfast.base import enumeration


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="another Python keeps it elsewhere")
def test_this_python_can() -> None:
    assert enumeration.can_set()


def test_where_it_does_not_count_as_it_should_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(done: int):  # type: ignore[no-untyped-def]
        told.append(enumeration.catch_up(done))
        yield "x"

    begin.__globals__["__name__"] = "holdfast.tests"
    told: list[bool] = []
    try:
        enumeration.can_set.cache_clear()
        monkeypatch.setattr(enumeration, "_add", lambda counting, count: True)  # a build where writing has no effect
        assert list(enumerate(begin(3))) == [(0, "x")] and told == [False]
        monkeypatch.undo()
        enumeration.can_set.cache_clear()
        assert list(enumerate(begin(3))) == [(3, "x")] and told == [False, True]
    finally:
        begin.__globals__["__name__"] = __spec__.name  # type: ignore[name-defined]
        enumeration.can_set.cache_clear()
