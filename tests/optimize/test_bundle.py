"""A bundle: whole or refused, and its predict.py needs nothing of holdfast."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import UserError
from holdfast.cli.main import main
from holdfast.optimize import bundle, measure
from holdfast.optimize.candidates import Candidate
from holdfast.optimize.findings import findings
from holdfast.optimize.pipeline import Options, _Search
from holdfast.optimize.predict_template import script
from holdfast.optimize.processor import Machine
from tests.optimize import small


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "bundle"))


def test_it_answers(made: Path) -> None:
    x = np.ones((3, 6), np.float32)
    assert np.allclose(bundle.open_bundle(made).predict([x])[0], x @ small.WEIGHT)


@pytest.mark.parametrize("name", ["model.onnx", "predict.py", "check.npz", "report.html"])
def test_one_changed_byte_is_found(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(UserError, match=rf"{name} of .* has changed since"):
        bundle.open_bundle(copy)


def test_a_missing_and_an_added_file_are_found(copy: Path) -> None:
    (copy / "sitecustomize.py").write_text("")
    with pytest.raises(UserError, match="not in its manifest"):
        bundle.open_bundle(copy)
    (copy / "sitecustomize.py").unlink()
    (copy / "model.onnx").unlink()
    with pytest.raises(UserError, match=r"model\.onnx of .* cannot be read"):
        bundle.open_bundle(copy)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 99}, {"engine": "pickle"}, {"engine": []}, {"engine": None},
        {"file": "../../etc/passwd"}, {"files": {"../x": {}}}, {"files": []},
        {"inputs": [{"name": "x", "shape": [1 << 40], "dtype": "float32"}]}, {"inputs": []}, {"threads": -1},
        {"inputs": [{"name": "x", "shape": [6], "dtype": "object"}]}, {"post": {"kind": "nms"}}, {"device": "tpu"},
    ],
)  # fmt: skip
def test_a_manifest_from_anywhere_is_refused_in_words(copy: Path, change: dict[str, object]) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(UserError, match="is damaged"):
        bundle.open_bundle(copy)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "\0" * 100])
def test_what_is_no_manifest_is_no_bundle(copy: Path, text: str) -> None:
    (copy / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="is not a bundle"):
        bundle.open_bundle(copy)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.ones((2, 7), np.float32), "has the shape"),
        (np.ones((2, 6), np.complex64), "holds complex64"),
        (np.array([["a"] * 6]), "holds <U1"),
        (np.full((2, 6), np.nan), "NaN"),
        (np.full((2, 6), 1e300), "infinity"),
        (np.array([[np.inf, -np.inf, 0, 0, 0, 0]], np.float32), "infinity"),
        (np.ones((0, 6), np.float32), "no input"),
        (np.float32(1), "has the shape"),
    ],
)
def test_wrong_inputs_are_told(made: Path, array: np.ndarray, words: str) -> None:
    with pytest.raises(UserError, match=words):
        bundle.open_bundle(made).check_inputs([np.asarray(array)])


def test_numbers_whose_sum_does_not_fit_are_numbers(made: Path) -> None:
    large = np.full((2, 6), 3e38, np.float32)
    assert (bundle.open_bundle(made).check_inputs([large])[0] == large).all()


def test_it_does_not_overwrite_what_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="exists already"):
        bundle.check_place(tmp_path / "mine")


def test_files_are_private(made: Path) -> None:
    assert {each.stat().st_mode & 0o777 for each in made.iterdir()} == {0o600}


def test_predict_py_needs_only_the_engine(made: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    program = "import sys, runpy; sys.modules.update(holdfast=None, torch=None); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, str(made / "predict.py"), str(tmp_path / "x.npy")],
        capture_output=True, timeout=100, check=True, cwd=tmp_path,
    )  # fmt: skip
    (tmp_path / "y.npy").write_bytes(done.stdout)
    assert np.allclose(np.load(tmp_path / "y.npy"), x @ small.WEIGHT, atol=1e-5)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "export", "cudagraph"])
@pytest.mark.parametrize("post", [None, {"kind": "nms", "score": 0.25, "overlap": 0.6, "most": 300}])
def test_every_predict_py_is_about_twenty_lines_of_python(engine: str, post: object) -> None:
    text = script({**small.CHOSEN, **small.SUBJECT, "engine": engine, "file": "model.x", "post": post})
    compile(text, "predict.py", "exec")
    assert len(text.strip().splitlines()) <= (28 if engine == "cudagraph" else 24)


def test_the_command_predicts(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 6), np.float32))
    assert main(["predict", str(made), str(tmp_path / "x.npy"), "--json"]) == 0
    assert np.allclose(json.loads(capsys.readouterr().out)["answers"]["y"], [[3.0, 3.6]] * 2)
    assert main(["predict", str(made), str(tmp_path / "x.npy"), "--out", str(tmp_path / "y.npy")]) == 0
    assert np.load(tmp_path / "y.npy").shape == (2, 2)
    np.save(tmp_path / "x.npy", np.ones((2, 5), np.float32))
    assert main(["predict", str(made), str(tmp_path / "x.npy")]) == 2
    told = capsys.readouterr().err
    assert "error: `x` has the shape (2, 5)" in told and "cause: the model takes (n, 6)" in told


def test_the_command_refuses_pickles(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert main(["predict", str(made), str(tmp_path / "x.npy")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_verify_on_another_machine(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "--verify", str(copy)]) == 0
    told = capsys.readouterr().out
    assert "✓ 4 files are what its manifest says" in told and "the answers agree" in told


def test_verify_finds_other_answers(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Right digests, but this machine computes something else: as if its engine were broken."""
    with np.load(copy / "check.npz") as kept:
        kept = dict(kept)
    np.savez(copy / "check.npz", **{**kept, "o0": kept["o0"][::-1]})
    manifest = json.loads((copy / "manifest.json").read_text())
    told = manifest["files"]["check.npz"]
    told.update(sha256=bundle.digest(copy / "check.npz"), bytes=(copy / "check.npz").stat().st_size)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert main(["optimize", "--verify", str(copy)]) == 1
    assert "✗ the answers are those of other inputs" in capsys.readouterr().out


