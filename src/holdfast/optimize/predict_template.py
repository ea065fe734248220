"""The `predict.py` of a bundle: about twenty lines for the engine that was chosen, without holdfast.

script({"engine": "onnxruntime", "file": "model.onnx", …})       # the text of the file
"""

from __future__ import annotations

from typing import Any

_HEAD = '''"""python predict.py input.npy [more.npy] > answers.npy   (needs {needs})"""
import io, sys
from pathlib import Path
import numpy as np
{imports}
HERE = Path(__file__).resolve().parent
'''
_TAIL = """
if __name__ == "__main__":
    given = [np.load(path, allow_pickle=False) for path in sys.argv[1:]]
    {save}
"""
_BODIES = {
    "onnxruntime": (
        "onnxruntime, numpy",
        "import onnxruntime",
        """options = onnxruntime.SessionOptions()
options.intra_op_num_threads = {threads}
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = onnxruntime.InferenceSession(str(HERE / "{file}"), options, providers=["CPUExecutionProvider"])

def predict(*inputs):
    names = [each.name for each in session.get_inputs()]
    return {post}(session.run(None, dict(zip(names, (np.asarray(x, kind) for x, kind in zip(inputs, {kinds}))))))
""",
    ),
    "openvino": (
        "openvino, numpy",
        'sys.modules.setdefault("openvino_telemetry", None)  # it would tell its makers\nimport openvino',
        """settings = {settings}
core = openvino.Core()
model = core.read_model(HERE / "{file}")
run = core.compile_model(model, "CPU", settings)

def predict(*inputs):
    found = run([np.asarray(x, kind) for x, kind in zip(inputs, {kinds})])
    return {post}([np.array(found[number]) for number in range({count})])
""",
    ),
    "torch": (
        "torch, numpy",
        "import torch",
        """torch.set_num_threads({threads})
module = {load}

def predict(*inputs):
    with torch.inference_mode():
        found = module(*(torch.from_numpy(np.asarray(x, kind)) for x, kind in zip(inputs, {kinds})))
    return {post}([each.float().numpy() for each in (found if isinstance(found, (tuple, list)) else [found])])
""",
    ),
}
_LOAD = {
    "export": 'torch.export.load(HERE / "{file}").module()',
    "torchscript": 'torch.jit.load(str(HERE / "{file}"))',
    "aot": 'torch._inductor.aoti_load_package(str(HERE / "{file}"))',
}


def script(about: dict[str, Any]) -> str:
    """The file, ready to run."""
    from holdfast.optimize.engines import openvino_settings

    engine = about["engine"]
    needs, imports, body = _BODIES.get(engine, _BODIES["torch"])
    post = about.get("post")
    if post:
        imports += "\nsys.path.insert(0, str(Path(__file__).resolve().parent))\nfrom post import apply"
    wrapped = f"(lambda outputs: apply({post!r}, outputs))" if post else ""
    text = body.format(
        threads=int(about["threads"]),
        file=about["file"],
        post=wrapped,
        kinds=repr([each["dtype"] for each in about["inputs"]]),
        count=len(about["outputs"]),
        settings=repr(openvino_settings(about)) if engine == "openvino" else "",
        load=_LOAD.get(engine, "").format(file=about["file"]),
    )
    single = "np.save(held := io.BytesIO(), predict(*given)[0])\n    sys.stdout.buffer.write(held.getvalue())"
    rows = "[print(row.tolist()) for row in predict(*given)]"
    return _HEAD.format(needs=needs, imports=imports) + text + _TAIL.format(save=rows if post else single)
