"""How scripts go on: which checkpoints they write, and how each is told to begin at one.

    way = find_way(command, fitted="lightning", fits=1, resume_with=None)      # a Way, or None: from the beginning
    found = search(places(command, cwd), way.patterns, since_ns)
    command, env = way.begin(command, checkpoint)

    what the script is                    its checkpoints          how it goes on
    --resume-with '--ckpt {checkpoint}'   any                      these words are added
    yolo … train                          weights/last.pt          `resume model=…/last.pt`
    an option --resume_from_checkpoint,   any                      that option, or its value replaced
      --resume, --ckpt_path
    Lightning                             *.ckpt                   Trainer.fit(ckpt_path=…), through the hook
    HF Trainer                            checkpoint-N/            Trainer.train(resume_from_checkpoint=…), the same
    YOLO of ultralytics, from Python      weights/last.pt          YOLO(…).train(resume=True) of it, the same
    nanoGPT's init_from                   ckpt.pt                  --init_from=resume

A script's text is read to see which options it has; nothing of it is executed.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

FILES = ("*.ckpt", "*.pt", "*.pth", "*.pth.tar", "*.safetensors")
YOLO_FILES = ("last.pt", "epoch*.pt")
FOLDERS = ("checkpoint-*", "checkpoint_*", "epoch_*", "step_*")
_FITTED = {
    "lightning": ("Lightning", ("*.ckpt",)),
    "transformers": ("HF Trainer", ("checkpoint-*",)),
    "ultralytics": ("ultralytics", YOLO_FILES),
}
_OPTION = re.compile(r"""['"](--(?:resume[-_]from[-_]checkpoint|resume[-_]from|resume|ckpt[-_]path))['"]""")
_MOST_TEXT = 1 << 20

Command = list[str]
Begin = Callable[[Command, Path], tuple[Command, dict[str, str]]]


@dataclass(frozen=True, slots=True)
class Way:
    """How one kind of script goes on."""

    name: str
    patterns: tuple[str, ...]
    begin: Begin
    """The command and environment that begin at a checkpoint."""
    chooses: bool = False
    """The script looks for its checkpoint itself: if the newest is damaged, it would take that one."""


def find_way(command: Sequence[str], *, fitted: str = "", fits: int = 0, resume_with: str | None = None) -> Way | None:
    """How this script goes on; None if nobody knows. `fitted` is whose `fit` or `train` it called; which of several
    calls was under way cannot be told, so with more than one it begins again."""
    if resume_with is not None:
        return Way("--resume-with", (*FILES, *FOLDERS), _with_words(resume_with))
    words = list(command)
    if is_yolo(words):
        return Way("ultralytics", YOLO_FILES, _yolo)
    text = script_text(words)
    option = _option(text)
    if "LightningCLI(" in text and "fit" in words:
        return Way("LightningCLI", ("*.ckpt",), _with_option("--ckpt_path"))
    if option is not None:
        patterns = ("checkpoint-*",) if "Trainer(" in text and "transformers" in text else (*FILES, *FOLDERS)
        return Way(option[0], patterns, _with_option(*option), chooses=option[1])
    if "HfArgumentParser(" in text and "TrainingArguments" in text:
        return Way("HF Trainer", ("checkpoint-*",), _with_option("--resume_from_checkpoint"))
    if "init_from" in text and "'resume'" in text.replace('"', "'"):
        return Way("init_from", ("*.pt",), _init_from, chooses=True)
    if fits == 1 and fitted in _FITTED:
        return Way(*_FITTED[fitted], _through_the_hook)
    return None


def is_yolo(command: Sequence[str]) -> bool:
    """Is it a training of ultralytics, by its own command?"""
    return bool(command) and Path(command[0]).name in ("yolo", "ultralytics") and "train" in command


def places(command: Sequence[str], cwd: Path) -> list[Path]:
    """Where its checkpoints may be: its folder, and folders its arguments name."""
    found = [cwd]
    for word in command[1:]:
        value = word.partition("=")[2] or word
        with contextlib.suppress(OSError, ValueError):
            path = (cwd / value).resolve()
            if path.is_dir() and not cwd.resolve().is_relative_to(path):
                found.append(path)
    return [path for path in found if not any(path != other and path.is_relative_to(other) for other in found)]


def script_text(command: Sequence[str]) -> str:
    """The text of the first Python file a command names; empty if it names none."""
    for word in command:
        if word.endswith(".py"):
            with contextlib.suppress(OSError), open(word, encoding="utf-8", errors="replace") as file:
                return file.read(_MOST_TEXT)
    return ""


def _option(text: str) -> tuple[str, bool] | None:
    """The option a script goes on by, and whether it takes no value."""
    match = _OPTION.search(text)
    if match is None:
        return None
    rest = text[match.end() : match.end() + 300]
    end = rest.find("add_argument")
    call = rest if end < 0 else rest[:end]
    return match[1], bool(re.search(r"""action\s*=\s*['"]store_true['"]|is_flag\s*=\s*True""", call.split(")\n")[0]))


# -- ways to begin -----------------------------------------------------------------------------------------------


def _with_words(template: str) -> Begin:
    def begin(command: Command, checkpoint: Path) -> tuple[Command, dict[str, str]]:
        words = [word.replace("{checkpoint}", str(checkpoint)) for word in shlex.split(template)]
        return [*command, *words], {}

    return begin


def _with_option(option: str, flag: bool = False) -> Begin:
    """The option added, or its value replaced where the command has it already."""

    def begin(command: Command, checkpoint: Path) -> tuple[Command, dict[str, str]]:
        if flag:
            return (command if option in command else [*command, option]), {}
        for number, word in enumerate(command):
            if word.startswith(f"{option}="):
                return [*command[:number], f"{option}={checkpoint}", *command[number + 1 :]], {}
            if word == option and number + 1 < len(command):
                return [*command[: number + 1], str(checkpoint), *command[number + 2 :]], {}
        return [*command, option, str(checkpoint)], {}

    return begin


def _yolo(command: Command, checkpoint: Path) -> tuple[Command, dict[str, str]]:
    """`yolo detect train resume model=last.pt`: what else was asked for is in the checkpoint."""
    kept = [word for word in command if not word.startswith(("model=", "resume="))]
    return [*kept, "resume=True", f"model={checkpoint}"], {}


def _init_from(command: Command, checkpoint: Path) -> tuple[Command, dict[str, str]]:
    kept = [word for word in command if not word.startswith("--init_from=")]
    return [*kept, "--init_from=resume"], {}


def _through_the_hook(command: Command, checkpoint: Path) -> tuple[Command, dict[str, str]]:
    return list(command), {"HOLDFAST_RESUME": str(checkpoint)}


def check_template(template: str) -> None:
    """UserError for a --resume-with that cannot be one."""
    from holdfast.base.errors import UserError

    try:
        words = shlex.split(template)
    except ValueError as error:
        raise UserError(f"--resume-with cannot be understood: {error}", hints=["check its quotes"]) from None
    if not words:
        raise UserError("--resume-with is empty", hints=["for example `--resume-with '--resume {checkpoint}'`"])