@pytest.mark.all
@pytest.mark.parametrize("alone", [True, False])
def test_predict_asks_for_names_once_and_has_the_settings_that_were_faster(tmp_path: Path, alone: bool) -> None:
    """As ONNX Runtime comes, where that was measured to be faster for a program of its own; careful otherwise."""
    made = bundle.code({**small.CHOSEN, **small.SUBJECT, "file": "model.onnx", "alone": alone})["predict.py"].decode()
    assert ("allow_spinning" in made, "intra_op_num_threads" in made) == (not alone, not alone)
    assert made.index("get_inputs()") < made.index("def predict")
    small.model(tmp_path / "model.onnx")
    (tmp_path / "predict.py").write_text(made)
    x = np.ones((3, 6))  # of another kind than the model takes
    np.save(tmp_path / "x.npy", x)
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "predict.py"), str(tmp_path / "x.npy")], capture_output=True, check=True
    )
    (tmp_path / "y.npy").write_bytes(done.stdout)
    assert np.allclose(np.load(tmp_path / "y.npy"), x @ small.WEIGHT)


@pytest.mark.all
@pytest.mark.sample(2)
@pytest.mark.parametrize("fixed", [False, True])
def test_predict_of_openvino_has_the_shapes_that_were_measured(tmp_path: Path, fixed: bool) -> None:
    """Fixed shapes are chosen where they are faster, so predict.py has them, too, and still takes any batch."""
    openvino = pytest.importorskip("openvino")
    small.model(tmp_path / "model.onnx")
    openvino.save_model(openvino.convert_model(tmp_path / "model.onnx"), tmp_path / "model.xml", compress_to_fp16=False)
    about = {**small.CHOSEN, **small.SUBJECT, "engine": "openvino", "file": "model.xml", "fixed": fixed}
    made = bundle.code(about)["predict.py"].decode()
    assert ("model.reshape({0: [1, 6]})" in made) == fixed
    (tmp_path / "predict.py").write_text(made)
    for count in (1, 3):
        x = np.random.default_rng(count).standard_normal((count, 6))
        np.save(tmp_path / "x.npy", x)
        words = [sys.executable, "-I", str(tmp_path / "predict.py"), str(tmp_path / "x.npy")]
        (tmp_path / "y.npy").write_bytes(subprocess.run(words, capture_output=True, check=True).stdout)
        assert np.allclose(np.load(tmp_path / "y.npy"), x @ small.WEIGHT, atol=1e-5)


