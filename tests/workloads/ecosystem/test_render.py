"""`holdfast ecosystem render`: a film and curves from a run folder, which may be damaged or another workload's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from holdfast.base.errors import UserError
from holdfast.cli.main import main
from holdfast.monitor import scenes
from holdfast.run.folder import RunFolder
from holdfast.workloads.ecosystem import picture, render
from holdfast.workloads.ecosystem.policy import SIZES, Policy
from holdfast.workloads.ecosystem.rules import SPECIES, Rules
from holdfast.workloads.ecosystem.world import World

Image = pytest.importorskip("PIL.Image", reason="the extra `ecosystem` is not installed")
RULES = Rules(worlds=4, size=14.0, prey=10, predators=5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a run of the ecosystem leaves."""
    run = RunFolder.create(tmp_path, "ecosystem", {"state": "FINISHED"})
    about = {"schema": 1, "preset": "tiny", "rules": RULES.to_json()}
    (run.path / "ecosystem.json").write_text(json.dumps(about))
    torch.manual_seed(0)
    weights = {f"{word}.{key}": value for word in SPECIES for key, value in Policy(SIZES["tiny"]).state_dict().items()}
    save_file(weights, run.path / "final.safetensors")
    rows = [{"step": n, "prey": 30 + n, "predators": 9, "catch_rate": 0.1 * n, "attempts": None} for n in range(1, 6)]
    (run.path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"torn": ')
    run.close()
    return run.path


@pytest.mark.parametrize("ending", ["gif", "png"])
def test_a_film_and_its_curves(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str) -> None:
    out = tmp_path / f"hunt.{ending}"
    words = ["ecosystem", "render", folder.name, "--folder", str(tmp_path), "--steps", "5", "--pixels", "120"]
    assert main([*words, "--out", str(out), "--dice", "prey", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["frames"] == 5 and told["film"] == str(out) and told["weights"] == "final.safetensors"
    with Image.open(out) as image:
        assert image.size == (120, 142) and getattr(image, "n_frames", 1) == (5 if ending == "gif" else 1)
        colours = np.asarray(image.convert("RGB")).reshape(-1, 3).astype(int)
        reds = [red for red, green, blue in colours if red > green + 60 and red > blue + 60]
        assert len(reds) > 20, "predators are red, also where a film has few colours"
    with Image.open(told["curves"]) as image:
        assert image.size == (480, 220)  # populations and catches; attempts were never known


def test_a_film_is_made_by_one_thread(folder: Path) -> None:
    """Two of them wait for each other at every operation on some dozen animals, which took ten times the CPU time."""
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        render.film(
            render.load(folder), steps=3, pixels=48, progress=lambda done, total: seen.append(torch.get_num_threads())
        )
        assert seen == [1, 1, 1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_film_as_video(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="the extra `ecosystem` is not installed")
    frames = render.film(render.load(folder), steps=6, pixels=96)
    render.save(frames, tmp_path / "hunt.mp4")
    assert b"ftyp" in (tmp_path / "hunt.mp4").read_bytes()[:32]


def test_what_cannot_be_rendered(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ecosystem", "render", folder.name, "--folder", str(tmp_path)]
    assert main([*words, "--out", "hunt.avi"]) == 2
    assert "no film can be written as `hunt.avi`" in capsys.readouterr().err
    (folder / "final.safetensors").write_bytes(b"\xff" * 100)
    assert main(words) == 2
    assert "cannot be read" in capsys.readouterr().err
    (folder / "final.safetensors").unlink()
    with pytest.raises(UserError, match="has no weights yet"):
        render.load(folder)
    save_file({"prey.own.0.weight": torch.zeros(3)}, folder / "final.safetensors")
    with pytest.raises(UserError, match="do not fit its preset"):
        render.load(folder)
    (folder / "ecosystem.json").write_text('{"preset": "tiny", "rules": {"prey": "all"}}')
    with pytest.raises(UserError, match="not the rules of a world"):
        render.load(folder)
    (folder / "ecosystem.json").write_text("[")
    with pytest.raises(UserError, match="is not a run of the ecosystem"):
        render.load(folder)


def test_the_picture_shows_who_is_there(tmp_path: Path) -> None:
    world = World(Rules(worlds=1, size=14.0, prey=1, predators=1), 0)
    world.x[0, 0], world.y[0, 0], world.energy[0, 0] = 3.0, 4.0, 1.0
    scene = picture.scene_of(world)
    assert scene["prey"][0][:3] == [3.0, 4.0, 1.0] and len(scene["predators"]) == 1
    image = picture.draw(scene, pixels=280)
    assert image.getpixel((60, 80)) == picture.PREY_COLOUR
    picture.live(tmp_path, world, 5, {"catch_rate": 1.0})
    kept = json.loads((tmp_path / "world.json").read_text())
    assert kept["turn"] == 5 and kept["prey"] == scene["prey"] and (tmp_path / "world.png").stat().st_size > 1000
    picture.live(tmp_path / "gone", world, 5, {})  # a folder that is not there is no reason to stop


def test_a_film_is_of_one_turn_and_stays_small(tmp_path: Path) -> None:
    world, film = World(RULES, 0), picture.Film()
    for _ in range(5):
        film.look(world)
        film.look(world)  # as often as one likes
        world.step(np.full(world.shape, 0))
    assert [frame["time"] for frame in film.frames] == [0, 1, 2, 3, 4]
    undone = World(RULES, 0)
    undone.step(np.full(undone.shape, 0))
    film.look(undone)  # the turn was taken back: what came after is filmed again
    assert [frame["time"] for frame in film.frames] == [0, 1]
    for _ in range(3 * picture.MOST_FRAMES):
        film.look(undone)
        undone.step(np.full(undone.shape, 0))
    assert picture.MOST_FRAMES / 4 < len(film.frames) <= picture.MOST_FRAMES
    picture.live(tmp_path, undone, 2, {}, film)
    found = scenes.world(json.loads((tmp_path / "world.json").read_text()))
    assert found is not None and len(found["frames"]) == len(film.frames) + 1
    assert len(found["frames"][0]["prey"]) == 10 and len(found["grass"]) == len(undone.grass[0])
    assert found["facts"][:2] == ["catch_rate", "attempts"]
