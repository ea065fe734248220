"""Checkpoints are written whole or not at all, read back at once, and the last few are kept."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from holdfast.base.folders import Folder
from holdfast.run import digests
from holdfast.run.digests import Origin, write_file
from holdfast.state import checkpoint, layout
from holdfast.state.checkpoint import Checkpoint
from holdfast.state.protected import Protected
from tests.state.checkpoints import damage, newest_step, payload, trained
from tests.state.saving import CPU, load


def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    data = payload()
    written = checkpoint.write(tmp_path, data, step=3600)
    assert written.path == tmp_path / "003600"
    assert sorted(entry.name for entry in written.path.iterdir()) == ["digest.json", "state.safetensors"]
    assert written.state.read_bytes() == bytes(data)
    assert checkpoint.check(written.path) == written


def test_a_checkpoint_says_where_its_state_is(folder: Path) -> None:
    found = checkpoint.check(folder / "000010")
    assert isinstance(found, Checkpoint)
    assert found.state == folder / "000010" / "state.safetensors"


def test_the_whole_checkpoint_is_a_safetensors_file_too(folder: Path) -> None:
    with safe_open(folder / "000030" / "state.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert {"model.embedding.weight", "model.small", "holdfast.meta", "holdfast.loss"} <= names


def test_every_byte_belongs_to_a_tensor_with_a_digest(tmp_path: Path) -> None:
    data = payload()
    written = checkpoint.write(tmp_path, data, step=3600, origin=Origin("calm-heron", "2026-11-15T09:12:00.000Z"))
    record = json.loads((written.path / "digest.json").read_text())
    assert (record["format"], record["step"], record["bytes"]) == (2, 3600, len(data))
    assert (record["run"], record["run_created"]) == ("calm-heron", "2026-11-15T09:12:00.000Z")
    entries, start = layout.parse_header(data)
    assert list(record["tensors"]) == [entry.name for entry in entries]
    for entry in entries:
        bytes_of = data[start + entry.start : start + entry.stop]
        row = record["tensors"][entry.name]
        assert row == {"bytes": len(bytes_of), "sha256": hashlib.sha256(bytes_of).hexdigest()}
    assert record["header"] == {"bytes": start, "sha256": hashlib.sha256(data[:start]).hexdigest()}
    assert start + sum(row["bytes"] for row in record["tensors"].values()) == record["bytes"]


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, payload(), step=1).path
    assert path.stat().st_mode & 0o777 == 0o700
    assert {entry.stat().st_mode & 0o777 for entry in path.iterdir()} == {0o600}


def test_two_equal_states_have_the_same_digest_and_others_have_not(tmp_path: Path) -> None:
    first, again, other = (
        checkpoint.write(tmp_path, payload(seed), step=step) for step, seed in enumerate((1, 1, 2), 1)
    )
    assert first.sha256 == again.sha256 != other.sha256


def test_a_folder_that_was_taken_away_is_not_made_anew(tmp_path: Path) -> None:
    """Somebody moved the run folder; when it comes back, nothing must be in its place."""
    with pytest.raises(FileNotFoundError):
        checkpoint.write(tmp_path / "gone" / "checkpoints", payload(), step=1)
    assert list(tmp_path.iterdir()) == []
    checkpoint.write(tmp_path / "checkpoints", payload(), step=1)


def test_the_newest_is_by_number_and_not_by_name(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000, 2):
        checkpoint.write(tmp_path, payload(), step=step)
    assert newest_step(tmp_path) == 1_000_000


def test_the_same_step_again_replaces_the_old_one(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, payload(1), step=5)
    again = checkpoint.write(tmp_path, payload(2), step=5)
    assert checkpoint.check(tmp_path / "000005") == again
    assert [entry.name for entry in tmp_path.iterdir()] == ["000005"]


def test_a_checkpoint_trains_on(folder: Path) -> None:
    """Loaded back into other objects, one more step gives the same bits."""
    model, optimizer = trained(30)
    other, other_optimizer = trained(99)
    good, _ = checkpoint.newest_good(folder)
    assert good is not None
    load(Protected({"model": other, "optimizer": other_optimizer}, CPU), bytearray(good.state.read_bytes()))
    tokens = torch.arange(8)
    for net, opt in ((model, optimizer), (other, other_optimizer)):
        opt.zero_grad()
        net(tokens).square().mean().backward()
        opt.step()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_no_folder_at_all(tmp_path: Path) -> None:
    assert checkpoint.newest_good(tmp_path / "nowhere") == (None, [])


def test_a_failed_write_leaves_what_was_there(folder: Path) -> None:
    before = sorted(entry.name for entry in folder.iterdir())

    def overwritten() -> None:
        raise OSError("the snapshot was overwritten while it was copied")

    with pytest.raises(OSError, match="overwritten"):
        checkpoint.write(folder, payload(), step=30, check=overwritten)
    assert sorted(entry.name for entry in folder.iterdir()) == before
    assert newest_step(folder) == 30


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("name", ["state.safetensors", "digest.json"])
def test_a_disk_that_keeps_something_else_is_noticed_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, trains: bool
) -> None:
    """What comes back is not what was written: the checkpoint never gets its name, and those before it stay.

    A state that is small is read back whole at the end of a run, too.
    """
    write = checkpoint.write_file

    def faulty(inside: Folder, file: str, *rest: Any) -> None:
        write(inside, file, *rest)
        if file == name:
            damage(inside.path / file, -5)

    for module in (checkpoint, digests):
        monkeypatch.setattr(module, "write_file", faulty)
    with pytest.raises(OSError, match=f"what was read back from {name} is not what was written") as caught:
        checkpoint.write(folder, payload(), step=40, aside=lambda: trains)
    assert caught.value.errno == errno.EIO
    assert sorted(entry.name for entry in folder.iterdir()) == ["000010", "000020", "000030"]


def test_a_save_that_the_end_of_the_run_waits_for_is_the_same_to_the_last_byte(tmp_path: Path) -> None:
    """Hashed while it is written, from the start or from the moment somebody waits: only the time it takes differs."""
    data, asked = payload(), iter([True, True, *[False] * 1000])
    beside = checkpoint.write(tmp_path / "a", data, step=40)
    waited = checkpoint.write(tmp_path / "b", data, step=40, aside=lambda: False)
    halfway = checkpoint.write(tmp_path / "c", data, step=40, aside=lambda: next(asked))
    assert next(asked) is False, "somebody began to wait while it was read back"
    assert {each.sha256 for each in (beside, waited, halfway)} == {beside.sha256}
    for each in (beside, waited, halfway):
        assert checkpoint.check(each.path) == each
        assert each.state.read_bytes() == bytes(data)


def test_the_end_of_a_run_reads_back_for_a_while_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last bytes are looked at whatever it takes; with no time, nothing else."""
    looked: list[int] = []
    same = digests._Reader.same

    def counted(self: Any, piece: memoryview, at: int) -> bool:
        looked.append(at)
        return same(self, piece, at)

    monkeypatch.setattr(digests._Reader, "same", counted)
    monkeypatch.setattr(digests, "LOOK_BACK", 0.0)
    monkeypatch.setattr(digests, "LOOK_BACK_S", -1.0)
    checkpoint.write(tmp_path, payload(), step=40, aside=lambda: False)
    assert len(looked) == 2 and min(looked) == 0


