"""The command itself: help, usage errors, exit codes, and what happens when holdfast is wrong."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.base.errors import ExitCode
from holdfast.cli import main as cli
from holdfast.cli.main import COMMANDS, FIRST, GROUPS
from holdfast.console.exit_codes import GENERAL
from holdfast.console.usage import One

from .driving import environment, holdfast, said

HELLO = f"""\
holdfast {__version__}: train PyTorch models on hardware you cannot trust

  holdfast doctor                  test each device: crash, hang, wrong numbers?
  holdfast run -- python train.py  run it unchanged, restart it after faults
  holdfast train my_script.py      train with a session: a fault costs a second
  holdfast watch                   watch runs; --web shows them in the browser
  holdfast resume latest           continue a run that stopped or crashed

other commands:
  prepare     plan  chaos  config  verify
  runs        status  list  show  stop  report  notify  track  weights  fsck
  machines    launch  push  pull  ledger  env
  models      optimize  predict  serve
  help        explain  completion  uninstall
  workloads   detection  ecosystem  eeg

`holdfast --help` describes every command, `holdfast train --help` has examples.
"""


def test_alone_it_shows_five_commands_and_then_the_rest(tmp_path: Path) -> None:
    done = holdfast(cwd=tmp_path)
    assert (done.out, done.err, done.code) == (HELLO, "", 0)
    named = [*(words.split()[0] for words in FIRST), *(name for group in GROUPS.values() for name in group)]
    assert sorted(named) == sorted(COMMANDS), "each command stands in one place"
    assert max(map(len, HELLO.splitlines())) <= 80 and len(HELLO.splitlines()) <= 24


def test_help_names_every_command_and_fits_a_terminal(tmp_path: Path) -> None:
    done = holdfast("--help", cwd=tmp_path)
    assert (done.err, done.code) == ("", 0)
    for command in COMMANDS:
        assert f"\n  {command} " in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert done.out.index("examples:") < done.out.index("usage:")


def pages() -> list[tuple[str, ...]]:
    """Every command, and every tool of those that are a family."""
    found: list[tuple[str, ...]] = []
    for command in cli.commands():
        parser = cli.maker(command)(One())
        found += [(command,), *((command, tool) for tool in parser.tools())]
    return found


@pytest.mark.parametrize("words", pages(), ids=" ".join)
def test_each_help_shows_an_example_first_and_says_what_its_exit_codes_mean(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*words, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(lines)
    about, _, after = text.partition("\n\n")
    assert about.endswith((".", "?")) and about[0].isupper(), "it begins with what the command does"
    assert after.startswith(("examples:\n  ", "tools:\n  holdfast")) and "holdfast " in after.splitlines()[1]
    assert text.index("usage: holdfast") > text.index("\n  ")
    for line in lines:  # only an example may be wider than the terminal: it is copied as one line
        assert len(line) <= 80 or line.startswith("  holdfast ") or line.lstrip().startswith(("curl", "--")), line
    parser = cli.maker(words[0])(One())
    if not parser.tools() or len(words) > 1:
        assert "\nexit codes:\n    0  " in text and "\n    2  " in text and "\n    3  " in text
    assert ("\n   75  " in text) == (words[0] in ("train", "resume", "launch", "run", "chaos"))


def test_each_exit_code_can_be_explained(tmp_path: Path) -> None:
    for code in ExitCode:
        assert GENERAL[code]
    done = said("explain", "75", cwd=tmp_path)
    assert done.code == 0 and done.out.startswith("exit code 75 · RESUME_ME\n")
    assert "`holdfast resume` continues" in " ".join(done.out.split())
    assert said("explain", "exit code 4", "--json", cwd=tmp_path).json["name"] == "GAVE_UP"
    unknown = said("explain", "exit 77", cwd=tmp_path)
    assert unknown.code == 2 and "unknown exit code 77" in unknown.err and "0, 1, 2, 3, 4, 75, 130, 143" in unknown.err


def test_version(tmp_path: Path) -> None:
    assert holdfast("--version", cwd=tmp_path).out == f"holdfast {__version__}\n"


IMPORTS = """\
import sys
from holdfast.cli.main import main
code = main(sys.argv[1:])
heavy = [name for name in ("torch", "numpy", "rich", "asyncio") if name in sys.modules]
assert not heavy, heavy
sys.exit(code)
"""


@pytest.mark.parametrize(
    "words",
    [["--help"], ["train", "--help"], ["list"], ["status"], ["explain", "F001"], ["config"], ["resume", "--help"]],
    ids=" ".join,
)
def test_no_torch_where_none_is_needed(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *words], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_help_is_cheap(tmp_path: Path) -> None:
    """0.2 s of CPU is the promise; the best of three, because other programs heat the same caches."""
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        holdfast("--help", cwd=tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.2


USAGE = {
    ("trian",): """\
