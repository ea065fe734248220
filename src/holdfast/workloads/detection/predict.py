"""Use a trained detector: on images, folders and videos; boxes drawn, and as JSON, CSV or YOLO files.

    finder = Finder.of(run_folder)                          # or of a .safetensors file beside its detector.json
    for seen in look_at(finder, ["photos", "drive.mp4"]):   # one Seen for each image or frame
        seen.path, seen.frame, seen.rows                    # rows x1 y1 x2 y2 score class, in pixels
    Writer(out, finder.names, formats=("json", "csv"))     # .add(seen) for each, then .close()

A file that cannot be read is told and passed over: one broken image does not end a night's work.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from holdfast.base import files
from holdfast.base.data_files import open_file
from holdfast.base.errors import UserError
from holdfast.workloads.detection import images, nets, pictures, saved
from holdfast.workloads.detection.answers import boxes_of, to_image
from holdfast.workloads.detection.bundled import Bundled
from holdfast.workloads.detection.images import Pixels
from holdfast.workloads.detection.walking import walk

VIDEOS = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".gif"})
FORMATS = ("json", "csv", "yolo")
BATCH = 8
"""Images that the network looks at together, if they have the same size."""


@dataclass
class Seen:
    """One image or frame, and what was found in it."""

    path: str
    frame: int | None
    """The number of a frame of a video, from 0; None for an image."""
    pixels: Pixels
    rows: NDArray[np.float32]

    @property
    def size(self) -> tuple[int, int]:
        return self.pixels.shape[1], self.pixels.shape[0]


class Finder:
    """A detector that is ready."""

    def __init__(self, net: nets.Net, names: list[str], side: int, channels: int) -> None:
        self.net, self.names, self.side, self.channels = net, names, side, channels

    @classmethod
    def of(cls, where: Path, *, imgsz: int = 0, device: str = "cpu", images: int = 1) -> Finder:
        """Of a run or a file; `images` says how many there will be to look at, about."""
        path, about = saved.find(where)

        def load() -> Any:
            from holdfast.workloads.detection import weights

            return weights.load(where)[0]

        channels = int(about["channels"])
        side = max(32, round((imgsz or int(about["imgsz"])) / 32) * 32)
        net = nets.ready(path, channels, load, images=images, device=device)
        return cls(net, [str(each) for each in about["names"]], side, channels)

    def find(self, image: Pixels, score: float = 0.25) -> NDArray[np.float32]:
        """What is in one image, the surest first."""
        return self.find_many([image], score)[0]

    def find_many(self, given: Sequence[Pixels], score: float = 0.25) -> list[NDArray[np.float32]]:
        """What is in each image; those of one size go through the network together."""
        fitted = [images.fitted(each, self.side) for each in given]
        shapes = [(-(-each.shape[0] // 32) * 32, -(-each.shape[1] // 32) * 32) for each in fitted]
        found: list[NDArray[np.float32]] = [np.zeros((0, 6), np.float32)] * len(given)
        for shape in dict.fromkeys(shapes):
            same = [number for number, each in enumerate(shapes) if each == shape]
            batch = np.stack([images.sheet(fitted[number], shape).transpose(2, 0, 1) for number in same])
            for number, rows in zip(same, boxes_of(self.net.run(batch), shape, score), strict=True):
                found[number] = to_image(rows, (given[number].shape[1], given[number].shape[0]), self.side)
        return found


def look_at(
    finder: Finder | Bundled,
    given: Iterable[str],
    *,
    score: float = 0.25,
    told: Callable[[str], None] = lambda text: None,
) -> Iterator[Seen]:
    """Every image and every frame, in order; the next ones are read while the network looks at some."""
    for some in ahead(in_groups(views(listed(given), finder.channels, told), BATCH)):
        pixels = [each for _, _, each in some]
        for (path, frame, image), rows in zip(some, finder.find_many(pixels, score), strict=True):
            yield Seen(path, frame, image, rows)


View = tuple[str, int | None, Pixels]


def views(paths: Iterable[str], channels: int, told: Callable[[str], None]) -> Iterator[View]:
    """Path, number of the frame, pixels of all that can be read; what cannot be is told."""
    for path in paths:
        try:
            if Path(path).suffix.lower() in VIDEOS:
                for number, pixels in enumerate(frames(path, channels)):
                    yield path, number, pixels
            else:
                yield path, None, images.pixels(path, channels)
        except images.Bad as bad:
            told(f"! {path} cannot be read: {bad}")


def in_groups(each: Iterator[View], size: int) -> Iterator[list[View]]:
    while some := list(islice(each, size)):
        yield some


def ahead(groups: Iterator[list[View]]) -> Iterator[list[View]]:
    """The same, with one group read before it is asked for, by a thread: decoding leaves the interpreter to others."""
    with ThreadPoolExecutor(1, thread_name_prefix="reading") as reader:
        following = reader.submit(next, groups, None)
        while (some := following.result()) is not None:
            following = reader.submit(next, groups, None)
            yield some


def listed(given: Iterable[str]) -> list[str]:
    """Files as they are, folders as what is in them; UserError for what is not there."""
    found: list[str] = []
    for each in given:
        path = Path(each).expanduser()
        if path.is_dir():
            found += walk(path, (*images.ENDINGS, *VIDEOS))
        elif path.is_file():
            if path.suffix.lower() not in images.ENDINGS | VIDEOS:
                raise UserError(f"{each} is neither an image nor a video", cause=f"known are {_endings()}")
            found.append(str(path))
        else:
            raise UserError(f"there is no {each}")
    if not found:
        raise UserError("nothing to look at", cause=f"no file in there ends in {_endings()}")
    return found


def _endings() -> str:
    return " ".join(sorted(images.ENDINGS | VIDEOS))


def frames(path: str, channels: int) -> Iterator[Pixels]:
    """The frames of a video, one at a time."""
    if path.lower().endswith(".gif"):
        try:
            with open_file(path) as file, Image.open(file, formats=("GIF",)) as whole:
                if whole.size[0] * whole.size[1] > images.MOST_PIXELS:
                    raise ValueError(f"more than {images.MOST_PIXELS:,} pixels")
                for each in ImageSequence.Iterator(whole):
                    yield images.plain(each.convert("L" if channels == 1 else "RGB"))
        except (OSError, ValueError, EOFError, SyntaxError, Image.DecompressionBombError) as error:
            raise images.Bad("unreadable", str(error)[:120]) from None
        return
    reader = _ffmpeg().read_frames(path)
    try:
        width, height = next(reader)["size"]
        for frame in reader:
            image = Image.frombytes("RGB", (width, height), frame)
            yield images.plain(image.convert("L" if channels == 1 else "RGB"))
    except (OSError, ValueError, RuntimeError, StopIteration, KeyError) as error:
        raise images.Bad("unreadable", (str(error).splitlines() or ["no video"])[0][:120]) from None
    finally:
        reader.close()


def rate_of(path: str) -> float:
    """Frames per second of a video; ten where that is not known."""
    if path.lower().endswith(".gif"):
        return 10.0
    reader = _ffmpeg().read_frames(path)
    try:
        return float(next(reader)["fps"]) or 10.0
    except (OSError, ValueError, RuntimeError, StopIteration, KeyError):
        return 10.0
    finally:
        reader.close()


def _ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise UserError(
            "videos need imageio-ffmpeg", cause="not installed", hints=["pip install 'holdfast[detection]'"]
        ) from None
    return imageio_ffmpeg


# What is written ------------------------------------------------------------------------------------------------


class Writer:
    """Puts pictures and tables into a folder."""

    def __init__(self, folder: Path, names: list[str], formats: Iterable[str] = FORMATS, *, draw: bool = True) -> None:
        self.folder, self.names, self.draw = folder, names, draw
        self.formats = tuple(formats)
        wrong = [each for each in self.formats if each not in FORMATS]
        if wrong:
            raise UserError(f"unknown format `{wrong[0]}`", cause=f"there are: {', '.join(FORMATS)}")
        self.rows: list[dict[str, Any]] = []
        self._video: tuple[str, Any] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder} cannot be written", cause=error.strerror or str(error)) from None

    def add(self, seen: Seen) -> None:
        """One image or frame."""
        width, height = seen.size
        found = [
            {"class": int(row[5]), "name": self._name(int(row[5])), "score": round(float(row[4]), 4),
             "box": [round(float(each), 2) for each in row[:4]]}
            for row in seen.rows
        ]  # fmt: skip
        self.rows.append({"path": seen.path, "frame": seen.frame, "width": width, "height": height, "found": found})
        if self.draw:
            picture = pictures.drawn(seen.pixels, seen.rows, self.names)
            if seen.frame is None:
                picture.save(self.folder / f"{self._stem(seen)}.jpg", quality=92)
            else:
                self._frame(seen.path, picture)
        if "yolo" in self.formats:
            (self.folder / "labels").mkdir(exist_ok=True)
            (self.folder / "labels" / f"{self._stem(seen)}.txt").write_text(as_yolo(seen.rows, seen.size))

    def close(self) -> list[Path]:
        """Write the tables; returns them."""
        self._end_video()
        made = []
        if "json" in self.formats:
            made.append(self.folder / "found.json")
            files.write_json(made[-1], {"schema": 1, "names": self.names, "images": self.rows}, durable=False)
        if "csv" in self.formats:
            made.append(self.folder / "found.csv")
            self._csv(made[-1])
        if "yolo" in self.formats:
            made.append(self.folder / "labels")
        return made

    def _csv(self, path: Path) -> None:
        with open(path, "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["path", "frame", "name", "class", "score", "x1", "y1", "x2", "y2"])
            for row in self.rows:
                for each in row["found"]:
                    frame = "" if row["frame"] is None else row["frame"]
                    table.writerow([row["path"], frame, each["name"], each["class"], each["score"], *each["box"]])

    def _name(self, kind: int) -> str:
        return self.names[kind] if kind < len(self.names) else str(kind)

    def _stem(self, seen: Seen) -> str:
        """Two files of the same name in different folders do not overwrite each other."""
        stem = Path(seen.path).stem + ("" if seen.frame is None else f"_{seen.frame:06d}")
        same = {os.path.dirname(row["path"]) for row in self.rows if Path(row["path"]).stem == Path(seen.path).stem}
        return stem if len(same) <= 1 else f"{Path(seen.path).parent.name}-{stem}"

    def _frame(self, path: str, picture: Image.Image) -> None:
        even = picture.crop((0, 0, picture.width // 2 * 2, picture.height // 2 * 2))  # the codec wants it so
        if self._video is None or self._video[0] != path:
            self._end_video()
            target = str(self.folder / f"{Path(path).stem}.mp4")
            writer = _ffmpeg().write_frames(target, even.size, fps=rate_of(path), macro_block_size=2)
            writer.send(None)
            self._video = path, writer
        self._video[1].send(even.tobytes())

    def _end_video(self) -> None:
        if self._video is not None:
            self._video[1].close()
            self._video = None


def as_yolo(rows: NDArray[np.float32], size: tuple[int, int]) -> str:
    """`class cx cy width height score` a line, in shares of the image."""
    lines = []
    for x1, y1, x2, y2, score, kind in rows.tolist():
        cx, cy, wide, high = (x1 + x2) / 2 / size[0], (y1 + y2) / 2 / size[1], (x2 - x1) / size[0], (y2 - y1) / size[1]
        lines.append(f"{kind:.0f} {cx:.6f} {cy:.6f} {wide:.6f} {high:.6f} {score:.4f}\n")
    return "".join(lines)
