"""submission.py of a submission: rebuilds what was trained, from the files beside it, and nothing else.

    Submission(SFREQ=100, DEVICE=torch.device("cuda")).get_model_challenge_1()    # a module: (B, 129, 200) -> (B,)

It runs on torch 2.2.2 and needs only torch. The competition's cluster has torch 2.2.2 with numpy 2: there
`torch.from_numpy` and `Tensor.numpy` raise "Numpy is not available", so weights are read without numpy.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

PLACES = ("/app/output", "/app/input/res", "/app/input", "/app/ingested_program", "/app/program")
"""Where the competition has been seen to put the files of a submission."""
KINDS = {"F32": torch.float32, "F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}


def resolve(name: str) -> Path:
    """A file of the submission, wherever it was unpacked."""
    for folder in (Path(__file__).resolve().parent, Path.cwd(), *map(Path, PLACES)):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{name} is not beside {__file__}, nor in {os.getcwd()} or {', '.join(PLACES)}")


def module(name: str) -> Any:
    """A Python file of the submission, whatever sys.path is."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, resolve(f"{name}.py"))
        assert spec is not None and spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[name] = loaded
        spec.loader.exec_module(loaded)
    return sys.modules[name]


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """A safetensors file: the length of a JSON header, the header, the numbers."""
    data = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:end])
    header.pop("__metadata__", None)
    found = {}
    for name, about in header.items():
        start, stop = about["data_offsets"]
        dtype, shape = KINDS[about["dtype"]], about["shape"]
        if start == stop:
            found[name] = torch.zeros(shape, dtype=dtype)
        else:
            found[name] = torch.frombuffer(data[end + start : end + stop], dtype=dtype).reshape(shape)
    return found


def build(about: dict[str, Any], models: Any, heads: Any) -> nn.Module:
    """The net that `about` describes, with fresh weights."""
    nets = []
    for _ in range(int(about["members"])):
        backbone = models.build(
            about["model"], channels=about["channels"], samples=about["samples"], rate=about["rate"], **about["options"]
        )
        if about["head"] == "time":
            head = heads.TimeHead(backbone, start=about["start"], seconds=about["samples"] / about["rate"])
        elif about["head"] == "scalar":
            head = heads.ScalarHead(backbone)
        else:
            head = heads.FactorsHead(backbone, tuple(about["names"]))
        nets.append(heads.Net(backbone, head))
    return heads.Ensemble(nets, pooled=bool(about.get("pooled")))  # type: ignore[no-any-return]


class Served(nn.Module):
    """The net as the competition calls it: windows in volts at its own rate, one number for each."""

    def __init__(self, net: nn.Module, samples: int, column: int) -> None:
        super().__init__()
        self.net, self.samples, self.column = net, samples, column

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        if x.shape[-1] != self.samples:
            x = nn.functional.interpolate(x, size=self.samples, mode="linear", align_corners=False)
        found: torch.Tensor = self.net(x)[:, self.column]
        return found


class Submission:
    """What the competition looks for."""

    def __init__(self, SFREQ: float, DEVICE: Any) -> None:
        self.sfreq, self.device = SFREQ, DEVICE

    def _model(self, challenge: int) -> nn.Module:
        about = json.loads(resolve(f"challenge_{challenge}.json").read_text(encoding="utf-8"))
        net = build(about, module("holdfast_models"), module("holdfast_heads"))
        net.load_state_dict(read_weights(resolve(f"challenge_{challenge}.safetensors")))
        return Served(net, about["samples"], about["column"]).to(self.device).eval()

    def get_model_challenge_1(self) -> nn.Module:
        return self._model(1)

    def get_model_challenge_2(self) -> nn.Module:
        return self._model(2)
