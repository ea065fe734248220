"""Light colours for `holdfast watch`, with the contrast of WCAG AA on white; and whether a terminal is light.

app.register_theme(THEME), app.ansi_theme_light = COLORS      # then app.theme = THEME.name
chosen(os.environ)                                            # a theme to begin with; None: textual's own
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.terminal_theme import TerminalTheme
from textual.theme import Theme

DARK = "textual-dark"
GROUND, INK = (255, 255, 255), (22, 27, 34)
_NAMED = [INK, (176, 42, 29), (0, 107, 79), (143, 82, 0), (11, 99, 182), (138, 56, 113), (0, 102, 128), (89, 100, 116)]
"""Black, red, green, yellow, blue, magenta, cyan, white, in the order of ANSI."""
COLORS = TerminalTheme(GROUND, INK, _NAMED, _NAMED)
THEME = Theme(
    name="holdfast-light",
    primary="#0b63b6",
    foreground="#161b22",
    background="#ffffff",
    surface="#ffffff",
    dark=False,
)


def chosen(environ: Mapping[str, str]) -> str | None:
    """Light where the terminal says so: COLORFGBG ends with the number of its background, 7 and 15 are white."""
    if environ.get("TEXTUAL_THEME"):
        return None
    return THEME.name if environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15") else None
