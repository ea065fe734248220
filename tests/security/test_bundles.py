"""A bundle from anybody: nothing of it is run or unpickled, whichever command reads it and however well it is sealed.

Every attack here carries real pickles or programs that leave a mark, under a manifest whose digests are right.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra `optimize`")
onnx = pytest.importorskip("onnx", reason="needs the extra `optimize`")
torch = pytest.importorskip("torch")

from holdfast.base.errors import UserError  # noqa: E402
from holdfast.cli.main import main  # noqa: E402
from holdfast.optimize import bundle, graph, graph_writer  # noqa: E402
from holdfast.optimize.model_files import check_onnx, check_openvino  # noqa: E402
from tests.optimize import small  # noqa: E402


class Evil:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return small.make(tmp_path)


def seal(folder: Path, **changes: Any) -> Path:
    """A manifest that fits whatever lies there now: anybody can write one."""
    manifest = {**json.loads((folder / "manifest.json").read_text()), **changes}
    parts = [each for each in folder.iterdir() if each.is_file() and each.name != "manifest.json"]
    digests = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in parts}
    manifest["files"] = {each.name: {"sha256": digests[each.name], "bytes": each.stat().st_size} for each in parts}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def refused(folder: Path, mark: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is told; by every command that opens a bundle, and none of them runs anything."""
    np.save(folder.parent / "x.npy", np.ones((1, 6), np.float32))
    told = set()
    for words in (
        ["predict", str(folder), str(folder.parent / "x.npy")],
        ["serve", str(folder), "--port", "0"],
        ["optimize", "--verify", str(folder)],
    ):
        code = main(words)
        said = capsys.readouterr()
        assert code in (1, 2), (words, code)  # 1: the child of --verify says why
        assert not mark.exists(), words
        told.add((said.err + said.out).strip())
    return "\n".join(told)


def archive(folder: Path, mark: Path) -> dict[str, bytes]:
    """What PyTorch's own loaders run when they are given it, by the name of a file."""
    from torch._export.serde import serialize
    from torch._export.serde.schema import SCHEMA_VERSION

    evil = io.BytesIO()
    torch.save(Evil(mark), evil)
    whole = serialize.serialize(torch.export.export(torch.nn.Linear(6, 2), (torch.ones(2, 6),)))
    with zipfile.ZipFile(folder / "old.pt2", "w") as packed:  # the form that PyTorch falls back to
        packed.writestr("version", ".".join(map(str, SCHEMA_VERSION)))
        packed.writestr("serialized_exported_program.json", whole.exported_program)
        for name in ("state_dict", "constants", "example_inputs"):
            packed.writestr(f"serialized_{name}.pt", evil.getvalue())
    with pytest.raises(Exception):  # noqa: B017 - whatever it says afterwards
        torch.export.load(folder / "old.pt2")
    assert mark.exists(), "the archive is none that runs anything: this test would prove nothing"
    mark.unlink()
    return {"model.pt2": (folder / "old.pt2").read_bytes(), "plain": pickle.dumps(Evil(mark))}