@pytest.mark.all
def test_predict_runs_another_engine_than_a_server_where_it_was_faster(tmp_path: Path, capsys: Any) -> None:
    openvino = pytest.importorskip("openvino")
    for name in ("served", "program"):
        (tmp_path / name).mkdir()
    small.model(tmp_path / "program" / "model.onnx")
    model = openvino.convert_model(tmp_path / "program" / "model.onnx")
    openvino.save_model(model, tmp_path / "served" / "model.xml", compress_to_fp16=False)
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    made = bundle.write(
        tmp_path / "bundle", tmp_path / "served", {**small.CHOSEN, "engine": "openvino"}, small.SUBJECT,
        {"i0": x, "o0": x @ small.WEIGHT}, {"name": "both", "measured": {"p50": 0.001}}, "<p>report</p>",
        program=(tmp_path / "program", {**small.CHOSEN, "alone": True}),
    )  # fmt: skip
    opened = bundle.open_bundle(made)
    assert np.allclose(opened.predict([x])[0], x @ small.WEIGHT, atol=1e-5)
    text = (made / "predict.py").read_text()
    assert "import onnxruntime" in text and "allow_spinning" not in text and "openvino" not in text
    np.save(tmp_path / "x.npy", x)
    words = [sys.executable, "-I", str(made / "predict.py"), str(tmp_path / "x.npy")]
    (tmp_path / "y.npy").write_bytes(subprocess.run(words, capture_output=True, check=True).stdout)
    assert np.allclose(np.load(tmp_path / "y.npy"), x @ small.WEIGHT, atol=1e-5)
    assert main(["optimize", "--verify", str(made)]) == 0
    assert "did not write" not in capsys.readouterr().out


@pytest.mark.parametrize(("faster", "program"), [(1.2, "onnxruntime fp32"), (0.9, None)])
def test_predict_gets_what_is_faster_alone(monkeypatch: Any, faster: float, program: str | None) -> None:
    """The times are given: which of two engines is faster is the machine's affair."""
    search = _Search({}, Path(), Machine(frozenset(), 2), Options(), print)
    rows = [Candidate("openvino", "fp32", 2), Candidate("onnxruntime", "fp32", 2), Candidate("eager", "bf16", 2)]
    search.rows = [{**each.to_json(), "state": "ok", "ratio": 3.0 - number} for number, each in enumerate(rows)]
    asked: list[Any] = []
    monkeypatch.setattr(search, "_child", lambda threads: contextlib.nullcontext(_Asked(asked)))
    monkeypatch.setattr(measure, "against", lambda ours, theirs, **more: {"ratio": faster})
    best = search.rows[0]
    search._alone(best)
    assert [(each["engine"], each.get("spin", False)) for each in asked] == [("openvino", False), ("onnxruntime", True)]
    assert best.get("program") == program and not best["alone"]
    told = " ".join(findings([{**best, "chosen": True}], {}))
    assert ("predict.py runs onnxruntime fp32" in told) == (program is not None)


class _Asked:
    def __init__(self, asked: list[Any]) -> None:
        self.asked = asked

    def ask(self, command: dict[str, Any], deadline: float) -> None:
        self.asked.append(command["about"])


def test_predict_of_onnxruntime_takes_several_inputs(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 6]) for name in ("a", "b", "y")]
    graph = helper.make_graph([helper.make_node("Sub", ["a", "b"], ["y"])], "two", ports[:2], ports[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    inputs = [{"name": name, "shape": [6], "dtype": "float32"} for name in ("a", "b")]
    about = {**small.CHOSEN, **small.SUBJECT, "inputs": inputs, "file": "model.onnx"}
    (tmp_path / "predict.py").write_bytes(bundle.code(about)["predict.py"])
    np.save(tmp_path / "a.npy", np.full((2, 6), 5.0))
    np.save(tmp_path / "b.npy", np.full((2, 6), 3, np.int64))
    words = [sys.executable, "-I", *(str(tmp_path / name) for name in ("predict.py", "a.npy", "b.npy"))]
    (tmp_path / "y.npy").write_bytes(subprocess.run(words, capture_output=True, check=True).stdout)
    assert (np.load(tmp_path / "y.npy") == 2.0).all()
