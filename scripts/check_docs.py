#!/usr/bin/env python3
"""Build the documentation strictly, which for Markdown means: whatever would be broken on a page is an error here.

python scripts/check_docs.py             exit 1 with a line for each problem: `docs/eeg.md:12: no anchor #scores in …`

Links and anchors lead somewhere, pages can be reached from docs/README.md, code fences are closed and say what they
hold, headings of a page differ, tables have the same number of cells in each row, and pages that scripts make are
what the scripts make now. `make check` runs it; it takes a second or two and needs no network: links to the web are
only looked at for their form.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START = ROOT / "docs" / "README.md"
LANGUAGES = {"console", "json", "python", "text", "toml", "yaml"}
_FENCE = re.compile(r"^(\s*)(```+)(\w*)\s*$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")

Problem = tuple[Path, int, str]


def pages() -> list[Path]:
    """Everything a reader may open."""
    top = [path for path in sorted(ROOT.glob("*.md"))]
    return [*top, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "src").rglob("*.md"))]


def check(paths: list[Path]) -> Iterator[Problem]:
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    anchors = {path: set(_anchors(text)) for path, text in texts.items()}
    leads: dict[Path, set[Path]] = {}
    for path, text in texts.items():
        yield from _fences(path, text)
        yield from _headings(path, text)
        yield from _tables(path, text)
        for number, target in _links(text):
            if re.match(r"[a-z]+:", target):
                if not re.match(r"(https://[\w.-]+\.\w+(/|$)|mailto:)", target):
                    yield path, number, f"{target} is no address"
                continue
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            leads.setdefault(path, set()).add(there)
            if not there.exists():
                yield path, number, f"{target} leads nowhere"
            elif anchor and there in anchors and anchor not in anchors[there]:
                yield path, number, f"no anchor #{anchor} in {there.relative_to(ROOT)}"
    yield from _unreachable(paths, leads)


def _plain(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside of code."""
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and (not inside or fence[2] == inside):
            inside = "" if inside else fence[2]
        elif not inside:
            yield number, line


def _links(text: str) -> Iterator[tuple[int, str]]:
    for number, line in _plain(text):
        for match in _LINK.finditer(re.sub(r"`[^`]*`", "``", line)):
            yield number, match[1]


def _slug(heading: str) -> str:
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words.lower()).strip(" ").replace(" ", "-")


def _anchors(text: str) -> Iterator[str]:
    for _, line in _plain(text):
        heading = re.match(r"#+ (.+)$", line)
        if heading:
            yield re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-")
            yield _slug(heading[1])
        yield from re.findall(r'<a id="([^"]+)">', line)


def _fences(path: Path, text: str) -> Iterator[Problem]:
    opened: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if not fence:
            continue
        if opened is None:
            opened = (number, fence[2])
            if fence[3] and fence[3] not in LANGUAGES:
                yield path, number, f"a block of `{fence[3]}`: use {', '.join(sorted(LANGUAGES))}"
        elif fence[2] == opened[1]:
            opened = None
    if opened is not None:
        yield path, opened[0], "a block that is never closed"


def _headings(path: Path, text: str) -> Iterator[Problem]:
    found = [(number, line) for number, line in _plain(text) if re.match(r"#+ ", line)]
    if not found or not found[0][1].startswith("# "):
        yield path, 1, "no title"
    if path.name == "CHANGELOG.md":  # each version has its Added and Changed
        return
    many = [slug for slug, count in Counter(_slug(line.lstrip("# ")) for _, line in found).items() if count > 1]
    yield from ((path, 1, f"two headings are called #{slug}") for slug in many)


def _tables(path: Path, text: str) -> Iterator[Problem]:
    width = 0
    for number, line in _plain(text):
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "``", line)))
        if width and cells != width:
            yield path, number, f"a row with {cells - 1} cells in a table of {width - 1}"
        width = width or cells


def _unreachable(paths: list[Path], leads: dict[Path, set[Path]]) -> Iterator[Problem]:
    seen, todo = set(), [START]
    while todo:
        page = todo.pop()
        if page not in seen:
            seen.add(page)
            todo += [there for there in leads.get(page, ()) if there.suffix == ".md"]
    docs = [path for path in paths if path.is_relative_to(ROOT / "docs")]
    yield from ((path, 1, "cannot be reached from docs/README.md") for path in docs if path not in seen)


def outdated() -> Iterator[str]:
    """Pages whose script would write something else now."""
    for script in sorted((ROOT / "scripts").glob("make_*.py")):
        done = subprocess.run(
            [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False, cwd=ROOT
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] if done.returncode != 1 else []
            yield f"scripts/{script.name} would write something else{': ' + last[0] if last else ''}"


def main() -> int:
    problems = [f"{path.relative_to(ROOT)}:{number}: {what}" for path, number, what in check(pages())]
    problems += list(outdated())
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{len(pages())} pages, no problem")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
