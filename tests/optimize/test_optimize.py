"""`holdfast optimize` from end to end on a user's own module: the table, the bundle, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from holdfast.cli.main import main

NETS = Path(__file__).with_name("nets.py")


def data(folder: Path, count: int = 24) -> Path:
    rng = np.random.default_rng(0)
    np.savez(folder / "val.npz", x=rng.standard_normal((count, 6)), targets=rng.standard_normal((count, 2)))
    return folder / "val.npz"


@pytest.mark.long
def test_from_a_module_to_a_bundle_that_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    from tests.optimize.nets import small

    net = small().eval()
    with torch.no_grad():
        net.last.bias += 1.0
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    words = ["optimize", f"{NETS}:small", "--weights", str(tmp_path / "w.safetensors"), "--data", str(data(tmp_path))]
    words += ["--out", str(tmp_path / "bundle"), "--engines", "onnxruntime fp32", "--seconds", "0.2", "--threads", "1"]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in said["rows"]}
    assert said["chosen"]["name"] == "onnxruntime fp32" and said["chosen"]["agreement"] > 0.9999
    assert rows["as called"]["state"] == "as called" and rows["eager fp32"]["state"] == "baseline"
    assert {"r", "nrmse"} == set(said["scores"]) == set(rows["onnxruntime fp32"]["scores"])
    for key in ("p50", "p95", "p99", "cold_s", "rss", "bytes", "throughput", "ratio_low", "ratio_high"):
        assert key in rows["onnxruntime fp32"], key
    assert said["profile"]["before"] and said["profile"]["after"]
    public = next(row for row in said["candidates"] if row["chosen"])
    assert public["name"] == "onnxruntime fp32" and public["refused_by"] is None and public["p50_ms"] > 0
    assert abs(public["score_delta"]) <= 0.005 and said["baseline"]["p50_ms"] > 0

    x = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "bundle" / "predict.py"), str(tmp_path / "x.npy")],
        capture_output=True, check=True, timeout=100, cwd=tmp_path,
    )  # fmt: skip
    (tmp_path / "y.npy").write_bytes(done.stdout)
    with torch.inference_mode():
        assert np.allclose(np.load(tmp_path / "y.npy"), net(torch.from_numpy(x)).numpy(), atol=1e-5)
    page = (tmp_path / "bundle" / "report.html").read_text()
    assert "Where the time goes, before" in page and "<script" not in page


@pytest.mark.long
def test_an_operator_onnx_has_not_leaves_the_other_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "optimize",
        f"{NETS}:not_for_onnx",
        "--input",
        "1x6",
        "--out",
        str(tmp_path / "bundle"),
        "--seconds",
        "0.1",
    ]
    words += ["--engines", "onnxruntime fp32,export", "--threads", "1", "--no-profile"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "onnxruntime fp32 failed: the operator aten" in told and "matrix_exp" in told
    assert "Chosen: export fp32" in told and "random inputs" in told


@pytest.mark.all
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("factory", "more", "code", "words"),
    [
        ("constant", [], 1, "the answer is the same for all 16 inputs"),
        ("broken", [], 2, "KeyError: 'hidden_size'"),
        ("nothing", [], 2, "cannot be loaded"),
    ],
)
def test_models_that_cannot_be_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factory: str, more: list[str], code: int, words: str
) -> None:
    out = ["--out", str(tmp_path / "bundle"), "--engines", "export", "--seconds", "0.1", "--threads", "1"]
    assert main(["optimize", f"{NETS}:{factory}", "--input", "1x6", *out, *more]) == code
    assert words in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


@pytest.mark.all
def test_calibration_of_another_shape_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "cal.npy", np.ones((4, 7), np.float32))
    words = ["optimize", f"{NETS}:small", "--data", str(data(tmp_path)), "--out", str(tmp_path / "b"), "--threads", "1"]
    assert main([*words, "--calibration", str(tmp_path / "cal.npy")]) == 2
    told = capsys.readouterr().err
    assert "the calibration data has the wrong shape" in told and "(n, 7)" in told and "(n, 6)" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["net:build"], "there are no inputs for the model"),
        (["net:build", "--input", "1xtwo"], "is not a shape"),
        (["net:build", "--input", "1x6", "--engines", "onnxruntme"], "a similar engine exists: `onnxruntime`"),
        (["net:build", "--data", "no.npz"], "there is no no.npz"),
        (["no-such-run"], "no-such-run"),
        (["--verify", "no-such-bundle"], "no-such-bundle is not a bundle"),
    ],
)
def test_command_lines_that_cannot_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["optimize", *words]) == 2
    assert said in capsys.readouterr().err
