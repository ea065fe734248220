"""Machines that were written down: a folder as `scripts/capture_machine.py` makes it, or one JSON file. No torch here.

    with load(Path("tests/devices/fixtures/rx-5600-xt-masquerading")) as there:
        there.inventory().device("cuda:0").masquerading       # True
    load(Path("tests/devices/cases/r9700-page-fault.json"))   # a case in short: cards, system, torch, message

A folder holds `machine.json`, `files.txt` (the kernel's files one after the other, each below its name; `-- a -> b --`
is a link) and `tools/NAME.txt` (what a tool printed; with a `!` in front, why it gave no answer). It may come from a
stranger: nothing in it is run, and no name in it leads out of the folder it is unpacked to.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from holdfast.base.errors import UserError
from holdfast.devices import survey
from holdfast.devices.survey import Answer, Cpu, Device, Host, Inventory, System, TorchBuild, tool_name

_LARGEST = 4 << 20


@dataclass(frozen=True)
class Recorded:
    """One machine; `message` and `ended` are what went wrong on it, where that was written down."""

    name: str
    env: dict[str, str]
    message: str = ""
    ended: str = ""
    """How the training ended: raised, crashed, hung, froze, wrong or slow; empty where nothing is known."""
    root: Path | None = None
    folder: Path | None = None
    host: Host | None = None
    build: dict[str, Any] = field(default_factory=dict)
    ready: Inventory | None = None
    """Of a case in short, which has no files."""
    owns_root: bool = False

    def run(self, words: Sequence[str], deadline_s: float) -> Answer:
        """What the tool printed on that machine."""
        path = (self.folder or Path()) / "tools" / f"{tool_name(words)}.txt"
        if self.folder is None or not path.exists():
            return Answer()
        text = path.read_text(encoding="utf-8")
        return Answer(None, text[1:].strip()) if text.startswith("!") else Answer(text)

    def inventory(self, **env: str) -> Inventory:
        if self.ready is not None:
            return self.ready
        assert self.root is not None
        return survey.take(self.root, self.run, {**self.env, **env}, self.build, host=self.host)

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *error: object) -> None:
        if self.owns_root and self.root is not None:
            shutil.rmtree(self.root, ignore_errors=True)


def load(place: Path, root: Path | None = None) -> Recorded:
    """A recorded machine; its files are unpacked into `root`, or into a folder that goes when it is closed."""
    if place.is_file():
        return short(_json(place), place.stem)
    if not (place / "machine.json").is_file():
        hints = ["name a folder with a machine.json in it, or a case (*.json)"]
        raise UserError(f"{place} is not a recorded machine", hints=hints)
    said = _json(place / "machine.json")
    there = Path(tempfile.mkdtemp(prefix="holdfast-recorded-")) if root is None else root
    files = place / "files.txt"
    if files.exists():
        unpack(files.read_text(encoding="utf-8"), there)
    try:
        host = Host(**said["host"])
        env = {str(name): str(value) for name, value in said["env"].items()}
        build = dict(said["build"])
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{place / 'machine.json'} cannot be understood", cause=f"{error}") from None
    message, ended = (str(said.get(name) or "") for name in ("message", "ended"))
    mine = root is None
    return Recorded(place.name, env, message, ended, root=there, folder=place, host=host, build=build, owns_root=mine)


def unpack(text: str, root: Path) -> None:
    """The files of `files.txt` below `root`; UserError for a name that leads out of it."""
    top = root.resolve()
    for part in re.split(r"^-- ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition(" --\n")
        name, _, target = head.partition(" -> ")
        for each in filter(None, (name, target)):
            if Path(each).is_absolute() or ".." in Path(each).parts:
                raise UserError(f"the recorded machine names {each}", cause="it leads out of its folder")
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.parent.resolve().is_relative_to(top):
            raise UserError(f"the recorded machine names {name}", cause="a link in it leads out of its folder")
        if target:
            (top / target).mkdir(parents=True, exist_ok=True)
            path.symlink_to(top / target)
        else:
            path.write_text(body, encoding="utf-8")


# A case in short ----------------------------------------------------------------------------------------------------


def short(case: Mapping[str, Any], name: str) -> Recorded:
    """A machine of which only what matters was written down."""
    try:
        said = case["machine"]
        os = said["os"]
        cards = [_card(each, number) for number, each in enumerate(said["cards"])]
        system = System(
            os="linux" if os == "wsl2" else os,
            name=said.get("name"),
            kernel=said.get("kernel"),
            machine=said.get("processor", "arm64" if os == "macos" else "x86_64"),
            container=None,
            container_kind=None,
            wsl=os == "wsl2",
            versions=dict(said.get("versions", {})),
            device_files=dict(said.get("device_files", _DEVICE_FILES.get(os, {}))),
            troubles=list(said.get("troubles", ())),
        )
        torch = TorchBuild(**said["torch"])
        env = {str(key): str(value) for key, value in said.get("env", {}).items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"the case {name} cannot be understood", cause=f"{type(error).__name__}: {error}") from None
    cpu = Cpu("a processor", 6, 12, 12, None, None, 32 << 30, None)
    ready = Inventory([*cards, Device("cpu", "cpu", "a processor", memory_bytes=32 << 30)], cpu, None, torch, system)
    return Recorded(name, env, str(case.get("message", "")), str(case.get("ended", "")), ready=ready)


_DEVICE_FILES: dict[str, dict[str, bool]] = {
    "linux": {"/dev/kfd": True, "/dev/dri/renderD128": True, "/dev/nvidia0": True, "/dev/nvidiactl": True},
    "wsl2": {"/dev/dxg": True},
}
_NAMES = {"amd": "cuda", "nvidia": "cuda", "intel": "xpu"}


def _card(said: Mapping[str, Any], number: int) -> Device:
    known = {item.name for item in fields(Device)}
    values = {name: value for name, value in said.items() if name in known}
    kind = said["kind"]
    return Device(**{"id": "mps" if kind == "apple" else f"{_NAMES[kind]}:{number}", **values})


def _json(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if len(text) <= _LARGEST else None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}", cause=str(error)) from None
    if not isinstance(data, dict):
        raise UserError(f"{path} is not a recorded machine", cause="it is not an object, or it is too large")
    return data
