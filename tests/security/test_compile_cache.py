"""torch unpickles its compile cache: it is the user's own, and what lies in a run folder is never taken for it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.driving import environment, holdfast, run_folder

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="torch.compile needs a C++ compiler"
)
needs_users = pytest.mark.skipif(not hasattr(os, "getuid"), reason="this system has no owners and modes of files")

COMPILES = '''\
"""Compiles twice: with an own cache that is empty and a poisoned one in the run folder, then with its own poisoned."""

import contextlib
import os
import pickle
import shutil
from pathlib import Path

import torch

import holdfast


class Poison:
    """Unpickling it leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def spoil(cache, entries, mark):
    for entry in entries:
        (cache / entry).parent.mkdir(parents=True, exist_ok=True)
        (cache / entry).write_bytes(pickle.dumps(Poison(mark)))


def compiled():
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(lambda x, w: torch.mm(x, w))(torch.ones(3, 3), torch.ones(3, 3))


def train(session):
    own, run = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]), Path(session.run.folder).absolute()
    compiled()
    files = [path.relative_to(own) for path in own.rglob("*") if path.is_file()]
    entries = [path for path in files if path.parts[0] in ("fxgraph", "aotautograd")]
    assert entries, "torch kept nothing: this would test nothing"
    shutil.rmtree(own)
    for inside in ("compile-cache", "compile-cache/inductor", "inductor", "."):
        spoil(run / inside, entries, run.parent.parent / "mark")
    compiled()
    shutil.rmtree(own)
    spoil(own, entries, run.parent.parent / "proof")
    with contextlib.suppress(Exception):  # what is left of such an entry is of no use to torch
        compiled()
'''


@pytest.mark.long
@needs_compiler
@pytest.mark.timeout(300)
def test_a_poisoned_cache_in_the_run_folder_leaves_no_mark(tmp_path: Path) -> None:
    """`run.portable` once pointed the cache into the run folder. The last compilation proves that the poison works."""
    (tmp_path / "job.py").write_text(COMPILES)
    done = holdfast(
        "train", "job.py", "run.portable=true", "--device", "cpu",
        cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"), TORCHINDUCTOR_COMPILE_THREADS="1",
    )  # fmt: skip
    assert done.code == 0, done.out + done.err
    assert (run_folder(tmp_path) / "compile-cache/fxgraph").is_dir()
    assert (tmp_path / "proof").exists(), "a poisoned entry that is found does run"
    assert not (tmp_path / "mark").exists(), "the cache of the run folder was read"
    assert stat.S_IMODE((tmp_path / "cache/holdfast/compile").stat().st_mode) == 0o700


def told(tmp_path: Path, **env: str) -> list[str]:
    """What `place` and `variables` say in a process of its own: the folder, why, and both variables."""
    code = (
        "import os; from holdfast.base import compile_cache\n"
        "where, why = compile_cache.place(); found = {**os.environ, "
        "**compile_cache.variables()}; print(where, why, found['TORCHINDUCTOR_CACHE_DIR'], found['TRITON_CACHE_DIR'], "
        "oct(where.stat().st_mode & 0o777), sep='\\n')"
    )
    known = environment(**{"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": "", **env})
    done = subprocess.run([sys.executable, "-c", code], env=known, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    if sys.platform == "linux":
        usual = tmp_path / "home/.cache/holdfast/compile"
        assert told(tmp_path) == [str(usual), "None", f"{usual}/inductor", f"{usual}/triton", "0o700"]
        assert told(tmp_path, XDG_CACHE_HOME="relative")[0] == str(usual)
    elsewhere = tmp_path / "xdg"
    assert told(tmp_path, XDG_CACHE_HOME=str(elsewhere))[0] == str(elsewhere / "holdfast/compile")


def test_a_variable_of_the_user_wins(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    mine = told(tmp_path, TORCHINDUCTOR_CACHE_DIR="/mine")
    assert mine[2] == "/mine" and mine[3].endswith("compile/triton")


@needs_users
@pytest.mark.parametrize("how", ["open", "link", "above", "file", "other"])
def test_a_place_that_others_could_have_written_is_not_used(tmp_path: Path, how: str) -> None:
    place = tmp_path / "home/.cache/holdfast/compile"
    place.parent.mkdir(parents=True, mode=0o700)
    if how == "file":
        place.write_text("")
    elif how == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "theirs")
    else:
        place.mkdir(mode=0o700)
    if how == "open":
        place.chmod(0o770)
    elif how == "above":
        (tmp_path / "home/.cache").chmod(0o777)
    elif how == "other":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder to somebody else")
        os.chown(place, 12345, -1)
    where, why, inductor, _triton, mode = told(tmp_path)
    assert not where.startswith(str(tmp_path)) and inductor.startswith(where) and mode == "0o700"
    assert str(place) in why
    assert not Path(where).exists(), "it lasts as long as the process"


@pytest.mark.long
def test_a_forked_worker_has_it_before_torch_is_there(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import os, holdfast\n"
        "def train(session):\n"
        "    had = open('/proc/%d/environ' % os.getppid()).read().split(chr(0)) if os.path.exists('/proc') else []\n"
        "    assert not had or any(word.startswith('TORCHINDUCTOR_CACHE_DIR=') for word in had), 'the nursery has it'\n"
        "    print('cache', os.environ['TORCHINDUCTOR_CACHE_DIR'], os.environ['TRITON_CACHE_DIR'])\n"
    )
    cache = str(tmp_path / "cache")
    done = holdfast("train", "job.py", "--device", "cpu", cwd=tmp_path, XDG_CACHE_HOME=cache)
    assert done.code == 0, done.err
    assert f"cache {cache}/holdfast/compile/inductor {cache}/holdfast/compile/triton" in done.out


def test_a_bundle_is_verified_with_a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child that loads a bundle is never pointed into the bundle."""
    from holdfast.optimize.children import Child

    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root / 'src'}:{root}")  # no child looks into the current folder
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    with Child.start(bundle, cache=tmp_path / "own", module="tests.optimize.unruly") as child:
        said = child.ask({"do": "environment"}, 60.0)
    assert said == {"inductor": str(tmp_path / "own/inductor"), "triton": str(tmp_path / "own/triton")}
