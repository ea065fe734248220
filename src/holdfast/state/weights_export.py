"""The weights of a run as one file for plain PyTorch: the best, those at the end, or those of a step. No torch here.

source = choose(run_path, step=3600)             # best.safetensors, final.safetensors or a checkpoint, verified
export(source, Path("model.safetensors"), module="average")
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import UserError
from holdfast.base.files import open_regular
from holdfast.run.digests import Origin
from holdfast.state import checkpoint, layout
from holdfast.state.weights_file import NO_DIGEST, check_weights, read_said

BEST, FINAL = "best.safetensors", "final.safetensors"
AVERAGES = ("ema", "average", "averaged", "averaged_model", "swa", "model_ema", "ema_model")
"""Names under which people protect an average of their weights."""


@dataclass(frozen=True, slots=True)
class Source:
    """Verified weights of a run, and which they are."""

    path: Path
    what: str
    """`the best weights`, `the weights at the end`, `the weights of step 3600`."""
    step: int | None


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    path: Path
    tensors: int
    size: int


def choose(run: Path, *, best: bool = False, step: int | None = None) -> Source:
    """What was asked for; without a wish the best, else the last ones, else the newest checkpoint that is whole."""
    if step is not None:
        return _of_step(run, step)
    places = [(BEST, "the best weights")] if best else [(BEST, "the best weights"), (FINAL, "the weights at the end")]
    for name, what in places:
        path = run / name
        if os.path.lexists(path):
            _verify(path, run)
            said = read_said(path).get("step", "")
            return Source(path, what, int(said) if said.isdigit() else None)
    if best:
        raise UserError(
            "this run has no best weights",
            cause="no validation metric was logged, or no epoch has ended",
            hints=["take others: `holdfast weights RUN OUT` without --best"],
        )
    newest, _ = checkpoint.newest_good(run / "checkpoints")
    if newest is None:
        raise UserError("nothing of this run was saved yet", hints=["`holdfast fsck RUN` shows what its folder holds"])
    return Source(newest.state, f"the weights of step {newest.step}, its newest checkpoint", newest.step)


def _of_step(run: Path, step: int) -> Source:
    found = {int(path.name): path for path in checkpoint.candidates(run / "checkpoints")}
    if step not in found:
        kept = ", ".join(map(str, sorted(found))) or "none"
        hints = [f"checkpoints of these steps are kept: {kept}"]
        raise UserError(f"step {step} has no checkpoint", hints=hints)
    checked = checkpoint.check(found[step], Origin.of_folder(run))
    if isinstance(checked, checkpoint.Damaged):
        raise UserError(f"the checkpoint of step {step} cannot be used: {checked}")
    return Source(checked.state, f"the weights of step {step}", step)


def _verify(path: Path, run: Path) -> None:
    why = check_weights(path, Origin.of_folder(run))
    if why is not None and why != NO_DIGEST:
        hints = ["`holdfast fsck RUN` shows what is good; `--step N` takes a checkpoint"]
        raise UserError(f"{path.name} cannot be used: {why}", hints=hints)


def export(source: Source, out: Path, *, module: str | None = None, average: bool = False) -> Exported:
    """Write the weights of one protected module, or of all, under the names of its own state_dict."""
    with _mapped(source.path) as data:
        tensors, start = layout.weights_in(data)
        chosen = _chosen(dict(tensors), module, average)
        placed = layout.place((name, entry.dtype, entry.shape) for name, entry in chosen.items())
        said = {"format": "pt"} | ({} if source.step is None else {"step": str(source.step)})
        places = [(start + entry.start, start + entry.stop) for entry in chosen.values()]
        _write(out, layout.build_header(placed, said), data, places)
    return Exported(out, len(chosen), out.stat().st_size)


def _chosen(tensors: dict[str, layout.Entry], module: str | None, average: bool) -> dict[str, layout.Entry]:
    """The tensors of one module, by their names in it; all of them where none is asked for.

    The larger elements come first, so that each tensor is aligned to its own element.
    """
    if average:
        module = next((name for name in AVERAGES if any(key.startswith(f"{name}.") for key in tensors)), "ema")
    if module is not None:
        inside = {key.removeprefix(f"{module}."): row for key, row in tensors.items() if key.startswith(f"{module}.")}
        if not inside:
            raise _no_module(module, tensors)
        tensors = _of_average(inside) if average else inside
    return dict(sorted(tensors.items(), key=lambda item: -layout.SIZES[item[1].dtype]))


def _of_average(tensors: dict[str, layout.Entry]) -> dict[str, layout.Entry]:
    """torch's AveragedModel keeps the model as `module` beside a count: the model's own names come out."""
    inner = {key.removeprefix("module."): row for key, row in tensors.items() if key.startswith("module.")}
    return inner if inner.keys() and len(tensors) - len(inner) <= 1 else tensors


def _no_module(module: str, tensors: dict[str, layout.Entry]) -> UserError:
    known = sorted({key.partition(".")[0] for key in tensors})
    return UserError(
        f"no protected module is called `{module}`",
        cause="a file of several modules has each one's name in front; with one module there is none",
        hints=[f"the names in this file begin with: {', '.join(known[:8])}"],
    )


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def _write(out: Path, header: bytes, data: mmap.mmap, places: list[tuple[int, int]]) -> None:
    """To a file beside it first: whoever reads `out` finds the old weights or the new ones."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "xb") as file, memoryview(data) as view:
            file.write(header)
            for begin, stop in places:
                file.write(view[begin:stop])
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
