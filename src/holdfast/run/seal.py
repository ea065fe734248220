"""The seal of a run: this user started, here, what its run.json says. A copy and a received folder do not have it.

    info["seal"] = made(path, info)          # when the run is started, or a person has said yes to it
    holds(path, info)                        # before anything that run.json names is started
    kept(path, before, after)                # run.json as it is to be written: a seal that held goes on to hold
    carried(old, new, info)                  # the run goes on in another folder, by our own doing

The seal is a message authentication code over all that a resume would start, or hand to what it starts (FIELDS), and
over the place of the folder. Its key is in the user's state folder. There are two codes, and one has to fit: over the
path, which stays when the machine is started again, and over the number of the folder on its disk, which stays when the
folder is moved. A copy has neither. Who may read and write the folder cannot make a code for another command.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from holdfast.base.state_folder import state_folder

SEAL = "seal"
KEY = "seal.key"
FIELDS = (
    *("created", "kind", "script", "command", "argv", "arguments", "cwd", "resume_with", "fits", "fitted", "saves"),
    *("settings", "stages", "parent", "seed", "threads"),
)
"""Of run.json: what a resume starts, with which words, and what those processes are told to load."""
_SIZE = 32


def made(path: Path, info: dict[str, Any]) -> dict[str, str]:
    """The seal of this run in this folder; empty where the state folder cannot be written."""
    secret = key()
    if secret is None:
        return {}
    return {name: _code(secret, name, place, info) for name, place in _places(path).items()}


def holds(path: Path, info: dict[str, Any]) -> bool:
    """Whether this user started here what run.json says."""
    import hmac

    said, secret = info.get(SEAL), key(make=False)
    if secret is None or not isinstance(said, dict):
        return False
    return any(
        hmac.compare_digest(str(said.get(name)).encode("utf-8", "replace"), _code(secret, name, place, info).encode())
        for name, place in _places(path).items()
    )


def kept(path: Path, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """`after` with a new seal if it needs one and the old one held: trust is handed on here, and never made."""
    same = all(before.get(name) == after.get(name) for name in FIELDS)
    if same or not holds(path, before):
        return after
    return {**after, SEAL: made(path, after)}


def carried(old: Path, new: Path, info: dict[str, Any]) -> dict[str, Any]:
    """run.json for the folder that a run goes on in, because the disk of its own fails."""
    return {**info, SEAL: made(new, info)} if holds(old, info) else info


# What is sealed -----------------------------------------------------------------------------------------------


def _fields(info: dict[str, Any]) -> str:
    """As JSON, which is what run.json gives back."""
    said = {name: info.get(name) for name in FIELDS}
    script = said["script"]
    # A path through /proc/self/cwd, or through a link, is another file elsewhere or later.
    if isinstance(script, str) and os.path.isabs(script) and "\0" not in script:
        said["file"] = os.path.realpath(script)
    return json.dumps(json.loads(json.dumps(said, default=str)), sort_keys=True)


def _places(path: Path) -> dict[str, str]:
    places = {"path": os.path.realpath(path)}
    with contextlib.suppress(OSError):
        there = os.stat(path)
        places["folder"] = f"{there.st_dev}:{there.st_ino}"
    return places


def _code(secret: bytes, name: str, place: str, info: dict[str, Any]) -> str:
    import hmac

    text = json.dumps([name, place, _fields(info)])
    return hmac.new(secret, text.encode(), "sha256").hexdigest()


# The key ------------------------------------------------------------------------------------------------------


def key(*, make: bool = True) -> bytes | None:
    """This user's key; None if there is none, or if others could have read or written it."""
    path = state_folder() / KEY
    for _ in range(3):
        with contextlib.suppress(OSError):
            found = _read(path)
            if found is not None or not make:
                return found
            path.unlink()  # it was open to others, or cut short: what it sealed is worth nothing
        if not make or not _make(path):
            return None
    return None


def _read(path: Path) -> bytes | None:
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(fd)
        private = not hasattr(os, "getuid") or (
            status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
        )
        data = os.read(fd, _SIZE + 1)
        return data if private and len(data) == _SIZE else None
    finally:
        os.close(fd)


def _make(path: Path) -> bool:
    """Whether there is a key now: another process may have been first. Nobody ever sees half of one."""
    import secrets

    new = path.with_name(f".{KEY}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        try:
            os.write(fd, secrets.token_bytes(_SIZE))
            os.fsync(fd)
        finally:
            os.close(fd)
        with contextlib.suppress(FileExistsError):
            try:
                os.link(new, path)
            except FileExistsError:
                raise
            except OSError:  # a disk without hard links: the last one to come wins, and no key is ever half
                os.replace(new, path)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            new.unlink()
    return True
