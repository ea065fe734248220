"""A trained network, ready to look at many images: through ONNX Runtime where that is installed, else through PyTorch.

    net = ready(Path("runs/calm-heron"), images=80)       # .about, .words
    raw = net.run(batch)                                  # uint8 (count, channels, height, width) to what the net says

For ONNX Runtime the network has to be written down once, which takes some seconds. That file is kept in the cache
under the digest of the weights, and used again; for a few images it is not made. A network that was written down is
used without importing torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.data_files import open_file
from holdfast.base.errors import UserError
from holdfast.base.folders import Folder, make_private
from holdfast.workloads.detection.index import cache_folder

FORMAT = 1
ENOUGH = 24
"""Images from which on it is worth to write the network down."""
Raw = NDArray[np.float32]


@dataclass
class Net:
    """A network that answers."""

    run: Callable[[NDArray[np.uint8]], Raw]
    words: str


def ready(path: Path, channels: int, load: Callable[[], Any], *, images: int, device: str = "cpu") -> Net:
    """The network of these weights; `load` gives the module, and is called only where that is needed."""
    if device == "cpu" and all(map(importlib.util.find_spec, ("onnxruntime", "onnx"))):
        kept = _place(path)
        if not kept.is_file() and images >= ENOUGH:
            _write(load(), channels, kept)
        if kept.is_file():
            with contextlib.suppress(Exception):  # a file that it does not take: PyTorch does
                return _of_onnx(kept)
    return _of_torch(load(), device)


def cores() -> int:
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _place(path: Path) -> Path:
    digest = hashlib.sha256(f"{FORMAT}".encode())
    with open_file(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return cache_folder() / "nets" / f"{digest.hexdigest()}.onnx"


def _of_onnx(path: Path) -> Net:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    # Threads that spin between two calls take the processor from those who read the next images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(batch: NDArray[np.uint8]) -> Raw:
        found: Raw = session.run(None, {"images": batch})[0]
        return found

    return Net(run, "ONNX Runtime")


def _of_torch(module: Any, device: str) -> Net:
    import torch

    from holdfast.workloads.detection.model import folded

    try:
        where = torch.device(device)
        net = folded(module.to(where)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"device `{device}` cannot be used", cause=str(error).splitlines()[0][:160]) from None

    def run(batch: NDArray[np.uint8]) -> Raw:
        with torch.inference_mode():
            x = torch.from_numpy(batch).to(where).to(memory_format=torch.channels_last) / 255
            found: Raw = net(x).float().cpu().numpy()
        return found

    return Net(run, "PyTorch")


def _write(module: Any, channels: int, kept: Path) -> None:
    """The network as a file that ONNX Runtime reads, for any number and size of images."""
    import io

    import torch

    from holdfast.workloads.detection.model import folded

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = folded(module)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            said: torch.Tensor = self.net(images.float() / 255)
            return said

    data = io.BytesIO()
    axes = {"images": {0: "count", 2: "height", 3: "width"}, "raw": {0: "count", 1: "points"}}
    example = torch.zeros(2, channels, 96, 128, dtype=torch.uint8)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(Whole().eval(), (example,), data, input_names=["images"], output_names=["raw"],  # type: ignore[arg-type]
                              dynamic_axes=axes, opset_version=17, dynamo=False)  # fmt: skip
        make_private(kept.parent)
        with Folder.at(kept.parent) as folder:
            beside = f"{kept.stem}.{os.getpid()}.tmp"
            folder.discard(beside)
            with folder.create(beside) as file:
                file.write(data.getvalue())
            folder.rename(beside, kept.name)
    except (OSError, RuntimeError, TypeError, ValueError, ImportError):
        return  # PyTorch answers then
