"""Where compiled kernels are kept: in the user's own cache folder, and never in a folder that came from elsewhere.

    env = {**os.environ, **variables()}       # for a child that imports torch: before it does
    adopt()                                   # the same for this process
    where, why = place()                      # the folder, and why it is not the usual one

torch reads its compile cache with pickle and loads the libraries in it: whoever can write there can run code as this
user. So the folder is 0700, belongs to the user, and so do the folders above it (or to root). Where that is not so,
kernels are compiled into a new folder that lasts as long as the process. A variable that the user has set stays.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from holdfast.base.files import kind_of

_NAMES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def variables(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a child that compiles needs in its environment; nothing for what `env` says already."""
    env = os.environ if env is None else env
    missing = [name for name in _NAMES if not env.get(name)]
    if not missing:
        return {}
    folder, _why = place()
    return {name: str(folder / _NAMES[name]) for name in missing}


def adopt() -> None:
    """For a process that imports torch itself."""
    os.environ.update(variables())


@functools.cache
def place() -> tuple[Path, str | None]:
    """The folder, made and checked, and why it is a temporary one if it is."""
    wanted = user_cache() / "compile"
    try:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        why = _unsafe(wanted)
    except OSError as error:
        why = error.strerror or str(error)
    if why is None:
        return wanted, None
    spare = Path(tempfile.mkdtemp(prefix="holdfast-compile-"))
    atexit.register(shutil.rmtree, spare, ignore_errors=True)
    return spare, f"{wanted}: {why}"


def user_cache(env: Mapping[str, str] | None = None) -> Path:
    """Where this user keeps what can be made again."""
    env = os.environ if env is None else env
    said = env.get("XDG_CACHE_HOME", "")  # its specification says to ignore a relative path
    if os.path.isabs(said):
        return Path(said) / "holdfast"
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    if sys.platform == "win32":
        return Path(env.get("LOCALAPPDATA") or home / "AppData" / "Local") / "holdfast" / "cache"
    return home / ("Library/Caches/holdfast" if sys.platform == "darwin" else ".cache/holdfast")


def _unsafe(folder: Path) -> str | None:
    """Why somebody else could have put something there; None if nobody could."""
    if not folder.is_absolute():
        return "its path depends on the current folder"
    if kind_of(folder) == "a link":
        return "it is a link"
    if not hasattr(os, "getuid"):
        return None
    about = folder.lstat()
    if about.st_uid != os.getuid():
        return f"it belongs to uid {about.st_uid}"
    if about.st_mode & 0o077:
        return f"others may use it (mode {stat.S_IMODE(about.st_mode):o}); `chmod 700` it if its content is yours"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "it cannot be written"
    return next((why for above in folder.resolve().parents if (why := _replaceable(above)) is not None), None)


def _replaceable(folder: Path) -> str | None:
    """Why somebody else could put another folder in the place of one in here."""
    about = folder.stat()
    if sys.platform == "win32":
        return None
    if about.st_uid not in (0, os.getuid()):
        return f"{folder} belongs to uid {about.st_uid}"
    open_to_all = about.st_mode & stat.S_IWOTH
    open_to_group = about.st_mode & stat.S_IWGRP and not _own_group(about.st_gid)
    if (open_to_all or open_to_group) and not about.st_mode & stat.S_ISVTX:
        return f"others may write to {folder}"
    return None


def _own_group(number: int) -> bool:
    """Many systems give each user a group that has the user's name and nobody else in it."""
    if sys.platform == "win32":
        return False
    import grp
    import pwd

    if number == 0:
        return True
    try:
        group, name = grp.getgrgid(number), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}
