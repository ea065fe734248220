"""`holdfast weights`: which weights it takes, that PyTorch loads them, and what it says where it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from holdfast.cli.main import main
from holdfast.run.folder import RunFolder
from holdfast.state import checkpoint, layout

SPECS: list[layout.Spec] = [
    ("model.weight", "F32", (4, 3)),
    ("model.count", "I64", ()),
    ("average.module.weight", "F32", (4, 3)),
    ("average.n_averaged", "I64", ()),
    ("optimizer.state.0.exp_avg", "F32", (4, 3)),
]


def payload(step: int, *, modules: int = 1) -> memoryview:
    specs = [spec for spec in SPECS if modules == 2 or not spec[0].startswith("average")]
    plan = layout.plan(specs)
    data = bytearray(plan.total_bytes)
    data[: plan.data_start] = plan.header
    for name, value in (("model.weight", step), ("average.module.weight", -step)):
        if name in plan.by_name:
            data[plan.span(name)] = torch.full((4, 3), float(value)).numpy().tobytes()
    parts = {"model": "module", "optimizer": "optimizer"} | ({"average": "module"} if modules == 2 else {})
    data[plan.span(layout.META)] = plan.pack_meta({"parts": parts, "session": {"step": step}})
    return memoryview(data)


def made(tmp_path: Path, *, modules: int = 1, best: int | None = None, final: int | None = None) -> RunFolder:
    run = RunFolder.create(tmp_path / "runs", "job", {"created": "2026-11-15T09:12:00.000Z", "state": "STOPPED"})
    for step in (10, 20, 30):
        checkpoint.write(run.path / "checkpoints", payload(step, modules=modules), step=step)
    for name, step in (("best", best), ("final", final)):
        if step is not None:
            checkpoint.write_weights(run.path / f"{name}.safetensors", payload(step, modules=modules), step=step)
    run.close()
    return run


@pytest.mark.parametrize(
    ("there", "words", "step", "said"),
    [
        ({"best": 20, "final": 30}, [], 20, "the best weights"),
        ({"final": 30}, [], 30, "the weights at the end"),
        ({}, [], 30, "the weights of step 30, its newest checkpoint"),
        ({"best": 20}, ["--step", "10"], 10, "the weights of step 10"),
        ({"best": 20}, ["--best"], 20, "the best weights"),
    ],
)
@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_the_right_weights_come_out_for_plain_pytorch(
    ending: str,
    there: dict[str, int],
    words: list[str],
    step: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, out = made(tmp_path, **there), tmp_path / f"model.{ending}"
    assert main(["weights", str(run.path), str(out), *words]) == 0
    loaded = load_file(out) if ending == "safetensors" else torch.load(out, weights_only=True)
    assert sorted(loaded) == ["count", "weight"]
    assert torch.equal(loaded["weight"], torch.full((4, 3), float(step)))
    assert f"✓ {said} of " in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["runs", out.name])


def test_one_of_several_modules_comes_out_under_its_own_names(tmp_path: Path) -> None:
    run = made(tmp_path, modules=2, final=30)
    for words, wanted, sign in (
        (["--module", "model"], ["count", "weight"], 1),
        (["--ema"], ["weight"], -1),
        (["--module", "average"], ["module.weight", "n_averaged"], -1),
    ):
        out = tmp_path / "model.safetensors"
        assert main(["weights", str(run.path), str(out), "--force", *words]) == 0
        loaded = load_file(out)
        assert sorted(loaded) == wanted
        weight = loaded["weight" if "weight" in loaded else "module.weight"]
        assert torch.equal(weight, torch.full((4, 3), 30.0 * sign))


def test_json_says_what_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = made(tmp_path, best=20), tmp_path / "model.safetensors"
    assert main(["weights", str(run.path), str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["step"] == 20 and said["tensors"] == 2 and said["bytes"] == out.stat().st_size


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.bin"], "model.bin should end with one of"),
        (["model.pt", "--step", "25"], "step 25 has no checkpoint"),
        (["model.pt", "--best"], "this run has no best weights"),
        (["model.pt", "--ema"], "no protected module is called `ema`"),
        (["nowhere/model.pt"], "there is no folder"),
        (["there.pt"], "exists already"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_left(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("there.pt").write_bytes(b"mine")
    assert main(["weights", str(run.path), *words]) == 2
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "there.pt"]
    assert Path("there.pt").read_bytes() == b"mine"


def test_damaged_weights_are_not_handed_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path, best=20)
    path = run.path / "best.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 16
    path.write_bytes(data)
    assert main(["weights", str(run.path), str(tmp_path / "model.pt")]) == 2
    assert "best.safetensors cannot be used: its bytes are not the ones written" in capsys.readouterr().err
