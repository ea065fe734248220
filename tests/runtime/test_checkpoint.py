"""Checkpoints: damage of every kind is found, the newest whole one is used, the weights are plain safetensors."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from holdfast.runfolder import write_json
from holdfast.runtime import checkpoint, layout, weights
from holdfast.runtime.checkpoint import Checkpoint, Damaged
from holdfast.runtime.digests import Origin, write_file
from holdfast.runtime.state import Protected
from holdfast.runtime.weights import NO_DIGEST, check_weights, write_weights
from tests.runtime.saving import CPU, load, save


class Net(nn.Module):
    """Tied weights, integer buffers, half precision: everything that has its own way of going wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.small = nn.Parameter(torch.randn(3, 2).to(torch.bfloat16))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(tokens))) + self.small.float().sum()  # type: ignore[no-any-return]


def trained(seed: int = 0) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randint(0, 11, (8,))).square().mean().backward()
        optimizer.step()
    return model, optimizer


def payload(seed: int = 0) -> memoryview:
    model, optimizer = trained(seed)
    return memoryview(save(Protected({"model": model, "optimizer": optimizer}, CPU)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three checkpoints, steps 10, 20 and 30."""
    for step in (10, 20, 30):
        checkpoint.write(tmp_path, payload(step), step=step)
    return tmp_path


def damage(path: Path, offset: int, bit: int = 0) -> None:
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ (1 << bit)]))


def newest_step(folder: Path) -> int | None:
    good, _ = checkpoint.newest_good(folder)
    return None if good is None else good.step


def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    data = payload()
    written = checkpoint.write(tmp_path, data, step=3600)
    assert written.path == tmp_path / "003600"
    assert sorted(entry.name for entry in written.path.iterdir()) == ["digest.json", "state.safetensors"]
    assert written.state.read_bytes() == bytes(data)
    assert checkpoint.check(written.path) == written


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
        ("", "its digest.json is not one of ours, or cut short"),
        ('{"step": 30, "sha', "its digest.json is not one of ours, or cut short"),
        ("[]", "its digest.json is not one of ours, or cut short"),
        ('{"schema": 1, "step": 30, "bytes": 1, "sha256": "00"}', "its digest.json is not one of ours, or cut short"),
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


def test_no_folder_at_all(tmp_path: Path) -> None:
    assert checkpoint.newest_good(tmp_path / "nowhere") == (None, [])


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


def test_a_failed_write_leaves_what_was_there(folder: Path) -> None:
    before = sorted(entry.name for entry in folder.iterdir())

    def overwritten() -> None:
        raise OSError("the snapshot was overwritten while it was copied")

    with pytest.raises(OSError, match="overwritten"):
        checkpoint.write(folder, payload(), step=30, check=overwritten)
    assert sorted(entry.name for entry in folder.iterdir()) == before
    assert newest_step(folder) == 30


def test_what_is_not_a_folder_is_replaced_and_pruned_too(folder: Path) -> None:
    (folder / "000040").symlink_to(folder / "nowhere")
    assert reason(folder / "000040") == "it is a link, not a folder"
    checkpoint.write(folder, payload(), step=40)
    assert newest_step(folder) == 40
    (folder / "000050").write_text("a file")
    assert checkpoint.prune(folder, keep=1, newest=40) == [30, 20, 10, 50]
    assert [entry.name for entry in folder.iterdir()] == ["000040"]


# -- read back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state.safetensors", "digest.json"])
def test_a_disk_that_keeps_something_else_is_noticed_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What comes back is not what was written: the checkpoint never gets its name, and those before it stay."""
    write = checkpoint.write_file

    def faulty(path: Path, pieces: Any) -> list[str]:
        hashed = write(path, pieces)
        if path.name == name:
            damage(path, -5)
        return hashed

    monkeypatch.setattr(checkpoint, "write_file", faulty)
    with pytest.raises(OSError, match=f"what was read back of {name} is not what was written") as caught:
        checkpoint.write(folder, payload(), step=40)
    assert caught.value.errno == errno.EIO
    assert sorted(entry.name for entry in folder.iterdir()) == ["000010", "000020", "000030"]


def test_weights_that_come_back_different_never_replace_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "best.safetensors"
    write_weights(path, payload(1))
    before, write = path.read_bytes(), weights.write_file

    def faulty(path: Path, pieces: Any) -> list[str]:
        hashed = write(path, pieces)
        damage(path, -5)
        return hashed

    monkeypatch.setattr(weights, "write_file", faulty)
    with pytest.raises(OSError, match=r"what was read back of best\.safetensors"):
        write_weights(path, payload(2))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["best.safetensors"]


def read_from_disk() -> int:
    """Bytes this process has made the disk give, not the system's memory."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        pytest.skip("/proc/self/io does not tell here")
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def test_reading_back_really_reads_the_disk(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    write_file(probe, [memoryview(bytes(1 << 20))])
    before = read_from_disk()
    probe.read_bytes()
    if read_from_disk() - before < 1 << 20:
        pytest.skip("this file system does not let its memory be dropped")
    plan = layout.plan([("model.weight", "U8", (4 << 20,))])
    data = bytearray(plan.total_bytes)
    data[: plan.data_start] = plan.header
    before = read_from_disk()
    written = checkpoint.write(tmp_path / "checkpoints", memoryview(data), step=1)
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


# -- the weights alone ---------------------------------------------------------------------------------------


def test_the_weights_load_with_plain_safetensors(tmp_path: Path) -> None:
    model, optimizer = trained()
    data = memoryview(save(Protected({"model": model, "optimizer": optimizer}, CPU)))
    write_weights(tmp_path / "best.safetensors", data)
    loaded = load_file(tmp_path / "best.safetensors")
    assert set(loaded) == set(model.state_dict())
    fresh = Net()
    fresh.load_state_dict(loaded, strict=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name]), name
        assert tensor.dtype == fresh.state_dict()[name].dtype


def test_the_weights_of_a_compiled_model_carry_no_trace_of_it(tmp_path: Path) -> None:
    model, optimizer = trained()
    compiled = torch.compile(model, backend="eager")
    data = memoryview(save(Protected({"model": compiled, "optimizer": optimizer}, CPU)))
    write_weights(tmp_path / "best.safetensors", data)
    Net().load_state_dict(load_file(tmp_path / "best.safetensors"), strict=True)


def test_several_modules_keep_their_names_in_front(tmp_path: Path) -> None:
    (generator, first), (critic, second) = trained(1), trained(2)
    named = {"generator": generator, "critic": critic, "g_opt": first, "c_opt": second}
    data = memoryview(save(Protected(named, CPU)))
    write_weights(tmp_path / "final.safetensors", data)
    loaded = load_file(tmp_path / "final.safetensors")
    for prefix, module in (("generator.", generator), ("critic.", critic)):
        own = {name.removeprefix(prefix): value for name, value in loaded.items() if name.startswith(prefix)}
        Net().load_state_dict(own, strict=True)
        assert torch.equal(own["head.weight"], module.head.weight)
    assert len(loaded) == 2 * len(generator.state_dict())


def test_the_whole_checkpoint_is_a_safetensors_file_too(folder: Path) -> None:
    with safe_open(folder / "000030" / "state.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert {"model.embedding.weight", "model.small", "holdfast.meta", "holdfast.loss"} <= names


def test_the_digest_of_the_weights_is_the_same_in_every_form(tmp_path: Path) -> None:
    data = payload()
    write_weights(tmp_path / "best.safetensors", data)
    assert layout.weights_sha256((tmp_path / "best.safetensors").read_bytes()) == layout.weights_sha256(data)
    assert layout.weights_sha256(payload(1)) != layout.weights_sha256(data)


def test_best_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    write_weights(path, payload(1))
    first = path.read_bytes()
    write_weights(path, payload(2))
    assert path.read_bytes() != first
    assert [entry.name for entry in tmp_path.iterdir()] == ["best.safetensors"]


def test_weights_carry_their_own_digest_wherever_they_go(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    write_weights(path, payload(), step=7, origin=Origin("calm-heron"))
    with safe_open(path, framework="pt") as file:
        said = file.metadata()
    assert {key: said[key] for key in ("format", "run", "step")} == {"format": "pt", "run": "calm-heron", "step": "7"}
    assert check_weights(path) is None
    path.rename(tmp_path / "mailed.safetensors")
    assert check_weights(tmp_path / "mailed.safetensors") is None
    assert path.parent.stat().st_mode and (tmp_path / "mailed.safetensors").stat().st_mode & 0o777 == 0o600


def test_every_flipped_bit_of_the_weights_is_noticed(tmp_path: Path) -> None:
    """Every byte of the header and of the tensors, one bit each."""
    path = tmp_path / "best.safetensors"
    write_weights(path, payload(), step=7)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        assert check_weights(path) not in (None, NO_DIGEST), at
    path.write_bytes(whole[:-1])
    assert check_weights(path) == "its bytes are not the ones written"
    path.write_bytes(whole[:20])
    assert check_weights(path) == "its header is damaged"
    path.unlink()
    assert check_weights(path) == "it cannot be read: No such file or directory"


def test_weights_of_somebody_else_are_neither_good_nor_damaged(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(3)}, tmp_path / "best.safetensors")
    assert check_weights(tmp_path / "best.safetensors") == NO_DIGEST


def test_weights_that_cannot_be_written_leave_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    write_weights(path, payload(1))
    before = path.read_bytes()
    with pytest.raises(ValueError):
        write_weights(path, memoryview(b"not a snapshot at all, though long enough"))
    assert path.read_bytes() == before


def test_a_checkpoint_says_where_its_state_is(folder: Path) -> None:
    found = checkpoint.check(folder / "000010")
    assert isinstance(found, Checkpoint)
    assert found.state == folder / "000010" / "state.safetensors"
