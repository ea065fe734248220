"""The live view of `holdfast watch` where textual is not installed: the small picture, drawn again and again.

watch(lines, write, every=1.0)       # until Ctrl-C
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence

from holdfast.base.control_characters import one_line

HINT = "Ctrl-C quits · more keys and charts: pip install 'holdfast[monitor]'"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Another screen without a cursor, and the one that was there before."""


def watch(lines: Callable[[int], Sequence[str]], write: Callable[[str], None], every: float) -> None:
    """Draw what `lines` gives for a width, until Ctrl-C. The screen is as before afterwards."""
    write(_ENTER)
    try:
        while True:
            width, height = shutil.get_terminal_size()
            clean = [one_line(line) for line in lines(width)]  # a run folder's words do not drive this terminal
            shown = [*clean[: max(1, height - 2)], "", HINT[:width]]
            write("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in shown[:-1]) + shown[-1] + "\x1b[K\x1b[J")
            time.sleep(every)
    except KeyboardInterrupt:
        return
    finally:
        write(_LEAVE)
