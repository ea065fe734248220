"""`holdfast completion`: prints the shell code that completes commands, options, runs and settings.

    eval "$(holdfast completion bash)"          # in ~/.bashrc

The shell code is a few lines: at each Tab it asks `holdfast completion --answer SHELL -- WORDS…`, and this file answers
from the same parsers that read the command line. So the answers are never older than the commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.base.errors import ExitCode
from holdfast.console.output import Output, add_flags
from holdfast.console.usage import One, Parser, UsageError

FILES = ":files"
"""A line of the answer that asks the shell for names of files."""

_SCRIPTS = {
    "bash": r"""
_holdfast() {
    local value help
    COMPREPLY=()
    while IFS=$'\t' read -r value help; do
        if [[ $value == :files ]]; then
            compopt -o default
        else
            COMPREPLY+=("$(printf '%q' "$value")")
            [[ $value == *= ]] && compopt -o nospace
        fi
    done < <(command holdfast completion --answer bash -- "${COMP_LINE:0:$COMP_POINT}" 2>/dev/null)
}
complete -F _holdfast holdfast
""",
    "zsh": r"""
#compdef holdfast
_holdfast() {
    local value help
    local -a found settings
    local files=
    while IFS=$'\t' read -r value help; do
        if [[ $value == :files ]]; then
            files=1
        elif [[ $value == *= ]]; then
            settings+=("${value//:/\\:}:$help")
        else
            found+=("${value//:/\\:}:$help")
        fi
    done < <(command holdfast completion --answer zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    (( $#found )) && _describe -t holdfast holdfast found
    (( $#settings )) && _describe -t settings setting settings -S ''
    [[ -n $files ]] && _files
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _holdfast "$@"; else compdef _holdfast holdfast; fi
""",
    "fish": r"""
function __holdfast_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in (command holdfast completion --answer fish -- $words[2..-1] 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c holdfast -f -a '(__holdfast_complete)'
""",
}

_INSTALL = {
    "bash": 'put this into ~/.bashrc:  eval "$(holdfast completion bash)"',
    "zsh": 'put this into ~/.zshrc, after compinit:  eval "$(holdfast completion zsh)"',
    "fish": "run once:  holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
}


class Answer(NamedTuple):
    """One candidate, with the words a shell shows beside it."""

    value: str
    help: str = ""


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "completion",
        description="""\
Print the code that lets your shell complete holdfast commands, options, run names and settings.

examples:
  eval "$(holdfast completion bash)"     put this into ~/.bashrc
  eval "$(holdfast completion zsh)"      put this into ~/.zshrc, after compinit
  holdfast completion fish > ~/.config/fish/completions/holdfast.fish
                                         run this once
""",
    )
    parser.add_argument("shell", nargs="?", choices=sorted(_SCRIPTS), metavar="SHELL", help="bash, zsh or fish")
    parser.add_argument("--answer", choices=sorted(_SCRIPTS), help=argparse.SUPPRESS)
    add_flags(parser, json=False)
    parser.set_defaults(run=run, script_argv=[])
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the script of a shell, or answer one of its questions."""
    output = Output.from_args(args)
    if args.answer:
        for value, help in answers(args.answer, args.script_argv):
            output.out.write(f"{value}\t{help}" if help else value)
        return ExitCode.OK
    if args.shell is None:
        tips = list(_INSTALL.values())
        raise UsageError("which shell? name bash, zsh or fish", command="completion", tips=tips)
    output.out.write(f"# {_INSTALL[args.shell]}" if args.shell != "zsh" else "#compdef holdfast")
    output.out.write(_SCRIPTS[args.shell].replace("#compdef holdfast\n", "").strip("\n"))
    return ExitCode.OK


def answers(shell: str, words: list[str]) -> Iterator[Answer]:
    """The candidates for the last of `words`. bash sends its whole line, because it cuts words at `:` and `=`."""
    if shell == "bash":
        words = _split(words[0] if words else "")[1:]
    *before, word = words or [""]
    cut = max(word.rfind(":"), word.rfind("=")) + 1 if shell == "bash" else 0
    seen: set[str] = set()
    for value, help in candidates(before, word):
        if value == FILES or (value.startswith(word) and value not in seen):
            seen.add(value)
            yield Answer(value if value == FILES else value[cut:], help.partition("\n")[0])


def _split(line: str) -> list[str]:
    """The words of a command line that may end within quotes; a blank at the end begins an empty word."""
    import shlex

    for text in (line, f'{line}"', f"{line}'"):
        try:
            words = shlex.split(text)
        except ValueError:
            continue
        return [*words, ""] if line[-1:].isspace() and text is line else words
    return line.split(" ")


def candidates(before: list[str], word: str) -> Iterable[Answer]:
    """All that could stand after the words `before`; those that do not begin with `word` are left out later."""
    from holdfast.cli import main as cli

    if "--" in before:
        return [Answer(FILES)]
    at = next((number for number, each in enumerate(before) if not each.startswith("-")), None)
    if at is None:
        return [Answer(name, command.help) for name, command in cli.commands().items()]
    command, rest = before[at], before[at + 1 :]
    if command not in cli.commands():
        return []
    parser: Parser = cli.maker(command)(One())
    tools = parser.tools()
    if tools:
        named = next((number for number, each in enumerate(rest) if each in tools), None)
        if named is None:
            return [Answer(name, help) for name, help in tools.items()]
        parser, rest = parser.tool(rest[named]), rest[named + 1 :]
    return _of_parser(parser, rest, word)


def _of_parser(parser: Parser, before: list[str], word: str) -> Iterator[Answer]:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    flags = {flag: action for action in shown for flag in action.option_strings}
    last = flags.get(before[-1]) if before else None
    if last is not None and last.nargs != 0:
        yield from _values(last)
        return
    if word.startswith("-"):
        yield from (Answer(flag, _plain(action)) for flag, action in flags.items() if flag.startswith("--"))
        yield from (Answer(flag, _plain(action)) for flag, action in flags.items() if not flag.startswith("--"))
        return
    places = [action for action in shown if not action.option_strings]
    given = len(_positional(before, flags))
    for number, action in enumerate(places):
        many = action.nargs in ("*", "+")
        if number == given or (many and given >= number):
            yield from _values(action)


def _positional(before: list[str], flags: dict[str, argparse.Action]) -> list[str]:
    """The words that are neither options nor the values of options."""
    found, skip = [], False
    for word in before:
        action = flags.get(word)
        if not skip and action is None and not word.startswith("-"):
            found.append(word)
        skip = not skip and action is not None and action.nargs != 0
    return found


def _plain(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")


# What an argument may be ----------------------------------------------------------------------------------


def _values(action: argparse.Action) -> Iterator[Answer]:
    if action.choices is not None:
        yield from (Answer(str(choice)) for choice in action.choices)
        return
    name = str(action.metavar or action.dest).upper()
    yield from _BY_NAME.get(name, _nothing)()


def _nothing() -> Iterator[Answer]:
    return iter(())


def _files() -> Iterator[Answer]:
    yield Answer(FILES)


def _runs() -> Iterator[Answer]:
    """The newest first: that is the one most people mean."""
    from holdfast.run.folder import list_runs
    from holdfast.run.settings import Settings

    try:
        runs = list_runs(Path(Settings.load().run.folder))
    except Exception:  # a wrong setting must not print a traceback into a command line
        runs = []
    if runs:
        yield Answer("latest", f"the newest run, {runs[-1].name}")
    for run in reversed(runs):
        yield Answer(run.name, f"{run.info.get('workload') or run.path.name}, {run.info.get('state') or 'unknown'}")


def _scripts() -> Iterator[Answer]:
    from holdfast.run import workload_registry

    yield from (Answer(name, "workload") for name in workload_registry.names())
    yield Answer(FILES)


def _settings() -> Iterator[Answer]:
    from holdfast.run.settings import describe, kinds

    yield from (Answer(f"{key}=", describe(key).partition(". ")[0]) for key in kinds())


def _devices() -> Iterator[Answer]:
    yield from (Answer(name) for name in ("auto", "cpu", "cuda:0", "cuda:1", "mps", "xpu:0"))


def _codes() -> Iterator[Answer]:
    from holdfast.cli.explain import topics

    for topic in topics():
        yield Answer(topic.code, topic.title)


_BY_NAME: dict[str, Callable[[], Iterator[Answer]]] = {
    "RUN": _runs,
    "RUN|MODULE:FACTORY": _runs,
    "SCRIPT": _scripts,
    "KEY=VALUE": _settings,
    "SECTION.KEY=VALUE": _settings,
    "KEY | KEY=VALUE": _settings,
    "D": _devices,
    "DEVICE": _devices,
    "CODE": _codes,
    **dict.fromkeys(("PATH", "FILE", "FOLDER", "BUNDLE", "INPUT", "OUT", "DATA", "CACHE", "IMAGES", "PLACE"), _files),
}
