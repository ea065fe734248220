"""What lets somebody in: a token for as long as the server lives, and a code that opens the door once.

    token = fresh_token()
    kept = Kept(token, port=7878)             # in a file of this user's, for scrapers; gone with `kept.remove()`
    codes = Codes()
    codes.redeem(codes.fresh())               # True, once, within a minute
    doorway("http://127.0.0.1:7878/?code=…")  # a page that leads there, which this user alone can read

Arguments of a process can be read by every user of the machine, so a browser is given the name of a file and no more.
"""

from __future__ import annotations

import contextlib
import hmac
import html
import os
import secrets
import time
from pathlib import Path

from holdfast.monitor.index import cache_folder

CODE_S = 60.0
"""Seconds in which a browser has to come with its code."""
_DOORWAY = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}"><title>holdfast</title>
<p>To <a rel="noreferrer" href="{address}">the page of holdfast</a>, once.</p></html>
"""


def fresh_token() -> str:
    return secrets.token_urlsafe(32)


class Codes:
    """Each is good once, and not for long."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def fresh(self) -> str:
        code = secrets.token_urlsafe(32)
        self._until[code] = time.monotonic() + CODE_S
        return code

    def redeem(self, said: str) -> bool:
        """Whether it was one; it is none any more."""
        found = [each for each in self._until if hmac.compare_digest(said.encode("utf-8", "replace"), each.encode())]
        return any([self._until.pop(each) > time.monotonic() for each in found])


class Kept:
    """Files of one server, which end with it."""

    def __init__(self, token: str, port: int) -> None:
        self._files: list[Path] = []
        path = cache_folder() / f"web-token-{port}"
        if _written(path, token + "\n"):
            self.add(path)

    def add(self, file: Path) -> None:
        self._files.append(file)

    def drop(self, file: Path) -> None:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)

    def remove(self) -> None:
        for file in self._files:
            self.drop(file)


def doorway(address: str) -> Path | None:
    """A file that leads a browser to an address; None where none can be written."""
    path = cache_folder() / f"open-{secrets.token_hex(8)}.html"
    return path if _written(path, _DOORWAY.format(address=html.escape(address))) else None


def _written(path: Path, text: str) -> bool:
    """A new file that only its user can read, whatever was there before."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return False
    return True
