"""What the supervisor writes for readers elsewhere."""

from __future__ import annotations

from pathlib import Path

from holdfast.base.board import Board
from holdfast.base.files import read_json
from holdfast.record.receipt import Accounts
from holdfast.record.reporter import Face, Teller
from holdfast.run.folder import RunFolder


def test_a_worker_that_is_not_born_has_no_number(tmp_path: Path) -> None:
    """0 is no process: `kill 0` is everybody in the group of whoever reads it."""
    run = RunFolder.create(tmp_path, "job", {})
    teller, board = Teller(run, Face(), "auto"), Board.create()
    teller.beat(board.read(), "cpu", Accounts())
    assert (read_json(run.path / "beat.json") or {"pid": "no beat"})["pid"] is None
    board.identify(4711)
    teller.beat(board.read(), "cpu", Accounts())
    assert (read_json(run.path / "beat.json") or {})["pid"] == 4711
