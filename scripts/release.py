#!/usr/bin/env python3
"""Everything about a release that can be checked on one machine.

python scripts/release.py                 versions, changelog, workflows, Dockerfile, wheel and sdist
python scripts/release.py --tag v0.2.0    versions and changelog alone, for this tag
python scripts/release.py --try           and `uvx holdfast doctor` and `pipx run holdfast doctor` from an index on this
                                          disk that has the wheel (downloads torch: minutes)

A linter or a tool that is not installed is named and passed over; nothing is published.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import package

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
_BESIDE = Path(sys.executable).parent


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", metavar="vX.Y.Z", help="the tag that is released: versions and changelog alone")
    parser.add_argument("--try", dest="attempt", action="store_true", help="run the wheel with uvx and pipx")
    args = parser.parse_args(argv)
    problems = [*versions(args.tag)]
    if not args.tag:
        problems += [*lint("actionlint", *sorted(WORKFLOWS.glob("*.yml"))), *lint("hadolint", ROOT / "Dockerfile")]
        with tempfile.TemporaryDirectory(prefix="holdfast-release-") as place:
            wheel, sdist = package.build(Path(place))
            problems += [*package.look_into_wheel(wheel), *package.look_into_sdist(sdist)]
            if args.attempt and not problems:
                problems += attempt(wheel)
    for problem in problems:
        print(f"✗ {problem}", file=sys.stderr)
    if not problems:
        absent = [] if args.tag else [name for name in _tools(args.attempt) if tool(name) is None]
        rest = f"; not checked, because it is not installed: {', '.join(absent)}" if absent else ""
        print(f"✓ {version()} can be released{rest}")
    return int(bool(problems))


def version() -> str:
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""


def versions(tag: str | None) -> Iterator[str]:
    """One version everywhere; for a tag, a section of the changelog too."""
    said = version()
    if f'__version__ = "{said}"' not in (ROOT / "src/holdfast/__init__.py").read_text(encoding="utf-8"):
        yield f"holdfast.__version__ is not {said}, as pyproject.toml says"
    if tag is None:
        return
    if tag != f"v{said}":
        yield f"the tag {tag} is not v{said}, as pyproject.toml says"
    if f"## [{said}]" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        yield f"CHANGELOG.md has no section [{said}]"


def tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=str(_BESIDE))


def _tools(attempt: bool) -> list[str]:
    """What a whole check needs beside this Python."""
    return ["actionlint", "hadolint", *(["uvx", "pipx"] if attempt else [])]


def lint(name: str, *paths: Path) -> Iterator[str]:
    program = tool(name)
    if program is None:
        print(f"· {name} is not installed: {', '.join(path.name for path in paths)} not linted", flush=True)
        return
    done = subprocess.run([program, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"{name}: {(done.stdout + done.stderr).strip()}"
    else:
        print(f"✓ {name}: {', '.join(path.name for path in paths)}", flush=True)


def index(wheel: Path, place: Path) -> str:
    """A package index with one package, as files: PEP 503."""
    folder = place / "holdfast"
    folder.mkdir(parents=True)
    shutil.copy(wheel, folder)
    (folder / "index.html").write_text(f'<!doctype html><a href="{wheel.name}">{wheel.name}</a>\n', encoding="utf-8")
    return place.as_uri()


def attempt(wheel: Path) -> Iterator[str]:
    """`holdfast doctor` by both tools, with nothing installed before. torch comes from the index that is set here."""
    with tempfile.TemporaryDirectory(prefix="holdfast-index-") as place:
        address, doctor = index(wheel, Path(place) / "simple"), ["holdfast", "doctor", "--device", "cpu"]
        ways = {
            "uvx": ["--index", address, *doctor],
            "pipx": ["run", "--no-cache", "--pip-args", f"--extra-index-url {address}", *doctor],
        }
        for name, words in ways.items():
            program = tool(name)
            if program is None:
                print(f"· {name} is not installed: not tried", flush=True)
                continue
            env = {**os.environ, "HOLDFAST_STATE": str(Path(place) / name)}
            done = subprocess.run([program, *words], env=env, cwd=place, capture_output=True, text=True, check=False)
            if done.returncode or "cpu" not in done.stdout:
                yield f"{name} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"
            else:
                print(f"✓ {name}: holdfast doctor answers", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
