"""Images as they come: 8 or 16 bits, grey or colour; read, sized, and kept in memory as far as it goes.

    look(path)                                   # (width, height, channels) from the header; Bad if it is none or cut
    pixels(path, channels=1)                     # uint8 (height, width, channels)
    Kept(count=320, side=416, channels=1, most=2 << 30)     # decoded images, shared with loader processes

Sixteen bits are stretched to eight between the 0.5th and the 99.5th percentile of the image, as the automatic gain of a
thermal camera does. Nothing else is done to what was recorded.
"""

from __future__ import annotations

import mmap
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from holdfast.base.data_files import open_file
from holdfast.workloads.detection.problems import KINDS

Pixels = NDArray[np.uint8]
ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp"})
GREY = frozenset({"1", "L", "I", "F", "I;16", "I;16B", "I;16L", "I;16N", "LA"})
FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP")
"""What is read, whatever a file is called. Pillow knows more; for some it starts programs (`gs` for PostScript)."""
MOST_PIXELS = 200_000_000
"""An image of more is refused: a file of a few bytes can claim any size."""
EMPTY = 114
"""Where there is no image: a middle grey."""


class Bad(Exception):
    """An image that cannot be used; `kind` is one of the problems."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        assert kind in KINDS
        self.kind = kind


def look(path: str) -> tuple[int, int, int]:
    """Width, height and channels from the header, and whether the end of the file is there. Nothing is decoded."""
    try:
        with open_file(path) as file:
            with Image.open(file, formats=FORMATS) as image:
                width, height = image.size
                channels, form = 1 if image.mode in GREY else 3, image.format or ""
            _ends(file, form)
    except Bad:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, EOFError) as error:
        raise Bad("unreadable", _short(error)) from None
    if width * height > MOST_PIXELS:
        raise Bad("unreadable", f"{width} x {height} pixels are more than {MOST_PIXELS:,}")
    return width, height, channels


def _ends(file: Any, form: str) -> None:
    """A copy that broke off has no end mark: found without decoding, so that it costs nothing for 300,000 images."""
    mark = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}.get(form)
    if mark is None:
        return
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - 4096))  # some cameras append a little after the end
    if mark not in file.read():
        raise Bad("truncated", f"cut off after {length:,} bytes: no end of the {form} in it")


def pixels(path: str, channels: int) -> Pixels:
    """The whole image, decoded; Bad if it cannot be."""
    try:
        with open_file(path) as file, Image.open(file, formats=FORMATS) as image:
            if image.size[0] * image.size[1] > MOST_PIXELS:
                raise Bad("unreadable", "too many pixels")
            if image.mode.startswith("I") or image.mode == "F":
                return _stretched(np.asarray(image), channels)
            return plain(image.convert("L" if channels == 1 else "RGB"))
    except Bad:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, EOFError, MemoryError) as error:
        raise Bad("unreadable", _short(error)) from None


def plain(image: Image.Image) -> Pixels:
    array = np.array(image, dtype=np.uint8)
    return array[..., None] if array.ndim == 2 else array


def _stretched(raw: NDArray[Any], channels: int) -> Pixels:
    values = raw.astype(np.float32)
    low, high = np.percentile(values, (0.5, 99.5))
    grey = np.clip((values - low) * (255.0 / max(float(high - low), 1.0)), 0, 255).astype(np.uint8)
    return np.repeat(grey[..., None], channels, axis=2)


def fitted(image: Pixels, side: int) -> Pixels:
    """The same image with its longer side as given."""
    height, width = image.shape[:2]
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return resized(image, size)


def resized(image: Pixels, size: tuple[int, int], part: tuple[float, float, float, float] | None = None) -> Pixels:
    """To (width, height), all of it or a part x1 y1 x2 y2; smaller by areas, larger by interpolation."""
    x1, y1, x2, y2 = part or (0.0, 0.0, float(image.shape[1]), float(image.shape[0]))
    if part is None and size == (image.shape[1], image.shape[0]):
        return image
    made = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    how = Image.Resampling.BOX if size[0] < x2 - x1 else Image.Resampling.BILINEAR
    return plain(made.resize(size, how, box=(x1, y1, x2, y2)))


def _short(error: BaseException) -> str:
    text = str(error).split(" <_io")[0].replace("cannot identify image file", "no image that is known")
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return (text or type(error).__name__)[:120]


def sheet(image: Pixels, shape: tuple[int, int]) -> Pixels:
    """The image on a sheet of (height, width)."""
    canvas = np.full((*shape, image.shape[2]), EMPTY, np.uint8)
    height, width = min(image.shape[0], shape[0]), min(image.shape[1], shape[1])
    canvas[:height, :width] = image[:height, :width]
    return canvas


class Kept:
    """Decoded images in one piece of memory that loader processes share, as many as fit into `most` bytes.

    The first so many images of the set have a place, the others are decoded each time. It is a cache and no more: a
    new process begins with an empty one.
    """

    def __init__(self, count: int, side: int, channels: int, most: int) -> None:
        self.side, self.channels = side, channels
        self.slot = side * side * channels
        self.places = max(0, min(count, most // self.slot))
        self.memory = mmap.mmap(-1, self.places * (self.slot + 8)) if self.places else None

    def __getstate__(self) -> dict[str, Any]:
        """To a process that shares no memory with this one: an empty cache."""
        return {**self.__dict__, "memory": None, "places": 0}

    def get(self, index: int) -> Pixels | None:
        """A copy of image `index`, or None."""
        if self.memory is None or index >= self.places:
            return None
        height, width = self._sizes()[index]
        if not height:
            return None
        at = self._start(index)
        flat = np.frombuffer(self.memory, np.uint8, height * width * self.channels, at)
        return flat.reshape(height, width, self.channels).copy()

    def put(self, index: int, image: Pixels) -> None:
        if self.memory is None or index >= self.places or image.size > self.slot:
            return
        at = self._start(index)
        np.frombuffer(self.memory, np.uint8, image.size, at)[:] = image.reshape(-1)
        self._sizes()[index] = image.shape[:2]  # last: whoever sees the size sees the pixels

    def _sizes(self) -> NDArray[np.int32]:
        assert self.memory is not None
        return np.frombuffer(self.memory, np.int32, 2 * self.places).reshape(-1, 2)

    def _start(self, index: int) -> int:
        return self.places * 8 + index * self.slot


def room(share: float = 0.25) -> int:
    """Bytes that decoded images may take: a part of what is free now, and of what the container allows."""
    free: list[int] = []
    try:
        if sys.platform != "win32":
            free.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
        with open("/proc/meminfo", encoding="ascii") as file:
            told = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file if line.split()[1:]}
        free = [told.get("MemAvailable", free[0])]
    except (OSError, ValueError, AttributeError, IndexError):
        pass
    for limit, used in (("memory.max", "memory.current"),):
        try:
            with open(f"/sys/fs/cgroup/{limit}") as most, open(f"/sys/fs/cgroup/{used}") as now:
                free.append(int(most.read()) - int(now.read()))
        except (OSError, ValueError):
            continue
    return int(share * max(0, min(free, default=1 << 30)))
