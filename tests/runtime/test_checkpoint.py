"""Checkpoints: damage of every kind is found, the newest whole one is used, the weights are plain safetensors."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from holdfast.runtime import checkpoint, layout
from holdfast.runtime.checkpoint import Checkpoint
from holdfast.runtime.state import Protected
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
    record = json.loads((written.path / "digest.json").read_text())
    assert (record["step"], record["bytes"], record["sha256"]) == (3600, len(data), written.sha256)


def test_the_newest_is_by_number_and_not_by_name(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000, 2):
        checkpoint.write(tmp_path, payload(), step=step)
    assert newest_step(tmp_path) == 1_000_000


def test_the_same_step_again_replaces_the_old_one(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, payload(1), step=5)
    again = checkpoint.write(tmp_path, payload(2), step=5)
    assert checkpoint.check(tmp_path / "000005") == again
    assert [entry.name for entry in tmp_path.iterdir()] == ["000005"]


@pytest.mark.parametrize("offset", [0, 9, 5000, -1])
def test_one_flipped_bit_and_the_one_before_it_is_used(folder: Path, offset: int) -> None:
    damage(folder / "000030" / "state.safetensors", offset, bit=3)
    good, rejected = checkpoint.newest_good(folder)
    assert good is not None and good.step == 20
    assert rejected == [(folder / "000030", "its bytes are not the ones written")]


@pytest.mark.parametrize("size", [0, 7, 1000])
def test_a_file_cut_short(folder: Path, size: int) -> None:
    os.truncate(folder / "000030" / "state.safetensors", size)
    _, rejected = checkpoint.newest_good(folder)
    assert rejected == [(folder / "000030", "its size is not the one written")]
    assert newest_step(folder) == 20


def test_a_file_that_grew(folder: Path) -> None:
    with open(folder / "000030" / "state.safetensors", "ab") as file:
        file.write(b"\0")
    assert checkpoint.check(folder / "000030") == "its size is not the one written"


def test_a_missing_state(folder: Path) -> None:
    (folder / "000030" / "state.safetensors").unlink()
    assert checkpoint.check(folder / "000030") == "it cannot be read: No such file or directory"
    assert newest_step(folder) == 20


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "it has no readable digest"),
        ("", "it has no readable digest"),
        ('{"step": 30, "sha', "it has no readable digest"),
        ("[]", "it has no readable digest"),
        ("{}", "its digest is not one of ours"),
        ('{"step": "30", "bytes": 1, "sha256": "00"}', "its digest is not one of ours"),
        ('{"step": 30, "bytes": 1, "sha256": null}', "its digest is not one of ours"),
    ],
)
def test_a_digest_that_is_missing_or_strange(folder: Path, text: str | None, reason: str) -> None:
    path = folder / "000030" / "digest.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert checkpoint.check(folder / "000030") == reason
    assert newest_step(folder) == 20


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
    assert newest_step(folder) == 30
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
    checkpoint.write_weights(tmp_path / "best.safetensors", data)
    weights = load_file(tmp_path / "best.safetensors")
    assert set(weights) == set(model.state_dict())
    fresh = Net()
    fresh.load_state_dict(weights, strict=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name]), name
        assert tensor.dtype == fresh.state_dict()[name].dtype


def test_the_weights_of_a_compiled_model_carry_no_trace_of_it(tmp_path: Path) -> None:
    model, optimizer = trained()
    compiled = torch.compile(model, backend="eager")
    data = memoryview(save(Protected({"model": compiled, "optimizer": optimizer}, CPU)))
    checkpoint.write_weights(tmp_path / "best.safetensors", data)
    Net().load_state_dict(load_file(tmp_path / "best.safetensors"), strict=True)


def test_several_modules_keep_their_names_in_front(tmp_path: Path) -> None:
    (generator, first), (critic, second) = trained(1), trained(2)
    named = {"generator": generator, "critic": critic, "g_opt": first, "c_opt": second}
    data = memoryview(save(Protected(named, CPU)))
    checkpoint.write_weights(tmp_path / "final.safetensors", data)
    weights = load_file(tmp_path / "final.safetensors")
    for prefix, module in (("generator.", generator), ("critic.", critic)):
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        Net().load_state_dict(own, strict=True)
        assert torch.equal(own["head.weight"], module.head.weight)
    assert len(weights) == 2 * len(generator.state_dict())


def test_the_whole_checkpoint_is_a_safetensors_file_too(folder: Path) -> None:
    with safe_open(folder / "000030" / "state.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert {"model.embedding.weight", "model.small", "holdfast.meta", "holdfast.loss"} <= names


def test_the_digest_of_the_weights_is_the_same_in_every_form(tmp_path: Path) -> None:
    data = payload()
    checkpoint.write_weights(tmp_path / "best.safetensors", data)
    assert layout.weights_sha256((tmp_path / "best.safetensors").read_bytes()) == layout.weights_sha256(data)
    assert layout.weights_sha256(payload(1)) != layout.weights_sha256(data)


def test_best_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    checkpoint.write_weights(path, payload(1))
    first = path.read_bytes()
    checkpoint.write_weights(path, payload(2))
    assert path.read_bytes() != first
    assert [entry.name for entry in tmp_path.iterdir()] == ["best.safetensors"]


def test_weights_that_cannot_be_written_leave_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    checkpoint.write_weights(path, payload(1))
    before = path.read_bytes()
    with pytest.raises(ValueError):
        checkpoint.write_weights(path, memoryview(b"not a snapshot at all, though long enough"))
    assert path.read_bytes() == before


def test_a_checkpoint_says_where_its_state_is(folder: Path) -> None:
    found = checkpoint.check(folder / "000010")
    assert isinstance(found, Checkpoint)
    assert found.state == folder / "000010" / "state.safetensors"
