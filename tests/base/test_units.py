"""Durations and sizes as people write them, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.units import parse_bytes, parse_duration, write_bytes, write_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("2d", 172800.0),
        ("250ms", 0.25),
        ("1m 500ms", 60.5),
        ("3min", 180.0),
        ("90", 90.0),
        ("0.1s", 0.1),
        (" 19 s ", 19.0),
        ("1H", 3600.0),
    ],
)
def test_durations_that_people_write(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "s", "-5s", "5x", "30m1h", "5s5s", "1h-30m", "1e3", "nan", "inf", "5 s s"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4_000_000_000),
        ("512MiB", 536_870_912),
        ("512 mib", 536_870_912),
        ("1.5kb", 1500),
        ("1024", 1024),
        ("7B", 7),
        ("2TiB", 2 * 2**40),
        ("9007199254740993", 9007199254740993),  # beyond what a float can hold
    ],
)
def test_sizes_that_people_write(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "4XB", "-1GB", "4 G B", "lots", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5.0, "5 s"),
        (90.0, "90 s"),
        (180.0, "3m"),
        (5400.0, "1h 30m"),
        (90061.0, "1d 1h 1m 1s"),
        (0.25, "250 ms"),
        (2.5, "2.5 s"),
        (1234.5, "1234.5 s"),
    ],
)
def test_durations_are_written_short_and_exact(seconds: float, text: str) -> None:
    assert write_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(4 * 10**9, "4 GB"), (2**29, "512 MiB"), (2**30, "1 GiB"), (1500, "1500 B"), (0, "0 B")],
)
def test_sizes_are_written_short_and_exact(size: int, text: str) -> None:
    assert write_bytes(size) == text


@given(st.integers(min_value=0, max_value=2**60))
def test_a_written_size_is_read_back_exactly(size: int) -> None:
    assert parse_bytes(write_bytes(size)) == size


@given(st.integers(min_value=1, max_value=10**11))
def test_a_written_duration_is_read_back_exactly(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(write_duration(seconds)) == seconds