error: unknown command `trian`

  tip: a similar command exists: `train`

For more information, try `holdfast --help`
""",
    ("train",): """\
error: SCRIPT is missing

For more information, try `holdfast train --help`
""",
    ("train", "x.py", "--devise", "cpu"): """\
error: unexpected argument `--devise`

  tip: a similar one exists: `--device`
  tip: to pass it to the script, write it after `--`: `-- --devise`

For more information, try `holdfast train --help`
""",
    ("train", "x.py", "--seed", "seven"): """\
error: --seed is `seven`, but it has to be a whole number

For more information, try `holdfast train --help`
""",
    ("list", "all"): """\
error: unexpected argument `all`

For more information, try `holdfast list --help`
""",
    ("list", "--", "all"): """\
error: `holdfast list` takes nothing after `--`

For more information, try `holdfast list --help`
""",
    ("--frobnicate",): """\
error: unexpected argument `--frobnicate`
  cause: no command was given

For more information, try `holdfast --help`
""",
}


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_usage_errors(words: tuple[str, ...], tmp_path: Path) -> None:
    done = said(*words, cwd=tmp_path)
    assert (done.out, done.err, done.code) == ("", USAGE[words], 2)


def test_an_error_as_json_is_the_one_object_on_stdout(tmp_path: Path) -> None:
    done = said("--json", "show", "calm-heron", cwd=tmp_path)
    assert done.code == 2
    assert done.json == {
        "schema": 1,
        "exit_code": 2,
        "error": {
            "error": "UserError",
            "message": "no run `calm-heron` in runs",
            "cause": None,
            "saved": None,
            "hints": ["`holdfast list` shows the runs there are"],
            "exit_code": 2,
        },
    }
    assert done.err == "error: no run `calm-heron` in runs\n\nhint: `holdfast list` shows the runs there are\n"


def test_flags_may_stand_before_the_command(tmp_path: Path) -> None:
    assert said("--json", "list", cwd=tmp_path).json == {"schema": 1, "runs": []}
    done = holdfast("--color", "always", "show", "x", cwd=tmp_path)
    assert "\x1b[1;31merror:\x1b[0m" in done.err


def test_verbose_adds_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" not in said("show", "x", cwd=tmp_path).err
    assert "Traceback" in said("show", "x", "-v", cwd=tmp_path).err


BUG = """\
import sys, types
from holdfast.cli import main as cli

def explode(args):
    raise RuntimeError("a bug of ours")

def add_parser(subparsers):
    parser = subparsers.add_parser("boom")
    parser.set_defaults(run=explode)
    parser.add_argument("--token")
    return parser

sys.modules["holdfast.cli.boom"] = types.SimpleNamespace(add_parser=add_parser)
cli.COMMANDS["boom"] = cli.Command("boom", "")
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_bug_of_ours_writes_a_report_without_secrets(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUG, "boom", "--token", "hunter2"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    (report,) = tmp_path.glob("holdfast-report-*.txt")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(
        "error: holdfast failed because of a bug\n  cause: RuntimeError: a bug of ours (<string>:5)\n"
    )
    assert f"hint: please report it with {report}" in done.stderr
    text = report.read_text()
    assert "RuntimeError: a bug of ours" in text and "Python" in text and "torch" in text
    assert "hunter2" not in text and "--token ***" in text


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "config"],
        cwd=tmp_path,
        env=environment(),
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_no_ascii_terminal_could_show(tmp_path: Path) -> None:
    done = holdfast("explain", "hang", cwd=tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.code == 0
    assert done.out.isascii()
    assert json.loads(holdfast("explain", "hang", "--json", cwd=tmp_path).out)["schema"] == 1


@pytest.mark.skipif(sys.platform == "win32", reason="standard streams are handles there")
def test_closed_standard_streams_are_opened_for_children_too() -> None:
    """`holdfast train … >&- 2>&-`: otherwise a socket gets number 1, and a worker that prints overwrites it."""
    code = (
        "import os, sys; os.closerange(0, 3); from holdfast.cli.main import _open_standard_streams as open_them; "
        "open_them(); sys.exit(sum(os.get_inheritable(number) for number in (0, 1, 2)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 3
