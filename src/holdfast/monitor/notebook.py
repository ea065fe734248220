"""A run in a notebook: one cell that updates itself.

    import holdfast
    holdfast.watch()                        # the run under way, or else the last; until it is over or interrupted
    holdfast.watch("calm-heron", wait=False)     # in the background: the next cell can run meanwhile

The training is a process of its own (`holdfast.train(fn)`, or `!holdfast train … --detach`), so that a device that dies
does not take the notebook along. Outside a notebook it prints one picture.
"""

from __future__ import annotations

import html
import threading
import time
from pathlib import Path
from typing import Any

from holdfast.base.control_characters import without_control
from holdfast.base.errors import UserError
from holdfast.monitor import reader
from holdfast.monitor.terminal import small
from holdfast.monitor.terminal.scene import look
from holdfast.run.folder import find_run, list_runs
from holdfast.run.states import LIVE_STATES

WIDTH = 96


def watch(
    run: str | Path | None = None, *, folder: str | Path | None = None, every: float = 1.0, wait: bool = True
) -> None:
    """Show a run in this cell until it is over. `folder` is where runs are; `wait=False` returns at once."""
    found = reader.open(_find(run, folder))
    handle = _display(_picture(found))
    if handle is None:
        print(without_control("\n".join(small.picture(look(found), WIDTH))))
        return
    if wait:
        try:
            _follow(found, handle, every)
        except KeyboardInterrupt:  # the stop button of the notebook: the run goes on
            handle.update(_Page(_picture(found)))
        return
    threading.Thread(target=_follow, args=(found, handle, every), daemon=True, name="holdfast-watch").start()


def _find(run: str | Path | None, folder: str | Path | None) -> Path:
    from holdfast.run.settings import Settings

    root = Path(folder) if folder is not None else Path(Settings.load().run.folder)
    if run is not None:
        return Path(run) if isinstance(run, Path) else find_run(root, run).path
    runs = list_runs(root)
    if not runs:
        raise UserError(f"no runs in {root}", hints=["start one: `holdfast train my_script.py --detach`"])
    live = [each for each in runs if each.info.get("state") in LIVE_STATES and each.in_use()]
    return (live or runs)[-1].path


def _follow(run: reader.Run, handle: Any, every: float) -> None:
    while run.live:
        time.sleep(max(0.1, every))
        run.refresh()
        handle.update(_Page(_picture(run)))


def _picture(run: reader.Run) -> list[str]:
    return small.picture(look(run), WIDTH, events=8)


def _display(lines: list[str]) -> Any:
    """A handle to the output of this cell; None where there is no notebook."""
    try:
        from IPython import display, get_ipython
    except ImportError:
        return None
    shown: Any = display  # without types
    return shown.display(_Page(lines), display_id=True) if get_ipython() is not None else None


def is_notebook() -> bool:
    """True in a Jupyter kernel; not in a terminal's IPython, where a picture would be printed again and again."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    shell: Any = get_ipython  # without types
    return hasattr(shell(), "kernel")


class Cell:
    """The output of a cell that shows a run; without a notebook, nothing."""

    def __init__(self, run: reader.Run, every: float = 1.0) -> None:
        self._run, self._every, self._drawn = run, every, time.monotonic()
        self._handle = _display(_picture(run))

    def update(self) -> None:
        """Draw it again if it is time; at its end always."""
        if self._handle is None or (self._run.live and time.monotonic() - self._drawn < self._every):
            return
        self._drawn = time.monotonic()
        self._run.refresh()
        self._handle.update(_Page(_picture(self._run)))


class _Page:
    """Text in a fixed width, as HTML: nothing a run has written can become markup."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def _repr_html_(self) -> str:
        style = "line-height:1.25;font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre"
        return f'<pre style="{style}">{html.escape(chr(10).join(self.lines))}</pre>'

    def __repr__(self) -> str:
        return "\n".join(self.lines)
