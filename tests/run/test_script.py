"""Reading a script without running it: what is wrong with it is said before torch is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ExitCode, UserError
from holdfast.run import script


def written(tmp_path: Path, text: str, name: str = "job.py") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        script.read(path)
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value


def test_the_parameters_of_train_are_read_but_nothing_is_run(tmp_path: Path) -> None:
    facts = script.read(
        written(
            tmp_path,
            """
import torch, numpy as np
from torch.nn import functional
from . import sibling
raise SystemExit("this line is never reached")

def train(session, lr=3e-4, *, epochs: int = 10, name="x"):
    import late
""",
        )
    )
    assert facts.parameters == ("lr", "epochs", "name")
    assert not facts.open_ended
    assert facts.imports == ("numpy", "torch", "torch.nn")


def test_any_keyword(tmp_path: Path) -> None:
    assert script.read(written(tmp_path, "def train(session, **rest): ...")).open_ended


@pytest.mark.parametrize(
    "text",
    [
        "from recipes import train",
        "from recipes import fit as train",
        "from recipes import *",
        "train = make_train()",
        "train: object = make_train()",
        "if True:\n    def train(session): ...",
        "try:\n    from fast import train\nexcept ImportError:\n    from slow import train",
        "class train:\n    def __init__(self, session): ...",
    ],
)
def test_a_train_that_only_running_shows_is_left_to_the_worker(tmp_path: Path, text: str) -> None:
    assert script.read(written(tmp_path, text)).open_ended


def test_no_such_file_and_one_that_was_probably_meant(tmp_path: Path) -> None:
    written(tmp_path, "def train(session): ...", "my_model.py")
    error = refused(tmp_path / "my_modle.py")
    assert error.message == f"no script `{tmp_path / 'my_modle.py'}`"
    assert error.hints == (f"a similar file exists: `{tmp_path / 'my_model.py'}`",)
    assert refused(tmp_path / "nowhere" / "x.py").hints == ()


def test_a_folder(tmp_path: Path) -> None:
    assert refused(tmp_path).message == f"{tmp_path} is a folder, not a script"


@pytest.mark.parametrize(
    "content", [b"def train(session:\n", b"\x7fELF\0\0\0", b"\x80\x81\x82", b"# coding: nonsense\n"]
)
def test_not_python(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "job.py"
    path.write_bytes(content)
    error = refused(path)
    assert error.message == f"{path} is not Python"
    assert error.cause


def test_the_line_of_a_syntax_error_is_named(tmp_path: Path) -> None:
    error = refused(written(tmp_path, "import torch\n\ndef train(session)\n    pass\n"))
    assert error.cause == "line 3: expected ':'"


def test_no_train(tmp_path: Path) -> None:
    error = refused(written(tmp_path, "def main(): ...\nimport training\n"))
    assert "has no `train(session)`" in error.message
    assert any("def train(session" in hint for hint in error.hints)


@pytest.mark.parametrize(
    "line",
    ["from torch.nn.parallel import DistributedDataParallel", "import torch.distributed as dist", "import accelerate"],
)
def test_a_script_for_torchrun_is_told_how_it_runs_as_it_is(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, f"{line}\ndef main(): ...\n")
    assert f"`holdfast run -- torchrun --nproc-per-node 2 {path}`" in " ".join(refused(path).hints)


def test_a_train_of_the_scripts_own_is_found_before_anything_starts(tmp_path: Path) -> None:
    facts = script.read(written(tmp_path, "def train(model, loader, lr=0.1, *, epochs, seed=0): ..."))
    assert facts.required == ("loader", "epochs")
    with pytest.raises(UserError) as caught:
        script.check_arguments(facts, {"lr": "0.2"})
    assert caught.value.message == "`train` in job.py needs loader, epochs"
    assert any("rename it" in hint for hint in caught.value.hints)
    script.check_arguments(facts, {"loader": "x", "epochs": "3"})


def test_a_decorator_may_give_what_train_needs(tmp_path: Path) -> None:
    facts = script.read(written(tmp_path, "@with_config\ndef train(session, config): ..."))
    script.check_arguments(facts, {})


def test_train_inside_a_function_or_class_does_not_count(tmp_path: Path) -> None:
    refused(written(tmp_path, "def outer():\n    def train(session): ..."))
    refused(written(tmp_path, "class Trainer:\n    def train(self, session): ..."))


def test_train_without_a_session(tmp_path: Path) -> None:
    error = refused(written(tmp_path, "\ndef train():\n    pass\n"))
    assert "has no `session` argument" in error.message
    assert error.cause == "line 2: def train()"


def test_an_async_train_is_no_train(tmp_path: Path) -> None:
    refused(written(tmp_path, "async def train(session): ..."))


def test_a_file_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_bytes("# -*- coding: latin-1 -*-\ndef train(session, größe=1): ...\n".encode("latin-1"))
    assert script.read(path).parameters == ("größe",)


# -- arguments -----------------------------------------------------------------------------------------------


def test_an_argument_that_train_does_not_take(tmp_path: Path) -> None:
    facts = script.read(written(tmp_path, "def train(session, epochs=1, lr=0.1): ..."))
    script.check_arguments(facts, {"epochs": "3", "lr": "0.2"})
    with pytest.raises(UserError) as caught:
        script.check_arguments(facts, {"epoch": "3"})
    assert caught.value.message == "unknown setting `epoch`"
    assert caught.value.cause == "`train` in job.py takes: epochs, lr"
    assert caught.value.hints[0] == "a similar setting exists: `epochs`"


def test_a_train_that_takes_anything_is_given_anything(tmp_path: Path) -> None:
    script.check_arguments(script.read(written(tmp_path, "def train(s, **k): ...")), {"whatever": "1"})


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [
        ("yes", False, True),
        ("0", True, False),
        ("12", 1, 12),
        ("3e-4", 0.1, 3e-4),
        ("7", 0.1, 7.0),
        ("007", "x", "007"),
        ("[1, 2]", None, [1, 2]),
        ("cuda", None, "cuda"),
        ("(1, 'a')", (), (1, "a")),
        ("1", None, 1),
    ],
)
def test_words_are_read_as_the_default_suggests(text: str, default: Any, value: Any) -> None:
    read = script.convert("key", text, default)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "default", "wanted"),
    [("maybe", True, "true or false"), ("1.5", 3, "a whole number"), ("fast", 0.1, "a number")],
)
def test_words_that_do_not_fit(text: str, default: Any, wanted: str) -> None:
    with pytest.raises(UserError) as caught:
        script.convert("lr", text, default)
    assert caught.value.message == f"lr is {text!r}, but it takes {wanted}"


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("my_script.py", "my_script"),
        ("my-script.py", "my_script"),
        ("01 first try.py", "script_01_first_try"),
        ("torch.py", "script_torch"),
        ("class.py", "script_class"),
        ("signal.py", "script_signal"),
        ("über.py", "über"),
    ],
)
def test_the_name_a_script_is_imported_under(name: str, module: str) -> None:
    assert script.module_name(Path(name)) == module
    assert module.isidentifier()
