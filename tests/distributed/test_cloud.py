"""`holdfast launch --cloud`: the task file, what it says before money is spent, and what is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.errors import UserError
from holdfast.cli.main import main
from holdfast.distributed import sky

SCRIPT = "def train(session, epochs: int = 3):\n    pass\n"
FILES = {
    "single": ["--gpu", "L4", "--price", "0.80"],
    "spot": ["--gpu", "L4", "--spot", "--bucket", "my-runs", "--price", "0.31"],
    "nodes": ["--gpu", "A100:8", "--nodes", "2", "--spot", "--bucket", "my-runs", "--infra", "gcp", "--price", "20"],
    "vast": ["--gpu", "RTX4090", "--infra", "vast", "--price", "0.4"],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, and a user without any key."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "my_script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS", "RUNPOD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "work"


def _dryrun(name: str, here: Path) -> str:
    words = ["launch", "--cloud", "--dryrun", "--name", f"task-{name}", *FILES[name], "my_script.py", "epochs=5"]
    assert main(words) == 0
    return (here / f"task-{name}.yaml").read_text()


def test_dryrun_says_price_cap_and_what_it_would_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _dryrun("spot", here)
    printed = capsys.readouterr().out
    assert "price    $0.31 an hour (given)" in printed
    assert "cap      $5.00: it ends 16h 08m after it begins, state saved" in printed
    assert "would run  sky jobs launch --yes --name task-spot task-spot.yaml" in printed
    assert '"recover_on_exit_codes": [75]' in text and '"max_restarts_on_errors": 0' in text
    assert 'autostop: {"idle_minutes": 10, "down": true}' in text
    assert '"/holdfast-runs": {"name": "my-runs", "mode": "MOUNT_CACHED"}' in text


def test_dryrun_without_a_price_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--cloud", "--dryrun", "--gpu", "L4", "--name", "free", "my_script.py"]) == 0
    assert "price    not known:" in capsys.readouterr().out


@pytest.mark.parametrize("name", FILES)
def test_the_run_part_is_a_shell_script(here: Path, name: str) -> None:
    text = _dryrun(name, here)
    body = "\n".join(line.removeprefix("  ") for line in text.partition("run: |\n")[2].splitlines())
    subprocess.run(["bash", "-n", "-c", body], check=True)


@pytest.mark.parametrize(("state", "command"), [("new", "train my_script.py epochs=5"), ("there", "resume latest")])
def test_the_task_starts_or_goes_on_and_keeps_its_cap(here: Path, tmp_path: Path, state: str, command: str) -> None:
    """The shell part, run for real with a `holdfast` that says what it was asked to do."""
    task = sky.Task("t", "my_script.py", ["epochs=5"], price=1.0, cap=2.0)
    runs = tmp_path / "holdfast-runs" / "t"
    if state == "there":
        (runs / "job-1").mkdir(parents=True)
        (runs / "job-1" / "run.json").write_text("{}")
    (tmp_path / "bin").mkdir()
    said = tmp_path / "bin" / "holdfast"
    said.write_text('#!/bin/sh\necho "$@"\nexit 75\n')
    said.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", task._run()], env=env, capture_output=True, text=True)
    assert done.returncode == 75, "SkyPilot must see that the run wants to go on"
    assert done.stdout.startswith(command), done.stderr
    (runs / "ends").write_text("100")
    spent = subprocess.run(["bash", "-c", task._run()], env=env, capture_output=True, text=True)
    assert spent.returncode == 1 and "cap of this task is spent" in spent.stdout


def test_nothing_is_started_without_skypilot(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(here))
    assert main(["launch", "--cloud", "--gpu", "L4", "--price", "1", "my_script.py"]) == 2
    printed = capsys.readouterr().err
    assert "SkyPilot is not installed" in printed and "pip install 'holdfast[cloud]'" in printed
    assert not list(here.glob("*.yaml"))


def _with_sky(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `sky` that only writes down that it was called: money is never spent by a test."""
    called = here / "called"
    (here / "sky").write_text(f'#!/bin/sh\necho "$@" > {called}\n')
    (here / "sky").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    return called


