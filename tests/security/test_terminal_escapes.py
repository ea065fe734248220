"""Whatever stands in a run folder, no command of ours lets it drive the terminal."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.base.control_characters import one_line, without_control
from holdfast.console.output import Screen
from holdfast.run.folder import RunFolder, write_json
from tests.cli.driving import Terminal, environment
from tests.monitor.folders import make_run

OWNED = "\x1b]0;owned\x07"
EVIL = (
    f"{OWNED}\x1b[2J\x1b[31mred\x1b[0m\x1bcreset \x9b2J\x9d0;c1 title\x9c\x90dcs\x1b\\ \x8d\x08\r "
    "[bold red]markup[/] [link=http://x]l[/link] \u202egnp.exe\u202c \u2066 \x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\"
)
NAME = f"calm-{OWNED}\x1b[2J\x9b2J\u202eheron"
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

COMMANDS = {
    "list": ["list"],
    "list plain": ["list", "--plain"],
    "list quiet": ["list", "-q"],
    "status": ["status", "latest"],
    "status plain": ["status", "--plain", "latest"],
    "stop": ["stop", "latest"],
    "resume": ["resume", "latest"],
    "resume verbose": ["resume", "-v", "latest"],
    "resume script": ["resume", "latest", "--script", "/nowhere/\x1b[2J.py"],
    "resume at boot": ["resume", "--at-boot", "--print", "latest"],
    "watch": ["watch", "-1"],
    "notify": ["notify", "latest"],
    "track": ["track", "latest"],
    "completion": ["completion", "\x1b[2J"],
    "show": ["show", "-v", "latest"],
    "report": ["report", "latest"],
    "push": ["push", "latest", "pushed"],
    "pull": ["pull", "RUN"],
    "fsck": ["fsck", "-v", "latest"],
    "weights": ["weights", "latest", "taken.safetensors"],
    "fsck plain": ["fsck", "--plain", "latest"],
    "optimize": ["optimize", "latest"],
    "predict": ["predict", "RUN", "x.npy"],
    "serve": ["serve", "RUN"],
    "ecosystem": ["ecosystem", "film", "latest"],
    "unknown command": ["\x1b[2J"],
    "unknown run": ["show", "\x1b[2J\x9b1m"],
    "unknown flag": ["list", "--\x1b[2J"],
    "config": ["config", "\x1b[2J"],
    "explain": ["explain", "\x1b[2J"],
    "train": ["train", "\x1b[2J.py"],
    "run": ["run", "\x1b[2J.py"],
}


def poison(value: object) -> object:
    """Every text of a record with more in it."""
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, dict):
        return {key: poison(each) for key, each in value.items()}
    return [poison(each) for each in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run in it whose every text, and whose own name, drives a terminal."""
    cwd = tmp_path_factory.mktemp("hostile")
    run = make_run(cwd / "runs", "STOPPED", name=NAME, script=f"/nowhere/{EVIL}.py", argv=[EVIL], error=EVIL)
    write_json(run.path / "run.json", {**run.info, **{key: f"x{EVIL}" for key in ("workload", "device", "rung")}})
    for name in ("journal.jsonl", "metrics.jsonl"):
        records = [json.loads(line) for line in (run.path / name).read_text().splitlines()]
        for record in records:
            kept = {key: record[key] for key in ("time", "event") if key in record}
            record.update(poison(record), **kept)
        records += [{"event": "note", "time": records[-1]["time"], "text": EVIL}]
        (run.path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    write_json(run.path / "beat.json", poison(json.loads((run.path / "beat.json").read_text())))  # type: ignore[arg-type]
    with open(run.path / "output.log", "a", encoding="utf-8") as log:
        log.write(f"{EVIL}\n" * 5)
    (run.path / "checkpoints" / f"0020{OWNED}").mkdir()
    write_json(run.path / "checkpoints/001900/checkpoint.json", {"format": 1, "step": 1900, "reason": EVIL, "x": EVIL})
    return cwd


def start(words: list[str], cwd: Path, **env: str) -> subprocess.Popen[bytes]:
    run = next((cwd / "runs").iterdir())
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", *[str(run) if word == "RUN" else word for word in words]],
        cwd=cwd,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def two_at_a_time(cwd: Path, commands: dict[str, list[str]], **env: str) -> Iterator[tuple[str, str]]:
    left = list(commands.items())
    while left:
        pair, left = left[:2], left[2:]
        for (name, _), child in [(each, start(each[1], cwd, **env)) for each in pair]:
            out, _ = child.communicate(timeout=240)
            yield name, out.decode()


@pytest.mark.long
def test_no_command_lets_a_run_drive_the_terminal(hostile: Path) -> None:
    for name, out in two_at_a_time(hostile, COMMANDS, HOLDFAST_NOTIFY_COMMAND="true"):
        assert out.strip(), f"{name} said nothing, so this tested nothing"
        found = FORBIDDEN.search(out)
        assert found is None, f"{name}: {found and out[max(0, found.start() - 40) : found.end() + 40]!r}"
        assert "holdfast itself failed" not in out, f"{name}: {out}"


def test_every_command_that_reads_a_run_is_tried() -> None:
    from holdfast.cli.main import commands

    alone = {"doctor", "plan", "launch", "ledger", "eeg", "detection", "chaos", "verify", "env"}
    alone |= {"uninstall"}  # these read no run
    assert set(commands()) - alone <= {words[0] for words in COMMANDS.values()}


def test_json_stays_json(hostile: Path) -> None:
    asked = {name: [name, "--json", "latest"] for name in ("status", "show", "fsck")} | {"list": ["list", "--json"]}
    for name, out in two_at_a_time(hostile, asked):
        assert out.isascii() and not FORBIDDEN.search(out), name
        assert json.loads(out)["schema"] == 1
        assert OWNED in json.dumps(json.loads(out)).encode().decode("unicode_escape"), "JSON keeps the text, escaped"


def test_a_plain_record_is_one_line_of_nine_fields(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "STOPPED", workload="two\nlines\tand more")
    (_, out) = next(two_at_a_time(tmp_path, {"list": ["list", "--plain"]}))
    assert [len(line.split("\t")) for line in out.splitlines()] == [9]


@pytest.mark.parametrize("words", [["status", "latest", "--color", "always"], ["watch", "-1"], ["resume", "latest"]])
def test_in_a_real_terminal_only_our_colours_are_left(hostile: Path, words: list[str]) -> None:
    terminal = Terminal(*words, cwd=hostile)
    try:
        if words[0] == "resume":  # the run was not started here: what it would start is shown
            terminal.wait_for("Type yes", 60)
            terminal.type("no\r")
        terminal.wait()
        seen = COLOURS.sub("", terminal.raw.replace("\r\n", "\n"))
        assert seen.strip() and FORBIDDEN.search(seen) is None, terminal.raw
        assert "\x1b[31mred" not in terminal.raw, "a colour of theirs"
    finally:
        terminal.end()


def test_the_first_picture_of_the_live_view_is_clean(hostile: Path) -> None:
    """It takes the screen with codes of ours; none of theirs is among them."""
    terminal = Terminal("watch", cwd=hostile, columns=120, rows=40)
    try:
        terminal.wait_for("heron", 120)
        terminal.type("q")
        terminal.wait(120)
        assert OWNED not in terminal.raw and "\x1bc" not in terminal.raw and "\u202e" not in terminal.raw
        assert "\x9b" not in terminal.raw and "0;owned" not in terminal.raw
    finally:
        terminal.end()


def test_what_a_person_is_told_elsewhere_is_clean(tmp_path: Path) -> None:
    """A message goes to programs that print it: mail, chat, a wall of terminals."""
    from holdfast.monitor.notify_ways import Message, Ways, send

    told = tmp_path / "told"
    program = tmp_path / "program.py"
    program.write_text(
        f"import os, sys\nopen({str(told)!r}, 'w').write(sys.stdin.read() + os.environ['HOLDFAST_MESSAGE'])"
    )
    command = f"{sys.executable} {program}"
    message = Message("alert", f"title {EVIL}", f"text {EVIL}\nsecond", "run\x00", "", "RUNNING", "")
    assert [line.endswith("sent") for line in send(message, Ways(command=command))] == [True]
    assert "second" in told.read_text() and FORBIDDEN.search(told.read_text()) is None


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("\x1b[2Jhello", "hello"),
        ("\x1b]0;title\x07a\x1b]0;title\x1b\\b\x9d0;t\x9cc", "abc"),
        ("\x1b]0;never ends\nnext line", "0;never ends\nnext line"),
        ("\x9b31mred\x1bc\x1b(B", "red"),
        ("a\tb\nc\rd\x0be\x85f", "a\tb\ncdef"),
        ("\x1b\x1b[2J[2J", "[2J"),
        ("ü 漢 🙂 ½ [bold]x[/]", "ü 漢 🙂 ½ [bold]x[/]"),
        ("name\udc9b.txt", "name\\udc9b.txt"),
        ("a\u202eb\u2066c\u200f", "abc"),
    ],
)
def test_what_is_left_of_a_text(text: str, left: str) -> None:
    assert without_control(text) == left
    assert without_control(left) == left, "cleaning twice is cleaning once"
    assert "\n" not in one_line(text) and "\t" not in one_line(text)


