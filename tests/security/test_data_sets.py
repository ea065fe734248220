"""A set of images that somebody else made: nothing in it starts a program, fills the memory, hangs us or leads out."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import zlib
from pathlib import Path

import pytest

MISSING = [name for name in ("PIL", "yaml", "torchvision", "pycocotools") if importlib.util.find_spec(name) is None]
if MISSING:
    pytest.skip(f"the extra `detection` is missing: {', '.join(MISSING)}", allow_module_level=True)

from holdfast.base.errors import UserError  # noqa: E402
from holdfast.workloads.detection import images, index, sources  # noqa: E402
from holdfast.workloads.detection.index import Checked, check_set, open_set  # noqa: E402
from tests.cli.driving import holdfast  # noqa: E402
from tests.security.children import peak_of  # noqa: E402
from tests.workloads.detection.small import image, yolo  # noqa: E402

needs_links = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 48\n%%EndComments\n(x) print showpage\n%%EOF\n"
BOMB = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9 if n else ['lol'] * 9)}]\n" for n in range(9))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DETECTION_CACHE", str(tmp_path / "cache"))


def problems(checked: Checked, kind: str) -> list[tuple[str, int]]:
    return [(Path(each.file).name, each.line) for each in checked.problems.found if each.kind == kind]


# Programs -------------------------------------------------------------------------------------------------------


@pytest.mark.all
def test_postscript_in_an_image_starts_no_program(tmp_path: Path) -> None:
    """Pillow hands PostScript to `gs`. One on the path leaves a mark when it is started."""
    data = yolo(tmp_path / "set")
    (tmp_path / "set/images/train/000.jpg").write_bytes(EPS)
    (tmp_path / "bin").mkdir()
    for name in ("gs", "gswin64c", "gswin32c"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/mark\n")
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    done = holdfast("detection", "check", str(data), "--decode", "--json", cwd=tmp_path, PATH=path)
    assert not (tmp_path / "mark").exists()
    assert {each["file"].rpartition("/")[2] for each in done.json["problems"] if each["kind"] == "unreadable"} == {
        "000.jpg"
    }
    for read in (images.look, lambda path: images.pixels(path, 1)):
        with pytest.raises(images.Bad, match="no image that is known"):
            read(str(tmp_path / "set/images/train/000.jpg"))
    assert not (tmp_path / "mark").exists()


# Memory ---------------------------------------------------------------------------------------------------------


def test_a_bomb_of_aliases_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text(BOMB + "train: images\nnames: *a8\n")
    assert (tmp_path / "data.yaml").stat().st_size < 1000
    code = f"""
from holdfast.base.errors import UserError
from holdfast.workloads.detection import sources
try:
    sources.find({str(tmp_path / "data.yaml")!r})
except UserError as error:
    print(error.cause)
"""
    said, peak = peak_of(code, tmp_path)
    assert said == "line 2: it has an alias (*a0)"
    assert peak < 800, "megabytes"


@pytest.mark.parametrize(
    "text",
    [
        "train: " + "[" * 1200,
        "train: x\nnc: " + "9" * 10_000,
        "train: 2026-99-99",
        "a: !!python/object/apply:os.system [x]",
        "? {a: 1}\n: b",
        "x" * (2 << 20),
        "train: !!binary _",
    ],
)
def test_any_other_yaml_is_an_error_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(UserError, match=r"data\.yaml"):
        sources.find(str(tmp_path / "data.yaml"))


def png(path: Path, width: int, height: int) -> None:
    """A picture of zeros: a few kilobytes for any size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


def test_an_image_that_claims_to_be_huge_is_a_problem_with_its_name(tmp_path: Path) -> None:
    data = yolo(tmp_path)
    png(tmp_path / "images/train/000.png", 60_000, 60_000)
    checked = check_set(str(data), decode=True)
    assert problems(checked, "unreadable") == [("000.png", 0)]


@pytest.mark.all
def test_an_index_that_unpacks_to_gigabytes_is_made_anew(tmp_path: Path) -> None:
    """`index.npz` is a file of a run folder, which may be anybody's."""
    data = yolo(tmp_path / "set")
    bound = tmp_path / "index.npz"
    import zipfile

    with (
        zipfile.ZipFile(bound, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("about.npy", "w", force_zip64=True) as f,
    ):
        head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }" % (600 << 20)
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head) + 1) + head + b"\n")
        for _ in range(600):
            f.write(bytes(1 << 20))
    code = f"""
from pathlib import Path
from holdfast.workloads.detection.index import open_set
print(len(open_set({str(data)!r}, bound=Path({str(bound)!r})).splits["train"]))
"""
    said, peak = peak_of(code, tmp_path, HOLDFAST_DETECTION_CACHE=str(tmp_path / "cache"))
    assert said == "4"
    assert peak < 900, "megabytes: torch, numpy, and none of the 600 that are packed"


# Waiting --------------------------------------------------------------------------------------------------------


@needs_links
@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", ["data.yaml", "images/train/000.png", "labels/train/000.txt", "list.txt", "x.json"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, where: str) -> None:
    data = yolo(tmp_path)
    if where == "list.txt":
        data.write_text("train: list.txt\nval: images/val\nnames: [dot, bar]\n")
    elif where == "x.json":
        data = tmp_path / where
    (tmp_path / where).unlink(missing_ok=True)
    os.mkfifo(tmp_path / where)
    if "train/" in where:
        checked = check_set(str(data))
        assert Path(where).name in {Path(each.file).name for each in checked.problems.found}
        assert "a pipe, not a file" in " ".join(each.text for each in checked.problems.found)
    else:
        with pytest.raises(UserError, match=Path(where).name) as refused:
            check_set(str(data))
        assert "a pipe, not a file" in str(refused.value.cause)


