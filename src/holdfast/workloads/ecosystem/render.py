"""A film of what a run has learned: its policies in a fresh world, and the curves of how they came to it.

    players = load(run_folder)                         # policies from final.safetensors, or the newest checkpoint
    frames = film(players, steps=200, seed=7)          # Pillow images
    save(frames, Path("world.gif"))                    # .gif, .png (the last picture), .mp4 with imageio-ffmpeg
    curves(run_folder)                                 # populations, catches, attempts, entropy as an image

A run folder may be anybody's: what does not fit is an error with words.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.workloads.ecosystem import picture, ppo
from holdfast.workloads.ecosystem.policy import Policy, size_of
from holdfast.workloads.ecosystem.rules import ACTIONS, SPECIES, STAY, Rules
from holdfast.workloads.ecosystem.world import World

ABOUT = "ecosystem.json"
FORMATS = (".gif", ".png", ".mp4")
LARGEST = 256 * 2**20
"""Weights beyond this are not ours."""


@dataclass(frozen=True, slots=True)
class Players:
    """What a run left, ready to play."""

    rules: Rules
    nets: dict[int, Policy]
    source: str


def load(folder: Path) -> Players:
    """Rules and policies of a run; UserError if it is of another workload, or damaged."""
    about = files.read_json(folder / ABOUT)
    if about is None:
        raise UserError(
            f"{folder.name} is not a run of the ecosystem",
            cause=f"it has no readable {ABOUT}",
            hints=["`holdfast list` shows the runs there are"],
        )
    rules = Rules.from_json(about.get("rules"))
    size = size_of(str(about.get("preset")))
    weights, source = _weights(folder)
    nets = {}
    for species, word in enumerate(SPECIES):
        net = Policy(size).requires_grad_(False).eval()
        mine = {key.removeprefix(f"{word}."): value for key, value in weights.items() if key.startswith(f"{word}.")}
        wanted = net.state_dict()
        odd = [key for key in wanted if key not in mine or mine[key].shape != wanted[key].shape]
        if odd:
            raise UserError(f"the weights of {folder.name} do not fit its preset", cause=f"{word}.{odd[0]} in {source}")
        net.load_state_dict({key: mine[key].float() for key in wanted})
        nets[species] = net
    return Players(rules, nets, source)


def _weights(folder: Path) -> tuple[dict[str, torch.Tensor], str]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found = [folder / "final.safetensors", folder / "best.safetensors"]
    found += sorted(folder.glob("checkpoints/*/state.safetensors"), reverse=True)
    for path in found:
        if path.is_file():
            break
    else:
        raise UserError(f"{folder.name} has no weights yet", hints=["wait for its first checkpoint"])
    if path.stat().st_size > LARGEST:
        raise UserError(f"the weights of {folder.name} cannot be read", cause=f"{path.name} is larger than 256 MiB")
    try:
        return load_file(path), path.name if path.parent == folder else f"checkpoint {path.parent.name}"
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"the weights of {folder.name} cannot be read", cause=f"{path.name}: {error}") from None


def film(
    players: Players,
    *,
    steps: int = 200,
    seed: int = 7,
    pixels: int = 480,
    dice: Iterable[int] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Any]:
    """A picture for each step. `dice`: species that roll dice instead, to compare."""
    if not picture.available():
        raise UserError("a picture needs Pillow", cause="not installed", hints=["pip install 'holdfast[ecosystem]'"])
    world = World(dataclasses.replace(players.rules, worlds=1, reset=False), seed)
    by_dice, rng = set(dice), np.random.default_rng(seed)
    torch.manual_seed(seed)
    frames, caught = [], 0
    with torch.inference_mode(), one_thread():
        for step in range(steps):
            prey, predators = world.population()[0]
            words = f"step {step}   prey {prey}   predators {predators}   caught {caught}"
            frames.append(picture.draw(picture.scene_of(world), pixels=pixels, caption=words))
            progress(step + 1, steps)
            if not prey + predators:
                break
            actions = np.full(world.shape, STAY)
            for species, net in players.nets.items():
                sight = world.observe(species)
                if not len(sight.slot):
                    continue
                if species in by_dice:
                    chosen = rng.integers(0, ACTIONS, len(sight.slot))
                else:
                    logits, _ = net(torch.from_numpy(sight.own), torch.from_numpy(sight.others))
                    chosen = ppo.sample(logits, SPECIES[species])[0].numpy()
                actions[sight.world, sight.slot] = chosen
            caught += int(world.step(actions).counts["catches"].sum())
    return frames


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Some dozen animals are too little for two threads: they would wait for each other at every operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def save(frames: list[Any], path: Path, *, rate: int = 15) -> None:
    """By the ending of the name."""
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise UserError(
            f"no film can be written as {path.suffix or path.name!r}", cause=f"there are {', '.join(FORMATS)}"
        )
    beside = path.with_name(f".{path.stem}.tmp{kind}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == ".png":
            frames[-1].save(beside)
        elif kind == ".gif":
            palette = picture.palette()  # few colours are a fifth of the size; its own, or the rare red gets lost
            small = [frame.quantize(palette=palette, dither=0) for frame in frames]
            small[0].save(beside, save_all=True, append_images=small[1:], duration=round(1000 / rate), loop=0)
        else:
            _mp4(frames, beside, rate)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UserError(f"{path} cannot be written", cause=error.strerror or str(error)) from None


def _mp4(frames: list[Any], path: Path, rate: int) -> None:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise UserError(
            "an .mp4 needs imageio-ffmpeg",
            cause="not installed",
            hints=["pip install 'holdfast[ecosystem]'", "or .gif"],
        ) from None
    wide, high = (each // 2 * 2 for each in frames[0].size)
    writer = imageio_ffmpeg.write_frames(
        str(path), (wide, high), fps=rate, macro_block_size=2, ffmpeg_log_level="error"
    )
    writer.send(None)
    for frame in frames:
        writer.send(np.ascontiguousarray(np.asarray(frame.crop((0, 0, wide, high)))).tobytes())
    writer.close()


# Curves -----------------------------------------------------------------------------------------------------

CURVES = (
    ("population per world", ("prey", "predators")),
    ("catches per 100 steps", ("catch_rate",)),
    ("attempts per 100 steps", ("attempts",)),
    ("chance to live 100 steps", ("survival",)),
    ("entropy", ("prey_entropy", "predators_entropy")),
)
COLOURS = ((86, 148, 62), (224, 62, 48))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that can be read."""
    rows = []
    try:
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def curves(folder: Path, *, wide: int = 480, high: int = 110) -> Any:
    """How it went, one panel below the other; None if nothing was logged."""
    from PIL import Image, ImageDraw

    rows = read_metrics(folder)
    panels = []
    for title, names in CURVES:
        lines = [_line(rows, name) for name in names]
        if any(len(line) > 1 for line in lines):
            panels.append((title, names, lines))
    if not panels:
        return None
    image = Image.new("RGB", (wide, high * len(panels)), (252, 251, 248))
    pen = ImageDraw.Draw(image)
    for number, (title, names, lines) in enumerate(panels):
        _panel(pen, title, names, lines, 0, number * high, wide, high)
    return image


