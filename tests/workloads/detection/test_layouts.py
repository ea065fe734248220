"""What people who come from ultralytics and Roboflow have on disk is read as it is, and what is done is said."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast.base.errors import UserError
from holdfast.cli.main import main
from holdfast.workloads.detection import places, sources
from holdfast.workloads.detection.index import Checked, build, open_set
from tests.workloads.detection import small


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder and settings of ultralytics that are nobody's."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "no-settings"))
    return tmp_path / "cwd"


def roboflow(folder: Path, label: str = "0 0.5 0.5 0.25 0.5\n") -> Path:
    """As Roboflow exports it: `train` beside data.yaml, and `../train/images` in it."""
    for seed, part in enumerate(("train", "valid", "test")):
        for number in range(3):
            small.image(folder / part / "images" / f"{part}_{number}.jpg", seed=10 * seed + number, colour=True)
            (folder / part / "labels").mkdir(exist_ok=True)
            (folder / part / "labels" / f"{part}_{number}.txt").write_text(label)
    text = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\nnc: 2\nnames: ['dot', 'bar']\n"
    (folder / "data.yaml").write_text(text + "roboflow:\n  workspace: w\n  project: p\n  version: 1\n")
    return folder / "data.yaml"


def boxes(checked: Checked, part: str = "train") -> list[list[float]]:
    return [row for number in range(len(checked.splits[part])) for row in checked.splits[part].boxes(number).tolist()]


@pytest.mark.parametrize("named", ["data.yaml", ""])
def test_roboflow_means_the_folder_beside_its_file(tmp_path: Path, named: str) -> None:
    roboflow(tmp_path / "set")
    checked = build(sources.find(str(tmp_path / "set" / named)))
    assert {name: len(part) for name, part in checked.splits.items()} == {"train": 3, "val": 3, "test": 3}
    assert boxes(checked) == [pytest.approx([0, 0.375, 0.25, 0.625, 0.75])] * 3 and not len(checked.problems)
    assert any("`train: ../train/images` of data.yaml is read as" in note for note in checked.notes)


def test_a_folder_outside_is_not_taken_for_the_one_inside(tmp_path: Path) -> None:
    """`../train/images` is really there as well, and belongs to something else."""
    roboflow(tmp_path / "set")
    small.image(tmp_path / "train" / "images" / "other.jpg", seed=99, colour=True)
    found = sources.find(str(tmp_path / "set/data.yaml")).splits["train"].images
    assert [os.path.basename(each) for each in found] == ["train_0.jpg", "train_1.jpg", "train_2.jpg"]


@pytest.mark.parametrize("where", ["yaml", "current", "datasets", "above", "settings"])
def test_a_relative_path_is_looked_for_where_it_may_be_meant(
    tmp_path: Path, elsewhere: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {
        "yaml": tmp_path / "configs/coco8", "current": elsewhere / "coco8", "datasets": elsewhere / "datasets/coco8",
        "above": tmp_path / "datasets/coco8", "settings": tmp_path / "far/coco8",
    }[where]  # fmt: skip
    small.yolo(place)
    (tmp_path / "configs").mkdir(exist_ok=True)
    (tmp_path / "configs/x.yaml").write_text("path: coco8\ntrain: images/train\nval: images/val\nnames: [dot, bar]\n")
    if where == "settings":
        monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "config"))
        (tmp_path / "config").mkdir()
        (tmp_path / "config/settings.json").write_text(json.dumps({"datasets_dir": str(tmp_path / "far")}))
    found = sources.find(str(tmp_path / "configs/x.yaml"))
    assert len(found.splits["train"].images) == 4
    assert all(os.path.realpath(each).startswith(str(place)) for each in found.splits["train"].images)


def test_the_parts_of_a_set_come_from_one_folder(tmp_path: Path, elsewhere: Path) -> None:
    """Two folders of the same name: the first one with `train` has `val`, too."""
    small.yolo(tmp_path / "configs/set", val=0)
    small.yolo(elsewhere / "set")
    (tmp_path / "configs/x.yaml").write_text("path: set\ntrain: images/train\nval: images/val\nnames: [dot, bar]\n")
    with pytest.raises(UserError, match="`val: images/val`"):
        sources.find(str(tmp_path / "configs/x.yaml"))


def test_a_path_of_another_machine_is_told_and_the_folder_of_the_file_used(tmp_path: Path) -> None:
    yaml = "path: /content/datasets/x\ntrain: images/train\nval: images/val\nnames: [dot, bar]\n"
    data = small.yolo(tmp_path / "set", yaml=yaml)
    for named in (data, data.parent):
        checked = build(sources.find(str(named)))
        assert len(checked.splits["train"]) == 4
        assert "`path: /content/datasets/x` of data.yaml does not exist: its own folder is used" in checked.notes


def test_settings_that_are_damaged_are_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    for text in ("[1]", "{", '{"datasets_dir": 7}', '{"datasets_dir": "relative"}'):
        (tmp_path / "settings.json").write_text(text)
        assert places.datasets_folders(tmp_path) == []


# Shapes of labels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "box", "words"),
    [
        ("1 0.1 0.2 0.5 0.1 0.6 0.4 0.2 0.8 0.15 0.5\n", [1, 0.1, 0.1, 0.6, 0.8], "polygons: the boxes around them"),
        ("1 0.3 0.1 0.5 0.3 0.3 0.5 0.1 0.3\n", [1, 0.1, 0.1, 0.5, 0.5], "oriented boxes (four corners)"),
        ("1 0.1 0.1 0.5 0.1 0.3 0.6\n", [1, 0.1, 0.1, 0.5, 0.6], "polygons: the boxes around them"),
        ("1 0.5 0.5 0.2 0.4 0.91\n", [1, 0.4, 0.3, 0.6, 0.7], "a sixth column: taken as a score"),
    ],
)
def test_polygons_and_oriented_boxes_become_boxes_and_are_counted(
    tmp_path: Path, label: str, box: list[float], words: str
) -> None:
    checked = build(sources.find(str(roboflow(tmp_path, label + "0 0.5 0.5 0.25 0.5\n"))))
    assert boxes(checked) == [pytest.approx(box), pytest.approx([0, 0.375, 0.25, 0.625, 0.75])] * 3
    assert not len(checked.problems)
    (note,) = [each for each in checked.notes if words in each]
    assert note.startswith("9 ")


def test_key_points_follow_their_box(tmp_path: Path) -> None:
    data = roboflow(tmp_path, "0 0.5 0.5 0.2 0.4 0.1 0.1 0.9 0.9\n")
    data.write_text(data.read_text() + "kpt_shape: [2, 2]\n")
    checked = build(sources.find(str(data)))
    assert boxes(checked) == [pytest.approx([0, 0.4, 0.3, 0.6, 0.7])] * 3
    assert any("key points" in note for note in checked.notes)


def test_a_polygon_of_coco_without_a_box(tmp_path: Path) -> None:
    path = small.coco(tmp_path)
    told = json.loads(path.read_text())
    told["annotations"][0] = {"id": 1, "image_id": 0, "category_id": 18, "segmentation": [[8, 6, 40, 6, 16, 30]]}
    path.write_text(json.dumps(told))
    checked = build(sources.find(str(tmp_path)))
    assert checked.splits["train"].boxes(0).tolist() == [pytest.approx([1, 8 / 64, 6 / 48, 40 / 64, 30 / 48])]
    assert any(note.startswith("1 polygons") for note in checked.notes)


# Objects never become background ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", ["0 0.5 0.5 0.2", "0 nan 0.5 0.2 0.2", "0 abc 0.5 0.2 0.2", "0 0.5 0.5 0 0.2", "0 1.7 0.5 0.2 0.2",
            "0 0.1 0.1 0.2 0.2 0.3 0.3 0.4"],
)  # fmt: skip
def test_an_image_with_a_label_without_a_place_is_left_out(tmp_path: Path, bad: str) -> None:
    data = roboflow(tmp_path)
    for part in ("train", "valid"):
        (tmp_path / part / "labels" / f"{part}_1.txt").write_text(f"1 0.5 0.5 0.2 0.2\n{bad}\n")
    checked = build(sources.find(str(data)))
    assert len(checked.splits["train"]) == len(checked.splits["val"]) == 2 and checked.left_out == 2
    assert all("_1.jpg" not in checked.splits["train"].path(number) for number in range(2))
    assert len(checked.problems.found) == 2 and checked.problems.summary()[0].endswith(": image left out")


def test_an_image_without_a_label_file_where_empty_ones_have_one(tmp_path: Path) -> None:
    data = roboflow(tmp_path)
    (tmp_path / "train/labels/train_1.txt").unlink()
    kept = build(sources.find(str(data)))
    assert len(kept.splits["train"]) == 3 and kept.problems.counts == {"image_without_label": 1}
    (tmp_path / "train/labels/train_2.txt").write_text("")
    checked = build(sources.find(str(data)))
    assert len(checked.splits["train"]) == 2 and checked.problems.counts == {"unlabelled": 1}
    assert checked.splits["train"].negative == 1
    assert "images without any object, in which nothing may be found: 1 train" in checked.notes


def test_an_image_of_voc_without_a_label_is_left_out(tmp_path: Path) -> None:
    small.voc(tmp_path)
    (tmp_path / "Annotations/1.xml").unlink()
    checked = build(sources.find(str(tmp_path)))
    assert len(checked.splits["train"]) == 1 and checked.problems.counts == {"unlabelled": 1}


def test_sizes_and_ids_of_coco_that_are_kept_in_other_ways(tmp_path: Path) -> None:
    """No width and height, ids as words, and a validation file that counts its categories differently."""
    path = small.coco(tmp_path)
    told = json.loads(path.read_text())
    told["annotations"] = told["annotations"][:2] + told["annotations"][6:]
    for each in told["images"]:
        del each["width"], each["height"]
    for each in told["annotations"]:
        each["image_id"] = str(each["image_id"])
    path.write_text(json.dumps(told))
    held = {**told, "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "car"}], "images": told["images"][3:],
            "annotations": [{**told["annotations"][2], "category_id": 1}]}  # fmt: skip
    (tmp_path / "annotations/instances_val.json").write_text(json.dumps(held))
    checked = build(sources.find(str(tmp_path)))
    dog = [1, 10 / 64, 10 / 48, 30 / 64, 22 / 48]
    assert checked.splits["train"].boxes(0).tolist() == [pytest.approx(dog)]
    train = checked.splits["train"]
    assert [len(train.boxes(number)) for number in range(4)] == [1, 1, 0, 1]
    held_out = build(sources.find(str(tmp_path / "annotations/instances_val.json")))
    assert held_out.names == ["dog", "car"] and checked.problems.counts == {"in_both": 1}
    assert sources.find(str(tmp_path)).splits["val"].ids == {1: 1, 2: 0}, "by their names, as train counts"


# Classes ----------------------------------------------------------------------------------------------------------


def test_classes_are_chosen_renamed_and_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = small.yolo(tmp_path)  # four images: dot 6, bar 2
    only = open_set(str(data), classes="bar:stick")
    assert only.names == ["stick"] and only.splits["train"].counts(1) == [2]
    assert "9 boxes of classes that are not wanted are background: dot 9" in only.notes  # 6 train, 3 val
    one = open_set(str(data), classes="*:thing")
    assert one.names == ["thing"] and one.splits["train"].counts(1) == [8]
    swapped = open_set(str(data), classes="1,dot")
    assert swapped.names == ["bar", "dot"] and swapped.splits["train"].counts(2) == [2, 6]
    assert open_set(str(data)).names == ["dot", "bar"], "the index of another choice is another one"
    with pytest.raises(UserError, match="there is no class `cat`"):
        open_set(str(data), classes="cat")
    with pytest.raises(UserError, match="classes="):
        open_set(str(data), classes="dot,0:x")
    assert main(["detection", "check", str(data), "--classes", "dot:a,bar:a"]) == 0
    assert "classes: a is dot, bar" in capsys.readouterr().out


def test_a_number_without_a_name_can_be_named(tmp_path: Path) -> None:
    data = small.yolo(tmp_path)
    (tmp_path / "labels/train/000.txt").write_text("7 0.5 0.5 0.25 0.5\n")
    assert open_set(str(data)).problems.counts == {"class_range": 1}
    checked = open_set(str(data), classes="dot,bar,7:cross")
    assert checked.names == ["dot", "bar", "cross"] and not len(checked.problems)
    assert checked.splits["train"].counts(3)[2] == 1
