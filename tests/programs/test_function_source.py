"""A function of a notebook as a script: what comes along is the same, what cannot is an error. In a real shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import UserError
from holdfast.programs.calling import write
from holdfast.programs.function_source import Made, script_of
from holdfast.programs.plain_values import literal

pytest.importorskip("IPython", reason="IPython is not installed")


@pytest.fixture
def shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def cells(shell: Any, *texts: str) -> Any:
    for text in texts:
        shell.run_cell(text).raise_error()
    return shell.user_ns["train"]


def as_a_worker(made: Made, folder: Path) -> dict[str, Any]:
    """The names of the script, imported from a file as a worker does, with nothing of the notebook in reach."""
    path = write(made, folder, "job")
    space: dict[str, Any] = {"__name__": "job", "__file__": str(path)}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    return space


def test_what_a_function_uses_comes_along(shell: Any, tmp_path: Path) -> None:
    train = cells(
        shell,
        "import json, numpy, torch, math as m, xml.etree.ElementTree\nfrom collections import OrderedDict as Ordered",
        "from torch import relu\nLR = 0.1 + 0.2\nNAMES = {'a': [1, (2.5, None)], 'b': {3}}\nunused = object()",
        "points = torch.arange(6.0).reshape(2, 3).half()\nmask = numpy.array([[True, False]])",
        "class Base:\n    factor = LR\n\nclass Net(Base):\n    def size(self):\n        return self.factor * helper(2)",
        "def helper(n, start=NAMES['a'][0]):\n    return m.sqrt(n + start)",
        "def train(session, lr=LR):\n"
        "    unused = 3\n"
        "    tree = xml.etree.ElementTree.fromstring('<a/>')\n"
        "    return Net().size(), Ordered(a=json.loads('1')), relu(points), mask, NAMES, tree.tag, lr",
    )
    made = script_of(train)
    there = as_a_worker(made, tmp_path)
    here, got = train(None), there["train"](None)
    assert (got[0], got[1], got[4:]) == (here[0], here[1], here[4:])
    assert got[2].dtype == here[2].dtype and got[2].equal(here[2])
    assert got[3].dtype == here[3].dtype and (got[3] == here[3]).all()
    assert "unused" not in there, "a local name is not the notebook's value of that name"


def test_values_are_those_of_the_moment_and_code_is_the_newest(shell: Any, tmp_path: Path) -> None:
    first = "WIDTH = 3\nclass Net:\n    width = 1\ndef helper():\n    return WIDTH, Net.width"
    train = cells(shell, first, "def train(session):\n    return helper()", "WIDTH = 4\nclass Net:\n    width = 2")
    assert as_a_worker(script_of(train), tmp_path)["train"](None) == (4, 2) == train(None)


def test_decorated_and_renamed(shell: Any, tmp_path: Path) -> None:
    train = cells(
        shell,
        "import functools",
        "@functools.lru_cache\ndef slow(n):\n    return n * 2\n\nfast = slow\n\ndef fit(session):\n    return fast(21)",
        "train = fit",
    )
    assert as_a_worker(script_of(train), tmp_path)["train"](None) == 42


def test_a_module_beside_the_notebook_is_found(shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helpers_of_this_test.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    train = cells(shell, "from helpers_of_this_test import answer\ndef train(session):\n    return answer()")
    text = script_of(train).text
    assert f"sys.path[1:1] = [{str(tmp_path)!r}]" in text and "from helpers_of_this_test import answer" in text


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("import torch\nmodel = torch.nn.Linear(2, 1)\ndef train(session):\n    model", "uses `model`, a torch.nn"),
        ("file = open('/dev/null')\ndef train(session):\n    file", "uses `file`, a _io.TextIOWrapper"),
        ("def train(session):\n    get_ipython().system('ls')", "uses `get_ipython`"),
        ("import torch\nw = torch.ones(2, requires_grad=True)\ndef train(session):\n    w", "uses `w`, a torch.Tensor"),
        ("f = lambda: 3\ndef train(session):\n    f()", "uses a lambda"),
        ("def train():\n    pass", "`train` has no `session` argument"),
        ("def outer():\n    def inner(session):\n        pass\n    return inner\ntrain = outer()", "cannot be taken"),
        ("train = 3", "holdfast.train takes a function, not an int"),
    ],
)
def test_what_cannot_come_along_is_named(shell: Any, cell: str, message: str) -> None:
    train = cells(shell, cell)
    with pytest.raises(UserError) as error:
        script_of(train)
    assert message in error.value.message and error.value.hints


def test_a_default_that_has_become_another_since(shell: Any) -> None:
    train = cells(shell, "LR = 0.1", "def train(session, *, lr=LR):\n    return lr", "LR = 0.2")
    with pytest.raises(UserError, match=r"default of `lr` in `train` was 0.1 when its cell ran; now `LR` is 0.2"):
        script_of(train)


def test_a_name_that_means_two_things(shell: Any) -> None:
    old = "def helper():\n    return 1\ndef other():\n    return keep()\nkeep = helper"
    train = cells(shell, old, "def helper():\n    return 2", "def train(session):\n    return helper(), other()")
    with pytest.raises(UserError, match="two different things are called `helper`"):
        script_of(train)


@pytest.mark.parametrize("value", [float("inf"), -0.0, (1,), (), set(), {"a": [b"x", None]}, Path("a b"), 10**40, 1j])
def test_a_literal_is_the_same_value(value: object) -> None:
    text = literal(value)
    assert text is not None
    again = eval(text)
    assert again == value and type(again) is type(value) and repr(again) == repr(value)


def test_subclasses_and_cycles_are_no_literals() -> None:
    class Kind(int):
        pass

    assert literal(Kind(3)) is None and literal([object()]) is None
    loop: list[object] = []
    loop.append(loop)
    assert literal(loop) is None
