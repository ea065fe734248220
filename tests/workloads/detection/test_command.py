"""`holdfast detection`: text, JSON, exit codes; and prediction with weights that were saved."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from holdfast.base.errors import UserError
from holdfast.cli.main import main
from holdfast.workloads.detection import predict, pretrained, weights
from holdfast.workloads.detection.index import open_set
from holdfast.workloads.detection.model import BINS, Detector, points
from tests.workloads.detection import small


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A detector that finds a lot of nonsense everywhere."""
    net = small.lively(Detector, 2)
    folder = tmp_path / "model"
    folder.mkdir()
    weights.keep_about(folder, net, open_set(str(small.yolo(tmp_path / "set"))), 64)
    save_file({f"average.module.{key}": value for key, value in net.state_dict().items()}, folder / "final.safetensors")
    return folder / "final.safetensors"


def test_a_sound_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = small.yolo(tmp_path)
    assert main(["detection", "check", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [f"yolo data in {data}", "  images   4 train, 2 val; grey", "  boxes    dot 6, bar 2"]
    assert lines[3].startswith("✓ nothing is wrong with it (")


def test_a_set_with_everything_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = small.spoil(tmp_path)
    assert main(["detection", "check", str(data), "--most", "3"]) == 1
    text = capsys.readouterr().out
    assert "! 2 labels with a class that does not exist: masked" in text
    assert "! 1 images that end too early: left out" in text
    assert "… and 12 more: `--most 0` lists all" in text
    assert text.rstrip().endswith("training goes on with the rest")
    assert main(["detection", "check", str(data), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1 and told["counts"]["class_range"] == 2 and len(told["problems"]) == 15
    assert {"file", "line", "kind", "text"} == set(told["problems"][0])


def test_the_check_needs_no_torch(tmp_path: Path) -> None:
    data = small.yolo(tmp_path)
    code = (
        "import sys; from holdfast.cli.main import main; main(['detection', 'check', sys.argv[1]]); "
        "assert 'torch' not in sys.modules, 'torch'"
    )
    done = subprocess.run([sys.executable, "-c", code, str(data)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["detection", "chekc", "x"], 2, "a similar tool exists: `check`"),
        (["detection", "check", "nowhere"], 2, "there is no nowhere"),
        (["detection", "check"], 2, "DATA"),
        (["detection", "predict", "nowhere.safetensors", "x.png"], 2, "there is no nowhere.safetensors"),
        (["detection", "generate", "."], 2, ". is not empty"),
    ],
)
def test_usage(words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    assert text in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for tool in ([], ["check"], ["predict"], ["generate"]):
        assert main(["detection", *tool, "--help"]) == 0
        assert "examples:" in capsys.readouterr().out


def test_a_set_is_generated_and_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["detection", "generate", str(tmp_path / "new"), "--train", "8", "--val", "2"]
    assert main(words) == 0
    assert "✓ 8 + 2 GENERATED images" in capsys.readouterr().out
    assert main(["detection", "check", str(tmp_path / "new")]) == 0
    assert "GENERATED" in capsys.readouterr().out


def test_prediction_in_every_format(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = tmp_path / "photos"
    small.image(photos / "a.png", seed=1)
    small.image(photos / "b.jpg", seed=2, size=(90, 40), colour=True)
    (photos / "broken.jpg").write_bytes(b"nothing")
    out = tmp_path / "out"
    words = ["detection", "predict", str(model), str(photos), "--out", str(out), "--score", "0.4", "--json"]
    assert main(words) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert "broken.jpg cannot be read" in captured.err and told["unreadable"] == 1
    found = json.loads((out / "found.json").read_text())["images"]
    assert found == told["images"] and [Path(each["path"]).name for each in found] == ["a.png", "b.jpg"]
    boxes = [each for image in found for each in image["found"]]
    assert boxes and all(each["score"] >= 0.4 and each["name"] in small.NAMES for each in boxes)
    with open(out / "found.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(boxes) and float(rows[0]["x2"]) == boxes[0]["box"][2]
    lines = (out / "labels/b.txt").read_text().splitlines()
    assert len(lines) == len(found[1]["found"])
    assert all(0 <= float(word) <= 1 for line in lines for word in line.split()[1:])
    with Image.open(out / "b.jpg") as drawn:
        assert drawn.size == (90, 40)


@pytest.mark.long
def test_frames_of_a_video(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="imageio-ffmpeg is not installed")
    frames = [Image.fromarray(np.random.default_rng(n).integers(0, 255, (48, 64), dtype=np.uint8)) for n in range(3)]
    frames[0].save(tmp_path / "clip.gif", save_all=True, append_images=frames[1:])
    out = tmp_path / "out"
    assert main(["detection", "predict", str(model), str(tmp_path / "clip.gif"), "--out", str(out), "-q"]) == 0
    found = json.loads((out / "found.json").read_text())["images"]
    assert [each["frame"] for each in found] == [0, 1, 2]
    again = list(predict.frames(str(out / "clip.mp4"), 3))
    assert len(again) == 3 and again[0].shape == (48, 64, 3)
    (tmp_path / "no.mp4").write_bytes(b"nothing")
    assert main(["detection", "predict", str(model), str(tmp_path / "no.mp4"), "--out", str(out), "-q"]) == 1


@pytest.mark.long
def test_weights_that_do_not_fit(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not those of this detector"):
        pretrained.inherit(Detector(2, 1, "tiny"), model)
    assert "start anew: heads.0 (2), heads.1 (2)" in pretrained.inherit(Detector(5, 1, "nano"), model).lines()[1]
    about = json.loads((model.parent / "detector.json").read_text())
    for wrong in ({"size": "huge"}, {"names": "x"}, {"imgsz": -1}, {"channels": 7}):
        (model.parent / "detector.json").write_text(json.dumps({**about, **wrong}))
        with pytest.raises(UserError, match="damaged"):
            weights.load(model)
    (model.parent / "detector.json").write_text(json.dumps(about))
    model.write_bytes(b"\x00" * 40)
    with pytest.raises(UserError, match="cannot be read"):
        weights.load(model)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """Without Pillow the command says what to install, and nothing is imported on the way."""
    block = tmp_path / "sitecustomize.py"
    block.write_text(
        "import sys, importlib.abc\n"
        "class No(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'pycocotools': raise ModuleNotFoundError(name)\n"
        "import importlib.util as u\n"
        "old = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'pycocotools' else old(name, package)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "detection", "check", "x"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 2 and "needs pycocotools" in done.stderr
    assert "pip install 'holdfast[detection]'" in done.stderr


@pytest.mark.long
def test_a_folder_of_somebody_else_is_no_bundle(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A manifest beside the weights: with `holdfast optimize` it is refused as damaged, without it not looked at."""
    photo = small.image(tmp_path / "a.png", seed=1)
    bundle = model.parent / "bundle"
    bundle.mkdir()
    (bundle / "manifest.json").write_text('{"schema": 1}')
    run = [str(model.parent), str(photo), "--out", str(tmp_path / "out")]
    words = ["detection", "predict", str(bundle), *run[1:]]
    assert main(words) == 2
    assert str(bundle) in capsys.readouterr().err
    assert main(["detection", "predict", str(model), *run[1:], "--trained"]) == 0
    assert main(["detection", "predict", str(model), *run[1:]]) == 0  # a file means that file


@pytest.mark.long
def test_through_a_bundle(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same boxes as the trained weights find, from a bundle that needs no torch."""
    engines = pytest.importorskip("holdfast.optimize.engines", reason="holdfast optimize is not here")
    bundles = pytest.importorskip("holdfast.optimize.bundle")
    graph_writer = pytest.importorskip("holdfast.optimize.graph_writer")
    net, about = weights.load(model)
    shape = (64, 64)
    at, stride = points(shape, torch.device("cpu"))

    class Decoded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            raw = self.net(images.float() / 255)
            return self.net.boxes(raw, at, stride), raw[..., 4 * BINS :].sigmoid()

    built = tmp_path / "built"
    built.mkdir()
    example = torch.zeros(1, 1, *shape, dtype=torch.uint8)
    found = torch.export.export(Decoded(), (example,))
    graph_writer.write(found, built / engines.kinds()["export"].file)
    inputs = [{"name": "images", "shape": [1, *shape], "dtype": "uint8"}]
    outputs = [{"name": name, "shape": [84, 4], "dtype": "float32"} for name in ("boxes", "scores")]
    subject = {"inputs": inputs, "outputs": outputs, "contract": {"classes": about["names"]},
               "post": {"kind": "nms", "score": 0.25, "overlap": 0.6, "most": 300}}  # fmt: skip
    chosen = {"engine": "export", "name": "export", "precision": "fp32", "threads": 1}
    bundles.write(tmp_path / "bundle", built, chosen, subject, {"images": example.numpy()}, {}, "")

    photo = small.image(tmp_path / "a.png", seed=1, size=(50, 90))
    found = []
    for where in (tmp_path / "bundle", model):
        words = ["detection", "predict", str(where), str(photo), "--out", str(tmp_path / "out"), "--score", "0.4"]
        assert main([*words, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["images"][0]["found"])
    assert found[0] and len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        assert one["class"] == other["class"] and one["score"] == pytest.approx(other["score"], abs=2e-3)
        assert one["box"] == pytest.approx(other["box"], abs=1.5)  # the side that is not the longer one is rounded
