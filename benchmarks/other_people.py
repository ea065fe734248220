"""Scripts of other people: out of a fetched repository, patched, in a folder of their own, with made-up data.

    script = fetched(source, folder, Path("DIR"), patches=[HERE / "nanogpt.patch"])     # or Skip
    digits(folder, 320); pictures(folder, ("cat", "dog"), 12, 64); text(folder, 4000)

`DIR` has git repositories as OWNER+NAME/repo. Nothing of a script is kept here but the lines around a change.
"""

from __future__ import annotations

import os
import pickle
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Skip(Exception):
    """Why a script cannot be tried here."""


class Source(Protocol):
    """Where a script comes from."""

    @property
    def repository(self) -> str: ...

    @property
    def commit(self) -> str: ...

    @property
    def files(self) -> tuple[str, ...]:
        """The script first; a folder ends with a slash."""


def fetched(source: Source, folder: Path, sources: Path, patches: Sequence[Path]) -> Path:
    """The script in a folder of its own; returns its path."""
    repository = sources / source.repository.replace("/", "+") / "repo"
    if not repository.exists():
        raise Skip(f"{source.repository} is not in {sources}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    git = ["git", "-C", str(repository)]
    for path in source.files:
        if path.endswith("/"):
            archive = subprocess.run([*git, "archive", source.commit, path], capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
        else:
            found = subprocess.run([*git, "show", f"{source.commit}:{path}"], capture_output=True, check=True).stdout
            (folder / Path(path).name).write_bytes(found)
    for patch in patches:
        order = ["git", "apply", "-p0", "--whitespace=nowarn", str(patch)]
        subprocess.run(order, cwd=folder, check=True, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)})
    return folder / Path(source.files[0]).name


# Data -------------------------------------------------------------------------------------------------------------


def digits(folder: Path, count: int) -> None:
    """Files in the format of MNIST, where scripts look for them."""
    import numpy as np

    raw, dice = folder / "data" / "MNIST" / "raw", np.random.default_rng(0)
    raw.mkdir(parents=True, exist_ok=True)
    for word, number in (("train", count), ("t10k", 64)):
        images = dice.integers(0, 256, (number, 28, 28), dtype=np.uint8).tobytes()
        (raw / f"{word}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, number, 28, 28) + images)
        labels = dice.integers(0, 10, number, dtype=np.uint8).tobytes()
        (raw / f"{word}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, number) + labels)


def pictures(folder: Path, labels: Sequence[str], count: int, size: int) -> None:
    """So many of each label to train with, and four to look at, all square."""
    import numpy as np
    from PIL import Image

    dice = np.random.default_rng(0)
    for split, number in (("train", count), ("val", 4)):
        for label in labels:
            place = folder / "pictures" / split / label
            place.mkdir(parents=True, exist_ok=True)
            for at in range(number):
                Image.fromarray(dice.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(place / f"{at}.png")


def text(folder: Path, length: int) -> None:
    """Random letters, as nanoGPT reads them."""
    import numpy as np

    place, dice = folder / "data" / "tiny", np.random.default_rng(0)
    place.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        dice.integers(0, 64, length).astype(np.uint16).tofile(place / f"{split}.bin")
    with (place / "meta.pkl").open("wb") as file:
        pickle.dump({"vocab_size": 64}, file)


def nothing(folder: Path) -> None:
    """The script makes its own."""
