"""The manifest of a bundle, which may come from anywhere: what is wrong with it, in words. No torch here.

wrong(manifest)          # "" or "its engine is 'pickle', which is none of …"

Whoever uses a manifest afterwards finds each field that it reads to be of its kind; what nobody reads is left alone.
"""

from __future__ import annotations

import math
import re
from typing import Any

from holdfast.base import additions, files
from holdfast.optimize import engines

FORMAT = 1
MOST_NUMBERS = 1 << 28
MOST_FILES = 64
DTYPES = ("float32", "float16", "float64", "int64", "int32", "uint8", "int8", "bool")
ARCHIVES = {".pt2": "torch.export", ".ts": "TorchScript", ".pt": "PyTorch", ".pth": "PyTorch", ".pkl": "pickle"}
"""Endings of files that run what is in them when they are loaded."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TEXTS = ("engine", "precision", "name", "made", "file")
_OF_ENGINE = ("engine", "precision", "threads", "device", "fixed", "merge", "file", "alone")
_TABLES = ("contract", "score", "measured", "machine", "post", "program")


def wrong(manifest: dict[str, Any]) -> str:
    """What is wrong with it; empty if nothing is."""
    if manifest.get("schema") != FORMAT:
        return f"its schema is {manifest.get('schema')!r}, this holdfast reads {FORMAT}"
    found = _fields(manifest) or _engine(manifest) or _files(manifest) or _ports(manifest)
    if found or not manifest.get("program"):
        return found
    program = of_program(manifest)
    wrong_program = _fields(program) or _engine(program) or _files(program)
    return wrong_program and f"in `program`, {wrong_program}"


def of_program(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest as predict.py needs it: it may run another engine than a server does."""
    program = manifest.get("program") or {}
    return manifest | {name: program[name] for name in _OF_ENGINE if name in program}


def _fields(manifest: dict[str, Any]) -> str:
    for name in _TEXTS:
        if not isinstance(manifest.get(name), str) or len(manifest[name]) > 1000:
            return f"{name} is {str(manifest.get(name))[:100]!r}"
    for name in _TABLES:
        if manifest.get(name) is not None and not isinstance(manifest[name], dict):
            return f"`{name}` is no table"
    if not 1 <= files.whole(manifest.get("threads")) <= 4096:
        return "threads is none"
    if manifest.get("device", "cpu") not in ("cpu", "cuda"):
        return f"its device is {str(manifest['device'])[:100]!r}"
    post = manifest.get("post")
    if post is not None and not all(_number(post.get(key)) for key in ("score", "overlap", "most")):
        return "`post` is none that is known"
    compared = (manifest.get("score") or {}).get("compared", [])
    if not isinstance(compared, list) or not all(isinstance(each, (str, int)) for each in compared):
        return "`score` is none that is known"
    for value in (manifest.get("max_loss"), (manifest.get("measured") or {}).get("p50")):
        if value is not None and not _number(value):
            return "max_loss or measured are no numbers"
    return ""


def _engine(manifest: dict[str, Any]) -> str:
    engine, kinds = manifest["engine"], engines.kinds()
    if engine not in kinds:
        there_are = ", ".join(name for name, kind in kinds.items() if kind.bundled)
        return f"its engine is {engine[:100]!r}, which is none of {there_are}; {additions.VARIABLE} names others"
    ending = "." + manifest["file"].rpartition(".")[2]
    if not kinds[engine].bundled or (manifest["file"] != kinds[engine].file and ending in ARCHIVES):
        made_by = ARCHIVES.get(ending, engine)
        return f"{manifest['file'][:100]} is an archive of {made_by}, which runs what is in it when it is loaded"
    if manifest["file"] != kinds[engine].file:
        return f"its model is {manifest['file'][:100]}, {engine} loads {kinds[engine].file}"
    return ""


def _files(manifest: dict[str, Any]) -> str:
    listed = manifest.get("files")
    if not isinstance(listed, dict) or len(listed) > MOST_FILES or not all(map(_is_file, listed.items())):
        return "`files` is no table of files"
    return "" if manifest["file"] in listed else "the model's own file is not listed"


def _is_file(row: tuple[str, Any]) -> bool:
    name, told = row
    if not _NAME.fullmatch(name) or not isinstance(told, dict) or files.whole(told.get("bytes"), -1) < 0:
        return False
    return isinstance(told.get("sha256"), str) and bool(_DIGEST.fullmatch(told["sha256"]))


def _ports(manifest: dict[str, Any]) -> str:
    for key in ("inputs", "outputs"):
        rows = manifest.get(key)
        if not isinstance(rows, list) or not 0 < len(rows) < 1000 or not all(_is_port(row) for row in rows):
            return f"`{key}` does not describe arrays"
    return ""


def _is_port(row: object) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str) or not isinstance(row.get("shape"), list):
        return False
    if not all(type(each) is int and 0 < each < 1 << 24 for each in row["shape"]):
        return False
    return math.prod(row["shape"]) <= MOST_NUMBERS and row.get("dtype") in DTYPES


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
