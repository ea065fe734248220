#!/usr/bin/env python3
"""Draws docs/pictures/terminal-light.svg and terminal-dark.svg: a training that is hit three times, in a terminal.

    python scripts/terminal_picture.py        # about a minute on two cores; the run is real

The script is the one of README.md. Nothing is drawn unless all faults came and the weights are those of the
undisturbed run, bit for bit.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pages import ROOT

COMMAND = "holdfast chaos my_script.py --faults sigkill@20,hang@40,oom_in_step@60 --references 1"
PLACE = ROOT / "docs" / "pictures"
COLUMNS, ROWS = 96, 50
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="holdfast-terminal-") as place:
        (Path(place) / "my_script.py").write_text(script(), encoding="utf-8")
        text, code = typed(COMMAND, Path(place))
    if code or "bit for bit" not in text:
        print(f"error: that was no run to show (exit code {code}):\n{text}")
        return 1
    text = shortened(text)
    PLACE.mkdir(exist_ok=True)
    for name in ("light", "dark"):
        (PLACE / f"terminal-{name}.svg").write_text(drawn(text, name), encoding="utf-8", newline="\n")
        print(f"docs/pictures/terminal-{name}.svg")
    return 0


def script() -> str:
    """The script that README.md shows."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)[0]


def typed(command: str, folder: Path) -> tuple[str, int]:
    """What the command shows at a terminal of COLUMNS columns, line by line as it stands at the end; its exit code."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    env |= {"HOLDFAST_STATE": str(folder / "state"), "HOLDFAST_RUN_THREADS": "1", "FORCE_COLOR": "1"}
    words = [sys.executable, "-m", "holdfast", *command.split()[1:]]
    child = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=env)
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed: the command is over
            break
        if not part:
            break
        seen += part
    return at_the_end(seen.decode(errors="replace")), child.wait()


def at_the_end(text: str) -> str:
    """What is left on the screen of lines that were drawn several times."""
    rows = []
    for row in text.replace("\r\n", "\n").split("\n"):
        left = re.split(r"\r(?:\x1b\[2?K)?|\x1b\[2K", row)[-1]
        rows.append(re.sub(r"\x1b\[(?:\?\d+[hl]|\d*[A-HJKST])", "", left))
    rows = [row for row in rows if not re.search(r"\d (?:it/s|s/it) ", f"{row} ")]  # bars: gone when the run is over
    return "\n".join(rows).strip("\n")


def shortened(text: str) -> str:
    """Without the lines of the training in peace, which show nothing."""
    head, mark, rest = text.partition("run with 3 faults")
    return f"{head.splitlines()[0]}\n…\n{mark}{rest}"


def drawn(text: str, name: str) -> str:
    """The SVG, without a font or anything else from a network."""
    from rich.console import Console
    from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text(f"$ {COMMAND}", style="bold"), soft_wrap=True)
    console.print(Text.from_ansi(text), soft_wrap=True)
    theme = SVG_EXPORT_THEME if name == "dark" else DEFAULT_TERMINAL_THEME
    drawing = console.export_svg(title="holdfast", theme=theme, unique_id=f"holdfast-{name}")
    drawing = re.sub(r"@font-face \{.*?\}\n", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r"font-family: Fira Code, monospace;?", f"font-family: {FONT};", drawing)
    drawing = drawing.replace("https://www.textualize.io", "").replace("<!-- Generated with Rich  -->", "")
    return "\n".join(line.rstrip() for line in drawing.splitlines()) + "\n"


if __name__ == "__main__":
    sys.exit(main())
