"""What the hook of `holdfast run --exact` calls after each step of an optimizer: commits, and the way back.

    step = start(told=None)                # None where nobody supervises this process
    step(optimizer, sys._getframe())       # after each optimizer.step()

A process that goes on runs the script from its first line and trains until it stands where the last commit was taken:
the same functions, at the same instruction of each. That is its first step as a rule. There everything is put back.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import hashlib
import json
import os
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from holdfast.base.board import Phase
from holdfast.base.channel import Closed
from holdfast.base.errors import HoldfastError
from holdfast.base.folders import Folder
from holdfast.faults.classification import classify_exception
from holdfast.integrations.exact import files
from holdfast.integrations.exact import frames as places
from holdfast.integrations.exact.capture import Capture, Unsaved
from holdfast.integrations.exact.constants import Constants
from holdfast.integrations.exact.digest import digest
from holdfast.integrations.exact.models import find_models, owned
from holdfast.integrations.exact.packages import Packages
from holdfast.integrations.exact.restore import Different, Restore
from holdfast.integrations.outside import Keep, Outside, connect
from holdfast.run.messages import made
from holdfast.state.layout import read_meta
from holdfast.worker.cadence import Cadence
from holdfast.worker.worker import map_file

GIVES_WAY = 120.0
"""Seconds that the supervisor has to answer before the script goes on without protection."""
NOT_LED = 75
"""The exit code of a process that cannot be led back; the supervisor has heard why."""
LATE, MOST_MILESTONES = 5.0, 64
"""Seconds of training in one loop from which on it is not computed again for the sake of the next one."""
MOST_OTHERS = 100
"""Times that a process comes to the place of a commit without all optimizers of it."""


class Script:
    """The script's variables as one of the objects that `Keep` keeps: `engine` fills it just before a commit."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"graph": "[]", "rows": "[]", "tensors": {}}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class Engine:
    """One process of the script."""

    def __init__(self, outside: Outside, told: dict[str, Any]) -> None:
        self._outside = outside
        self._constants = Constants()
        self._packages = Packages()
        self._after = -1
        """The number of the newest commit, where this process goes on from an earlier one."""
        payload = self._last_place()
        self._trail: list[list[Any]] = [list(row) for row in told.get("trail") or ()]
        """Of the rehearsal: step and digest of each step that the process before made after its last commit."""
        after_fault = payload is not None and not self._trail
        self._cadence = Cadence(outside.settings, sparing=not after_fault)
        self._asides: dict[str, Any] = dict(told.get("files") or {})
        self._writers: list[Any] = []
        self._unsaved: dict[str, str] = {}
        self._stepped: list[weakref.ref[torch.optim.Optimizer]] = []
        """Optimizers that have made a step, in that order. The script may drop one: it is not kept alive from here."""
        self._keep: Keep | None = None
        self._script = Script()
        self._kept: list[int] = []
        self._step = self._at = self._marks = 0
        self._began = False
        self._off = False
        self._targets: list[tuple[dict[str, Any], memoryview]] = []
        """The commits that this process is led back to, one after the other."""
        self._others = 0
        self._seen: list[str] = []
        """Places of commits, as digests."""
        self._milestones = 0
        self._here = ""
        self._since = time.perf_counter()
        self._rehearse: dict[str, Any] | None = told.get("rehearse")
        self._mine = os.getpid()
        self._spent = 0.0
        self._commits = 0
        self._first: float | None = None
        """When the first commit was over or the process was led back; seconds that later commits took are `_spent`."""
        if payload is not None:
            self._plan(payload)
        atexit.register(self._at_exit)

    def _last_place(self) -> memoryview | None:
        """The newest commit. One that was taken as the script ended has no place: then it is the one before."""
        newest = self._outside.newest()
        session = read_meta(newest)["session"] if newest is not None else {}
        if "place" not in session or session["place"] is not None:
            return newest
        self._after = int(session["sequence"])
        placed = (each for each in self._outside.commits() if read_meta(each)["session"].get("place") is not None)
        return next(placed, newest)

    def _plan(self, newest: memoryview) -> None:
        """The way to the newest commit: by way of the last commit of each loop that came before."""
        session = dict(read_meta(newest)["session"])
        for number in range(int(session.get("milestones") or 0)):
            payload = map_file(_milestone(number))
            self._targets.append((dict(read_meta(payload)["session"]), payload))
        self._targets.append((session, newest))

    @property
    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [each for ref in self._stepped if (each := ref()) is not None]

    # -- each step -----------------------------------------------------------------------------------------

    def __call__(self, optimizer: torch.optim.Optimizer, frame: types.FrameType | None) -> None:
        if self._off or os.getpid() != self._mine:
            return
        if not any(optimizer is each for each in self._optimizers):
            self._stepped.append(weakref.ref(optimizer))
        try:
            if self._targets:
                self._lead(frame, *self._targets[0])
            else:
                self._step += 1
                self._made_step(frame)
        except (Unsaved, Different) as error:
            self._give_up(str(error))
        except HoldfastError as error:
            self._give_up(error.cause or str(error))
        except Exception as error:  # the edge: an error of ours must not become one of the script's
            if isinstance(error, RuntimeError) and classify_exception(error, device="cuda") is not None:
                self._off = True  # the device has failed: the script meets that next, and its commits are still good
            else:
                self._give_up(f"{type(error).__name__} in holdfast: {error}")

    def _made_step(self, frame: types.FrameType | None) -> None:
        self._outside.board.begin_attempt(self._step)
        if self._keep is not None:
            self._keep.look()
        if self._trail:
            self._compare()
        due = self._cadence.due(self._step - self._at)
        if self._rehearse is not None and self._marks >= 2:
            self._rehearsal(frame)
        elif due or self._keep is None or self._keep.stop_requested:
            self._commit(places.stack(frame))

    def _give_up(self, reason: str) -> None:
        """From here on the script trains as it would without us."""
        self._off = True
        self._tell("exact_off", reason=reason, led=not self._targets)
        if self._targets:  # what it prints and computes here was printed and computed before
            self._leave()

    def _leave(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(NOT_LED)

    # -- commits -------------------------------------------------------------------------------------------

    def _capture(self, found: list[types.FrameType]) -> tuple[Capture, str]:
        while True:
            named = owned(find_models(self._optimizers))
            capture = Capture({id(tensor): name for name, tensor in named.items()}, self._constants)
            rows = {"frames": capture.frames(found), "modules": capture.modules(self._packages)}
            gone = [each for each in self._optimizers if not capture.has(each)]
            if not gone or len(gone) == len(self._optimizers):
                return capture, json.dumps(rows, separators=(",", ":"))
            # The script has none of its variables refer to these any more, as after a fold or a first training.
            self._stepped = [ref for ref in self._stepped if not any(ref() is each for each in gone)]

    def _look(self, found: list[types.FrameType]) -> Keep:
        """Everything as it is now, ready to be committed."""
        with _no_collection():
            capture, rows = self._capture(found)
            graph = capture.text()
        models = find_models(self._optimizers)
        self._constants.settle()
        self._unsaved, self._writers = capture.unsaved, capture.writers
        self._script.state = {"graph": graph, "rows": rows, "tensors": capture.tensors}
        objects = [*models, *self._optimizers]
        if self._keep is None or self._kept != [id(each) for each in objects]:
            self._keep = self._new_keep(models)
            self._kept = [id(each) for each in objects]
        return self._keep

    def _new_keep(self, models: list[torch.nn.Module]) -> Keep:
        named: dict[str, Any] = {_numbered("model", at): each for at, each in enumerate(models)}
        named |= {_numbered("optimizer", at): each for at, each in enumerate(self._optimizers)}
        device = next((param.device for group in self._optimizers[0].param_groups for param in group["params"]), None)
        keep = Keep(self._outside, {**named, "script": self._script}, device or torch.device("cpu"))
        if self._keep is not None:
            self._keep.flush()
            keep.start_after(self._keep.next_sequence - 1)
        return keep

    def _commit(self, found: list[types.FrameType]) -> str:
        began = time.perf_counter()
        keep = self._look(found)
        place = places.place(found)
        self._note_place(keep, place)
        mark = self._mark(keep)
        more: dict[str, Any] = {"place": place, "mark": mark, "optimizers": len(self._optimizers)}
        more |= {"seen": self._seen, "milestones": self._milestones}
        keep.step = self._step
        keep.commit(**more)
        self._at = self._step
        took = time.perf_counter() - began
        self._cadence.taken(took)
        self._commits += 1
        if self._first is None:
            self._first = time.perf_counter()
        else:
            self._spent += took
        if keep.stop_requested:
            self._off = True  # what follows in this process is no part of the run
            keep.stop_if_asked()
        return mark

    def _note_place(self, keep: Keep, place: places.Place) -> None:
        """A loop that begins late: the last commit of the one before is kept, so that it is not computed again."""
        here = hashlib.blake2s(json.dumps(place).encode(), digest_size=8).hexdigest()
        late = time.perf_counter() - self._since > LATE
        if here not in self._seen:
            if self._seen and late and self._milestones < MOST_MILESTONES:
                keep.flush()
                payload = self._outside.newest()
                if payload is not None:
                    path = _milestone(self._milestones)
                    with Folder.at(path.parent.parent) as run, run.below(path.parent.name, make=True) as folder:
                        folder.replace(path.name, bytes(payload))
                    self._milestones += 1
            self._seen = [*self._seen, here]
        if here != self._here:
            self._here, self._since = here, time.perf_counter()

    def _mark(self, keep: Keep) -> str:
        """Everything that was printed until now is outside of this process: the supervisor notes how much it is."""
        _flush()
        self._marks += 1
        mark = f"{self._outside.generation}-{self._marks}"
        sizes = files.sizes(self._writers)
        self._ask("mark", mark=mark, sequence=keep.next_sequence, files=sizes)
        return mark

    # -- the way back --------------------------------------------------------------------------------------

    def _lead(self, frame: types.FrameType | None, target: dict[str, Any], payload: memoryview) -> None:
        found = places.stack(frame)
        self._outside.board.beat()
        self._outside.board.begin_attempt(int(target["step"]))  # a step that was made before
        if not self._began:
            self._began = True
            self._capture(found)  # what is large and made by set-up is known from here on
            self._constants.settle()
        if target.get("place") is None:
            raise Different("the script was over when it was killed")
        if target.get("place") != places.place(found):
            return
        keep = self._look(found)
        if target.get("optimizers") != len(self._optimizers):  # the others may make their first step a little later
            self._others += 1
            if self._others > MOST_OTHERS:
                raise Different(f"{target.get('optimizers')} optimizers were in use, and here {len(self._optimizers)}")
            return
        keep.restore(payload)
        keep.start_after(max(keep.next_sequence - 1, self._after))
        state = self._script.state
        tensors = state["tensors"]
        rows = json.loads(state["rows"])
        named = owned(find_models(self._optimizers))
        restore = Restore(json.loads(state["graph"]), tensors.__getitem__, self._constants, named)
        restore.modules(rows["modules"])
        self._packages.changed(name for name, _ in rows["modules"])
        restore.frames(rows["frames"], found)
        self._step = self._at = int(target["step"])
        self._targets.pop(0)
        if self._targets:
            keep.restore_generators()
            return
        files.put_back(self._asides, self._writers)
        keep.restore_generators()
        self._seen, self._milestones = list(target.get("seen") or ()), int(target.get("milestones") or 0)
        _flush()
        self._ask("reached", mark=str(target["mark"]), step=self._step)
        self._cadence.begin()
        self._first = time.perf_counter()
        self._outside.board.enter(Phase.LOOP)

    # -- the rehearsal -------------------------------------------------------------------------------------

    def _rehearsal(self, frame: types.FrameType | None) -> None:
        """The first process: a commit, a few steps whose weights are told, and then the supervisor replaces it."""
        assert self._rehearse is not None
        order = self._rehearse
        if "until" not in order:
            self._commit(places.stack(frame))
            order["until"], order["least"] = (
                time.monotonic() + float(order["seconds"]),
                self._step + int(order["steps"]),
            )
            return
        order.setdefault("trail", []).append([self._step, digest(self._optimizers)])
        if self._step >= order["least"] and time.monotonic() >= order["until"]:
            self._rehearse = None
            if self._keep is not None:
                self._keep.flush()  # the process that follows begins there
            _flush()
            self._ask("rehearse", trail=order["trail"], unsaved=self._unsaved)

    def _compare(self) -> None:
        """The second process: are its steps those of the first?"""
        step, expected = self._trail.pop(0)
        if step != self._step or digest(self._optimizers) != expected:
            self._trail = []
            self._tell("rehearsed", equal=False, step=step, unsaved=self._unsaved)
            time.sleep(GIVES_WAY)  # the supervisor ends this process
        elif not self._trail:
            self._tell("rehearsed", equal=True, step=step)

    # -- the supervisor ------------------------------------------------------------------------------------

    def _tell(self, kind: str, **data: Any) -> None:
        self._outside.send(made(kind, **data))

    def _ask(self, kind: str, **data: Any) -> dict[str, Any]:
        try:
            return self._outside.ask(made(kind, **data), GIVES_WAY)
        except (Closed, OSError, ValueError) as error:
            raise Unsaved(f"the supervisor does not answer ({error})") from None

    def _at_exit(self) -> None:
        """The script is over: what its weights are now is what the run has made."""
        if self._off or self._targets or self._keep is None or os.getpid() != self._mine:
            return
        self._off = True
        if sys.exc_info()[0] is None and getattr(sys, "last_value", None) is None:
            self._script.state = {"graph": "[]", "rows": "[]", "tensors": {}}
            self._keep.step = self._step
            self._keep.commit(place=None, mark=None, optimizers=len(self._optimizers))
        self._keep.flush()
        trained = time.perf_counter() - (self._first or time.perf_counter())
        cost = {"commits": self._commits, "spent_s": round(self._spent, 4), "trained_s": round(trained, 3)}
        self._tell("exact_cost", **cost)


def _milestone(number: int) -> Path:
    return Path(os.environ["HOLDFAST_HOOK"]).parent / "milestones" / str(number)


def _numbered(name: str, at: int) -> str:
    return name if at == 0 else f"{name}_{at + 1}"


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Python's collector would walk all objects of the process because of the many that are made here."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue


def start() -> Callable[[Any, types.FrameType | None], None] | None:
    """The engine of this process; None where nobody supervises it, or where it cannot be."""
    outside = connect()
    if outside is None:
        return None
    told = outside.told.exact
    if not isinstance(told, dict):
        return None
    engine = Engine(outside, told)
    reason = places.can_read()
    if reason:
        engine._give_up(reason)
        return None
    return engine