def test_archives_of_pytorch_are_refused_and_not_opened(
    made: Path, tmp_path: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = archive(tmp_path, mark)
    (made / "model.onnx").unlink()
    for engine, file, content in (
        ("export", "model.pt2", data["model.pt2"]),
        ("cudagraph", "model.pt2", data["model.pt2"]),
        ("aot", "model.pt2", data["model.pt2"]),
        ("torchscript", "model.ts", data["plain"]),
    ):
        (made / file).write_bytes(content)
        told = refused(seal(made, engine=engine, file=file), mark, capsys)
        assert "which runs what is in it when it is loaded" in told and file in told, engine
        (made / file).unlink()


def test_a_pickle_under_the_name_of_data_is_data_that_cannot_be_read(
    made: Path, tmp_path: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = pickle.dumps(Evil(mark))
    array = io.BytesIO()
    np.save(array, np.array([Evil(mark)], dtype=object), allow_pickle=True)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as kept:
        kept.writestr("i0.npy", array.getvalue())
        kept.writestr("o0.npy", array.getvalue())
    (made / "model.onnx").write_bytes(evil)
    assert "cannot be loaded" in refused(seal(made), mark, capsys)
    small.model(made / "model.onnx")
    for content in (evil, array.getvalue(), packed.getvalue()):
        (made / "check.npz").write_bytes(content)
        seal(made)
        assert main(["optimize", "--verify", str(made)]) == 2
        assert "check.npz of" in capsys.readouterr().err and not mark.exists()
    (made / "model.onnx").unlink()
    for weights in (evil, b"\xff" * 8, b""):
        (made / "model.json").write_text(json.dumps({**GRAPH, "weights": [{"name": "w", "device": "cpu"}]}))
        (made / "model.safetensors").write_bytes(weights)
        told = refused(seal(made, engine="export", file="model.json"), mark, capsys)
        assert "cannot be loaded" in told or "does not run here" in told
    (made / "model.json").write_bytes(evil)
    assert "cannot be loaded" in refused(seal(made, engine="export", file="model.json"), mark, capsys)


def test_a_bundle_is_compared_before_any_of_it_is_read(
    made: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever file was changed since, that is what is told, and not what a reader of it stumbled over."""
    for each in sorted(made.iterdir()):
        if each.name == "manifest.json":
            continue
        was = each.read_bytes()
        each.write_bytes(pickle.dumps(Evil(mark)))
        assert f"{each.name} of {made} has changed since the bundle was made" in refused(made, mark, capsys)
        each.write_bytes(was)


@pytest.mark.parametrize("kind", ["folder", "link", "file", "pipe"])
def test_what_the_manifest_does_not_name_is_not_there_for_anybody(made: Path, tmp_path: Path, kind: str) -> None:
    import os

    (tmp_path / "elsewhere").mkdir()
    extra = made / ("__pycache__" if kind == "folder" else "model.bin")
    {
        "folder": extra.mkdir,
        "link": lambda: extra.symlink_to(tmp_path / "elsewhere"),
        "file": extra.touch,
        "pipe": lambda: os.mkfifo(extra),
    }[kind]()
    with pytest.raises(UserError, match="holds something that is not in its manifest"):
        bundle.open_bundle(made)


def test_a_file_of_the_bundle_that_is_a_link_is_refused(made: Path, tmp_path: Path) -> None:
    shutil.move(made / "model.onnx", tmp_path / "model.onnx")
    (made / "model.onnx").symlink_to(tmp_path / "model.onnx")
    with pytest.raises(UserError, match=r"model\.onnx of .* (cannot be read|has changed since the bundle was made)"):
        bundle.open_bundle(made)


@pytest.mark.all
def test_verify_runs_no_code_of_a_bundle_and_says_whose_it_is(
    made: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", "--verify", str(made)]) == 0
    assert "did not write" not in capsys.readouterr().out
    for name in ("predict.py", "post.py", "graph.py"):
        (made / name).write_text(f"open({str(mark)!r}, 'w')\n")
    assert main(["optimize", "--verify", str(seal(made))]) == 0
    assert "! graph.py, post.py, predict.py: code that this holdfast did not write" in capsys.readouterr().out
    assert not mark.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3}, {"name": None}, {"made": ["x"]}, {"score": [1]}, {"score": {"compared": 7}}, {"measured": 4},
        {"measured": {"p50": "fast"}}, {"max_loss": {}}, {"max_loss": float("inf")}, {"post": [1]}, {"contract": "x"},
        {"file": "predict.py"}, {"file": "check.npz"}, {"threads": True}, {"files": {"model.onnx": {"sha256": 1}}},
        {"inputs": [{"name": "x", "shape": [True], "dtype": "float32"}]}, {"precision": {}}, {"device": []},
        {"program": 3}, {"program": {"engine": "pickle"}}, {"program": {"file": "predict.py"}},
        {"program": {"threads": 0}}, {"program": {"engine": "openvino", "file": "model.xml"}},
    ],
)  # fmt: skip
def test_a_manifest_of_any_shape_is_told_in_words(made: Path, change: dict[str, Any]) -> None:
    manifest = json.loads((made / "manifest.json").read_text())
    (made / "manifest.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(UserError, match="is damaged or of another holdfast"):
        bundle.open_bundle(made)


@pytest.mark.all
def test_kept_inputs_that_claim_to_be_larger_than_they_are(made: Path) -> None:
    def packed(content: bytes, way: int) -> None:
        with zipfile.ZipFile(made / "check.npz", "w", way) as kept:
            kept.writestr("i0.npy", content)
            kept.writestr("o0.npy", content)
        seal(made)

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 6)})
    for content, way in ((header.getvalue(), zipfile.ZIP_STORED), (b"\0" * 50_000_000, zipfile.ZIP_DEFLATED)):
        packed(content, way)
        with pytest.raises(UserError, match=r"check\.npz of .* cannot be read"):
            bundle.kept(bundle.open_bundle(made))


# Models of others -------------------------------------------------------------------------------------------------


def onnx_model(path: Path, *, where: str = "", domain: str = "", inside: bool = False) -> Path:
    """With weights elsewhere, or an operator of another library; `inside`: in a branch of an operator."""
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(small.WEIGHT, "w")
    if where:
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", where), ("offset", "0"), ("length", "48")):
            weight.external_data.add(key=key, value=value)
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", k]) for n, k in (("x", 6), ("y", 2))]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], domain=domain)
    weights = [weight]
    if inside:
        branch = helper.make_graph([node], "branch", [], kinds[1:], [weight])
        node, weights = helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch), []
        weights.append(numpy_helper.from_array(np.array(True), "yes"))
    body = helper.make_graph([node], "g", kinds[:1], kinds[1:], weights)
    domains = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(body, opset_imports=domains, ir_version=9), path)
    return path


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("where", ["../secret", "/etc/passwd", "predict.py", "manifest.json"])
def test_onnx_with_weights_elsewhere_is_refused(tmp_path: Path, where: str, inside: bool) -> None:
    with pytest.raises(ValueError, match="keeps weights in other files"):
        check_onnx(onnx_model(tmp_path / "m.onnx", where=where, inside=inside))


def test_onnx_with_operators_of_others_is_refused(made: Path, mark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx_model(made / "model.onnx", domain="evil.ops")
    assert "needs operators of another library: evil.ops" in refused(seal(made), mark, capsys)
    check_onnx(onnx_model(made.parent / "plain.onnx", inside=True))


@pytest.mark.parametrize("cut", [1, 7, 100, 150])
def test_a_file_that_is_no_onnx_is_told(tmp_path: Path, cut: int) -> None:
    small.model(tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    for content in (data[:-cut], b"\xff" * cut, b""):
        (tmp_path / "m.onnx").write_bytes(content)
        with pytest.raises(ValueError, match=r"ONNX|empty"):
            check_onnx(tmp_path / "m.onnx")


LAYER = '<?xml version="1.0"?><net name="m" version="11"><layers><layer id="0" name="/a/b" type="Const" {}>{}</layer></layers></net>'  # noqa: E501


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + LAYER.format("", "&a;"), "entities"),
        (LAYER.format('version="extension"', ""), "needs an extension"),
        (LAYER.format('version="opset1"', '<data offset="0" size="99"/>'), "beyond the end"),
        (LAYER.format('version="opset1"', '<data offset="-8" size="8"/>'), "beyond the end"),
        (LAYER.format('version="opset1"', '<data where="/etc/passwd"/>'), "names a path"),
        (LAYER.format('version="opset1"', '<data where="a/../../b"/>'), "names a path"),
        (LAYER.format('version="opset1"', '<data weights_path="x"/>'), "names a path"),
        ("\x80pickle", "not XML"),
    ],
)
def test_openvino_that_leads_out_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "model.xml").write_text(text)
    (tmp_path / "model.bin").write_bytes(bytes(64))
    with pytest.raises(ValueError, match=words):
        check_openvino(tmp_path / "model.xml")


def test_openvino_of_our_own_is_taken(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    small.model(tmp_path / "m.onnx")
    openvino.save_model(openvino.Core().read_model(tmp_path / "m.onnx"), tmp_path / "model.xml")
    check_openvino(tmp_path / "model.xml")


# The graph of a model, as data ------------------------------------------------------------------------------------

GRAPH: dict[str, Any] = {
    "schema": 1,
    "weights": [],
    "inputs": 1,
    "steps": [{"do": "aten.relu.default", "args": [{"value": 0}]}],
    "outputs": [1],
}


def read(folder: Path, said: Any) -> graph.Graph:
    (folder / "model.json").write_text(json.dumps(said))
    return graph.load(folder / "model.json")


@pytest.mark.parametrize(
    "step",
    [
        {"do": "aten.from_file.default", "args": ["/etc/passwd", True, 10]},
        {"do": "aten.set_.source_Tensor", "args": [{"value": 0}, {"value": 0}]},
        {"do": "aten.empty.memory_format", "args": [[10]]},
        {"do": "aten.add.out", "args": [{"value": 0}, {"value": 0}]},
        {"do": "aten.relu.__class__", "args": []},
        {"do": "aten.__class__.default", "args": []},
        {"do": "aten.relu", "args": [{"value": 0}]},
        {"do": "torch.load", "args": ["x.pt"]},
        {"do": "torch.ops.load_library", "args": ["x.so"]},
        {"do": "operator.attrgetter", "args": ["__class__"]},
        {"do": "operator.mul", "args": ["a", 9]},
        {"do": "os.system", "args": ["true"]},
        {"do": "builtins.eval", "args": ["1"]},
        {"do": "aten.relu.default", "args": [{"value": 1}]},
        {"do": "aten.relu.default", "args": [{"value": -1}]},
        {"do": "aten.relu.default", "args": [{"dtype": "__loader__"}]},
        {"do": "aten.relu.default", "args": [{"device": "meta"}]},
        {"do": "aten.relu.default", "args": [[[[[[{"value": 0}]]]]]]},
        {"do": "aten.relu.default", "args": {"self": 1}},
        {"do": ["aten.relu.default"]},
        "aten.relu.default",
    ],
)
def test_a_graph_holds_operators_of_the_list_and_nothing_else(tmp_path: Path, step: Any) -> None:
    assert torch.equal(read(tmp_path, GRAPH)(torch.tensor([-1.0, 2.0]))[0], torch.tensor([0.0, 2.0]))
    with pytest.raises(ValueError, match=r"operator|argument|device"):
        read(tmp_path, {**GRAPH, "steps": [step]})


@pytest.mark.parametrize("change", [{"outputs": [2]}, {"outputs": "x"}, {"inputs": -1}, {"inputs": True}, {"steps": {}},
                                    {"schema": 2}, {"weights": [7]}])  # fmt: skip
def test_a_graph_of_another_shape_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    torch_file = tmp_path / "model.safetensors"
    from safetensors.torch import save_file

    save_file({"w": torch.ones(2)}, torch_file)
    with pytest.raises(ValueError):
        read(tmp_path, {**GRAPH, **change})


class Mixed(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
    """In place, several outputs, a state of its own, a tied weight, sizes that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.act, self.rnn = torch.nn.ReLU(inplace=True), torch.nn.LSTM(4, 4, batch_first=True)
        self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.two.weight = self.one.weight

    def forward(self, x: Any) -> Any:
        y = self.act(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        with torch.no_grad():
            y = y + torch.arange(4)
        z = self.two(self.one(self.rnn(y)[0]))
        z[:, 0] = 0
        return z.reshape(x.shape[0] * 2, -1), torch.where(x > 0, x, float("-inf")).amax((2, 3)), y.to(torch.float64)


@pytest.mark.all
@pytest.mark.filterwarnings("ignore")
def test_what_is_kept_answers_as_the_model_does(tmp_path: Path) -> None:
    from holdfast.optimize.build import exported

    torch.manual_seed(0)
    model, x = Mixed().eval(), torch.randn(5, 3, 6, 6)
    graph_writer.write(exported(model, (x[:2],)), tmp_path / "model.json")
    found = graph.load(tmp_path / "model.json")
    with torch.inference_mode():
        for count in (1, 5, 2):
            for mine, wanted in zip(found(x[:count]), model(x[:count]), strict=True):
                torch.testing.assert_close(mine, wanted)
    names = [each["name"] for each in json.loads((tmp_path / "model.json").read_text())["weights"]]
    assert sum(name.endswith(("one.weight", "two.weight")) for name in set(names)) == 1


def test_an_operator_that_is_not_on_the_list_is_told_when_a_bundle_is_made(tmp_path: Path) -> None:
    class Drawn(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def forward(self, x: Any) -> Any:
            return x + torch.rand_like(x)

    program = torch.export.export(Drawn(), (torch.ones(2, 6),))
    with pytest.raises(graph_writer.CannotKeep, match="rand"):
        graph_writer.write(program, tmp_path / "model.json")


@pytest.mark.all
def test_a_graph_in_a_bundle_answers_without_holdfast_and_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    linear = torch.nn.Linear(6, 2).eval()
    (tmp_path / "built").mkdir()
    program = torch.export.export(linear, (torch.ones(2, 6),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    graph_writer.write(program, tmp_path / "built" / "model.json")
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    with torch.inference_mode():
        wanted = linear(torch.from_numpy(x)).numpy()
    chosen, more = {**small.CHOSEN, "engine": "export"}, {"name": "linear"}
    made = bundle.write(
        tmp_path / "bundle", tmp_path / "built", chosen, small.SUBJECT, {"i0": x, "o0": wanted}, more, ""
    )
    np.save(tmp_path / "x.npy", x)
    alone = "import sys, runpy; sys.modules.update(holdfast=None); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"  # noqa: E501
    words = [sys.executable, "-I", "-c", alone, str(made / "predict.py"), str(tmp_path / "x.npy")]
    done = subprocess.run(words, capture_output=True, check=True, timeout=110)
    np.testing.assert_allclose(np.load(io.BytesIO(done.stdout)), wanted, atol=1e-5)
    np.testing.assert_allclose(bundle.open_bundle(made).predict([x])[0], wanted, atol=1e-5)
