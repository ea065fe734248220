"""The detector and its loss: sizes, assignment, determinism, and that it can learn an image by heart."""

from __future__ import annotations

import pytest
import torch

from holdfast.workloads.detection import loss as losses
from holdfast.workloads.detection.model import BINS, MOST, SIZES, Deployed, Detector, folded, parameters, points


def targets(*rows: tuple[float, ...], most: int = 4) -> torch.Tensor:
    padded = torch.full((1, most, 5), -1.0)
    padded[0, : len(rows)] = torch.tensor(rows)
    return padded


def test_sizes() -> None:
    assert 3.0e6 < parameters(Detector(4, 1, "tiny")) < 5.0e6
    assert parameters(Detector(4, 1, "nano")) < 1.6e6
    assert not [each for each in Detector(4).modules() if isinstance(each, torch.nn.Conv2d) and each.groups != 1]


def test_every_point_says_something() -> None:
    net = Detector(3, 1, "nano").eval()
    raw = net(torch.rand(2, 1, 64, 96))
    at, _ = points((64, 96), torch.device("cpu"))
    assert raw.shape == (2, len(at), 4 * BINS + 3) and len(at) == 8 * 12 + 4 * 6 + 2 * 3
    boxes, scores = net.decode(raw, (64, 96))
    assert boxes.shape == (2, len(at), 4) and bool(((scores >= 0) & (scores <= 1)).all())
    assert (boxes[..., 2:] > boxes[..., :2]).all()


def test_a_point_stands_for_one_object_and_an_object_has_a_point_however_small() -> None:
    at, stride = points((64, 64), torch.device("cpu"))
    truth = targets((0, 8, 8, 40, 40), (1, 12, 12, 44, 44), (2, 50.2, 50.2, 52.1, 52.3))
    boxes = torch.cat([at - stride[:, None], at + stride[:, None]], 1)[None]
    scores = torch.full((1, len(at), 3), 0.1)
    pairs = losses.assign(scores, boxes, truth, at, stride)
    assert len(set(pairs.point.tolist())) == len(pairs.point)
    assert set(pairs.object.tolist()) == {0, 1, 2}
    assert max((pairs.object == number).sum() for number in range(3)) <= losses.TOPMOST
    assert ((pairs.worth > 0) & (pairs.worth <= 1)).all()


def test_an_image_without_boxes_teaches_too() -> None:
    net = Detector(2, 1, "nano")
    raw = net(torch.rand(2, 1, 64, 64))
    value, parts = losses.detection_loss(net, raw, torch.full((2, 3, 5), -1.0), (64, 64))
    value.backward()
    assert torch.isfinite(value) and parts[1] == 0 and parts[2] == 0 and parts[0] > 0


def test_complete_iou_is_one_for_equal_boxes_and_negative_far_away() -> None:
    a = torch.tensor([[10.0, 10, 30, 20], [0, 0, 5, 5]])
    b = torch.tensor([[10.0, 10, 30, 20], [50, 50, 90, 60]])
    same, far = losses.complete_iou(a, b).tolist()
    assert same == pytest.approx(1.0, abs=1e-5) and far < -0.4
    assert losses.iou(a, torch.tensor([[10.0, 10, 20, 20], [0, 0, 5, 5]])).tolist() == pytest.approx(
        [0.5, 1.0], abs=1e-5
    )


@pytest.mark.all
@pytest.mark.timeout(300)
def test_it_learns_one_image_by_heart() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = 0.3 * torch.rand(1, 1, 64, 64)
    x[:, :, 10:34, 8:24] += 0.6
    x[:, :, 40:52, 30:58] += 0.4
    truth = targets((0, 8, 10, 24, 34), (1, 30, 40, 58, 52))
    net = Detector(2, 1, "nano")
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        losses.detection_loss(net, net(x), truth, (64, 64))[0].backward()
        optimizer.step()
    net.train()  # the statistics of one image: those of the running average are not there yet
    (found,) = net.detect(x, score=0.3)
    assert sorted(found[:2, 5].tolist()) == [0.0, 1.0]
    for box in found[:2]:
        wanted = truth[0, int(box[5]), 1:]
        assert float(losses.iou(box[None, :4], wanted[None])) > 0.6


@pytest.mark.all
def test_exported_with_its_suppression(tmp_path: pytest.TempPathFactory) -> None:
    torch.manual_seed(0)
    net = Detector(3, 1, "nano").eval()
    with torch.no_grad():
        for head in net.heads:
            head.what[-1].bias.fill_(0.0)
    images = torch.randint(0, 255, (2, 1, 64, 64), dtype=torch.uint8)
    deployed = Deployed(net, (64, 64), score=0.3)
    whole = deployed(images)
    traced = torch.jit.trace(deployed, images)(images)
    assert whole.shape == (2, MOST, 6) and torch.equal(whole, traced)
    for number, rows in enumerate(whole):
        kept = rows[rows[:, 4] > 0]
        assert len(kept) and (kept[:-1, 4] >= kept[1:, 4]).all()
        one_class = kept[kept[:, 5] == kept[0, 5]]
        first = one_class[:1].expand(len(one_class) - 1, -1)
        assert (losses.iou(first[:, :4], one_class[1:, :4]) <= 0.6 + 1e-5).all(), number


def test_boxes_are_not_rounded_where_the_net_is() -> None:
    net = Detector(2, 1, "nano").eval()
    raw = 3 * torch.randn(1, 84, 4 * BINS + 2)
    exact, _ = net.decode(raw, (64, 64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under, _ = net.decode(raw, (64, 64))
    assert torch.equal(exact, under)


def test_a_folded_net_answers_the_same_and_leaves_the_other_as_it_was() -> None:
    torch.manual_seed(0)
    net = Detector(3, 1, "nano")
    for _ in range(3):
        net(torch.rand(4, 1, 64, 64))  # normalisations that are not those of the start
    net.eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    made = folded(net)
    x = torch.rand(2, 1, 64, 64)
    with torch.no_grad():
        assert torch.allclose(net(x), made(x), rtol=1e-4, atol=1e-4)
    assert not any(isinstance(each, torch.nn.BatchNorm2d) for each in made.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_every_size_is_named() -> None:
    assert set(SIZES) == {"nano", "tiny"}
