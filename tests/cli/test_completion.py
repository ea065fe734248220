"""`holdfast completion`: real shells complete a command, an option and the name of a run, each at a pressed Tab."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.completion import FILES, answers
from holdfast.run.folder import RunFolder

from .driving import environment, holdfast

PATIENCE = 60.0
"""Seconds until a shell has to have answered; it takes one."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with one run in it, and a `holdfast` to call."""
    made = tmp_path / "bin" / "holdfast"
    made.parent.mkdir()
    made.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast "$@"\n', encoding="utf-8")
    made.chmod(0o755)
    run = RunFolder.create(tmp_path / "runs", "job", {"state": "FINISHED", "created": "2026-11-17T05:00:00Z"})
    (tmp_path / "name").write_text(run.name, encoding="utf-8")
    return tmp_path


def words(shell: str, *given: str) -> list[str]:
    return [answer.value for answer in answers(shell, list(given))]


# The answers ----------------------------------------------------------------------------------------------


def test_answers_come_from_the_parsers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    name = (place / "name").read_text(encoding="utf-8")
    assert words("zsh", "re") == ["resume", "report"]
    assert words("zsh", "resume", "--at") == ["--at-boot"]
    assert words("zsh", "resume", "") == ["latest", name]
    assert words("zsh", "watch", name, "") == ["latest", name], "several runs may be named"
    assert words("zsh", "show", name, "") == []
    assert words("zsh", "train", "e")[:1] == ["ecosystem"] and FILES in words("zsh", "train", "")
    assert words("zsh", "train", "x.py", "watchdog.fl") == ["watchdog.floor="]
    assert words("zsh", "train", "x.py", "--device", "cu") == ["cuda:0", "cuda:1"]
    assert words("zsh", "list", "--color", "") == ["auto", "always", "never"]
    assert words("zsh", "eeg", "pre") == ["prepare"] and words("zsh", "eeg", "prepare", "--ki") == ["--kind"]
    assert words("zsh", "run", "--", "python", "tr") == [FILES]
    assert words("zsh", "explain", "F00")[:2] == ["F001", "F002"]
    assert words("zsh", "nonsense", "") == []


def test_bash_gets_only_what_stands_after_its_word_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # without runs
    assert words("bash", "holdfast train x.py --device cuda:") == ["0", "1"]
    assert words("bash", "holdfast train x.py watchdog.fl") == ["watchdog.floor="]
    assert words("bash", 'holdfast show "la') == []
    assert "train" in words("bash", "holdfast ")


def test_a_wrong_setting_prints_nothing_into_the_command_line(place: Path) -> None:
    (place / "holdfast.toml").write_text("this is no toml", encoding="utf-8")
    done = holdfast("completion", "--answer", "fish", "--", "show", "", cwd=place)
    assert (done.out, done.err, done.code) == ("", "", 0)


def test_without_a_shell_it_says_where_each_goes(tmp_path: Path) -> None:
    done = holdfast("completion", cwd=tmp_path)
    assert (
        done.code == 2
        and "~/.bashrc" in done.err
        and "~/.zshrc" in done.err
        and "completions/holdfast.fish" in done.err
    )


def test_no_torch_is_imported(place: Path) -> None:
    code = "import sys; from holdfast.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    asked = ["completion", "--answer", "zsh", "--", "resume", ""]
    done = subprocess.run([sys.executable, "-c", code, *asked], cwd=place, env=environment(), capture_output=True)
    assert done.returncode == 0 and b"latest" in done.stdout


# The shells -----------------------------------------------------------------------------------------------


class Terminal:
    """A shell at a terminal of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:  # the child: nothing but exec may happen here
            os.chdir(folder)
            os.execvpe(command[0], command, _environment(folder))

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def wait_for(self, pattern: str) -> None:
        until = time.monotonic() + PATIENCE
        while not re.search(pattern, self.seen):
            assert time.monotonic() < until, f"{pattern!r} is not in {self.seen!r}"
            if select.select([self.fd], [], [], 0.2)[0]:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")
                self.seen = re.sub(r"[^\n]\x08", "", self.seen.replace("\a", ""))  # zsh rings, and writes over blanks

    def close(self) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def _environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    return {**environment(), "PATH": path, "TERM": "dumb", "PS1": "$ ", "HOME": str(folder), "LANG": "C.UTF-8"}


def _started(shell: str, folder: Path) -> Terminal:
    if shell == "bash":
        terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], folder)
        terminal.type('eval "$(holdfast completion bash)"; echo rea""dy\n')
    else:
        terminal = Terminal(["zsh", "-f", "-i"], folder)
        terminal.type("unsetopt zle_bracketed_paste prompt_cr; autoload -Uz compinit; compinit -u -D\n")
        terminal.type('eval "$(holdfast completion zsh)"; echo rea""dy\n')
    terminal.wait_for(r"\bready\b")
    terminal.seen = ""
    return terminal


@pytest.fixture(params=["bash", "zsh"])
def terminal(request: pytest.FixtureRequest, place: Path) -> Iterator[Terminal]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    found = _started(request.param, place)
    try:
        yield found
    finally:
        found.close()


def test_a_tab_completes_a_command_an_option_and_a_run(terminal: Terminal, place: Path) -> None:
    name = (place / "name").read_text(encoding="utf-8")
    terminal.type("echo holdfast; holdfast resu\t")
    terminal.wait_for(r"holdfast resume ")
    terminal.type(f"{name[:3]}\t")
    terminal.wait_for(f"resume {name} ")
    terminal.type("--at\t")
    terminal.wait_for(r"--at-boot ")
    terminal.type("--help\n")
    terminal.wait_for(r"exit codes:")


def test_fish_completes_a_command_an_option_and_a_run(place: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    name = (place / "name").read_text(encoding="utf-8")
    asked = ["holdfast resu", f"holdfast resume {name[:3]}", "holdfast resume --at", "holdfast train ./na"]
    ask = "\n".join(f"complete -C '{line}'" for line in asked)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"holdfast completion fish | source\n{ask}"],
        cwd=place, env=_environment(place), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    found = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert found == ["resume", name, "--at-boot", "./name"], done.stderr
