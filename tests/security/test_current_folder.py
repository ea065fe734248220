"""A hostile current folder: modules that lie there are imported by nothing that holdfast starts."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as package
from holdfast.base import interpreter
from holdfast.distributed import torchrun
from holdfast.run.folder import list_runs
from tests.cli.driving import environment

SOURCE = Path(package.__file__).parent
NAMES = ("torch", "numpy", "holdfast", "json", "multiprocessing", "pickle", "runpy", "helper")
TRAP = """\
import os
with open(os.environ["MARK"], "a") as file:
    file.write(f"{__name__} in {os.getpid()}\\n")
raise ImportError("the current folder was looked into")
"""
SCRIPT = """\
import helper
import torch
from torch import nn

import holdfast


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((2,), float(index))


def train(session):
    assert helper.BESIDE
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = holdfast.Loader(Points(), batch_size=4, num_workers=1)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(1):
        for batch in session.batches(data):
            session.step(lambda batch: model(batch).square().mean(), batch)
"""


class Place:
    """A folder full of traps, and the mark that they leave."""

    def __init__(self, root: Path, names: tuple[str, ...] = NAMES) -> None:
        self.root, self.folder, self.mark = root, root / "download", root / "mark"
        self.folder.mkdir()
        for name in names:
            (self.folder / f"{name}.py").write_text(TRAP)

    def run(self, command: list[str], **env: str) -> str:
        """What it said; it ended well, and no trap was stepped on."""
        done = subprocess.run(
            command, cwd=self.folder, env=environment(MARK=str(self.mark), HOME=str(self.root / "home"), **env),
            capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert not self.mark.exists(), f"{self.mark.read_text()}\n{done.stderr}"
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def holdfast(place: Place, *words: str, **env: str) -> str:
    """As it is installed: a program, whose folder is the first on its path."""
    program = Path(sys.executable).with_name("holdfast")
    start = [sys.executable, str(program)] if program.exists() else [sys.executable, "-P", "-m", "holdfast"]
    return place.run([*start, *words], **env)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_traps_work(place: Place) -> None:
    """Without this the rest would show nothing."""
    for words in (["-c", "import json"], ["-m", "holdfast"]):
        done = subprocess.run([sys.executable, *words], cwd=place.folder, env=environment(MARK=str(place.mark)),
                              capture_output=True, check=False)  # fmt: skip
        assert done.returncode and place.mark.exists()
        place.mark.unlink()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_doctor_believes_no_torch_of_the_current_folder(place: Place) -> None:
    said = json.loads(holdfast(place, "doctor", "--device", "cpu", "--fresh", "--json"))
    assert said["devices"]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("portable", ["", "1"], ids=["forked", "spawned"])
def test_a_run_and_its_start_after_a_boot(place: Place, portable: str) -> None:
    """Nursery, workers, keeper, loader processes and sensors; and the command that a boot starts in that folder.

    The script has its own folder first on its path, as Python gives it.
    """
    (place.root / "mine").mkdir()
    (place.root / "mine" / "job.py").write_text(SCRIPT)
    (place.root / "mine" / "helper.py").write_text("BESIDE = True\n")
    runs = place.root / "runs"
    env = {"HOLDFAST_PORTABLE": portable} if portable else {}
    holdfast(place, "train", str(place.root / "mine" / "job.py"), f"run.folder={runs}", "run.threads=1", **env)
    (run,) = list_runs(runs)
    assert run.info["state"] == "FINISHED" and run.info["cwd"] == str(place.folder)
    if portable:
        return
    run.update_info(state="STOPPED")
    shown = holdfast(place, "resume", "--at-boot", "--print", str(run.path))
    started = next(line.partition("=")[2] for line in shown.splitlines() if line.startswith("ExecStart="))
    assert f"WorkingDirectory={place.folder}" in shown
    run.update_info(state="FINISHED")
    assert place.run(shlex.split(started)) == ""


CHECK = """\
import sys
from pathlib import Path

from holdfast.supervisor.scripts.own_checkpoints import _in_a_child

