"""Looking at many images: the same boxes whichever way the network runs, and one call where one is enough."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from holdfast.workloads.detection import answers, model, nets, predict, saved, weights
from holdfast.workloads.detection.index import open_set
from holdfast.workloads.detection.model import Detector
from tests.workloads.detection import small

needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("onnxruntime", "onnx"))), reason="the extra `optimize` is missing"
)


@pytest.fixture(scope="module")
def net() -> Detector:
    """A network that is sure of some things, and of each to another degree."""
    return small.lively(Detector, 3)


@pytest.fixture
def run(net: Detector, tmp_path: Path) -> Path:
    weights.keep_about(tmp_path, net, open_set(str(small.yolo(tmp_path / "set"))), 64)
    about = json.loads((tmp_path / saved.ABOUT).read_text())
    (tmp_path / saved.ABOUT).write_text(json.dumps({**about, "names": ["a", "b", "c"]}))
    found = {f"average.module.{key}": value for key, value in net.state_dict().items()}
    save_file(found, tmp_path / "final.safetensors")
    return tmp_path


def test_constants_are_those_of_the_model() -> None:
    assert (answers.STRIDES, answers.BINS, answers.FIRST, answers.MOST) == (
        model.STRIDES, model.BINS, model.FIRST, model.MOST,
    )  # fmt: skip
    assert tuple(model.SIZES) == saved.SIZES


@pytest.mark.parametrize("score", [0.001, 0.25, 0.6])
def test_boxes_are_those_of_torchvision(net: Detector, score: float) -> None:
    x = torch.rand(3, 1, 96, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        theirs = net.detect(x, score=score)
        mine = answers.boxes_of(net(x).numpy(), (96, 64), score)
    assert sum(map(len, theirs)) > (20 if score < 0.5 else 3)
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == tuple(other.shape)
        np.testing.assert_allclose(one, other.numpy(), atol=2e-3)


@needs_onnx
def test_onnx_runtime_and_torch_find_the_same_in_images_of_any_size(run: Path) -> None:
    sizes = [(48, 64), (64, 64), (30, 90), (48, 64), (64, 20)]
    images = [np.random.default_rng(n).integers(0, 255, (*size, 1), dtype=np.uint8) for n, size in enumerate(sizes)]
    few, many = (predict.Finder.of(run, images=count) for count in (1, 100))
    assert (few.net.words, many.net.words) == ("PyTorch", "ONNX Runtime")
    assert predict.Finder.of(run, images=1).net.words == "ONNX Runtime", "it is there now"
    calls = []
    inner = many.net.run
    many.net.run = lambda batch: (calls.append(batch.shape), inner(batch))[1]  # type: ignore[func-returns-value]
    together = many.find_many(images)
    assert [shape[0] for shape in calls] == [3, 1, 1], "images of one size are one call"
    for one, other in zip(together, few.find_many(images), strict=True):
        assert len(one) == len(other) and len(one)
        np.testing.assert_allclose(one, other, atol=0.05)
    np.testing.assert_allclose(together[2], many.find(images[2]), atol=0.05)


@pytest.mark.all
@needs_onnx
def test_a_network_that_was_written_down_needs_no_torch(run: Path, own_cache: Path) -> None:
    nets.ready(run / "final.safetensors", 1, lambda: weights.load(run)[0], images=100)
    photos = run / "photos"
    for number in range(3):
        small.image(photos / f"{number}.png", seed=number)
    code = (
        "import sys; from holdfast.cli.main import main; code = main(['detection', 'predict', *sys.argv[1:]]); "
        "assert 'torch' not in sys.modules, 'torch'; sys.exit(code)"
    )
    words = [str(run / "final.safetensors"), str(photos), "--out", str(run / "out"), "--json"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["images"]) == 3 and (run / "out/1.jpg").is_file()


@pytest.mark.all
@needs_onnx
def test_a_damaged_file_of_the_cache_is_not_used(run: Path, own_cache: Path) -> None:
    (own_cache / "nets").mkdir(parents=True)
    nets._place(run / "final.safetensors").write_bytes(b"nothing")
    assert predict.Finder.of(run, images=100).net.words == "PyTorch"


@pytest.mark.all
def test_images_come_in_their_order_and_bad_ones_are_told(run: Path) -> None:
    photos = run / "photos"
    for number in range(2 * predict.BATCH + 3):
        small.image(photos / f"{number:02d}.png", seed=number)
    (photos / "03.png").write_bytes(b"nothing")
    told: list[str] = []
    seen = list(predict.look_at(predict.Finder.of(run), [str(photos)], told=told.append))
    assert [Path(each.path).stem for each in seen] == [f"{n:02d}" for n in range(2 * predict.BATCH + 3) if n != 3]
    assert len(told) == 1 and "03.png" in told[0]
