"""A plan on disk: saved to be looked at or replayed, and kept so that `holdfast train` can follow it. No torch.

    plan = Plan(asked="detection", …)
    save(plan, Path("plan.json")); load(Path("plan.json"))      # UserError for what is none
    keep(plan); kept("detection", words, argv)                  # the newest one for the same words, while it holds
    plan.rows(), plan.decided()                                 # made anew from what was measured: nothing is run

What is kept holds for a week, and while the script, torch and holdfast are the ones that were measured.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast import __version__
from holdfast.base import files
from holdfast.base.dataclass_json import read, write
from holdfast.base.errors import UserError
from holdfast.base.folders import make_private
from holdfast.planning.decide import Decided, Wanted, decide
from holdfast.planning.measurement import Measurement
from holdfast.planning.option import Option
from holdfast.planning.options import options
from holdfast.planning.world import World
from holdfast.run import machine
from holdfast.run.events import utc_now

SCHEMA = 1
LASTS_S = 7 * 86400.0
FOLDER = "plans"
ANYTHING = Wanted()


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked, what was measured, what was wanted: everything else follows."""

    asked: str
    words: tuple[str, ...]
    argv: tuple[str, ...]
    world: World
    measurements: tuple[Measurement, ...]
    wanted: Wanted = ANYTHING
    scripts: tuple[tuple[str, str], ...] = ()
    """Each script and its digest."""
    made: str = ""
    made_at: float = 0.0
    torch: str = ""
    holdfast: str = ""
    measured_s: float = 0.0
    load: float = 0.0
    """How many wanted to run at a time while it was measured, where that was clearly more than the cores; else 0."""
    cores: int = 0
    """Of the machine that measured."""

    def rows(self) -> list[Option]:
        return options(self.world, self.measurements)

    def decided(self, rows: Sequence[Option] | None = None) -> Decided:
        return decide(self.rows() if rows is None else rows, self.wanted)

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.made_at)

    @property
    def stale(self) -> str:
        """Why it is out of date; nothing if it does."""
        if not 0 <= time.time() - self.made_at <= LASTS_S:
            return "it is more than a week old"
        if self.torch != (machine.torch_build()["version"] or ""):
            return "another torch is installed now"
        if self.holdfast != __version__:
            return "it was made by another holdfast"
        if any(digest(Path(path)) != known for path, known in self.scripts):
            return "the script has changed"
        return ""


def stamped(plan: Plan) -> Plan:
    """As made now, here."""
    return replace(
        plan,
        made=utc_now(),
        made_at=time.time(),
        torch=machine.torch_build()["version"] or "",
        holdfast=__version__,
    )


def digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def save(plan: Plan, path: Path) -> None:
    try:
        files.write_json(path, {"schema": SCHEMA, **write(plan)})
    except OSError as error:
        raise UserError(f"cannot write {path}", cause=str(error.strerror or error)) from None


def load(path: Path) -> Plan:
    """A saved plan; UserError for a file that is none."""
    try:
        data = json.loads(files.read_bounded(path, files.MAX_JSON))
    except FileNotFoundError:
        raise UserError(f"no file `{path}`", hints=["`holdfast plan … --save FILE` writes one"]) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read", cause=str(error)) from None
    plan = read(Plan, data)
    if plan is None or not isinstance(data, dict) or data.get("schema") != SCHEMA:
        hints = ["`holdfast plan … --save FILE` writes one"]
        raise UserError(f"{path} is not a saved plan", cause="what a plan is made of is not in it", hints=hints)
    return plan


def keep(plan: Plan) -> None:
    """For `holdfast train` with the same words; a disk that does not take it is no reason to fail."""
    where = _place(plan.asked, plan.words, plan.argv)
    try:
        make_private(where.parent)
        files.write_json(where, {"schema": SCHEMA, **write(plan)})
    except OSError:
        return
    newest_last = sorted(files.in_folder(where.parent, "*.json"), key=lambda each: each[1].st_mtime)
    for path, _ in newest_last[:-100]:
        files.remove(path)


def kept(asked: str, words: Sequence[str], argv: Sequence[str]) -> Plan | None:
    """The plan that was kept for these words, whether or not it still holds."""
    plan = read(Plan, files.read_json(_place(asked, words, argv)))
    return plan if plan is not None and _key(plan.asked, plan.words, plan.argv) == _key(asked, words, argv) else None


def _key(asked: str, words: Sequence[str], argv: Sequence[str]) -> str:
    """The same script with the same arguments. Settings of holdfast, which have a dot, make no other job of it."""
    mine = sorted(word for word in words if "." not in word.partition("=")[0])
    path = Path(asked).expanduser()
    script = str(path.absolute()) if path.suffix else asked
    return hashlib.sha256(repr((script, mine, list(argv))).encode()).hexdigest()[:24]


def _place(asked: str, words: Sequence[str], argv: Sequence[str]) -> Path:
    from holdfast.devices.ledger import state_folder

    return state_folder() / FOLDER / f"{_key(asked, words, argv)}.json"
