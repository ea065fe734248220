"""Worlds and pictures of a run folder, which may be anybody's: numbers and images pass, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.monitor import payload, reader, report, scenes

from .folders import make_run
from .test_web import EVIL

GIF = b"GIF89a" + bytes(range(40))
WORLD: dict[str, Any] = {
    "schema": 1, "turn": 7, "size": 10.0, "time": 99, "prey": [[1.0, 2.0, 0.5, 1.0, 0.0]],
    "predators": [[5.0, 5.0, 1.0, 0.0, 1.0]], "grass": [[0.0, 1.0], [0.5, 0.5]],
    "frames": [{"time": 98, "prey": [[1.0, 1.0, 0.5, 0.0, 1.0]], "predators": []}],
    "curves": {"both": ["train_loss", "valid_bacc"]}, "facts": ["train_loss"], "note": "they\x1b[2J stopped",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = make_run(tmp_path / "runs", "FINISHED").path
    (path / "world.json").write_text(json.dumps(WORLD))
    return path


def test_a_world_is_there_with_its_film(folder: Path) -> None:
    run = reader.open(folder)
    found = scenes.world(run.world)
    assert found is not None and (found["turn"], found["size"], found["facts"]) == (7, 10.0, ["train_loss"])
    assert [frame["time"] for frame in found["frames"]] == [98, 99], "the film ends with how it is now"
    assert "stopped" in found["note"] and "\x1b" not in found["note"]
    assert found["frames"][-1]["predators"] == [[5.0, 5.0, 1.0, 0.0, 1.0]] and found["grass"][1] == [0.5, 0.5]
    head = payload.head(run, "x")
    assert head["world"] == "7/99"
    assert [line["label"] for line in head["charts"][0]["lines"]] == ["train_loss", "valid_bacc"], "one chart for both"
    (folder / "world.json").write_text(json.dumps({**WORLD, "turn": 8}))
    assert run.refresh() and payload.head(run, "x")["world"] == "8/99"


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({"size": 0}, None), ({"size": EVIL}, None), ({"size": True}, None), ({"size": 1e300}, None),
        ({"prey": EVIL}, []), ({"prey": [EVIL, [1, 2], [1, 2, EVIL, 0, 0], [1, 2, None, 0, 0]]}, []),
        ({"prey": [[1, 2, float("nan"), 0, 0], [3, 4, 1, 0, 0]]}, [[3.0, 4.0, 1.0, 0.0, 0.0]]),
        ({"prey": [[1, 2, 3, 4, 5]] * 9000}, [[1.0, 2.0, 3.0, 4.0, 5.0]] * scenes.MOST_ANIMALS),
        ({"note": [EVIL], "prey": [3]}, []),
        ({"grass": EVIL, "frames": [EVIL, 3, None], "curves": [1], "facts": {"a": 1}, "turn": "x"}, WORLD["prey"]),
        ({"grass": [[1.0], [1.0, 2.0]]}, WORLD["prey"]), ({"grass": [[0.0]] * 999}, WORLD["prey"]),
    ],
)  # fmt: skip
def test_of_a_hostile_world_only_numbers_pass(folder: Path, said: dict[str, Any], left: Any) -> None:
    (folder / "world.json").write_text(json.dumps({**WORLD, **said}))
    run = reader.open(folder)
    found = scenes.world(run.world)
    assert (None if found is None else found["frames"][-1]["prey"]) == left
    assert "pwned" not in json.dumps([found, payload.head(run, "x")["charts"]])
    if found is not None and "grass" in said:
        assert found["grass"] == []


def test_pictures_are_pictures_by_their_first_bytes(folder: Path, tmp_path: Path) -> None:
    (folder / "hunt.gif").write_bytes(GIF)
    (folder / "hunt.mp4").write_bytes(b"\0\0\0\x18ftypisom")
    (folder / "curves.PNG").write_bytes(b"\x89PNG\r\n\x1a\nrest")
    (folder / "page.gif").write_text(EVIL)
    (folder / "drawing.svg").write_text(f"<svg>{EVIL}</svg>")
    (folder / "huge.gif").write_bytes(GIF)
    os.truncate(folder / "huge.gif", scenes.LARGEST + 1)
    (tmp_path / "secret.gif").write_bytes(GIF)
    (folder / "linked.gif").symlink_to(tmp_path / "secret.gif")
    (folder / "folder.gif").mkdir()
    found = {each["path"]: each["type"] for each in scenes.pictures(folder)}
    assert found == {"hunt.gif": "image/gif", "hunt.mp4": "video/mp4", "curves.PNG": "image/png"}
    assert scenes.read_picture(folder, "hunt.gif") == ("image/gif", GIF)
    for name in ("page.gif", "drawing.svg", "huge.gif", "linked.gif", "folder.gif", "../secret.gif", "nothing.gif", ""):
        with pytest.raises(OSError):
            scenes.read_picture(folder, name)
    given = report.data(reader.open(folder))
    assert given["pictures"]["hunt.gif"].startswith("data:image/gif;base64,R0lGODlh") and len(given["pictures"]) == 3
    assert given["world"]["turn"] == 7


def test_a_run_without_a_world_has_none(tmp_path: Path) -> None:
    run = reader.open(make_run(tmp_path, "FINISHED").path, cached=False)
    assert (scenes.world(run.world), payload.head(run, "x")["world"], payload.body(run)["pictures"]) == (None, None, [])
