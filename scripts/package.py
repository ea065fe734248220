#!/usr/bin/env python3
"""Build the wheel and the sdist, look into both, and try the wheel in an environment that has nothing else.

python scripts/package.py                 both below dist/, looked into; needs no network
python scripts/package.py --out FOLDER    somewhere else
python scripts/package.py --try           and install it: alone (no torch), with what it needs, and with an extra
                                          (downloads torch: minutes, and some gigabytes for a moment)

Both are built from a copy of the tree, so that what an earlier build left behind is in neither.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LEAVE = shutil.ignore_patterns(
    ".*_cache", ".git", ".venv", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist", "runs", "results"
)
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "MANIFEST.in")
EXTRA = "monitor"
"""The extra that is tried: it has the most packages that a face of holdfast imports."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--try", dest="attempt", action="store_true", help="install the wheel and run it")
    args = parser.parse_args(argv)
    wheel, sdist = build(args.out.absolute())
    problems = [*look_into_wheel(wheel), *look_into_sdist(sdist)]
    if args.attempt and not problems:
        problems = attempt(wheel)
    for problem in problems:
        print(f"✗ {problem}", file=sys.stderr)
    for path in (wheel, sdist):
        print(f"{'✗' if problems else '✓'} {path.name}  {path.stat().st_size / 1e6:.2f} MB")
    return int(bool(problems))


def build(out: Path) -> tuple[Path, Path]:
    """Both, by the build backend that is installed here: nothing is downloaded."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-package-") as place:
        tree = Path(place) / "holdfast"
        shutil.copytree(ROOT, tree, ignore=_LEAVE, symlinks=True)
        code = (
            "import sys; from setuptools import build_meta as b; out = sys.argv[1]; "  # the backend changes argv
            "print(b.build_wheel(out), b.build_sdist(out), sep='\\n')"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(out)], cwd=tree, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"the build failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        names = done.stdout.split()[-2:]
    return out / names[0], out / names[1]


# What has to be in them ---------------------------------------------------------------------------------------------


def sources() -> set[str]:
    """Every file of the package, as the wheel names it."""
    found = [path for path in (ROOT / "src" / "holdfast").rglob("*") if path.is_file()]
    kept = [path for path in found if "__pycache__" not in path.parts and path.suffix != ".pyc"]
    return {path.relative_to(ROOT / "src").as_posix() for path in kept}


def look_into_wheel(path: Path) -> list[str]:
    """Everything that is in src/, and nothing else."""
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        about = next(name for name in wheel.namelist() if name.endswith("METADATA"))
        text = wheel.read(about).decode()
        licences = [name for name in wheel.namelist() if name.endswith("LICENSE")]
    problems = [f"{path.name} lacks {name}" for name in sorted(sources() - names)]
    problems += [f"{path.name} has {name}, which is not in src/" for name in sorted(names - sources())]
    problems += [] if licences else [f"{path.name} has no licence"]
    return problems + [
        f"{path.name}: no `{line}`" for line in ("Name: holdfast", "Requires-Python: >=3.10") if line not in text
    ]


def look_into_sdist(path: Path) -> list[str]:
    """What is needed to build, test and read it."""
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {*NEEDED, *(f"src/{name}" for name in sources())}
    wanted |= {str(file.relative_to(ROOT).as_posix()) for file in (ROOT / "docs").rglob("*.md")}
    wanted |= {str(file.relative_to(ROOT).as_posix()) for file in (ROOT / "tests").rglob("*.py")}
    problems = [f"{path.name} lacks {name}" for name in sorted(wanted - names)]
    odd = [name for name in names if name.endswith((".pyc", ".orig")) or name.startswith((".git/", ".venv/", "runs/"))]
    return problems + [f"{path.name} has {name}" for name in odd]


# An empty environment -----------------------------------------------------------------------------------------------


def attempt(wheel: Path) -> list[str]:
    """Install and run it: alone, with its dependencies, and with an extra."""
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-empty-") as place:
        here = Path(place)
        python = empty(here / "env")
        install(python, "--no-deps", str(wheel))
        problems += _says(python, ["--help"], 0, "usage: holdfast COMMAND")
        problems += _says(python, ["doctor"], 1, "torch is not installed")
        print("· installed alone: --help and doctor answer; now with torch, which takes minutes", flush=True)
        install(python, str(wheel))
        problems += _says(python, ["doctor", "--device", "cpu"], 0, "cpu")
        problems += _says(python, ["watch", "--help"], 0, "holdfast watch")
        script = here / "job.py"
        script.write_text(_SCRIPT, encoding="utf-8")
        problems += _says(python, ["train", str(script), "--device", "cpu", "--json"], 0, '"state": "FINISHED"')
        install(python, f"{wheel}[{EXTRA}]")
        problems += _says(python, ["watch", "-1"], 0, "")
        problems += _says(python, ["env"], 0, "torch")
    return problems


_SCRIPT = """
import torch, holdfast

def train(session):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = holdfast.Loader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8)
    session.protect(model, optimizer, data)
    for _ in session.epochs(1):
        for batch in session.batches(data):
            session.step(lambda b: model(b[0]).square().mean(), batch)
"""


def empty(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(python: Path, *words: str) -> None:
    """With uv where it is there, which takes torch from its cache; else with pip."""
    uv = shutil.which("uv")
    tool = (
        [uv, "pip", "install", "--quiet", "--python", str(python)]
        if uv
        else [str(python), "-m", "pip", "install", "-q"]
    )
    subprocess.run([*tool, *words], check=True)


def _says(python: Path, words: list[str], code: int, text: str) -> list[str]:
    """The command as it is installed, in an empty folder and without our PYTHONPATH."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HOLDFAST_STATE")}
    with tempfile.TemporaryDirectory(prefix="holdfast-empty-state-") as state:
        done = subprocess.run(
            [str(python.parent / "holdfast"), *words],
            env={**env, "HOLDFAST_STATE": state}, cwd=state, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
    shown = done.stdout + done.stderr
    if done.returncode == code and (text in shown or text in json.dumps(shown)) and "Traceback" not in shown:
        return []
    return [f"`holdfast {' '.join(words)}` ended with {done.returncode}, not {code}, and said: {shown[-1500:]}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
