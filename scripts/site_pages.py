#!/usr/bin/env python3
"""Builds the documentation as a site: README.md is its first page, docs/ the others.

    python scripts/site_pages.py      # build/site/index.html; exit code 1 for a broken link or anchor

The pages are copied as they lie in the repository, so that their links work there and on the site alike.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from pages import ROOT

SOURCE = ROOT / "build" / "site-source"
CONFIG = ROOT / "mkdocs.yml"
BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "LICENSE")
"""Files of the repository that pages lead to."""


def main() -> int:
    stage()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(CONFIG)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:  # not --quiet: that hides the warnings from --strict as well
        wrong = [line for line in done.stderr.splitlines() if not line.startswith("INFO")]
        print("\n".join(wrong), file=sys.stderr)
        return 1
    print("build/site/index.html")
    return 0


def stage() -> None:
    """The pages of the site, below build/."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", SOURCE / "docs")
    for name in BESIDE:
        shutil.copy(ROOT / name, SOURCE / name)
    for page in SOURCE.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        if "<![" in text:
            page.write_text(re.sub(r"(?<!`)`([^`\n]*<!\[[^`\n]*)`(?!`)", _as_html, text), encoding="utf-8")


def _as_html(code: re.Match[str]) -> str:
    """A piece of code in which mkdocs would see the beginning of a CDATA section: every sign of it as a number."""
    inside = code[1].replace("\\|", "|")  # in a table, `|` is written with a backslash
    return f"<code>{''.join(each if each.isalnum() else f'&#{ord(each)};' for each in inside)}</code>"


if __name__ == "__main__":
    sys.exit(main())