print(_in_a_child(Path(sys.argv[1])))
"""


@pytest.mark.all
def test_the_look_at_a_checkpoint_of_a_foreign_script(place: Place) -> None:
    """`holdfast run` asks torch whether the script's newest file is whole, in a process of its own."""
    (place.root / "check.py").write_text(CHECK)
    (place.root / "last.pt").write_bytes(b"no checkpoint")
    said = place.run([sys.executable, str(place.root / "check.py"), str(place.root / "last.pt")])
    assert "looked into" not in said and said != "None\n"


POOL = """\
from holdfast.workloads.eeg import pool

if __name__ == "__main__":
    assert [result for _, result in pool.ordered(abs, [-1, -2, -3], workers=2)] == [1, 2, 3]
"""


def test_processes_of_multiprocessing(place: Place) -> None:
    """The parent is an interpreter without -P, whose children would have the current folder before all others."""
    (place.root / "pool.py").write_text(POOL)
    place.run([sys.executable, str(place.root / "pool.py")])


@pytest.mark.parametrize("has_flag", [interpreter.HAS_FLAG, False])
def test_both_ways_to_leave_it_out(place: Place, has_flag: bool) -> None:
    """-P, and what is done where Python has no -P. PYTHONPATH is the user's, and stays."""
    (place.root / "lib").mkdir()
    (place.root / "lib" / "helper.py").write_text("import sys; print(sys.argv[1:], __name__)")
    before = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    env = {"PYTHONPATH": os.pathsep.join([str(place.root / "lib"), *before])}
    command = interpreter.module("helper", "a", "b", has_flag=has_flag)
    assert interpreter.module_of(command) == "helper"
    assert place.run(command, **env) == "['a', 'b'] __main__\n"
    command = interpreter.code("import json, helper", "c", has_flag=has_flag)
    assert interpreter.module_of(command) is None
    assert place.run(command, **env) == "['c'] helper\n"
    (place.root / "spawn.py").write_text(
        "import multiprocessing\nfrom holdfast.base import interpreter\n\nif __name__ == '__main__':\n"
        f"    with interpreter.spawning({has_flag}):\n"
        "        child = multiprocessing.get_context('spawn').Process(target=print, args=('there',))\n"
        "        child.start()\n    child.join()\n"
    )
    assert place.run([sys.executable, str(place.root / "spawn.py")]) == "there\n"


@pytest.mark.all
def test_python_m_holdfast_forgets_where_it_was_typed(tmp_path: Path) -> None:
    """What Python itself imports before that cannot be helped: `holdfast` is the program to type."""
    place = Place(tmp_path, ("torch", "numpy", "json", "hashlib", "platform", "subprocess"))
    for module in ("holdfast", "holdfast.cli.main"):
        place.run([sys.executable, "-m", module, "list"])
        if module == "holdfast":
            place.run([sys.executable, "-m", module, "env"])


# The code -------------------------------------------------------------------------------------------------------


def starts(path: Path) -> list[str]:
    """Lists that begin with this interpreter, or hold `-m`: command lines that are not made by `interpreter`."""
    found = []
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if "sys.executable" in text or '"-m"' in text else ():
        if not isinstance(node, ast.List) or not node.elts:
            continue
        first = node.elts[0]
        ours = ast.unparse(first) == "sys.executable"
        if ours or any(isinstance(each, ast.Constant) and each.value == "-m" for each in node.elts):
            found.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}")
    return found


def test_no_python_is_started_in_another_way() -> None:
    found = [line for path in sorted(SOURCE.rglob("*.py")) if path.name != "interpreter.py" for line in starts(path)]
    assert found == []
    assert len(starts(SOURCE / "base" / "interpreter.py")) >= 3, "it does look"


def test_torchrun_starts_ranks_in_the_same_way() -> None:
    """It would start `python -m` by itself."""
    command = torchrun.command_for(torchrun.Wanted(2), ["train", "job.py"], "calm-heron")
    cut = command.index("--no-python")
    python, unbuffered, *rest = command[cut + 1 :]
    assert interpreter.module_of(command) == "torch.distributed.run" and unbuffered == "-u"
    assert [python, *rest] == interpreter.module("holdfast", "train", "job.py")
