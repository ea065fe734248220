"""A report without what is nobody's business: secrets, names, addresses, numbers of devices, and where files lie.

    clean = scrub(data, words={"/tmp/tmpx2/runs": "RUNS"})      # any JSON, changed in its texts only
    found = left_in(text)                                       # what is still in it; empty, or it is not to be sent

What a person would know themselves by goes: the home folder, the user's and the machine's name, numbers of devices
(uuid, serial), addresses of networks, and every path that is not the system's own, of which the last part stays.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping
from typing import Any

from holdfast.base.human import shorten
from holdfast.run import machine

LEFT_OUT = "(left out)"
_KEYS = re.compile(r"uuid|serial|unique_id|boot_id|hostname|user|cookie|token|secret|password", re.IGNORECASE)
"""Fields whose values are left out, whatever they are."""
_VERSIONS = frozenset({"driver", "version", "kernel", "cuda", "hip", "rocm", "xpu"})
"""Fields that hold a version: four numbers with points are no address there."""
_SYSTEM = ("/dev", "/sys", "/proc", "/usr", "/opt/rocm", "/lib", "/etc/os-release")
_PATH = re.compile(r"(?<![\w.~/-])/(?:[^\s/\"'`,;:()<>|]+/)+[^\s/\"'`,;:()<>|]*")
_WINDOWS_PATH = re.compile(r"\b[A-Za-z]:\\(?:[^\s\\\"'`,;:()<>|]+\\)+[^\s\\\"'`,;:()<>|]*")
_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_NUMBER = re.compile(r"\bGPU-[0-9a-f-]{8,}|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.]+\b")
_COMMON = frozenset(
    {"root", "user", "admin", "localhost", "docker", "nobody", "linux", "ubuntu", "runner", "test", "holdfast"}
)
"""Names that say nothing about anybody, and stand in messages of their own right."""


def scrub(data: Any, words: Mapping[str, str] | None = None) -> Any:
    """The same data without them; `words` are replaced first, as they stand."""
    if isinstance(data, dict):
        return {_text(str(key), words): _field(str(key), value, words) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [scrub(each, words) for each in data]
    return _text(data, words) if isinstance(data, str) else data


def _field(key: str, value: Any, words: Mapping[str, str] | None) -> Any:
    if key in _VERSIONS and isinstance(value, str) and re.fullmatch(r"[\w.+-]+", value):
        return value
    named = _KEYS.search(key) or machine.secret(key.upper(), "")
    return LEFT_OUT if named and isinstance(value, str) and value else scrub(value, words)


def _text(text: str, words: Mapping[str, str] | None) -> str:
    if machine.secret("", text):
        return LEFT_OUT
    for word, instead in (words or {}).items():
        text = text.replace(word, instead)
    text = shorten(text)
    for name in own_names():
        text = re.sub(rf"(?<![\w]){re.escape(name)}(?![\w])", LEFT_OUT, text)
    for pattern in (_MAIL, _NUMBER, _ADDRESS):
        text = pattern.sub(LEFT_OUT, text)
    text = _PATH.sub(lambda match: _last(match[0], "/"), text)
    return _WINDOWS_PATH.sub(lambda match: _last(match[0], "\\"), text)


def _last(path: str, separator: str) -> str:
    ours = separator == "/" and any(path == place or path.startswith(f"{place}/") for place in _SYSTEM)
    return path if ours else f"…{separator}{path.rstrip(separator).rpartition(separator)[2]}"


def own_names() -> list[str]:
    """The names of the user and of the machine, where they are names at all."""
    found = {os.path.basename(os.path.expanduser("~").rstrip("/\\")), socket.gethostname(), os.environ.get("USER", "")}
    try:
        found.add(getpass.getuser())
    except (KeyError, OSError, ImportError):  # a user without a name, as containers have
        pass
    return sorted(name for name in found if len(name) > 2 and name.lower() not in _COMMON)


def left_in(text: str) -> list[str]:
    """What of it should not be there: a last look at the whole before it is written."""
    home = os.path.expanduser("~").rstrip("/\\")
    found = [name for name in own_names() if re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text)]
    found += [home] if len(home) > 1 and home != "/root" and home in text else []
    return found + [match[0] for pattern in (_MAIL, _NUMBER) for match in pattern.finditer(text)]
