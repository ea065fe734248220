"""Machines made of files: the fixtures below `fixtures/`, unpacked into a folder that stands for their root.

    there = machines.load("rx-5600-xt-masquerading", tmp_path)
    there.inventory().device("cuda:0").masquerading       # True
    survey.take(there.root, there.run, there.env, there.build, host=there.host)      # the same, in full

`files.txt` holds a machine's files one after the other, each below its name; `-- a -> b --` is a link. (Names such as
`0000:03:00.0` cannot be checked out everywhere, so the tree itself is made by the test.) What a tool printed is in
`tools/NAME.txt`; one that begins with `!` gave no answer, for the reason that follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.devices import survey
from holdfast.devices.survey import Answer, Host, Inventory, tool_name

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/machine.json"))


@dataclass(frozen=True)
class Made:
    name: str
    root: Path
    host: Host
    env: dict[str, str]
    build: dict[str, Any]
    fixtures: Path = FIXTURES

    def run(self, words: Sequence[str], deadline_s: float) -> Answer:
        """What the tool printed on that machine."""
        path = self.fixtures / self.name / "tools" / f"{tool_name(words)}.txt"
        if not path.exists():
            return Answer()
        text = path.read_text()
        return Answer(None, text[1:].strip()) if text.startswith("!") else Answer(text)

    def inventory(self, **env: str) -> Inventory:
        return survey.take(self.root, self.run, {**self.env, **env}, self.build, host=self.host)


def load(name: str, root: Path, fixtures: Path = FIXTURES) -> Made:
    said = json.loads((fixtures / name / "machine.json").read_text())
    unpack((fixtures / name / "files.txt").read_text(), root)
    return Made(name, root, Host(**said["host"]), said["env"], said["build"], fixtures)


def unpack(text: str, root: Path) -> None:
    for part in re.split(r"^-- ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition(" --\n")
        name, _, target = head.partition(" -> ")
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if target:
            (root / target).mkdir(parents=True, exist_ok=True)
            path.symlink_to(root / target)
        else:
            path.write_text(body)
