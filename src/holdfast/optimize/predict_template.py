"""The `predict.py` of a bundle: about twenty lines for the engine that was chosen, without holdfast.

script({"engine": "onnxruntime", "file": "model.onnx", …})       # the text of the file
"""

from __future__ import annotations

from typing import Any

from holdfast.optimize.engines import kinds

_HEAD = '''"""python predict.py input.npy [more.npy] > answers.npy   (needs {needs})"""
import io, sys
from pathlib import Path
import numpy as np
HERE = Path(__file__).resolve().parent
{beside}{imports}
'''
_BESIDE = "sys.path.insert(0, str(HERE)); sys.dont_write_bytecode = True  # the folder stays as it is\n"
_TAIL = """
if __name__ == "__main__":
    given = [np.load(path, allow_pickle=False) for path in sys.argv[1:]]
    {save}
"""


def script(about: dict[str, Any]) -> str:
    """The file, ready to run."""
    kind = kinds()[about["engine"]]
    imports = kind.predict.imports
    post = about.get("post")
    if post:
        imports += "\nfrom post import apply"
    wrapped = f"(lambda outputs: apply({post!r}, outputs))" if post else ""
    text = kind.predict.fill(about, wrapped, kind.blanks(about))
    single = "np.save(_out := io.BytesIO(), predict(*given)[0])\n    sys.stdout.buffer.write(_out.getvalue())"
    rows = "[print(row.tolist()) for row in predict(*given)]"
    beside = _BESIDE if post or kind.travels else ""
    head = _HEAD.format(needs=kind.predict.needs, imports=imports, beside=beside)
    return head + text + _TAIL.format(save=rows if post else single)