# Leading out ----------------------------------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """An image of the user's that is no part of the set, with a label."""
    found = image(tmp_path / "home/images/own.png", seed=99)
    (tmp_path / "home/labels").mkdir()
    (tmp_path / "home/labels/own.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    return found


def used(checked: Checked) -> set[str]:
    return {os.path.realpath(part.path(row)) for part in checked.splits.values() for row in range(len(part))}


@needs_links
def test_lists_and_links_do_not_lead_out(tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = yolo(tmp_path / "set", yaml="path: .\ntrain: list.txt\nval: images/val\nnames: [dot, bar]\n")
    (tmp_path / "set/images/train/link.png").symlink_to(secret)
    (tmp_path / "set/images/val/link.png").symlink_to(secret)
    (tmp_path / "set/images/val/folder").symlink_to(secret.parent, target_is_directory=True)
    (tmp_path / "set/labels/train/003.txt").unlink()
    (tmp_path / "set/labels/train/003.txt").symlink_to(tmp_path / "home/labels/own.txt")
    lines = ["images/train/000.png", "images/train/001.png", str(secret), "../home/images/own.png"]
    lines += ["images/train/link.png", "images/train/003.png", "images/val/../../../home/images/own.png"]
    (tmp_path / "set/list.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)  # the current folder is no part of the set
    checked = check_set(str(data))
    assert str(secret) not in used(checked)
    assert sorted(problems(checked, "leads_out")) == [
        ("003.txt", 0), ("folder", 0), ("link.png", 0), *[("list.txt", line) for line in (3, 4, 5, 7)],
    ]  # fmt: skip
    assert len(checked.splits["train"]) == 2 and len(checked.splits["val"]) == 2
    done = holdfast("detection", "check", str(data), cwd=tmp_path)
    assert done.code == 1 and f"{tmp_path}/set/list.txt:3" in done.out and "lead out of the data set" in done.out
    monkeypatch.setenv("HOLDFAST_DATA_OUTSIDE", "1")
    allowed = check_set(str(data))
    assert str(secret) in used(allowed) and not problems(allowed, "leads_out")


@pytest.mark.parametrize("train", ["{home}/images", "../home/images", "[images/train, ../home/images]"])
def test_what_a_yaml_says_of_its_parts_is_refused_by_its_line(tmp_path: Path, secret: Path, train: str) -> None:
    given = train.format(home=tmp_path / "home")
    data = yolo(tmp_path / "set", yaml=f"path: .\ntrain: {given}\nval: images/val\nnames: [dot, bar]\n")
    with pytest.raises(UserError, match=rf"line 2 of {data} leads out of the data set") as refused:
        sources.find(str(data))
    assert "home/images" in str(refused.value.cause) and any("data.outside" in hint for hint in refused.value.hints)
    assert sources.find(str(data), outside=True).splits["train"].images


def test_the_path_of_a_yaml_is_believed_if_the_user_named_the_file(tmp_path: Path, secret: Path) -> None:
    data = yolo(tmp_path / "set", yaml=f"path: {tmp_path}/home\ntrain: images\nnames: [dot, bar]\n")
    assert sources.find(str(data)).splits["train"].images == [str(secret)]
    with pytest.raises(UserError, match=rf"line 1 of {data} leads out of the data set") as refused:
        sources.find(str(data.parent))
    assert f"name the file itself: `data={data}`" in refused.value.hints


def test_names_in_a_coco_file_do_not_lead_out(tmp_path: Path, secret: Path) -> None:
    folder = tmp_path / "set"
    for number in range(3):
        image(folder / f"images/{number}.png", seed=number)
    names = ["0.png", "1.png", "2.png", str(secret), "../../home/images/own.png"]
    told = {
        "images": [{"id": n, "file_name": name, "width": 64, "height": 48} for n, name in enumerate(names)],
        "annotations": [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 1, 9, 9]} for n in range(len(names))],
        "categories": [{"id": 1, "name": "dot"}],
    }
    (folder / "annotations").mkdir()
    (folder / "annotations/instances_train.json").write_text(json.dumps(told))
    checked = check_set(str(folder))
    assert str(secret) not in used(checked) and len(used(checked)) == 3
    assert problems(checked, "leads_out") == [("instances_train.json", 0)] * 2


@needs_links
def test_links_of_pascal_voc_do_not_lead_out(tmp_path: Path, secret: Path) -> None:
    folder = tmp_path / "set"
    (folder / "Annotations").mkdir(parents=True)
    for number in range(3):
        image(folder / f"JPEGImages/{number}.png", seed=number)
        (folder / f"Annotations/{number}.xml").write_text(
            "<annotation><size><width>64</width><height>48</height></size><object><name>dot</name><bndbox><xmin>2</xmin>"
            "<ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"
        )
    (folder / "JPEGImages/own.png").symlink_to(secret)
    (folder / "Annotations/1.xml").unlink()
    (folder / "Annotations/1.xml").symlink_to(tmp_path / "home/labels/own.txt")
    checked = check_set(str(folder))
    assert str(secret) not in used(checked)
    assert {name for name, _ in problems(checked, "leads_out")} == {"own.png", "1.xml"}


@needs_links
def test_links_inside_of_a_set_and_to_a_whole_set_are_fine(tmp_path: Path) -> None:
    data = yolo(tmp_path / "real")
    (tmp_path / "real/images/train/again.png").symlink_to("000.png")
    (tmp_path / "set").symlink_to(tmp_path / "real", target_is_directory=True)
    for named in (data, tmp_path / "set/data.yaml", tmp_path / "set"):
        checked = open_set(str(named), rebuild=True)
        assert len(checked.splits["train"]) == 5 and not problems(checked, "leads_out")
    assert index.cache_folder().is_relative_to(tmp_path)