def test_missing_keys_name_the_commands(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = _with_sky(here, monkeypatch)
    assert main(["launch", "--cloud", "--gpu", "L4", "--price", "1", "my_script.py"]) == 2
    printed = capsys.readouterr().err
    assert "there is no key for any cloud here" in printed
    assert "aws configure" in printed and "gcloud auth application-default login" in printed and "sky check" in printed
    assert not called.exists()


def test_it_asks_before_it_spends(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = _with_sky(here, monkeypatch)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    words = ["launch", "--cloud", "--gpu", "L4", "--price", "1", "--name", "t", "my_script.py"]
    assert main(words) == 2
    captured = capsys.readouterr()
    assert "there is no terminal to ask you in" in captured.err and "price    $1.00 an hour" in captured.out
    assert not called.exists()
    assert main([*words, "--yes"]) == 0
    assert called.read_text() == "launch --yes --cluster t --down -i 10 t.yaml\n"


def test_a_price_comes_from_the_catalogue(here: Path) -> None:
    folder = here.parent / ".sky" / "catalogs" / "v8" / "aws"
    folder.mkdir(parents=True)
    (folder / "vms.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice\n"
        "g6.xlarge,L4,1.0,0.80,0.18\ng6.48xlarge,L4,8.0,13.4,3.0\nodd,L4,1.0,,\nbroken,L4,x,1,1\n"
    )
    price = sky.catalog_price(sky.Task("t", "s.py", gpu="L4", spot=True, bucket="b"), here.parent)
    assert price == sky.Price(0.18, "aws g6.xlarge, SkyPilot's catalogue on this machine")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--spot"], "--spot needs --bucket"),
        (["--bucket", "b", "--infra", "vast"], "vast cannot mount a bucket"),
        (["--nodes", "2", "--infra", "runpod"], "runpod has no tasks of several machines"),
        (["--cap", "0"], "--cap is 0, but it must be above zero"),
        (["--price", "-1"], "--price is -1, but it must be above zero"),
        (["--name", "Not A Name"], "cannot name a task"),
    ],
)
def test_bad_wishes(here: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert main(["launch", "--cloud", "--dryrun", *words, "my_script.py"]) == 2
    assert says in capsys.readouterr().err


def test_a_script_elsewhere_is_refused(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.py").write_text(SCRIPT)
    assert main(["launch", "--cloud", "--dryrun", str(tmp_path / "other.py")]) == 2
    assert "is not in this folder" in capsys.readouterr().err


def test_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--cloud", "--dryrun", "--json", "--name", "t", "--price", "2", "my_script.py"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hours"] == 2.5 and found["cap_usd"] == 5.0 and found["file"] == "t.yaml"


PARSE = """\
import json, sys, sky
def read(path):
    task = sky.Task.from_yaml(path)
    (wanted,) = task.resources
    return {
        "nodes": task.num_nodes, "spot": wanted.use_spot, "recovery": wanted.job_recovery,
        "down": wanted.autostop_config.down, "idle": wanted.autostop_config.idle_minutes,
        "mounts": sorted({**(task.file_mounts or {}), **(task.storage_mounts or {})}),
    }
print(json.dumps({path: read(path) for path in sys.argv[1:]}))
"""


def _python_with_sky() -> str | None:
    if importlib.util.find_spec("sky") is not None:
        return sys.executable
    return os.environ.get("HOLDFAST_TEST_SKY") or None


@pytest.mark.timeout(300)
def test_skypilot_reads_them(here: Path) -> None:
    python = _python_with_sky()
    if python is None:
        pytest.skip("SkyPilot is not installed: pip install 'holdfast[cloud]', or HOLDFAST_TEST_SKY=PYTHON")
    for name in FILES:
        _dryrun(name, here)
    names = [f"task-{name}.yaml" for name in FILES]
    env = {**os.environ, "HOME": str(here)}
    done = subprocess.run([python, "-c", PARSE, *names], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for name in FILES:
        read, spot = found[f"task-{name}.yaml"], name in ("spot", "nodes")
        assert read["spot"] is spot and read["nodes"] == (2 if name == "nodes" else 1)
        assert read["down"] is True and read["idle"] == 10
        assert read["mounts"] == (["/holdfast-runs"] if spot else [])
        if spot:
            assert read["recovery"]["recover_on_exit_codes"] == [75]
            assert read["recovery"]["max_restarts_on_errors"] == 0


def test_wrong_infra_key_names_its_command(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_sky(here, monkeypatch)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    with pytest.raises(UserError, match="no key for runpod") as caught:
        sky.check_ready(sky.Task("t", "s.py", cloud="runpod"), here.parent)
    assert "runpod config" in caught.value.hints[0]
