"""Damage of every kind is found and named, and the newest whole checkpoint is used."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from holdfast.run.folder import write_json
from holdfast.state import checkpoint, layout
from holdfast.state.checkpoint import Damaged
from tests.state.checkpoints import damage, newest_step, payload


def reason(path: Path) -> str:
    found = checkpoint.check(path)
    assert isinstance(found, Damaged), found
    return str(found)


def place(path: Path, name: str) -> int:
    """Where a tensor begins in the file."""
    entries, start = layout.parse_header(path.read_bytes())
    return next(start + entry.start for entry in entries if entry.name == name)


@pytest.mark.parametrize("name", ["model.embedding.weight", "optimizer.state.1.exp_avg", "holdfast.meta"])
def test_one_flipped_bit_and_the_tensor_is_named(folder: Path, name: str) -> None:
    state = folder / "000030" / "state.safetensors"
    damage(state, place(state, name), bit=3)
    good, rejected = checkpoint.newest_good(folder)
    assert good is not None and good.step == 20
    assert rejected == [(folder / "000030", f"its bytes are not the ones written: {name}")]


@pytest.mark.parametrize("offset", [0, 9, 500])
def test_one_flipped_bit_in_the_header(folder: Path, offset: int) -> None:
    damage(folder / "000030" / "state.safetensors", offset)
    assert reason(folder / "000030") == "its bytes are not the ones written: header"
    assert newest_step(folder) == 20


@pytest.mark.parametrize("size", [0, 7, 1000])
def test_a_file_cut_short(folder: Path, size: int) -> None:
    state = folder / "000030" / "state.safetensors"
    whole = state.stat().st_size
    os.truncate(state, size)
    found = checkpoint.check(folder / "000030")
    assert isinstance(found, Damaged)
    assert found.reason == f"it is cut short, {size} of {whole} bytes"
    assert found.tensors[0] == "header" and len(found.tensors) > 10
    assert re.search(r": header, \S+, \S+ and \d+ more$", str(found))
    assert newest_step(folder) == 20


def test_a_file_that_grew(folder: Path) -> None:
    with open(folder / "000030" / "state.safetensors", "ab") as file:
        file.write(b"\0")
    assert reason(folder / "000030") == "it is 1 byte too long"


def test_a_missing_state(folder: Path) -> None:
    (folder / "000030" / "state.safetensors").unlink()
    assert reason(folder / "000030") == "its state is missing"
    assert newest_step(folder) == 20


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "its digest.json is missing"),
        ("", "its digest.json was not written by holdfast, or is cut short"),
        ('{"step": 30, "sha', "its digest.json was not written by holdfast, or is cut short"),
        ("[]", "its digest.json was not written by holdfast, or is cut short"),
        (
            '{"schema": 1, "step": 30, "bytes": 1, "sha256": "00"}',
            "its digest.json was not written by holdfast, or is cut short",
        ),
    ],
)
def test_digests_that_are_missing_or_strange(folder: Path, text: str | None, reason: str) -> None:
    path = folder / "000030" / "digest.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert str(checkpoint.check(folder / "000030")) == reason
    assert newest_step(folder) == 20


def sealed(record: object) -> bytes:
    """What somebody writes who knows how a seal is made."""
    body = json.dumps(record, indent=2).encode().removesuffix(b"\n}")
    return body + b',\n  "seal": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 3}, "its digest.json was written by a newer holdfast"),
        ({"format": "2"}, "its digest.json does not agree with itself"),
        ({"bytes": 5}, "its digest.json does not agree with itself"),
        ({"sha256": "00"}, "its digest.json does not agree with itself"),
        ({"tensors": {}}, "its digest.json does not agree with itself"),
        ({"tensors": []}, "its digest.json is not one of ours"),
        ({"tensors": {"a": {"bytes": -1, "sha256": ""}}}, "its digest.json is not one of ours"),
        ({"tensors": {"a": {"bytes": True, "sha256": ""}}}, "its digest.json is not one of ours"),
        ({"step": None}, "its digest.json is not one of ours"),
        ({"run": 5}, "its digest.json is not one of ours"),
        ({"header": None}, "its digest.json is not one of ours"),
    ],
)
def test_a_seal_proves_nothing_to_who_can_make_one(folder: Path, change: dict[str, object], words: str) -> None:
    path = folder / "000030" / "digest.json"
    record = {**json.loads(path.read_text()), **change}
    record.pop("seal")
    path.write_bytes(sealed(record))
    assert reason(folder / "000030") == words


def test_a_checkpoint_of_another_step(folder: Path) -> None:
    shutil.rmtree(folder / "000030")
    shutil.copytree(folder / "000020", folder / "000030")
    assert reason(folder / "000030") == "it is of step 20"


def test_a_checkpoint_of_another_run(tmp_path: Path) -> None:
    """Two runs may have the same name; they were not born in the same millisecond."""
    runs = []
    for number in (1, 2):
        path = tmp_path / f"job-20261115-091{number}-calm-heron"
        path.mkdir()
        write_json(path / "run.json", {"run": "calm-heron", "created": f"2026-11-15T09:1{number}:00.000Z"})
        checkpoint.write(path / "checkpoints", payload(number), step=10)
        assert newest_step(path / "checkpoints") == 10
        runs.append(path / "checkpoints" / "000010")
    shutil.rmtree(runs[0])
    shutil.copytree(runs[1], runs[0])
    assert reason(runs[0]) == "it belongs to another run: calm-heron"


def test_a_run_that_was_copied_or_renamed_keeps_its_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "job-20261115-0912-calm-heron"
    path.mkdir()
    write_json(path / "run.json", {"run": "calm-heron", "created": "2026-11-15T09:12:00.000Z"})
    checkpoint.write(path / "checkpoints", payload(), step=10)
    path.rename(tmp_path / "the-good-one")
    assert newest_step(tmp_path / "the-good-one" / "checkpoints") == 10


@pytest.mark.parametrize("name", ["state.safetensors", "digest.json"])
def test_a_link_is_not_followed_even_to_the_right_bytes(folder: Path, name: str) -> None:
    path = folder / "000030" / name
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    assert "a link, not a file" in reason(folder / "000030")


def test_a_pipe_does_not_make_anybody_wait(folder: Path) -> None:
    for name in ("state.safetensors", "digest.json"):
        (folder / "000030" / name).unlink()
        os.mkfifo(folder / "000030" / name)
        assert "a pipe, not a file" in reason(folder / "000030")
        (folder / "000030" / name).unlink()
        shutil.copy(folder / "000020" / name, folder / "000030" / name)


def test_all_damaged_is_none_with_every_reason(folder: Path) -> None:
    for step in (10, 20, 30):
        damage(folder / f"{step:06d}" / "state.safetensors", -1)
    good, rejected = checkpoint.newest_good(folder)
    assert good is None
    assert [path.name for path, _ in rejected] == ["000030", "000020", "000010"]


def test_what_a_killed_writer_left_is_never_a_candidate(folder: Path) -> None:
    """Killed in the middle of a save: the folder has no final name yet."""
    half = folder / ".000040.4711.tmp"
    shutil.copytree(folder / "000030", half)
    (folder / "notes").mkdir()
    (folder / "000050").write_text("a file, not a folder")
    good, rejected = checkpoint.newest_good(folder)
    assert good is not None and good.step == 30
    assert rejected == [(folder / "000050", "it is a file, not a folder")]
    checkpoint.prune(folder, keep=3)
    assert not half.exists()
    assert (folder / "notes").exists()


def test_what_is_not_a_folder_is_replaced_and_never_pruned(folder: Path) -> None:
    (folder / "000040").symlink_to(folder / "nowhere")
    assert reason(folder / "000040") == "it is a link, not a folder"
    checkpoint.write(folder, payload(), step=40)
    assert newest_step(folder) == 40
    (folder / "000050").write_text("a file")
    assert checkpoint.prune(folder, keep=1, newest=40) == [30, 20, 10]
    assert sorted(entry.name for entry in folder.iterdir()) == ["000040", "000050"]
