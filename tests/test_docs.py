"""What README.md and docs/ show is so: scripts run, commands parse, links lead somewhere, generated pages are new."""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.cli import main as cli
from holdfast.console.usage import One
from holdfast.run.settings import kinds

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
PRELUDE = {"torch", "session", "model", "optimizer", "scheduler", "data", "batch", "mse_loss"}
"""Names that a fragment may use without saying where they come from: those of the first script."""

DRIVER = """
import importlib, json, sys
from holdfast.worker.script_entry import run_unsupervised
receipts = {}
for name in sys.argv[1:]:
    train = importlib.import_module(name).train
    receipts[name] = run_unsupervised(train, ["run.threads=1", "run.device=cpu"])
print(json.dumps(receipts))
"""


class Block(NamedTuple):
    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(language: str) -> Iterator[Block]:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            yield Block(path.relative_to(ROOT).as_posix(), text.count("\n", 0, match.start()) + 2, match[1])


SCRIPTS = [block for block in blocks("python") if re.search(r"^def train\(", block.text, re.MULTILINE)]
FRAGMENTS = [block for block in blocks("python") if block not in SCRIPTS]


def commands() -> Iterator[tuple[str, str]]:
    """`holdfast …` as it is typed in console blocks and named in the text."""
    for block in blocks("console"):
        for number, line in enumerate(block.text.splitlines()):
            match = re.match(r"\$ (?:[A-Z_]+=\S+ )*(holdfast\b.*)", line)
            if match:
                yield f"{block.page}:{block.line + number}", match[1]
    for path in PAGES:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for text in re.findall(r"`(holdfast [a-z][^`…]*)`", line):
                yield f"{path.name}:{number}", f"{text} # named"


# Scripts and fragments ------------------------------------------------------------------------------------


def run(words: list[str], folder: Path, limit: float = 100.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=limit, check=False
    )


def test_there_is_something_to_test() -> None:
    assert len(SCRIPTS) >= 7
    assert any(block.page == "README.md" for block in SCRIPTS)
    assert len(FRAGMENTS) >= 3


