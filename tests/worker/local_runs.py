"""Sessions in this process, for tests: real slots, real checkpoints, and deaths and faults where they are wanted.

    outcome = run(tmp_path, train)                                   # undisturbed
    outcome = run(tmp_path, train, hooks=[Raise(oom, "forward", 3)])  # out of memory in the third forward
    outcome = survive(tmp_path, train, ["loop 2", "backward 4"])     # a death in each life, then resumed

A death is an exception nobody handles: whatever was not committed is gone, and the next life starts from the
newest checkpoint. Every commit is a checkpoint here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.base.board import Phase
from holdfast.run.events import Event, utc_now
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from holdfast.worker.local_run import newest_checkpoint, run_local
from holdfast.worker.session import Session
from holdfast.worker.worker import seed_everything

__all__ = ["Died", "Outcome", "Raise", "batches_of", "equal", "fingerprint", "oom", "run", "seed_everything", "survive"]

Train = Callable[[Session], None]


class Died(BaseException):
    """The process ends here, as far as the session can tell."""


def oom() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Raise:
    """Raises when a phase is entered for the `count`th time; `times` in a row, once if not said otherwise."""

    def __init__(self, make: Callable[[], BaseException], phase: str, count: int, *, times: int = 1) -> None:
        self.make = make
        self.phase = Phase[phase.upper().replace("-", "_")]
        self.window = range(count, count + times)
        self.seen = 0

    def __call__(self, phase: Phase) -> None:
        if phase is self.phase:
            self.seen += 1
            if self.seen in self.window:
                raise self.make()


@dataclass
class Outcome:
    """What a run left."""

    folder: RunFolder
    receipt: dict[str, Any]
    events: list[Event] = field(default_factory=list)

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == kind]

    @property
    def moves(self) -> list[str]:
        """What was done after each fault: "retry", "split 2"."""
        moves = [data["move"] for data in self.kinds("fault")]
        return [move["action"] + (f" {move['pieces']}" if move["pieces"] > 1 else "") for move in moves]


def settings_of(changes: dict[str, Any]) -> Settings:
    """`snapshot__every=5` is `snapshot.every=5`."""
    words = {key.replace("__", "."): str(value) for key, value in changes.items()}
    return Settings.load({"checkpoint.every": 1e-9, **words}, cwd="/", env={})


def new_folder(root: Path) -> RunFolder:
    return RunFolder.create(root, "test", {"created": utc_now(), "seed": 0})


def run(
    root: Path,
    train: Train,
    *,
    hooks: Iterable[Callable[[Phase], None]] = (),
    folder: RunFolder | None = None,
    device: str = "cpu",
    **settings: Any,
) -> Outcome:
    """One life of a run: from its beginning, or from the newest checkpoint there is in `folder`."""
    folder = folder or new_folder(root)

    def hooked(session: Session) -> None:
        session._phase_hooks.extend(hooks)
        train(session)

    found = newest_checkpoint(folder) if list((folder.path / "checkpoints").iterdir()) else None
    try:
        receipt = run_local(hooked, folder, settings_of(settings), device=device, resume=found)
    finally:
        folder.close()
    return Outcome(folder, receipt, list(folder.events()))


def survive(root: Path, train: Train, deaths: Sequence[str], **settings: Any) -> Outcome:
    """Several lives: each death is "phase count" in the life it belongs to; the last life is undisturbed."""
    folder = new_folder(root)
    for death in deaths:
        phase, count = death.split()
        try:
            run(root, train, hooks=[Raise(Died, phase, int(count))], folder=folder, **settings)
        except Died:
            continue
        raise AssertionError(f"{death} never came")
    return run(root, train, folder=folder, **settings)


# -- comparing -----------------------------------------------------------------------------------------------


def fingerprint(**objects: Any) -> dict[str, Any]:
    """Every tensor and number in the state of these objects, and what each generator would draw next."""
    found: dict[str, Any] = {}
    for name, thing in objects.items():
        state = thing if isinstance(thing, dict) else thing.state_dict()
        found.update(_flat(name, state))
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    found["drawn"] = [random.random(), float(np.random.rand()), torch.rand(()).item()]
    random.setstate(kept[0])
    np.random.set_state(kept[1])
    torch.set_rng_state(kept[2])
    return found


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{name}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _flat(f"{name}[{index}]", item)
    elif isinstance(value, Tensor):
        yield name, value.detach().clone()
    elif isinstance(value, (int, float, str, bool, type(None))):
        yield name, value


def equal(one: dict[str, Any], other: dict[str, Any], *, tolerance: float = 0.0) -> None:
    """Fails with the first name that differs. Tolerance 0 is: the same bits."""
    assert set(one) == set(other), set(one) ^ set(other)
    for name, value in one.items():
        theirs = other[name]
        if isinstance(value, Tensor):
            assert value.dtype == theirs.dtype and value.shape == theirs.shape, name
            if tolerance and value.is_floating_point():
                torch.testing.assert_close(
                    value, theirs, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
                )
            else:
                assert torch.equal(value, theirs), f"{name}: {(value.double() - theirs.double()).abs().max()}"
        elif tolerance and isinstance(value, float):
            assert abs(value - theirs) <= tolerance * max(1.0, abs(value)), name
        else:
            assert value == theirs or (value != value and theirs != theirs), f"{name}: {value} is not {theirs}"


def batches_of(tensors: Sequence[Tensor], size: int) -> Iterator[list[Tensor]]:
    """The batches of a bare loop, in the order a Loader without shuffle gives them."""
    for start in range(0, len(tensors[0]), size):
        yield [tensor[start : start + size] for tensor in tensors]
