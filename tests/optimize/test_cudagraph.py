"""The engine for GPUs: its graph anywhere, its replay on a real GPU."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from holdfast.optimize import bundle, engines, graph
from holdfast.optimize.candidates import candidates
from holdfast.optimize.engines import cudagraph
from holdfast.optimize.pipeline import Options, optimize
from holdfast.optimize.processor import Machine
from tests.optimize import nets

NETS = Path(nets.__file__)
X = np.random.default_rng(0).standard_normal((70, 6)).astype(np.float32)
on_gpu = [
    pytest.mark.hardware,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]


def spec(name: str = "small") -> dict[str, object]:
    return {"kind": "module", "factory": f"{NETS}:{name}", "shapes": [[1, 6]]}


def built(folder: Path, precision: str) -> Path:
    """On the processor, where the graph is the same."""
    np.savez(folder / "inputs.npz", x=X[:4])
    about = {"spec": spec(), "precision": precision, "device": "cpu"}
    cudagraph.build(folder, about, folder / cudagraph.FILE)
    return folder / cudagraph.FILE


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_its_graph_answers_as_the_model_does(tmp_path: Path, precision: str) -> None:
    module = graph.load(built(tmp_path, precision))
    model, x = nets.small().eval(), torch.from_numpy(X)
    for count in (1, 3, 70):  # each against the same batch: kernels for another size may round otherwise
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            wanted = model(x[:count])
        with torch.no_grad():
            torch.testing.assert_close(module(x[:count])[0], wanted)


@pytest.mark.all
def test_weights_are_cast_once_and_not_in_every_call(tmp_path: Path) -> None:
    path = built(tmp_path, "bf16")
    assert [each.dtype for each in load_file(path.with_suffix(".safetensors")).values()] == [torch.bfloat16] * 4
    said = json.loads(path.read_text())
    casts = [step["args"][0] for step in said["steps"] if "_to_copy" in step["do"]]
    assert casts == [{"value": len(said["weights"])}], "the input alone"


def test_it_is_offered_where_there_is_a_gpu() -> None:
    def names(**more: object) -> list[str]:
        device = str(more.pop("device", ""))
        return [each.name for each in candidates(Machine(frozenset({"avx2"}), 2, **more), device=device)]  # type: ignore[arg-type]

    assert "cudagraph bf16 cuda" in names(gpu=True) and not any("cudagraph" in each for each in names())
    assert all(each.endswith(" cuda") for each in names(gpu=True, device="cuda"))
    assert names(device="cuda") == [] and not any(each.endswith(" cuda") for each in names(gpu=True, device="cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="made for a GPU, and PyTorch finds none here"):
        engines.load(tmp_path, {"engine": "cudagraph", "file": "model.json", "precision": "fp32"})


@pytest.mark.parametrize("precision", [pytest.param(each, marks=on_gpu) for each in ("fp32", "tf32", "bf16", "fp16")])
def test_batches_of_any_size_have_their_own_answers(tmp_path: Path, precision: str) -> None:
    np.savez(tmp_path / "inputs.npz", x=X[:4])
    about = {"engine": "cudagraph", "spec": spec(), "precision": precision, "device": "cuda", "threads": 1,
             "file": cudagraph.FILE}  # fmt: skip
    engines.build(tmp_path, about, tmp_path)
    engine = engines.load(tmp_path, about)
    with torch.no_grad():
        wanted = nets.small().eval()(torch.from_numpy(X)).numpy()
    near = 1e-5 if precision == "fp32" else 0.03
    for count in (1, 70, 3, 64, 65, 2):
        assert np.allclose(engine.run([X[:count]])[0], wanted[:count], atol=near)
    found = engine.run_together([[X[5:6]], [X[10:13]], [X[20:21]]])[0]
    assert np.allclose(found, wanted[[5, 10, 11, 12, 20]], atol=near)


@pytest.mark.parametrize("_", [pytest.param(0, marks=on_gpu)])
def test_a_bundle_for_the_gpu_answers_with_and_without_holdfast(tmp_path: Path, _: int) -> None:
    np.savez(tmp_path / "val.npz", x=X)
    options = Options(seconds=0.3, profile=False, batches=(8,), engines=("cudagraph fp32 cuda",), device="cuda")
    result = optimize({**spec(), "shapes": [], "data": str(tmp_path / "val.npz")}, tmp_path / "bundle", options)
    assert result["chosen"]["name"] == "cudagraph fp32 cuda" and result["chosen"]["ratio_on_device"] > 0
    assert any("for a GPU like this machine's" in each for each in result["findings"])
    with torch.no_grad():
        wanted = nets.small().eval()(torch.from_numpy(X)).numpy()
    assert np.allclose(bundle.open_bundle(tmp_path / "bundle").predict([X])[0], wanted, atol=1e-5)
    np.save(tmp_path / "x.npy", X[:5])
    words = [sys.executable, str(tmp_path / "bundle" / "predict.py"), str(tmp_path / "x.npy")]
    done = subprocess.run(words, capture_output=True, timeout=200, check=True)
    assert np.allclose(np.load(io.BytesIO(done.stdout)), wanted[:5], atol=1e-5)