@pytest.mark.long
def test_every_script_on_a_page_trains(tmp_path: Path) -> None:
    """All of them in one process: importing torch takes longer than training what is shown here."""
    names = {}
    for block in SCRIPTS:
        name = f"{Path(block.page).stem.replace('-', '_').lower()}_{block.line}"
        (tmp_path / f"{name}.py").write_text(block.text, encoding="utf-8")
        names[name] = block
    (tmp_path / "driver.py").write_text(DRIVER, encoding="utf-8")
    done = run(["driver.py", *names], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    receipts = json.loads(done.stdout.splitlines()[-1])
    for name, block in names.items():
        assert receipts[name]["survived"], str(block)
        assert receipts[name]["steps"] >= 10, str(block)
        assert receipts[name]["samples_skipped"] == receipts[name]["samples_repeated"] == 0, str(block)


@pytest.mark.long
def test_the_script_of_the_readme_trains_under_supervision(tmp_path: Path) -> None:
    script = next(block for block in SCRIPTS if block.page == "README.md")
    (tmp_path / "my_script.py").write_text(script.text, encoding="utf-8")
    done = run(["my_script.py", "--json", "--device", "cpu"], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["state"] == "FINISHED"
    assert result["receipt"]["faults"] == {}
    assert "train_loss" in result["metrics"]


@pytest.mark.parametrize("block", FRAGMENTS, ids=str)
def test_fragments_compile_and_use_names_that_were_introduced(block: Block) -> None:
    tree = ast.parse(block.text, filename=str(block))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    made = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            made |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    used = {node.id for node in names} - set(dir(builtins))
    assert sorted(used - made - PRELUDE) == []


# Commands, settings, links --------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "text"), sorted(set(commands())))
def test_commands_are_known_with_those_flags(place: str, text: str) -> None:
    words = shlex.split(text, comments=True)[1:]
    words = words[: words.index("--")] if "--" in words else words
    command, *rest = words
    assert command in cli.commands()
    if text.endswith("# named"):  # in a sentence a command may stand without its script or run
        assert {word for word in rest if word.startswith("-")} <= flags_of(command)
        return
    args = cli._parse(command, rest)
    dotted = [word.partition("=")[0] for word in getattr(args, "words", []) if "." in word.partition("=")[0]]
    assert [key for key in dotted if key not in kinds()] == []


def flags_of(command: str) -> set[str]:
    return {flag for action in cli.maker(command)(One())._actions for flag in action.option_strings}


def test_settings_named_in_the_text_exist() -> None:
    sections = {key.partition(".")[0] for key in kinds()}
    for path in PAGES:
        named = re.findall(rf"`((?:{'|'.join(sections)})\.[a-z_]+)(?:=[^`]*)?`", path.read_text(encoding="utf-8"))
        unknown = {name for name in named if name not in kinds()} - {
            "blame.py",
            "loader.epochs",
            "loader.meter",
            "loader.state",
            "run.json",
            "snapshot.py",
            "watchdog.py",
        }
        assert unknown == set(), path.name


def test_make_targets_named_in_the_text_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        named = set(re.findall(r"(?:`|^\$ )make ([a-z-]+)", text, re.MULTILINE))
        assert named <= targets, path.name


SAFE = ("explain", "config", "env", "list", "status", "ledger")
"""Commands that only look: those in console blocks are run as they stand."""


def looks() -> list[str]:
    found = {text for place, text in commands() if not text.endswith("# named")}
    words = {text: shlex.split(text, comments=True) for text in found}
    plain = {text for text, each in words.items() if each[1] in SAFE and "--forget" not in each and "-v" not in each}
    return sorted(text for text in plain if words[text][1] in ("explain", "config", "env") or len(words[text]) == 2)


@pytest.mark.parametrize("text", looks())
def test_commands_that_only_look_answer(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(shlex.split(text, comments=True)[1:]) == 0
    said = capsys.readouterr()
    assert said.out.strip() or said.err.strip()


def test_there_are_commands_to_run() -> None:
    assert len(looks()) >= 5


@pytest.mark.all
def test_the_documentation_builds_strictly() -> None:
    done = run([str(ROOT / "scripts" / "check_docs.py")], ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# A\n\n[x](nowhere.md)\n", "nowhere.md leads nowhere"),
        ("# A\n\n[x](#b)\n", "no anchor #b in page.md"),
        ("# A\n\n## B c\n\n[x](page.md#b-c) and [y](#b-d)\n", "no anchor #b-d in page.md"),
        ("# A\n\n[x](http:/wrong)\n", "http:/wrong is no address"),
        ("# A\n\n```text\nnever closed\n", "a block that is never closed"),
        ("# A\n\n```klingon\nx\n```\n", "a block of `klingon`: use console, json, python, text, toml, yaml"),
        ("# A\n\n## B\n\n## B\n", "two headings are called #b"),
        ("A\n", "no title"),
        ("# A\n\n| a | b |\n|---|---|\n| 1 |\n", "a row with 1 cells in a table of 2"),
    ],
)
def test_what_is_wrong_on_a_page_is_found(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    check_docs = importlib.import_module("check_docs")
    monkeypatch.setattr(check_docs, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert [what for _, _, what in check_docs.check([page])] == [said]
    page.write_text("# A\n\n## `b` c\n\n[x](#b-c) [y](https://example.org/)\n\n| a \\| b |\n|---|\n", encoding="utf-8")
    assert list(check_docs.check([page])) == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    missing = [path.name for path in (ROOT / "docs").glob("*.md") if f"({path.name})" not in index]
    assert missing == ["README.md"]


def test_the_page_of_settings_is_up_to_date() -> None:
    done = run([str(ROOT / "scripts" / "make_settings_docs.py"), "--check"], ROOT)
    assert done.returncode == 0, "run scripts/make_settings_docs.py"


def test_the_picture_shows_each_fault_and_both_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs behind it take two minutes; here only the drawing is looked at, of curves that are not the same."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    picture = importlib.import_module("picture")
    peace, hit = [[(step, 10.0 ** -(step / 50) + shift) for step in range(1, 281)] for shift in (0.0, 0.01)]
    receipt = {"steps_lost": 0, "recovery_s": {"p50": 0.25}}
    drawn = ElementTree.fromstring(picture.picture(peace, hit, receipt))
    words = {each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert set(picture.FAULTS.values()) <= words
    lines = [each.get("points") for each in drawn.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len(lines) == 2 and lines[0] != lines[1]
    kept = (ROOT / picture.PLACE).read_text(encoding="utf-8")
    assert all(f">{escape(name)}<" in kept for name in picture.FAULTS.values()), "make it again"


@pytest.mark.parametrize("name", ["light", "dark"])
def test_the_picture_of_the_terminal_shows_the_faults_and_loads_nothing(name: str) -> None:
    drawn = (ROOT / "docs" / "pictures" / f"terminal-{name}.svg").read_text(encoding="utf-8")
    words = "".join(ElementTree.fromstring(drawn).itertext()).replace("\xa0", " ")
    for said in ("F007", "F005", "F001", "bit for bit", "0 lost"):
        assert said in words, "make it again: scripts/terminal_picture.py"
    addresses = set(re.findall(r"https?://[^\"\s]+", drawn)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert f"docs/pictures/terminal-{name}.svg" in (ROOT / "README.md").read_text(encoding="utf-8")
