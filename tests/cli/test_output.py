"""How the command line speaks, held as text: colour, signs, streams, errors and the numbers in them."""

from __future__ import annotations

import argparse
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import GaveUp, UserError
from holdfast.base.human import BLOCKS, count, counted, duration, metric, percent, shorten, size, sparkline, table
from holdfast.console.output import Output, Screen, add_flags, print_error, use_color


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def encoded(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")


def written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode(stream.encoding)


def utf8_screen(color: str = "never") -> tuple[io.TextIOWrapper, Screen]:
    stream = encoded("utf-8")
    return stream, Screen.of(stream, color=color, env={})


# Colour ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "env", "tty", "expected"),
    [
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": "", "FORCE_COLOR": "1"}, False, True),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": ""}, False, False),
        ("auto", {"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"TERM": "xterm"}, True, True),
        ("auto", {"TERM": "xterm"}, False, False),
    ],
)
def test_who_decides_about_colour(flag: str, env: dict[str, str], tty: bool, expected: bool) -> None:
    assert use_color(flag, tty=tty, env={"TERM": "xterm", **env}) is expected


def test_each_stream_is_judged_by_itself() -> None:
    output = Output.from_args(argparse.Namespace(), stdout=io.StringIO(), stderr=Terminal(), env={"TERM": "xterm"})
    assert (output.out.color, output.err.color) == (False, True)
    assert output.out.style("x", "bold") == "x"
    output.note(output.err.style("x", "bold"))
    assert output.err.stream.getvalue() == "\x1b[1mx\x1b[0m\n"  # type: ignore[attr-defined]


def test_a_closed_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    stream.close()
    assert Screen.of(stream, env={}).tty is False


def test_a_program_without_a_console_writes_nowhere() -> None:
    Screen.of(None, env={}).write("hello")


def test_the_width_is_that_of_the_terminal() -> None:
    assert Screen.of(Terminal(), env={"COLUMNS": "61"}).width == 61
    assert Screen.of(io.StringIO(), env={"COLUMNS": "61"}).width == 100


# Signs ----------------------------------------------------------------------------------------------------

FANCY = "[✓] cpu · [!] cuda:0 · [☠] cuda:1 · ✓ 24.0 → 20.5 GB ±1 ↺ again… ▁▄█ 78 °C"
PLAIN = "[ok] cpu - [!!] cuda:0 - [x] cuda:1 - [ok] 24.0 -> 20.5 GB +-1 [<] again... _~# 78 C"


@pytest.mark.parametrize(
    ("encoding", "ascii", "expected"),
    [
        ("utf-8", False, FANCY),
        ("UTF8", False, FANCY),
        ("utf-8", True, PLAIN),
        ("ascii", False, PLAIN),
        ("latin-1", False, PLAIN),
    ],
)
def test_signs_are_those_the_stream_can_show(encoding: str, ascii: bool, expected: str) -> None:
    stream = encoded(encoding)
    Screen.of(stream, ascii=ascii, env={}).write(FANCY)
    assert written(stream) == expected + "\n"


def test_a_name_the_stream_cannot_show_is_escaped_and_nothing_crashes() -> None:
    stream = encoded("ascii")
    Screen.of(stream, env={}).write("runs/größe-日本")
    assert written(stream) == "runs/gr\\xf6\\xdfe-\\u65e5\\u672c\n"


# Errors ---------------------------------------------------------------------------------------------------

GAVE_UP = GaveUp(
    "cuda:0 failed 3 times at the same step and no other device is left",
    cause="F034, device reset when memory passes 21.4 GB (step 3 862, cap 12.0 GB)",
    saved="step 3 600 in runs/calm-heron/checkpoints/003600 (verified)",
    hints=[
        "continue on the cpu with `holdfast resume calm-heron --device cpu`",
        "the last words are in\nfaults/03",
    ],
)


def test_an_error_has_four_parts() -> None:
    stream, screen = utf8_screen()
    print_error(GAVE_UP, screen)
    assert written(stream) == (
        "error: cuda:0 failed 3 times at the same step and no other device is left\n"
        "  cause: F034, device reset when memory passes 21.4 GB (step 3 862, cap 12.0 GB)\n"
        "  saved: step 3 600 in runs/calm-heron/checkpoints/003600 (verified)\n"
        "\n"
        "hint: continue on the cpu with `holdfast resume calm-heron --device cpu`\n"
        "hint: the last words are in\n"
        "      faults/03\n"
    )


def test_a_short_error_is_one_line() -> None:
    stream, screen = utf8_screen()
    print_error(UserError("unknown workload `egg`"), screen)
    assert written(stream) == "error: unknown workload `egg`\n"


def test_colour_only_marks_the_words_that_are_there_anyway() -> None:
    stream, screen = utf8_screen("always")
    print_error(UserError("no", cause="because", hints=["yes"]), screen)
    assert written(stream) == (
        "\x1b[1;31merror:\x1b[0m no\n  \x1b[1mcause:\x1b[0m because\n\n\x1b[1;36mhint:\x1b[0m yes\n"
    )


def test_with_json_an_error_is_the_one_object_on_stdout() -> None:
    out, err = encoded("utf-8"), encoded("utf-8")
    output = Output.from_args(argparse.Namespace(json=True), stdout=out, stderr=err, env={})
    output.error(UserError("no", hints=["yes"]))
    assert json.loads(written(out)) == {
        "schema": 1,
        "error": {
            "error": "UserError",
            "message": "no",
            "cause": None,
            "saved": None,
            "hints": ["yes"],
            "exit_code": 2,
        },
    }
    assert written(err) == "error: no\n\nhint: yes\n"