def test_nothing_that_is_taken_out_joins_to_a_new_sequence() -> None:
    import random

    pieces = ["\x1b", "[", "2J", "]", "0;", "\x07", "\\", "\x9b", "\x9c", "P", "m", "a", "\n", "\u202e", "(", "\x90"]
    draw = random.Random(7)
    for _ in range(3000):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 14)))
        assert FORBIDDEN.search(without_control(text)) is None, text


def test_our_colours_cannot_be_asked_for_by_text() -> None:
    stream = io.StringIO()
    screen = Screen(stream, color=True, unicode=True, tty=True, width=80)
    screen.write(screen.style(f"\x1b[5mours{EVIL}", "red") + f"\x1b[31mtheirs {EVIL}")
    assert stream.getvalue().count("\x1b") == 2, "one to begin our red, one to end it"
    assert stream.getvalue().startswith("\x1b[31mours") and "theirs" in stream.getvalue()


def test_a_byte_of_a_file_name_is_not_written_where_the_stream_would_take_it() -> None:
    """In the C locale Python writes such a byte as it was."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8", errors="surrogateescape")
    Screen(stream, color=False, unicode=True, tty=False, width=80).write(os.fsdecode(b"x\x9b2Jy"))
    assert b"\x9b" not in raw.getvalue()


# Nobody prints another way ----------------------------------------------------------------------------------

SOURCES = Path(holdfast.__file__).parent
MAY_PRINT = {
    "console/output.py": "the one place",
    "cli/terminal.py": "rich draws; every text goes through Screen.fit or without_control",
    "monitor/terminal/first.py": "takes the screen for the live view; its lines are cleaned",
    "monitor/notify.py": "a child whose output is a log",
    "monitor/trackers/delivery.py": "a child whose output is a log",
    "monitor/trackers/host.py": "a child whose output is a log",
    "cli/container.py": "a number of bytes and words of ours",
    "cli/watch.py": "what it draws again and again is cleaned by monitor/terminal/redraw.py",
    "worker/worker.py": "a child: its output is the script's",
    "worker/script_entry.py": "a child: its output is the script's",
    "supervisor/keeper.py": "a child whose output is a log",
    "planning/measure.py": "a script",
    "worker/nursery.py": "a child: its output is the script's",
    "distributed/rank.py": "a child: its output is the script's",
    "distributed/rank_end.py": "the same child, at its end",
    "probes/wrong_kernels.py": "says what a driver says, in a child",
    "injection/chaos.py": "says what a driver says, in a child",
}
"""Modules that write in another way, and why they may. Workloads are scripts: what they print is a script's output."""


