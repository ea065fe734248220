"""Starting from weights that others have: what fits is taken, what does not is said, and nothing of a file is run."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from holdfast.base.errors import UserError
from holdfast.workloads.detection import pretrained, tensors, training
from holdfast.workloads.detection.backbones import Foreign
from holdfast.workloads.detection.model import Detector
from holdfast.workloads.detection.pretrained import take

OTHER = '''
import torch
from torch import nn


class Conv(nn.Module):
    def __init__(self, inner, outer, kernel, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outer)


class Pair(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cv1, self.cv2 = Conv(width, width, 3), Conv(width, width, 3)


class C2f(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.cv1, self.cv2 = Conv(width, width, 1), Conv((2 + depth) * width // 2, width, 1)
        self.m = nn.ModuleList(Pair(width // 2) for _ in range(depth))


class Whole(nn.Module):
    """The first layers of a small YOLOv8."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(Conv(3, 16, 3, 2), Conv(16, 32, 3, 2), C2f(32, 1), Conv(32, 64, 3, 2), C2f(64, 2),
                                   Conv(64, 128, 3, 2), C2f(128, 2), nn.Conv2d(3, 3, 1))
'''


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As ultralytics keeps it: a whole object, of a class that is not here when it is read."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "somebodys_yolo.py").write_text(OTHER)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    torch.manual_seed(3)
    made = importlib.import_module("somebodys_yolo").Whole().half()
    torch.save({"epoch": 3, "ema": None, "model": made, "train_args": {"lr": 0.1}}, tmp_path / "yolo.pt")
    torch.save(made.state_dict(), tmp_path / "plain.pt")
    monkeypatch.undo()
    del sys.modules["somebodys_yolo"]
    return tmp_path / "yolo.pt"


def test_a_whole_object_is_read_without_its_class(checkpoint: Path) -> None:
    found = tensors.read(checkpoint)
    plain = torch.load(checkpoint.with_name("plain.pt"), weights_only=True)
    assert "somebodys_yolo" not in sys.modules
    assert set(found) == set(plain) and all(torch.equal(found[name], plain[name]) for name in plain)


def test_the_backbone_of_yolo_in_the_places_of_ours(checkpoint: Path) -> None:
    theirs = {name: value.float() for name, value in tensors.read(checkpoint).items()}
    net = Detector(2, 1, "tiny")
    taken = pretrained.inherit(net, checkpoint)
    ours = net.state_dict()
    assert torch.allclose(ours["backbone.stem.0.weight"], theirs["model.0.conv.weight"].sum(1, keepdim=True))
    assert torch.equal(ours["backbone.quarter.1.aside.0.weight"], theirs["model.2.cv1.conv.weight"][:16])
    assert torch.equal(ours["backbone.quarter.1.through.1.bias"], theirs["model.2.cv1.bn.bias"][16:])
    assert torch.equal(ours["backbone.eighth.1.blocks.1.second.0.weight"], theirs["model.4.m.1.cv2.conv.weight"])
    last = theirs["model.4.cv2.conv.weight"]
    assert torch.equal(ours["backbone.eighth.1.join.0.weight"], torch.cat([last[:, :32], last[:, -32:]], 1))
    told = "\n".join(taken.lines())
    assert "the backbone of a YOLO checkpoint" in told and "start anew" in told and "heads.0" in told
    assert "not used of the file: model.7" in told and taken.tensors > 80


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def test_nothing_of_a_file_is_run(tmp_path: Path) -> None:
    torch.save({"model": Evil(tmp_path / "mark")}, tmp_path / "evil.pt")
    with pytest.raises(UserError, match=r"evil\.pt"):
        tensors.read(tmp_path / "evil.pt")
    assert not (tmp_path / "mark").exists()
    for data in (b"", b"PK\x03\x04", b"\x80\x02nonsense"):
        (tmp_path / "bad.pt").write_bytes(data)
        with pytest.raises(UserError, match="cannot be read"):
            tensors.read(tmp_path / "bad.pt")


@pytest.mark.all
def test_a_network_of_torchvision_is_the_backbone(tmp_path: Path) -> None:
    from torchvision.models import resnet18

    torch.manual_seed(1)
    whole = resnet18(weights=None).eval()
    path = tmp_path / "resnet18-0123abcd.pth"
    torch.save(whole.state_dict(), path)
    assert pretrained.backbone_of(str(path)) == "resnet18" and pretrained.backbone_of("yolov8n.pt") == ""
    net = Detector(2, 1, "nano", "resnet18").eval()
    taken = pretrained.inherit(net, path)
    told = "\n".join(taken.lines())
    assert "a torchvision network" in told and "not used of the file: fc.weight (1), fc.bias (1)" in told
    assert all(name.startswith("backbone.fit.") for name in taken.missing)
    grey = torch.rand(1, 1, 64, 96)
    x = whole.maxpool(whole.relu(whole.bn1(whole.conv1(grey.expand(-1, 3, -1, -1)))))
    assert isinstance(net.backbone, Foreign)
    with torch.inference_mode():
        found = net.backbone(grey)[0]
        wanted = net.backbone.fit[0](whole.layer2(whole.layer1(x)))
        assert torch.allclose(found, wanted, atol=1e-4) and net(grey).shape == (1, 8 * 12 + 4 * 6 + 2 * 3, 66)
    with pytest.raises(UserError, match="not those of this backbone"):
        save_file({"x": torch.zeros(3)}, tmp_path / "x.safetensors")
        pretrained.inherit(net, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="there is no backbone"):
        Detector(2, 1, "nano", "resnet99")


def test_frozen_stages_stay_as_they_are(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Detector(2, 1, "nano")
    assert net.freeze(2) == ["stem", "quarter"]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.train()
    groups = training._groups(net, 0.1)
    optimizer = torch.optim.SGD(groups, lr=0.1)
    net(torch.rand(2, 1, 64, 64)).square().mean().backward()
    optimizer.step()
    after = net.state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    frozen = {name for name in before if name.startswith(("backbone.stem", "backbone.quarter"))}
    assert frozen <= same and "backbone.eighth.0.0.weight" not in same
    assert sum(len(group["params"]) for group in groups) == sum(each.requires_grad for each in net.parameters())


def test_colour_becomes_grey_and_back() -> None:
    kernel = torch.rand(4, 3, 3, 3)
    grey, image = pretrained.channels_as(kernel, 1), torch.rand(1, 1, 8, 8)
    thrice = image.expand(-1, 3, -1, -1)
    assert torch.allclose(nn.functional.conv2d(image, grey), nn.functional.conv2d(thrice, kernel), atol=1e-5)
    again = pretrained.channels_as(grey, 3)
    assert torch.allclose(nn.functional.conv2d(thrice, again), nn.functional.conv2d(image, grey), atol=1e-5)


SMALL = ("mobilenet_v3_small", "shufflenet_v2_x0_5")
OTHERS = ("mobilenet_v2", "efficientnet_b0", "regnet_y_400mf", "mnasnet0_5", "densenet121")


@pytest.mark.all
@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(each, marks=pytest.mark.long) for each in OTHERS)])
def test_other_networks_of_torchvision_are_mapped_whole(name: str, tmp_path: Path) -> None:
    """Random weights, as a file would hold them: all but the classifier arrive, and the three sizes come out."""
    from torchvision import models

    theirs = models.get_model(name, weights=None).state_dict()
    torch.save(theirs, tmp_path / f"{name}.pth")
    net = Foreign(name, 3, (8, 8, 8)).eval()
    told = "\n".join(take(net, tmp_path / f"{name}.pth").lines())
    assert "start anew: backbone.fit (6)" in told
    unused = told.partition("not used of the file: ")[2]
    assert all(each.startswith(("classifier", "fc.")) for each in unused.split(", ")), told
    first = next(value for value in theirs.values() if value.ndim == 4)
    assert any(value.shape == first.shape and torch.equal(value, first) for value in net.state_dict().values())
    with torch.no_grad():
        assert [each.shape[-1] for each in net(torch.zeros(1, 3, 64, 64))] == [8, 4, 2]


@pytest.mark.parametrize("name", ["squeezenet1_1", "vit_b_16"])
def test_a_network_that_is_no_backbone_is_refused_and_not_a_traceback(name: str) -> None:
    with pytest.raises(UserError, match="cannot be"):
        Foreign(name, 3, (8, 8, 8))
