"""The first picture of `holdfast watch`: on the screen before what draws the others has been imported.

    with shown(picture(scene, 120, 40, footer=("q quit", "read only")), color=True):
        from holdfast.monitor.terminal.app import Watch      # takes several times as long as the picture

The live view takes the screen over as it is. If it cannot come, the terminal is given back as it was.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.base.control_characters import without_control
from holdfast.monitor.terminal import large, small
from holdfast.monitor.terminal.curves import plain
from holdfast.monitor.terminal.scene import Scene

COLORS = re.compile(
    r"(?P<green>FINISHED|RUNNING|live ●|✓[^│]*)"
    r"|(?P<red>FAILED|CRASHED|GAVE_UP|✗[^│]*)"
    r"|(?P<yellow>RECOVERING|MOVED|PAUSED|STOPPED|▼|(?<=[ │])! [^│]*)"
    r"|(?P<dim>[┌┐└┘├┤┬┴┼│─]+)"
    r"|(?P<cyan>[━╸▮▁-█⠁-⣿]+)"
)
"""Colours beside signs and words that say the same."""
_CODES = {"green": "32", "red": "31", "yellow": "33", "dim": "2", "cyan": "36"}
_TAKE, _GIVE_BACK = "\x1b[?1049h\x1b[?25l\x1b[2J\x1b[H", "\x1b[?25h\x1b[?1049l"


def picture(scene: Scene, width: int, height: int, *, footer: tuple[str, str], ascii: bool = False) -> list[str]:
    """A run on the whole screen, framed where there is room."""
    if large.fits(width, height):
        lines = large.picture(scene, width, height, footer=footer, ascii=ascii)
    else:
        page = small.picture(scene, width, height - 1)
        lines = [*page, *[""] * (height - 1 - len(page)), small.sides(*footer, width)]
    lines = [without_control(line) for line in lines]
    return [plain(line) for line in lines] if ascii else lines


@contextmanager
def shown(lines: Sequence[str], *, color: bool) -> Iterator[None]:
    """Show these lines on a screen of their own, and leave them there; an error gives the terminal back."""
    out = sys.__stdout__
    if sys.platform == "win32" or out is None or not lines:  # an old console there would print what is meant as codes
        yield
        return
    try:
        with _unheard():
            out.write(_TAKE + "\r\n".join(map(_colored, lines) if color else lines))
            out.flush()
            yield
    except BaseException:
        out.write(_GIVE_BACK)
        out.flush()
        raise


@contextmanager
def _unheard() -> Iterator[None]:
    """A key that is pressed before the live view listens waits for it, and does not spoil the picture."""
    if sys.platform == "win32":
        raise ImportError("there is no termios on Windows")  # then no picture is shown early
    import termios

    try:
        before = termios.tcgetattr(0)
    except termios.error:  # no terminal to type at
        yield
        return
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(0, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)


def _colored(line: str) -> str:
    return COLORS.sub(lambda found: f"\x1b[{_CODES[found.lastgroup or 'dim']}m{found[0]}\x1b[0m", line)
