"""Which face shows a run: the terminal's, the one for pipes and files, or none.

face = choose(output, header)
"""

from __future__ import annotations

from holdfast.cli.faces import Careful, Header, PlainFace, QuietFace
from holdfast.console.output import Output


def choose(output: Output, header: Header) -> Careful:
    """The face for these streams: the run is what was asked for, so it goes to stdout unless that is for JSON."""
    screen = output.err if output.as_json else output.out
    if output.quiet:
        return Careful(QuietFace())
    if output.plain or not screen.tty:
        return Careful(PlainFace(screen, header, progress=output.progress))
    from holdfast.cli.terminal import TerminalFace

    return Careful(TerminalFace(screen, header, progress=output.progress))
