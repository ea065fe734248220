#!/usr/bin/env python3
"""Make `holdfast-verify.pyz`: `holdfast verify` as one file that needs nothing but Python and torch.

python scripts/verify_pyz.py                  dist/holdfast-verify.pyz
python scripts/verify_pyz.py --out FILE       somewhere else

A stranger with a card that nobody here owns downloads it and types `python holdfast-verify.pyz`. It unpacks the package
into a folder of its own, runs `holdfast verify` from there, and removes the folder. The same tree gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"
LEFT_OUT = ("workloads", "optimize", "monitor/web/static", "integrations")
"""Parts that a verification does not use."""
_DATE = (2026, 1, 1, 0, 0, 0)
START = '''"""`python holdfast-verify.pyz`: prove one device. Needs Python 3.11 or newer and torch."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile


def main():
    if sys.version_info < (3, 10) or (sys.version_info < (3, 11) and importlib.util.find_spec("tomli") is None):
        print("holdfast-verify needs Python 3.11 or newer; this is " + sys.version.split()[0], file=sys.stderr)
        return 2
    if importlib.util.find_spec("torch") is None:
        print("holdfast-verify needs torch in this Python: " + sys.executable, file=sys.stderr)
        return 2
    place = tempfile.mkdtemp(prefix="holdfast-verify-")
    try:
        with zipfile.ZipFile(sys.argv[0]) as archive:
            names = [name for name in archive.namelist() if name.startswith("holdfast/") and ".." not in name]
            archive.extractall(place, names)
        before = os.environ.get("PYTHONPATH")
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([place, before] if before else [place]))
        return subprocess.call([sys.executable, "-m", "holdfast", "verify", *sys.argv[1:]], env=env)
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
'''


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "holdfast-verify.pyz")
    path = make(parser.parse_args(argv).out)
    print(f"{path}  {path.stat().st_size / 1e6:.2f} MB  sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return 0


def make(out: Path) -> Path:
    """The file, from the tree as it is."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", START.encode())
        for path in sorted(PACKAGE.rglob("*")):
            name = path.relative_to(PACKAGE).as_posix()
            if path.is_file() and "__pycache__" not in path.parts and not _left_out(name):
                _add(archive, f"holdfast/{name}", path.read_bytes())
    return out


def _left_out(name: str) -> bool:
    """The lists of workloads stay: commands ask what there is, and get an empty answer."""
    kept = name in ("workloads/__init__.py", "run/workload_registry.py", "optimize/__init__.py")
    return name.startswith(tuple(f"{part}/" for part in LEFT_OUT)) and not kept


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
