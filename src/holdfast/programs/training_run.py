"""A run as an object: what `holdfast.train` and `holdfast.find` return.

run = holdfast.find("calm-heron")
run.state, run.best, run.receipt       # read from the run folder each time
run.load(model)                        # the best weights, verified, into a module of yours
run.wait(); run.stop(); run.resume()

The run itself is other processes. This object reads the run folder and starts commands, so it can be made again at any
time, in another cell, after the kernel was restarted, or in another program.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base import interpreter
from holdfast.base.errors import ExitCode, GaveUp, HoldfastError, InternalError, ScriptFailed, Stopped, from_json
from holdfast.base.files import read_bounded
from holdfast.monitor import notebook, reader
from holdfast.run.folder import RunFolder
from holdfast.run.states import RunState
from holdfast.state import weights_export

if TYPE_CHECKING:
    import torch

_LOOK_S = 0.2
_TRACEBACK = 64 * 1024


class TrainingRun:
    """A run that was started, under way or over."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        """The run folder."""
        self._seen = reader.open(self.folder)

    def __repr__(self) -> str:
        run = self._now()
        step = "" if run.step is None else f", step {run.step}"
        return f"<TrainingRun {run.name}: {run.state}{step}>"

    def _now(self) -> reader.Run:
        self._seen.refresh()
        return self._seen

    # -- what there is to know -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Such as calm-heron."""
        return RunFolder(self.folder).name

    @property
    def state(self) -> str:
        """RUNNING, FINISHED, FAILED, STOPPED, …"""
        return self._now().state

    @property
    def live(self) -> bool:
        """True while it goes on."""
        return self._now().live

    @property
    def step(self) -> int | None:
        """Steps committed."""
        return self._now().step

    @property
    def exit_code(self) -> int | None:
        """What `holdfast train` ended with; None while it goes on."""
        return self._now().exit_code

    @property
    def best(self) -> dict[str, Any] | None:
        """`{name, value, step, epoch}` of the best value, the epoch counted from 1; None if nothing was judged."""
        return self._now().best

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What the function logged, one dict for each step that logged: `pandas.DataFrame(run.metrics)`."""
        return RunFolder(self.folder).metrics()

    @property
    def receipt(self) -> dict[str, Any] | None:
        """What was repeated, lost and waited for; None until it ends."""
        return self._now().receipt

    @property
    def weights(self) -> Path | None:
        """The file of the best weights, or of the last ones; None if there is none yet."""
        files = self._now().weights
        return files.get("best") or files.get("final")

    @property
    def output(self) -> str:
        """The last lines that the function printed."""
        return "\n".join(self._now().log_tail())

    # -- what can be done ----------------------------------------------------------------------------------

    def load(
        self, model: torch.nn.Module, *, best: bool = False, step: int | None = None, ema: bool = False,
        module: str | None = None, strict: bool = True,
    ) -> int | None:  # fmt: skip
        """Load weights of the run into `model`, as `holdfast weights` would write them; returns their step.

        Without `best` or `step` it takes the best, else the last ones, else those of the newest checkpoint. It verifies
        them first.
        """
        from safetensors.torch import load_file

        source = weights_export.choose(self.folder, best=best, step=step)
        with tempfile.TemporaryDirectory(prefix="holdfast-weights-") as place:
            out = Path(place) / "weights.safetensors"
            weights_export.export(source, out, module=module, average=ema)
            model.load_state_dict(load_file(out), strict=strict)
        return source.step

    def watch(self) -> None:
        """Show it in this cell until it is over; the stop button ends the watching, not the run."""
        notebook.watch(self.folder)

    def wait(self, *, show: bool | None = None) -> TrainingRun:
        """Wait until it is over; the error it ended with is raised. `show`: in this cell (in a notebook, unless False).

        An interrupt (Ctrl-C, the notebook's stop button) stops the run with its state saved, as in `holdfast train`.
        """
        shown = notebook.Cell(self._now()) if show or (show is None and notebook.is_notebook()) else None
        try:
            while self.live:
                time.sleep(_LOOK_S)
                if shown is not None:
                    shown.update()
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            if shown is not None:
                shown.update()
        error = self.error
        if error is not None:
            raise error
        return self

    @property
    def error(self) -> HoldfastError | None:
        """Why it ended unfinished; None while it goes on and when it is finished. `error.run` is this run."""
        run = self._now()
        if run.live or run.state == RunState.FINISHED:
            return None
        error = self._said(run) or _without_words(run.state, self.name)
        if isinstance(error, ScriptFailed) and hasattr(error, "add_note"):  # Python 3.11
            error.add_note(self._traceback())
        error.run = self  # type: ignore[attr-defined]
        return error

    def _said(self, run: reader.Run) -> HoldfastError | None:
        for event in reversed(run.events(kinds={"end"})):
            said = event.data.get("error")
            return from_json(said) if isinstance(said, dict) else None
        return None

    def _traceback(self) -> str:
        try:
            return read_bounded(self.folder / "traceback.txt", _TRACEBACK).decode(errors="replace")
        except OSError:
            return ""

    def stop(self) -> TrainingRun:
        """Save, then stop; returns when it has."""
        command("stop", str(self.folder))
        return self

    def resume(
        self, *, wait: bool = True, show: bool | None = None, settings: dict[str, Any] | None = None
    ) -> TrainingRun:
        """Go on with a run that stopped, crashed, failed or gave up."""
        words = [f"{key}={value}" for key, value in (settings or {}).items()]
        start("resume", str(self.folder), *words)
        return self.wait(show=show) if wait else self


def _without_words(state: str, name: str) -> HoldfastError:
    """For a run that could not say how it ended."""
    kinds: dict[str, type[HoldfastError]]
    kinds = {RunState.FAILED: ScriptFailed, RunState.STOPPED: Stopped, RunState.GAVE_UP: GaveUp}
    said = "its supervisor is gone" if state == RunState.CRASHED else f"it is {state}"
    return kinds.get(state, HoldfastError)(f"{name} is not finished: {said}", hints=["go on with it: `run.resume()`"])


def start(*words: str, env: dict[str, str] | None = None) -> TrainingRun:
    """`holdfast WORDS --detach`. A run that ended while the command still looked raises as `wait` does."""
    try:
        return TrainingRun(str(command(*words, "--detach", env=env)["folder"]))
    except HoldfastError as error:
        ended = None if error.folder is None else TrainingRun(error.folder).error
        if ended is None:
            raise
    raise ended


def command(*words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """`holdfast WORDS --json` in a process that does not hear this program's Ctrl-C; its error is raised."""
    told = subprocess.run(
        interpreter.module("holdfast", *words, "--json"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,
        env={**os.environ, **(env or {})},
    )
    try:
        said = json.loads(told.stdout)
    except ValueError:
        said = {}
    if told.returncode == ExitCode.OK and isinstance(said, dict) and said:
        return said
    error = said.get("error") if isinstance(said, dict) else None
    if isinstance(error, dict):
        raise from_json(error)
    tail = told.stderr.decode(errors="replace").strip().splitlines()[-5:]
    raise InternalError(f"`holdfast {words[0]}` ended with {told.returncode}", cause="\n".join(tail) or None)
