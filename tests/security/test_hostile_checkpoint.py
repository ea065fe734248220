"""A checkpoint that somebody made up, digests and all: it is passed over with a line, and the one before it is used."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.run.digests import HEADER, Digests, Origin, Piece
from holdfast.run.folder import RunFolder
from holdfast.state import checkpoint, layout
from tests.cli.driving import SCRIPT, run_folder
from tests.warm import holdfast

META = layout.META


def parts(state: bytes) -> tuple[dict[str, Any], bytes]:
    """The table of a state and what follows it."""
    (length,) = struct.unpack_from("<Q", state)
    return json.loads(state[8 : 8 + length]), state[8 + length :]


def joined(table: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(table).encode()
    text = text.ljust(-(-(8 + len(text)) // 64) * 64 - 8)
    return struct.pack("<Q", len(text)) + text + data


def with_meta(state: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The same state with another meta, in the room that the old one had."""
    table, data = parts(state)
    begin, end = table[META]["data_offsets"]
    meta = json.loads(data[begin:end])
    meta = change(meta) or meta
    text = json.dumps(meta).encode()
    assert len(text) <= end - begin
    return joined(table, data[:begin] + text.ljust(end - begin) + data[end:])


def with_row(state: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The same state with another row for its first weight."""
    table, data = parts(state)
    name = next(name for name in table if "weight" in name)
    change(table[name])
    return joined(table, data)


def sealed(folder: Path, state: bytes, step: int) -> Path:
    """What the attacker writes: every digest is right."""
    path = folder / "checkpoints" / f"{step:06d}"
    path.mkdir()
    (path / "state.safetensors").write_bytes(state)
    length = 8 + struct.unpack_from("<Q", state)[0] if len(state) >= 8 else len(state)
    spans = [(HEADER, state[:length])] + ([("all", state[length:])] if state[length:] else [])
    pieces = tuple(Piece(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in spans)
    (path / "digest.json").write_bytes(Digests(step, Origin.of_folder(folder), "2026-11-15T09:12:04Z", pieces).sealed())
    return path


def set_to(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda row: row.__setitem__(key, value)


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "unknown type": lambda state: with_row(state, set_to("dtype", "X99")),
    "type that is no text": lambda state: with_row(state, set_to("dtype", ["F32"])),
    "huge shape": lambda state: with_row(state, set_to("shape", [1 << 40, 1 << 40])),
    "negative shape": lambda state: with_row(state, set_to("shape", [-1, -16])),
    "overlapping offsets": lambda state: with_row(state, set_to("data_offsets", [4, 20])),
    "offsets behind the end": lambda state: with_row(state, set_to("data_offsets", [1 << 60, (1 << 60) + 16])),
    "meta that is a list": lambda state: with_meta(state, lambda meta: [1, 2]),
    "meta that is not JSON": lambda state: _spoilt(state, b"{" * 30),
    "meta nested too deeply": lambda state: _spoilt(state, b"[" * 100_000),
    "nothing": lambda state: b"",
    "a header that claims too much": lambda state: struct.pack("<Q", 1 << 62) + state[8:],
}

CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "no meta": lambda state: with_meta(state, lambda meta: {"nothing": 1}),
    "missing part": lambda state: with_meta(state, lambda meta: meta["parts"].pop("optimizer") and None),
    "missing state": lambda state: with_meta(state, lambda meta: meta["state"].pop("model") and None),
    "state of another kind": lambda state: with_meta(state, lambda meta: {**meta, "state": [1]}),
    "wrong type": lambda state: with_row(state, set_to("dtype", "I32")),
    "wrong shape": lambda state: with_row(state, set_to("shape", [2, 2])),
    "position that is no number": lambda state: with_meta(state, lambda meta: meta["session"].update(step="x")),
    "position that is too large": lambda state: with_meta(state, lambda meta: meta["session"].update(samples=10**30)),
    "generators that are none": lambda state: with_meta(state, lambda meta: {**meta, "rng_names": [["x"]]}),
}


def _spoilt(state: bytes, text: bytes) -> bytes:
    """The meta is another text, of any length; everything behind it moves."""
    table, data = parts(state)
    begin, end = table[META]["data_offsets"]
    moved = len(text) - (end - begin)
    for row in table.values():
        if "data_offsets" in row:
            row["data_offsets"] = [at + moved if at > begin else at for at in row["data_offsets"]]
    table[META]["shape"] = [len(text)]
    return joined(table, data[:begin] + text + data[end:])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that failed at step 20, with a checkpoint."""
    cwd = tmp_path_factory.mktemp("stopped")
    (cwd / "job.py").write_text(SCRIPT)
    done = holdfast("train", "job.py", "fail_at=20", "--device", "cpu", cwd=cwd)
    assert done.code == 1, done.err
    return cwd


def state_of(cwd: Path) -> bytes:
    good, _ = checkpoint.newest_good(run_folder(cwd) / "checkpoints")
    assert good is not None
    return good.state.read_bytes()


def copied(stopped: Path, to: Path) -> Path:
    shutil.copytree(stopped / "runs", to / "runs")
    (to / "job.py").write_text(SCRIPT.replace("session.step_count == fail_at", "False"))
    return run_folder(to)


@pytest.mark.all
def test_what_is_no_snapshot_is_passed_over_by_its_form(stopped: Path, tmp_path: Path) -> None:
    folder, state = copied(stopped, tmp_path), state_of(stopped)
    good, _ = checkpoint.newest_good(folder / "checkpoints")
    for number, (name, make) in enumerate(FORMS.items()):
        found = checkpoint.check(sealed(folder, make(state), 100 + number))
        assert isinstance(found, checkpoint.Damaged) and "its state was not written by holdfast" in str(found), name
    assert checkpoint.newest_good(folder / "checkpoints")[0] == good
    unchanged = checkpoint.check(sealed(folder, joined(*parts(state)), 99))
    assert isinstance(unchanged, checkpoint.Checkpoint), "the way these are made is right"


@pytest.mark.all
@pytest.mark.timeout(300)
def test_resume_passes_over_every_hostile_one_and_goes_on_from_the_good_one(stopped: Path, tmp_path: Path) -> None:
    folder, state = copied(stopped, tmp_path), state_of(stopped)
    for number, make in enumerate({**CONTENTS, "huge shape": FORMS["huge shape"]}.values()):
        sealed(folder, make(state), 100 + number)
    done = holdfast("resume", "latest", "--script", "job.py", "--plain", cwd=tmp_path)
    told = done.out + done.err
    assert done.code == 0, told
    for number in range(len(CONTENTS) + 1):
        assert f"checkpoint {100 + number:06d} is skipped: " in told
    assert RunFolder(folder).receipt()["steps"] == 24  # type: ignore[index]
    assert not list(tmp_path.glob("holdfast-report-*"))


@pytest.mark.timeout(300)
def test_where_nothing_can_be_used_it_is_said_and_is_no_bug_of_ours(stopped: Path, tmp_path: Path) -> None:
    folder, state = copied(stopped, tmp_path), state_of(stopped)
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").mkdir()
    sealed(folder, CONTENTS["missing state"](state), 100)
    done = holdfast("resume", "latest", "--script", "job.py", "--plain", cwd=tmp_path)
    assert done.code == 2, done.out + done.err
    assert "what was saved of this run cannot be restored" in done.err
    assert "checkpoint 000100 is skipped: " in done.out