def read_from_disk() -> int:
    """Bytes this process has made the disk give, not the system's memory."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        pytest.skip("/proc/self/io does not tell here")
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder that may be on a real disk: tests/conftest.py puts `tmp_path` into memory where it can."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        yield Path(folder)


def test_reading_back_really_reads_the_disk(disk: Path) -> None:
    probe = disk / "probe"
    with Folder.at(disk) as folder:
        write_file(folder, probe.name, [memoryview(bytes(1 << 20))])
    before = read_from_disk()
    probe.read_bytes()
    if read_from_disk() - before < 1 << 20:
        pytest.skip("this file system does not let its memory be dropped")
    plan = layout.plan([("model.weight", "U8", (4 << 20,))])
    data = bytearray(plan.total_bytes)
    data[: plan.data_start] = plan.header
    before = read_from_disk()
    written = checkpoint.write(disk / "checkpoints", memoryview(data), step=1)
    assert read_from_disk() - before >= written.size


def test_only_the_last_few_are_kept(folder: Path) -> None:
    checkpoint.write(folder, payload(), step=40)
    assert checkpoint.prune(folder, keep=2) == [20, 10]
    assert sorted(entry.name for entry in folder.iterdir()) == ["000030", "000040"]


def test_the_last_one_is_never_pruned(folder: Path) -> None:
    checkpoint.prune(folder, keep=0)
    assert newest_step(folder) == 30


def test_one_written_after_damaged_later_ones_is_kept_before_them(folder: Path) -> None:
    """Steps 20 and 30 are damaged, the run went on from 10: what it writes now is the newest."""
    checkpoint.write(folder, payload(), step=12)
    assert checkpoint.prune(folder, keep=1, newest=12) == [10, 30, 20]
    assert newest_step(folder) == 12