WRITES = re.compile(
    r"^print$|^pprint\.pprint$|(?:^|\.)print_(?:exc|exception|stack)$|Console$"
    r"|(?:std(?:out|err)(?:__)?|\bstream|buffer)\.(?:write|writelines)$"
)


def harmless(call: ast.Call) -> bool:
    """`print(json.dumps(…))` is ASCII, and `print(without_control(…))` is clean."""
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Call) and ast.unparse(first.func) in ("json.dumps", "without_control")


def printing(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("__stdout__", "__stderr__"):
            found.append(f"{node.lineno}: {node.attr}")
        if not isinstance(node, ast.Call) or harmless(node):
            continue
        words = ast.unparse(node.func)
        to_a_stream = words == "os.write" and re.fullmatch(r"[12]|sys\.std\w+\.fileno\(\)", ast.unparse(node.args[0]))
        if WRITES.search(words) or to_a_stream:
            found.append(f"{node.lineno}: {words}")
    return found


def test_nobody_prints_another_way() -> None:
    wrong = {}
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        if name in MAY_PRINT or name.startswith("workloads/"):
            continue
        found = printing(ast.parse(path.read_text(encoding="utf-8")))
        if found:
            wrong[name] = found
    assert not wrong, "print through holdfast.console.output"


def test_that_rule_sees_what_it_forbids() -> None:
    seen = printing(
        ast.parse("print(1)\nsys.stdout.write(x)\nself._screen.stream.write(x)\ntraceback.print_exc()\nos.write(2, x)")
    )
    assert len(seen) == 5
    needless = [name for name in MAY_PRINT if not printing(ast.parse((SOURCES / name).read_text(encoding="utf-8")))]
    assert needless == []


def test_this_folder_is_really_hostile(hostile: Path) -> None:
    run = RunFolder(next((hostile / "runs").iterdir()))
    assert OWNED in run.path.name and OWNED in str(run.info["workload"])
