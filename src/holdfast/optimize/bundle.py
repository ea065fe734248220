"""A bundle: a folder with a model that is ready to serve, and everything needed to check it. No torch here.

    manifest.json     engine, inputs, contract, scores, the digest of every other file, the table of candidates
    model.onnx …      what the engine loads
    predict.py        about twenty lines that need the engine and numpy, not holdfast
    post.py           non-maximum suppression, for a detector
    graph.py          what runs model.json, where PyTorch is the engine
    check.npz         a few real inputs and what fp32 eager said to them
    report.html       how it was chosen

    bundle = open_bundle(Path("bundle"))       # UserError if one byte is not what it was
    bundle.check_inputs([array])               # UserError for a wrong shape, kind, or NaN
    bundle.predict([array])

Every file is compared with the manifest before anything else reads it, and nothing of a bundle is run or unpickled
here: predict.py, graph.py and post.py are for whoever uses the bundle without holdfast. Digests that come with a bundle
find damage and changes made since; they do not say who made it.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import shutil
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast import __version__
from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.optimize import engines
from holdfast.optimize import manifest as manifests
from holdfast.optimize.bodies import BadBody, npys
from holdfast.optimize.post import apply
from holdfast.optimize.predict_template import script

MANIFEST, CHECK = "manifest.json", "check.npz"
CHECKED = 8
"""Inputs that travel with a bundle."""
MOST_KEPT = 1 << 30


@dataclass
class Bundle:
    """An open bundle; its engine is loaded when it is first needed."""

    folder: Path
    manifest: dict[str, Any]
    _engine: engines.Engine | None = None
    _wanted: list[tuple[str, tuple[int, ...], np.dtype[Any]]] | None = None

    @property
    def inputs(self) -> list[dict[str, Any]]:
        return list(self.manifest["inputs"])

    def engine(self) -> engines.Engine:
        if self._engine is None:
            try:
                self._engine = engines.load(self.folder, self.manifest)
            except ImportError as error:
                ours = self.manifest["engine"] in engines.OURS
                raise UserError(
                    f"this bundle needs {self.manifest['engine']}", cause=str(error),
                    hints=["pip install 'holdfast[optimize]'"] if ours else [],
                ) from None  # fmt: skip
            except (RuntimeError, ValueError, OSError) as error:
                raise UserError(f"the model in {self.folder} cannot be loaded", cause=str(error)[:300]) from None
        return self._engine

    def check_inputs(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The arrays as the engine takes them; UserError says what is wrong with them."""
        if self._wanted is None:
            self._wanted = [(each["name"], tuple(each["shape"]), np.dtype(each["dtype"])) for each in self.inputs]
        wanted = self._wanted
        if len(arrays) != len(wanted):
            names = ", ".join(name for name, _, _ in wanted)
            raise UserError(f"{len(arrays)} inputs instead of {len(wanted)}", cause=f"the model takes {names}")
        found = [_checked(array, *each) for array, each in zip(arrays, wanted, strict=True)]
        if len(found) > 1 and len({len(each) for each in found}) != 1:
            raise UserError("the inputs are of different lengths", cause=", ".join(str(len(each)) for each in found))
        if not len(found[0]):
            raise UserError("there is no input", cause="the first axis, the batch, is empty")
        return found

    def predict(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Answers for a batch: a list of arrays, or of rows for each image after non-maximum suppression."""
        return apply(self.manifest.get("post"), self.engine().run_all(self.check_inputs(arrays)))


def _checked(array: NDArray[Any], name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    if array.dtype != kind or array.ndim != len(shape) + 1 or array.shape[1:] != shape or not array.flags.c_contiguous:
        array = _as_taken(array, name, shape, kind)
    # NaN and infinity show in a sum, at a third of the cost; a sum that is too large itself says nothing
    with np.errstate(all="ignore"):
        suspicious = kind.kind == "f" and not np.isfinite(array.sum())
    if suspicious and not np.isfinite(array).all():
        bad = int((~np.isfinite(array)).reshape(len(array), -1).any(axis=1).sum())
        raise UserError(f"`{name}` holds NaN or infinity", cause=f"in {bad} of {len(array)} inputs")
    return array


def _as_taken(array: NDArray[Any], name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """The array with its batch and of the model's own kind, where that loses nothing."""
    told = f"(n, {', '.join(map(str, shape))})" if shape else "(n,)"
    if array.shape == shape:
        array = array[None]  # one input without its batch
    if array.ndim == 0 or array.shape[1:] != shape:
        raise UserError(f"`{name}` has the shape {array.shape}", cause=f"the model takes {told}")
    if array.dtype.kind not in "fiub" or (kind.kind in "iu" and array.dtype.kind == "f"):
        raise UserError(f"`{name}` holds {array.dtype}", cause=f"the model takes {kind}")
    if kind.kind in "iu" and array.dtype != kind and array.size:
        bounds = np.iinfo(kind)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise UserError(f"`{name}` holds numbers outside of {kind}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=kind)


# Writing ----------------------------------------------------------------------------------------------------------


def write(
    folder: Path,
    built: Path,
    chosen: dict[str, Any],
    subject: dict[str, Any],
    check: dict[str, NDArray[Any]],
    more: dict[str, Any],
    report: str,
    program: tuple[Path, dict[str, Any]] | None = None,
) -> Path:
    """Put a bundle together beside its place and move it there whole; one that is there is replaced.

    `program`, where predict.py runs another engine than a server does: what was built for it, and which it is.
    """
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        files.remove(beside)
        beside.mkdir(parents=True, mode=0o700)
        for folder_of in (built, *((program[0],) if program else ())):
            for each in sorted(folder_of.iterdir()):
                if each.is_file():
                    shutil.copyfile(each, beside / each.name)
        about = _named(chosen) | ({"program": _named(program[1])} if program else {})
        about |= {key: subject[key] for key in ("inputs", "outputs", "post", "contract")}
        for name, text in code(about).items():
            (beside / name).write_bytes(text)
        np.savez(beside / CHECK, **check)  # type: ignore[arg-type]
        (beside / "report.html").write_text(report, encoding="utf-8")
        manifest = {
            "schema": manifests.FORMAT,
            "holdfast": __version__,
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **about,
            **more,
            "files": {each.name: {"sha256": digest(each), "bytes": each.stat().st_size} for each in _files(beside)},
        }
        files.write_json(beside / MANIFEST, _plain(manifest))
        for each in beside.iterdir():
            each.chmod(0o600)
        _check_replaceable(folder)
        files.remove(folder)
        beside.replace(folder)
    except OSError as error:
        files.remove(beside)
        raise UserError(f"cannot write {folder}", cause=str(error.strerror or error)) from None
    return folder


def _named(chosen: dict[str, Any]) -> dict[str, Any]:
    return {**chosen, "file": engines.kinds()[chosen["engine"]].file}


def code(manifest: dict[str, Any]) -> dict[str, bytes]:
    """What is written into a bundle for those who use it without holdfast: none of it is ever run from there by us."""
    about = manifests.of_program(manifest)
    found = {"predict.py": script(about).encode()}
    names = [*engines.kinds()[about["engine"]].travels, *(["post.py"] if about.get("post") else [])]
    return found | {name: Path(__file__).with_name(name).read_bytes() for name in names}


def _check_replaceable(folder: Path) -> None:
    """Only a bundle or nothing is overwritten."""
    if os.path.lexists(folder) and not (folder / MANIFEST).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already", cause="it is not a bundle", hints=["choose another place: --out"])


def check_place(folder: Path) -> None:
    """UserError before the work begins, if a bundle could not be written there at its end."""
    _check_replaceable(folder)


def _files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_file() and each.name != MANIFEST)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    found = hashlib.sha256()
    with files.open_regular(path) as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# Reading ----------------------------------------------------------------------------------------------------------


def open_bundle(folder: Path) -> Bundle:
    """The bundle in this folder, with every byte of it checked."""
    manifest = files.read_json(folder / MANIFEST)
    if manifest is None:
        raise UserError(f"{folder} is not a bundle", cause=f"there is no {MANIFEST} that can be read",
                        hints=["make one: `holdfast optimize RUN`"])  # fmt: skip
    wrong = manifests.wrong(manifest)
    if wrong:
        raise UserError(f"{folder / MANIFEST} is damaged or of another holdfast", cause=wrong,
                        hints=["make it again with `holdfast optimize`"])  # fmt: skip
    _check_folder(folder, manifest)
    for name, told in manifest["files"].items():
        path = folder / name
        try:
            same = path.lstat().st_size == told.get("bytes") and digest(path) == told.get("sha256")
        except OSError as error:
            raise UserError(f"{name} of {folder} cannot be read", cause=str(error.strerror or error)) from None
        if not same:
            raise UserError(f"{name} of {folder} has changed since the bundle was made",
                            cause="its SHA-256 differs from that in the manifest",
                            hints=["copy the bundle again, or make it again with `holdfast optimize`"])  # fmt: skip
    return Bundle(folder, manifest)


def _check_folder(folder: Path, manifest: dict[str, Any]) -> None:
    """Nothing but what the manifest names: what lies beside it would be found by an engine or by Python."""
    try:
        extra = sorted(each.name for each in folder.iterdir() if each.name not in (*manifest["files"], MANIFEST))
    except OSError as error:
        raise UserError(f"{folder} cannot be read", cause=str(error.strerror or error)) from None
    if extra:
        raise UserError(f"{folder} holds something that is not in its manifest", cause=extra[0][:100],
                        hints=["remove it, or copy the bundle again"])  # fmt: skip


def kept(opened: Bundle) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """The inputs that travel with a bundle, and what fp32 eager said to them."""
    names = [f"i{at}" for at in range(len(opened.manifest["inputs"]))]
    names += [f"o{at}" for at in range(len(opened.manifest["outputs"]))]
    try:
        data = files.read_bounded(opened.folder / CHECK, MOST_KEPT)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = [archive.getinfo(f"{name}.npy") for name in names]
            if any(each.compress_type != zipfile.ZIP_STORED or each.file_size > len(data) for each in parts):
                raise ValueError("it is packed, which ours is not")
            found = [npys(archive.read(each), 1)[0] for each in parts]
    except BadBody as bad:
        raise UserError(f"{CHECK} of {opened.folder} cannot be read", cause=bad.message) from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{CHECK} of {opened.folder} cannot be read", cause=str(error)[:200]) from None
    count = len(opened.manifest["inputs"])
    return opened.check_inputs(found[:count]), found[count:]