# Streams and flags ----------------------------------------------------------------------------------------


def outputs(*argv: str) -> tuple[str, str]:
    parser = argparse.ArgumentParser()
    add_flags(parser, plain=True, progress=True)
    out, err = encoded("utf-8"), encoded("utf-8")
    output = Output.from_args(parser.parse_args(argv), stdout=out, stderr=err, env={})
    output.print("asked for")
    output.note("going on")
    if output.as_json:
        output.json({"loss": float("nan"), "rate": [1.5, float("inf")], "name": "größe", "none": None})
    return written(out), written(err)


def test_what_goes_where() -> None:
    assert outputs() == ("asked for\n", "going on\n")
    assert outputs("-q") == ("asked for\n", "")


def test_json_is_alone_on_stdout_and_readable_in_any_locale() -> None:
    out, err = outputs("--json")
    assert json.loads(out) == {"schema": 1, "loss": None, "rate": [1.5, None], "name": "größe", "none": None}
    assert out.isascii()
    assert err == "going on\n"


def test_flags_that_a_command_lacks_count_as_not_given() -> None:
    output = Output.from_args(argparse.Namespace(), stdout=io.StringIO(), stderr=io.StringIO(), env={})
    assert (output.as_json, output.quiet, output.verbose, output.plain, output.progress) == (
        False,
        False,
        0,
        False,
        True,
    )


# Numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (float("inf"), "-"),
        (0, "0 s"),
        (0.0001, "0 s"),
        (0.0449, "45 ms"),
        (0.155, "0.2 s"),
        (0.8, "0.8 s"),
        (4.2, "4.2 s"),
        (5.0, "5 s"),
        (9.96, "10 s"),
        (19.4, "19 s"),
        (59.6, "1m 00s"),
        (188, "3m 08s"),
        (3599.7, "1h 00m"),
        (3720, "1h 02m"),
        (11400, "3h 10m"),
        (86399, "1d 00h"),
        (183600, "2d 03h"),
        (-19, "-19 s"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_counts() -> None:
    assert [count(n) for n in (None, 0, 999, 3862, 14712, 112000, -3862)] == [
        "-",
        "0",
        "999",
        "3 862",
        "14 712",
        "112 000",
        "-3 862",
    ]
    assert counted(1, "fault") == "1 fault"
    assert counted(0, "fault") == "0 faults"
    assert counted(3862, "step") == "3 862 steps"
    assert counted(2, "try", "tries") == "2 tries"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (512, "512 B"),
        (999, "999 B"),
        (6_600_000, "6.6 MB"),
        (398_000_000, "398 MB"),
        (999_700_000, "1.0 GB"),
        (24_000_000_000, "24.0 GB"),
        (99_960_000_000, "100 GB"),
        (412_000_000_000, "412 GB"),
        (3e18, "3000 PB"),
    ],
)
def test_sizes(number: float | None, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "-"),
        (0, "0 %"),
        (0.0001, "<0.1 %"),
        (0.014, "1.4 %"),
        (0.41, "41 %"),
        (0.9999, "99 %"),
        (1, "100 %"),
        (1.2, "120 %"),
        (-0.02, "-2.0 %"),
    ],
)
def test_percents(share: float | None, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.0000"),
        (0.69314, "0.6931"),
        (12.5, "12.5000"),
        (0.00031, "3.10e-04"),
        (2.5e7, "2.50e+07"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_metrics(value: float | None, text: str) -> None:
    assert metric(value) == text


def test_sparklines() -> None:
    assert sparkline([]) == ""
    assert sparkline([None, float("nan")]) == ""
    assert sparkline([3, 3, 3]) == "▁▁▁"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == BLOCKS
    assert sparkline([7, None, 0]) == "█ ▁"
    assert sparkline(list(range(1000)), width=8) == BLOCKS
    assert sparkline([-1.7e308, 1.7e308]) == "▁█"
    assert sparkline([0.0, 5e-324]) == "▁▁"


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True) | st.none()), st.integers(1, 40))
def test_a_sparkline_takes_any_numbers(values: list[float | None], width: int) -> None:
    assert len(sparkline(values, width)) <= width


def test_tables_are_aligned_without_trailing_blanks() -> None:
    rows = [("cuda:0", "3 862", "use with care"), ("cpu", "1", "")]
    assert table(rows, header=("DEVICE", "STEPS", "VERDICT"), right=[1]) == [
        "DEVICE  STEPS  VERDICT",
        "cuda:0  3 862  use with care",
        "cpu         1",
    ]
    assert table([]) == []


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("/home/ann/x", "~/x"),
        ("/home/ann", "~"),
        ("a:/home/ann/b:/home/ann", "a:~/b:~"),
        ("--out=/home/ann/x", "--out=~/x"),
        ("/home/anna/x", "/home/anna/x"),
        ("/data/home/ann/x", "/data/home/ann/x"),
        ("/home/ann-2/x", "/home/ann-2/x"),
    ],
)
def test_home_is_shortened_where_it_is_home(text: str, short: str) -> None:
    assert shorten(text, "/home/ann") == short
    assert shorten(text, "/home/ann/") == short


def test_a_home_that_is_the_root_is_left_alone() -> None:
    assert shorten("/usr/lib", "/") == "/usr/lib"