def _line(rows: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    found = {}
    for row in rows:
        step, value = row.get("step"), row.get(name)
        if isinstance(step, int) and isinstance(value, (int, float)) and math.isfinite(value):
            found[step] = float(value)
    return sorted((float(step), value) for step, value in found.items())


def _panel(pen: Any, title: str, names: Any, lines: Any, left: int, top: int, wide: int, high: int) -> None:
    highest = max((value for line in lines for _, value in line), default=1.0) or 1.0
    last = max((step for line in lines for step, _ in line), default=1.0) or 1.0
    x0, y0, x1, y1 = left + 44, top + 22, left + wide - 10, top + high - 12
    pen.text((left + 8, top + 4), title, fill=(40, 38, 34))
    pen.line((x0, y1, x1, y1), fill=(200, 196, 188))
    pen.text((left + 6, y0 - 4), f"{highest:.3g}", fill=(120, 116, 108))
    pen.text((left + 6, y1 - 8), "0", fill=(120, 116, 108))
    at = left + wide - 10
    for index in range(len(lines) - 1, -1, -1):
        colour = COLOURS[index % 2] if len(lines) > 1 else COLOURS[1]
        points = [(x0 + (x1 - x0) * step / last, y1 - (y1 - y0) * value / highest) for step, value in lines[index]]
        if len(points) > 1:
            pen.line(points, fill=colour, width=2, joint="curve")
        if len(lines) > 1:
            words = names[index].replace("_", " ")
            at -= round(pen.textlength(words)) + 12
            pen.text((at, top + 4), words, fill=colour)
