"""The weights alone: plain safetensors that carry their own digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from holdfast.base.folders import Folder
from holdfast.run import digests
from holdfast.run.digests import Origin
from holdfast.state import layout
from holdfast.state.protected import Protected
from holdfast.state.weights_file import NO_DIGEST, check_weights, write_weights
from tests.state.checkpoints import Net, damage, payload, trained
from tests.state.saving import CPU, save


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


@pytest.mark.all
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


@pytest.mark.parametrize("trains", [True, False])
def test_weights_that_come_back_different_never_replace_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trains: bool
) -> None:
    path = tmp_path / "best.safetensors"
    write_weights(path, payload(1))
    before, write = path.read_bytes(), digests.write_file

    def faulty(folder: Folder, name: str, *rest: Any) -> None:
        write(folder, name, *rest)
        damage(folder.path / name, -5)

    monkeypatch.setattr(digests, "write_file", faulty)
    with pytest.raises(OSError, match=r"what was read back from best\.safetensors"):
        write_weights(path, payload(2), aside=lambda: trains)
    assert path.read_bytes() == before
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
