"""Whatever goes wrong with a face silences it and harms nobody else."""

from __future__ import annotations

import os
import pty

import pytest

from holdfast.cli.faces import Careful, PlainFace, QuietFace
from holdfast.cli.terminal import TerminalFace
from holdfast.run.events import Event
from tests.cli.showing import BEAT, HEADER, history, screen


def test_a_broken_pipe_silences_the_face() -> None:
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w")
    face = Careful(PlainFace(screen(stream), HEADER))
    for event in history():
        face.event(event)
    face.beat(BEAT)
    face.output("more\n")
    face.close()
    assert face.face is None and face.why is not None and "BrokenPipeError" in face.why
    with pytest.raises(OSError):
        stream.close()


def test_a_closed_terminal_silences_the_face() -> None:
    """Rich would end the process on a broken pipe; a terminal that is gone gives EIO."""
    master, slave = pty.openpty()
    stream = os.fdopen(slave, "w")
    face = Careful(TerminalFace(screen(stream), HEADER))
    face.event(history()[0])
    face.beat(BEAT)
    os.close(master)
    for event in history()[1:]:
        face.event(event)
    face.beat(BEAT)
    face.close()
    assert face.face is None


def test_rich_may_not_exit_the_supervisor() -> None:
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w")
    face = Careful(TerminalFace(screen(stream), HEADER))
    face.event(history()[0])
    assert face.face is None and face.why is not None and "BrokenPipeError" in face.why
    with pytest.raises(OSError):
        stream.close()


def test_a_face_that_is_wrong_is_silent() -> None:
    class Wrong(QuietFace):
        def event(self, event: Event) -> None:
            raise KeyError("a bug in a face")

    face = Careful(Wrong())
    face.event(history()[0])
    face.event(history()[1])
    assert face.why is not None and "a bug in a face" in face.why
