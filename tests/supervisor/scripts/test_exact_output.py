"""What a script prints again is held back: the lines, not the bytes, because times differ."""

from __future__ import annotations

from pathlib import Path

from holdfast.supervisor.scripts.exact_files import Asides
from holdfast.supervisor.scripts.exact_output import Gate


def test_lines_that_were_shown_are_not_shown_again() -> None:
    gate = Gate()
    assert gate.passes(1, b"set-up\nstep 1\n") == b"set-up\nstep 1\n"
    gate.mark("0-1")
    assert gate.passes(1, b"step 2 took 10 ms\nste") == b"step 2 took 10 ms\nste"
    gate.shut()
    assert gate.passes(1, b"set-up\nstep 1\n") == b""
    gate.reached("0-1")
    assert gate.passes(1, b"step 2 took ") == b""
    assert gate.passes(1, b"9 ms\nstep 3\n") == b"p 3\n"
    assert gate.different == [(b"step 2 took 10 ms\n", b"step 2 took 9 ms\n")]
    assert gate.passes(1, b"step 4\n") == b"step 4\n"


def led_back(stream: int, printed: bytes) -> Gate:
    """A gate whose process was replaced after it had printed this, and is back at the mark before it."""
    gate = Gate()
    gate.mark("0-1")
    gate.passes(stream, printed)
    gate.shut()
    gate.reached("0-1")
    return gate


def test_a_mark_that_is_set_while_lines_are_repeated_is_where_they_are() -> None:
    gate = led_back(1, b"1\n2\n3\n")
    assert gate.passes(1, b"1\n") == b""
    gate.mark("1-1")
    gate.shut()
    gate.reached("1-1")
    assert gate.passes(1, b"2\n3\n4\n") == b"4\n"


def test_the_streams_are_apart() -> None:
    gate = led_back(2, b"warning\n")
    assert gate.passes(1, b"out\n") == b"out\n"
    assert gate.passes(2, b"warning\nnew\n") == b"new\n"


def test_what_was_printed_on_the_way_back_is_kept_in_case_of_a_failure() -> None:
    gate = Gate()
    gate.passes(2, b"before\n")
    gate.shut()
    gate.passes(2, b"Traceback\n")
    assert gate.opened() == {2: b"Traceback\n"}


def test_files_are_put_aside_once_for_a_commit(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"1\n2\n3\n")
    asides = Asides(tmp_path / "written")
    asides.note(7, {str(log): 4})
    asides.put(7)
    assert log.read_bytes() == b"1\n2\n"
    log.write_bytes(b"")  # a set-up that empties it, killed before it is led back
    asides.put(7)
    assert Path(asides.found[str(log)]).read_bytes() == b"1\n2\n"


def test_a_script_that_was_over_is_led_back_to_the_files_of_the_commit_before(tmp_path: Path) -> None:
    """The commit that is taken as the script ends has no place and no sizes of files."""
    log = tmp_path / "log"
    log.write_bytes(b"1\n2\n3\n")
    asides = Asides(tmp_path / "written")
    asides.note(7, {str(log): 4})
    asides.note(9, {str(log): 6})  # killed between this mark and its commit
    asides.put(8)
    assert log.read_bytes() == b"1\n2\n" and list(asides.found) == [str(log)]
