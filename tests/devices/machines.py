"""Machines made of files: the fixtures below `fixtures/`, unpacked into a folder that stands for their root.

    there = machines.load("rx-5600-xt-masquerading", tmp_path)
    there.inventory().device("cuda:0").masquerading       # True
    survey.take(there.root, there.run, there.env, there.build, host=there.host)      # the same, in full

`holdfast.devices.recorded` reads them, as `holdfast doctor --recorded` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.devices import recorded
from holdfast.devices.survey import Answer, Host, Inventory

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/machine.json"))


@dataclass(frozen=True)
class Made:
    """A recorded machine whose files are there for as long as the test is."""

    name: str
    root: Path
    host: Host
    env: dict[str, str]
    build: dict[str, Any]
    there: recorded.Recorded

    def run(self, words: Any, deadline_s: float) -> Answer:
        """What the tool printed on that machine."""
        return self.there.run(words, deadline_s)

    def inventory(self, **env: str) -> Inventory:
        return self.there.inventory(**env)


def load(name: str, root: Path, fixtures: Path = FIXTURES) -> Made:
    there = recorded.load(fixtures / name, root)
    assert there.host is not None
    return Made(name, root, there.host, there.env, there.build, there)


unpack = recorded.unpack
