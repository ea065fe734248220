"""The disk under the run folder: how much is free, and what kind of file system it is."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from holdfast.base.human import shorten
from holdfast.devices.survey.kernel_files import read
from holdfast.devices.survey.records import Disk

_NETWORK = re.compile(r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|gpfs|beegfs|fuse\.(sshfs|s3fs|gcsfuse|rclone|juicefs)")
_MEMORY = ("tmpfs", "ramfs")


def look(folder: Path, root: Path = Path("/")) -> Disk:
    """Of a folder that may not be there yet: the nearest above it that is."""
    here = Path(os.path.abspath(folder))
    while not here.exists() and here != here.parent:
        here = here.parent
    try:
        space = shutil.disk_usage(here)
    except OSError:
        space = None
    kind, device = mounted(here.resolve(), root)
    return Disk(
        folder=shorten(str(folder)),
        free_bytes=space.free if space else None,
        total_bytes=space.total if space else None,
        filesystem=kind,
        rotating=_rotating(device, root) if device else None,
        in_memory=kind in _MEMORY if kind else None,
        over_network=bool(_NETWORK.fullmatch(kind)) if kind else None,
    )


def mounted(path: Path, root: Path) -> tuple[str | None, str | None]:
    """(file system, major:minor of its device) from the kernel's table of mounts; the deepest one holds the path."""
    best: tuple[int, str | None, str | None] = (-1, None, None)
    for line in read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or not kind:
            continue
        point = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        if (point == path or point in path.parents) and len(point.parts) >= best[0]:
            best = (len(point.parts), kind[0], fields[2])
    return best[1], best[2]


def _rotating(device: str, root: Path) -> bool | None:
    """A partition has no queue of its own: the disk above it has."""
    folder = root / "sys/dev/block" / device
    for place in (folder / "queue/rotational", folder / "../queue/rotational"):
        said = read(place).strip()
        if said in ("0", "1"):
            return said == "1"
    return None
