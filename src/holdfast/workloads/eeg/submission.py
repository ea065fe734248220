"""The zip for the competition: built from two runs, checked, and tried the way the competition would.

path = build(challenge1, challenge2, Path("submission.zip"))     # two run folders
check(path)                                                      # UserError: folders, a missing file, too large
python, told = environment(say)                                  # torch 2.2.2 of its own, or what is at hand
result = attempt(path, python, {1: windows, 2: windows})         # answers, time, memory
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.base import files, interpreter
from holdfast.base.errors import UserError

HERE = Path(__file__).parent
NET = "net.json"
"""What a run trained, beside its weights: enough to build it again."""
OFFICIAL = ("torch==2.2.2", "numpy==2.2.6")
OFFICIAL_ZOO = ("braindecode==1.2.0", "mne==1.10.1", "einops", "scipy==1.15.3", "scikit-learn==1.7.2")
"""Only where the model is braindecode's."""
OWN = ("tempo", "transformer")
CODE = {"submission.py": "serving.py", "holdfast_models.py": "models.py", "holdfast_heads.py": "heads.py"}
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("model", "head", "cache", "valid", "test"), str),
    **dict.fromkeys(("members", "channels", "samples", "column"), int),
    "rate": (int, float),
    "names": list,
    "options": dict,
}
LARGEST = 2 << 30
"""Bytes of a zip that can sensibly be uploaded; no limit was ever published."""


def described(folder: Path) -> dict[str, Any]:
    """net.json of a finished run."""
    about = files.read_json(folder / NET)
    if about is None or about.get("challenge") not in (1, 2):
        raise UserError(
            f"{folder.name} is not a finished run of a challenge",
            cause=f"it has no {NET}",
            hints=["train one: `holdfast train eeg-challenge1` and `holdfast train eeg-challenge2`"],
        )
    wrong = _wrong(about)
    if wrong:
        raise UserError(f"{NET} of {folder.name} does not describe a net", cause=wrong)
    if not (folder / "final.safetensors").is_file():
        raise UserError(
            f"{folder.name} has no final weights", hints=[f"let it finish: `holdfast resume {folder.name}`"]
        )
    return about


def _wrong(about: dict[str, Any]) -> str:
    """What is wrong with a description, which may come from anywhere; nothing if it can be built."""
    for name, kind in _FIELDS.items():
        if not isinstance(about.get(name), kind) or isinstance(about.get(name), bool):
            return f"{name} is {about.get(name)!r}"
    for name in ("members", "channels", "samples"):
        if not 0 < about[name] < 1 << 20:
            return f"{name} is {about[name]}"
    if not str(about["model"]).isidentifier() or str(about["model"]).startswith("_"):
        return f"model is {about['model']!r}"
    odd = [key for key, value in about["options"].items() if key not in ("width", "dropout") or not _is_number(value)]
    if odd:
        return f"options have {odd[0]!r}"
    if about["head"] not in ("time", "scalar", "four", "externalizing"):
        return f"head is {about['head']!r}"
    return "" if 0 <= about["column"] < len(about["names"]) else f"column is {about['column']}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def build(challenge1: Path, challenge2: Path, target: Path) -> Path:
    """Write the zip: flat, code and weights, the same bytes for the same runs."""
    members: dict[str, bytes] = {name: (HERE / source).read_bytes() for name, source in CODE.items()}
    for number, folder in ((1, challenge1), (2, challenge2)):
        about = described(folder)
        if about["challenge"] != number:
            raise UserError(f"{folder.name} is a run of Challenge {about['challenge']}, not {number}")
        if number == 2 and "externalizing" not in about["names"]:
            raise UserError(f"{folder.name} does not predict externalizing", cause=f"it predicts {about['names']}")
        members[f"challenge_{number}.json"] = json.dumps(about, indent=1).encode()
        members[f"challenge_{number}.safetensors"] = (folder / "final.safetensors").read_bytes()
    beside = target.with_name(target.name + ".tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name, (2025, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
        beside.replace(target)
    except OSError as error:
        raise UserError(f"cannot write {target}", cause=str(error.strerror or error)) from None
    return target


def check(path: Path) -> list[str]:
    """The names in a zip that the competition would take; UserError for one that it would not."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            broken = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not a zip that can be read", cause=str(error)) from None
    if broken is not None:
        raise UserError(f"{path} is damaged", cause=f"{broken} does not have its checksum")
    deep = [name for name in names if "/" in name or "\\" in name]
    if deep:
        raise UserError(
            f"{path} has folders in it",
            cause=f"{deep[0]}: everything must stand at the top",
            hints=["zip the files, not their folder"],
        )
    if "submission.py" not in names:
        raise UserError(f"{path} has no submission.py", cause=f"it holds {', '.join(names[:8]) or 'nothing'}")
    if path.stat().st_size > LARGEST:
        raise UserError(f"{path} is larger than {LARGEST >> 30} GB")
    return names


# Trying it --------------------------------------------------------------------------------------------------


def environment(requirements: Sequence[str], folder: Path, say: Callable[[str], None]) -> tuple[str, str | None]:
    """The Python of an environment with just these packages, made on demand; or this one, and why."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    marker = folder / "holdfast.json"
    if (files.read_json(marker) or {}).get("requirements") == list(requirements) and python.exists():
        return str(python), None
    say(f"• making a clean environment with {', '.join(requirements)} in {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv")
    make = (
        [uv, "venv", "-q", "--python", sys.executable, str(folder)] if uv else interpreter.module("venv", str(folder))
    )
    pip = (
        [uv, "pip", "install", "-q", "--python", str(python)]
        if uv
        else interpreter.module("pip", "install", "-q", python=str(python))
    )
    for command in (make, [*pip, *requirements]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        if why:
            shutil.rmtree(folder, ignore_errors=True)
            return sys.executable, why
    files.write_json(marker, {"requirements": list(requirements)})
    return str(python), None


def attempt(
    path: Path,
    python: str,
    windows: dict[int, tuple[Any, list[tuple[int, int]]]],
    *,
    rate: float = 100.0,
    device: str = "cpu",
) -> dict[str, Any]:
    """Unpack it somewhere else and ask it, in a process of that Python, about windows (float32 arrays) and batches."""
    with tempfile.TemporaryDirectory(prefix="holdfast-submission-") as place:
        root = Path(place)
        folder = root / "ingested"
        folder.mkdir()
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        challenges = {}
        for number, (array, batches) in windows.items():
            file = root / f"windows-{number}.f32"
            file.write_bytes(memoryview(array).cast("B"))
            challenges[str(number)] = {"windows": str(file), "shape": list(array.shape), "batches": batches}
        order = {
            "folder": str(folder),
            "rate": rate,
            "device": device,
            "challenges": challenges,
            "result": str(root / "result.json"),
        }
        files.write_json(root / "order.json", order, durable=False)
        shutil.copy(HERE / "competition.py", root / "competition.py")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HOLDFAST"))}
        done = subprocess.run(
            [python, "-I", str(root / "competition.py"), str(root / "order.json")],
            cwd=root, env=clean, capture_output=True, text=True, timeout=1800, check=False,
        )  # fmt: skip
        result = files.read_json(root / "result.json")
    if done.returncode or result is None:
        last = done.stderr.strip().splitlines()[-3:]
        raise UserError(
            "the submission failed when it was run as the competition does",
            cause="\n".join(last) or f"exit code {done.returncode}",
        )
    return result
