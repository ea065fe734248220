"""Every bad label is named by file and line, and training goes on with the rest."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from holdfast.base.errors import UserError
from holdfast.workloads.detection import images, sources
from holdfast.workloads.detection.index import build, open_set
from tests.workloads.detection import small


def lines(folder: Path) -> list[str]:
    checked = build(sources.find(str(folder / "data.yaml")))
    return [line.replace(str(folder) + os.sep, "") for line in checked.problems.lines()]


def test_each_bad_label_is_named_by_file_and_line(tmp_path: Path) -> None:
    small.spoil(tmp_path)
    assert sorted(lines(tmp_path)) == sorted(
        [
            "images/train/003.png: no image that is known",
            f"images/train/002.png: cut off after {(tmp_path / 'images/train/002.png').stat().st_size:,} bytes: "
            "no end of the PNG in it",
            "labels/train/000.txt:5: 4 columns: neither a box (5) nor a polygon (7, 9, 11 …)",
            "labels/train/000.txt:4: not finite (nan or inf)",
            "labels/train/000.txt:7: not numbers: '0 abc 0.5 0.2 0.2'",
            "labels/train/000.txt:2: class 7, but there are 2 (0 to 1)",
            "labels/train/000.txt:10: class 0.5, but there are 2 (0 to 1)",
            "labels/train/000.txt:6: a box of 0 x 0.2",
            "labels/train/000.txt:3: x 1.600 to 1.800, y 0.400 to 0.600 of the image",
            "labels/train/000.txt:8: x 0.850 to 1.050, y 0.400 to 0.600 of the image",
            "labels/train/000.txt:9: the same label as in a line before",
            "labels/train/orphan.txt: a label, but no image",
            "images/train/001.png: no label file labels/train/001.txt",
            "images/val/001.png: the same image as images/train/005.png",
            "labels/train/004.txt: not text",
        ]
    )


def test_the_rest_is_trained_on(tmp_path: Path) -> None:
    small.spoil(tmp_path)
    checked = open_set(str(tmp_path))
    train = checked.splits["train"]
    names = [Path(train.path(each)).stem for each in range(len(train))]
    assert names == ["001", "005", "006", "007"]
    assert len(train.boxes(0)) == 0 and len(train.boxes(1)) == 2
    assert len(checked.splits["val"]) == 1 and checked.left_out == 4


def test_labels_in_pixels_are_recognised(tmp_path: Path) -> None:
    small.yolo(tmp_path)
    (tmp_path / "labels/train/000.txt").write_text("0 300 200 40 40\n")
    assert any("in pixels? they are shares of 1" in line for line in lines(tmp_path))


def test_damage_inside_is_found_by_decoding(tmp_path: Path) -> None:
    small.yolo(tmp_path, train=4)
    path = small.image(tmp_path / "images/train/x.png", seed=9)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    data[len(data) // 2 + 1] ^= 0xFF
    path.write_bytes(data)
    source = sources.find(str(tmp_path))
    assert build(source).problems.counts["unreadable"] == 0
    assert build(source, decode=True).problems.counts["unreadable"] == 1


def test_an_index_is_used_again_until_a_file_changes(tmp_path: Path, own_cache: Path) -> None:
    small.spoil(tmp_path / "set")
    first = open_set(str(tmp_path / "set"))
    again = open_set(str(tmp_path / "set"))
    assert not first.warm and again.warm
    assert again.problems.lines() == first.problems.lines() and again.left_out == first.left_out
    for name, part in first.splits.items():
        assert np.array_equal(again.splits[name].table, part.table)
    (tmp_path / "set/labels/train/005.txt").write_text("1 0.5 0.5 0.1 0.1\n")
    changed = open_set(str(tmp_path / "set"))
    assert not changed.warm and changed.splits["train"].boxes(1).tolist() == [
        pytest.approx([1, 0.45, 0.45, 0.55, 0.55])
    ]


def test_a_run_goes_on_with_the_set_it_began_with(tmp_path: Path) -> None:
    data, bound = str(small.yolo(tmp_path / "set")), tmp_path / "index.npz"
    before = open_set(data, bound=bound)
    (tmp_path / "set/labels/train/000.txt").write_text("")
    (tmp_path / "set/images/train/002.png").unlink()
    after = open_set(data, bound=bound)
    assert np.array_equal(before.splits["train"].table, after.splits["train"].table) and len(after.splits["train"]) == 4
    assert after.names == before.names and after.file == before.file
    assert len(open_set(data).splits["train"]) == 3


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 nonsense", b"\x93NUMPY"])
def test_a_damaged_index_is_made_anew(tmp_path: Path, own_cache: Path, damage: bytes) -> None:
    small.yolo(tmp_path / "set")
    open_set(str(tmp_path / "set"))
    (kept,) = (own_cache / "indices").glob("*.npz")
    kept.write_bytes(damage)
    assert not open_set(str(tmp_path / "set")).warm
    assert open_set(str(tmp_path / "set")).warm


def test_an_index_of_somebody_else_is_not_believed(tmp_path: Path, own_cache: Path) -> None:
    small.yolo(tmp_path / "set")
    open_set(str(tmp_path / "set"))
    (kept,) = (own_cache / "indices").glob("*.npz")
    with np.load(kept) as data:
        arrays = dict(data)
    arrays["train.box_ends"] = arrays["train.box_ends"] + 1_000_000
    np.savez(kept.with_suffix(""), **arrays)
    assert not open_set(str(tmp_path / "set")).warm


# Shapes of data -------------------------------------------------------------------------------------------------


def test_coco_annotations_are_named_by_their_id(tmp_path: Path) -> None:
    small.coco(tmp_path)
    checked = build(sources.find(str(tmp_path)))
    assert checked.kind == "coco" and checked.names == ["car", "dog"]
    told = "\n".join(checked.problems.lines())
    for text in ("annotation 3: no category 99", "annotation 4: no image 77", "annotation 5: its bbox is [1, 2, 3]",
                 "annotation 6: not finite"):  # fmt: skip
        assert text in told
    train = checked.splits["train"]
    assert train.boxes(0).tolist() == [pytest.approx([1, 10 / 64, 10 / 48, 30 / 64, 22 / 48])]
    assert len(train) == 3, "the image of annotations 5 and 6 is left out: nobody knows where its objects are"
    assert train.masks(1).tolist() == [pytest.approx([-1, 10 / 64, 10 / 48, 30 / 64, 22 / 48])]


def test_a_single_coco_file_is_divided(tmp_path: Path) -> None:
    path = small.coco(tmp_path)
    checked = build(sources.find(str(path)))
    assert len(checked.splits["train"]) + len(checked.splits["val"]) == 3 and len(checked.splits["val"]) >= 1
    assert "held out" in checked.notes[0]


def test_voc_is_read_with_lines(tmp_path: Path) -> None:
    small.voc(tmp_path)
    checked = build(sources.find(str(tmp_path)))
    assert checked.kind == "voc" and checked.names == ["dog"] and len(checked.splits["val"]) == 1
    assert checked.splits["train"].boxes(0).tolist() == [pytest.approx([0, 10 / 64, 4 / 48, 30 / 64, 28 / 48])]
    assert [f"{Path(each.file).name}:{each.line} {each.kind}" for each in checked.problems.found] == ["1.xml:3 outside"]


def test_voc_with_entities_is_refused(tmp_path: Path) -> None:
    small.voc(tmp_path)
    bomb = '<!DOCTYPE a [<!ENTITY x "xxxxxxxxxx">]><annotation><filename>&x;</filename></annotation>'
    (tmp_path / "Annotations/0.xml").write_text(bomb)
    checked = build(sources.find(str(tmp_path)))
    assert checked.problems.counts["unreadable_label"] == 1


@pytest.mark.parametrize("path", ["path: .\n", "", "path: {folder}\n", "path: {folder}/nowhere/..\n"])
def test_paths_of_a_data_yaml(tmp_path: Path, path: str) -> None:
    (tmp_path / "nowhere").mkdir()
    yaml = path.format(folder=tmp_path) + "train: images/train\nval: images/val\nnames: {0: dot, 1: bar}\n"
    data = small.yolo(tmp_path, yaml=yaml)
    assert len(build(sources.find(str(data))).splits["train"]) == 4


def test_lists_of_files_and_of_folders(tmp_path: Path) -> None:
    yaml = "train: [images/train, images/val]\nval: val.txt\nnames: [dot, bar]\n"
    data = small.yolo(tmp_path, yaml=yaml)
    (tmp_path / "val.txt").write_text(f"images/val/000.png\n{tmp_path}/images/val/001.png\nimages/val/gone.png\n")
    checked = build(sources.find(str(data)))
    assert len(checked.splits["train"]) == 6
    assert checked.problems.counts == {"in_both": 2, "unreadable": 1}


@pytest.mark.parametrize(
    ("yaml", "names"),
    [
        ("train: images/train\nnames: [a, b, c]\n", ["a", "b", "c"]),
        ("train: images/train\nnames: {0: a, 2: c}\n", ["a", "class 1", "c"]),
        ("train: images/train\nnc: 2\n", ["class 0", "class 1"]),
        ("train: images/train\n", ["class 0", "class 1"]),
    ],
)
def test_names_in_every_shape(tmp_path: Path, yaml: str, names: list[str]) -> None:
    assert sources.find(str(small.yolo(tmp_path, yaml=yaml))).names == names


@pytest.mark.parametrize(
    ("yaml", "text"),
    [
        ("val: images/val\nnames: [a]\n", "has no `train`"),
        ("- a\n- b\n", "is not a data set"),
        ("train: [unclosed\n", "cannot be read"),
        ("train: images/gone\nnames: [a]\n", "`train: images/gone`"),
        ("train: images/train\nnames: 7\n", "`names`"),
        ("train: images/train\nnames: {x: a}\n", "`names`"),
    ],
)
def test_a_data_yaml_that_is_wrong(tmp_path: Path, yaml: str, text: str) -> None:
    with pytest.raises(UserError) as raised:
        sources.find(str(small.yolo(tmp_path, yaml=yaml)))
    assert text in raised.value.message and (raised.value.cause or raised.value.hints)


def test_no_images_at_all(tmp_path: Path) -> None:
    data = small.yolo(tmp_path, train=0, val=0)
    (tmp_path / "images/train").mkdir(parents=True)
    (tmp_path / "images/val").mkdir()
    with pytest.raises(UserError, match="has no image to train on"):
        open_set(str(data))


def test_images_without_any_box(tmp_path: Path) -> None:
    small.yolo(tmp_path)
    for each in (tmp_path / "labels/train").glob("*.txt"):
        each.write_text("")
    with pytest.raises(UserError, match="no box to learn from"):
        open_set(str(tmp_path))


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="needs a user whom a folder can be closed to")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    data = small.yolo(tmp_path)
    (tmp_path / "images/train").chmod(0)
    try:
        with pytest.raises(UserError, match="cannot be read"):
            sources.find(str(data))
    finally:
        (tmp_path / "images/train").chmod(0o700)


def test_links_that_lead_back_are_followed_once(tmp_path: Path) -> None:
    data = small.yolo(tmp_path)
    (tmp_path / "images/train/back").symlink_to(tmp_path / "images/train", target_is_directory=True)
    assert len(sources.find(str(data)).splits["train"].images) == 4


def test_a_folder_that_is_no_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no data set was found"):
        sources.find(str(tmp_path))
    with pytest.raises(UserError, match="there is no"):
        sources.find(str(tmp_path / "gone"))


# Images ---------------------------------------------------------------------------------------------------------


def test_sixteen_bits_are_stretched(tmp_path: Path) -> None:
    ramp = np.linspace(29_000, 31_000, 64 * 48).reshape(48, 64).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "a.png")
    assert images.look(str(tmp_path / "a.png")) == (64, 48, 1)
    seen = images.pixels(str(tmp_path / "a.png"), 1)
    assert seen.shape == (48, 64, 1) and seen[0, 0, 0] == 0 and seen[-1, -1, 0] == 255
    assert abs(int(seen[24, 32, 0]) - 128) < 6


def test_kept_images_come_back_and_no_more_than_fit() -> None:
    kept = images.Kept(count=10, side=8, channels=1, most=3 * 64)
    picture = np.arange(48, dtype=np.uint8).reshape(6, 8, 1)
    assert kept.places == 3 and kept.get(0) is None
    for number in (0, 2, 3):
        kept.put(number, picture + number)
    first, third = kept.get(0), kept.get(2)
    assert first is not None and third is not None
    assert np.array_equal(first, picture) and np.array_equal(third, picture + 2)
    assert kept.get(1) is None and kept.get(3) is None
