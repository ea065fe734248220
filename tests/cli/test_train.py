"""`holdfast train`: bad input costs milliseconds, good input trains, and every way to end has its code."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from holdfast.base.errors import UserError
from holdfast.cli.supervise import preload_for, rungs_for
from holdfast.console.order import threads_for
from holdfast.devices import inventory
from holdfast.faults.ladder import Rung
from holdfast.run import script

from .conftest import Finished
from .driving import SCRIPT, Terminal, holdfast, run_folder, said


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(SCRIPT)
    return tmp_path


# Bad input, found before torch is imported ----------------------------------------------------------------

FOOTER = "\nFor more information, try `holdfast train --help`\n"

REFUSED = {
    "not found": (
        ["jop.py"],
        "error: no script `jop.py`\n  cause: the file does not exist\n\n"
        "  tip: a similar file exists: `job.py`\n" + FOOTER,
    ),
    "a folder": (["."], "error: . is a folder, not a script\n"),
    "not Python": (
        ["notes.txt"],
        "error: notes.txt is not Python\n"
        "  cause: line 1: invalid syntax\n"
        "\n"
        "hint: `holdfast train` takes a Python script with a function `train(session)`\n",
    ),
    "without train": (
        ["empty.py"],
        "error: empty.py has no `train(session)`\n"
        "  cause: holdfast calls this function to train\n\n"
        "hint: put the training loop into `def train(session: holdfast.Session) -> None:`\n"
        "hint: `holdfast run -- python empty.py` runs it as it is, and restarts it from its own checkpoints\n",
    ),
    "train without a session": (
        ["bare.py"],
        "error: `train` in bare.py has no `session` argument\n  cause: line 1: def train()\n\n"
        "hint: write `def train(session: holdfast.Session) -> None:`\n",
    ),
    "unknown argument": (
        ["job.py", "epoch=3"],
        "error: unknown setting `epoch`\n  cause: `train` in job.py takes: lr, epochs, nap, fail_at\n\n"
        "hint: a similar setting exists: `epochs`\n"
        "hint: settings of holdfast itself have a dot: `holdfast config` lists them\n",
    ),
    "unknown setting": (
        ["job.py", "watchdog.flor=3s"],
        "error: unknown setting `watchdog.flor`\n  cause: set on the command line\n\n"
        "hint: a similar setting exists: `watchdog.floor`\nhint: `holdfast config` lists every setting\n",
    ),
    "bad value": (
        ["job.py", "--seed", "-1"],
        'error: run.seed is "-1", which is not allowed\n  cause: set on the command line\n\n'
        "hint: use a whole number, 0 or more; the default is 0\n",
    ),
    "not a setting": (
        ["job.py", "fast"],
        "error: `fast` is not a setting\n  cause: after the script, words are written as key=value\n\n"
        "  tip: arguments for the script's sys.argv stand after `--`: `-- fast`\n" + FOOTER,
    ),
    "unknown device": (
        ["job.py", "--device", "gpu"],
        "error: unknown device `gpu`\n  cause: devices are named as in torch: cpu, cuda:0, mps, xpu:0, or auto\n\n"
        "hint: did you mean `cuda:0`?\nhint: on this machine: HERE\n",
    ),
    "not writable": (
        ["job.py", "run.folder=job.py/runs"],
        "error: cannot create a run folder in job.py/runs\n  cause: Not a directory\n\n"
        "hint: choose another place with `run.folder=PATH`\n",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_says_what_why_and_what_next(case: str, job: Path) -> None:
    (job / "notes.txt").write_text("buy some milk\n")
    (job / "empty.py").write_text("import torch\n")
    (job / "bare.py").write_text("def train():\n    pass\n")
    words, expected = REFUSED[case]
    done = said("train", *words, cwd=job)
    assert done.err == expected.replace("HERE", ", ".join(inventory.candidates()))
    assert (done.out, done.code) == ("", 2)
    assert not (job / "runs").exists()


# A run from its start to its end --------------------------------------------------------------------------


def test_json_is_one_object_with_the_documented_fields(finished: Finished) -> None:
    assert finished.done.code == 0, finished.done.err
    data = finished.done.json
    path = run_folder(finished.cwd)
    receipt = data["receipt"]
    assert (data["schema"], data["state"], data["exit_code"], data["error"]) == (1, "FINISHED", 0, None)
    assert (data["folder"], path.name) == (str(path), f"job-{path.name[4:17]}-{data['run']}")
    assert data["device_timeline"] == [{"device": "cpu", "from_step": 0, "to_step": 24}]
    assert set(data["metrics"]) == {"train_loss", "valid_loss"}
    assert data["best"]["name"] == "valid_loss" and data["best"]["epoch"] in (1, 2, 3)
    assert (receipt["steps"], receipt["survived"], receipt["faults"]) == (24, True, {})
    assert (receipt["steps_repeated"], receipt["samples_skipped"], receipt["samples_repeated"]) == (0, 0, 0)
    assert re.fullmatch(r"[0-9a-f]{64}", receipt["weights_sha256"])


def test_the_run_is_told_on_stderr_line_by_line(finished: Finished) -> None:
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    lines = finished.done.err.splitlines()
    assert all(re.match(rf"{stamp} [a-z_]+ ", line) for line in lines), finished.done.err
    words = [line.split()[1] for line in lines]
    assert words[0] == "start" and words[-1] == "end"
    assert words.count("epoch") == 3
    (said,) = [line for line in lines if " output " in line]  # read from a file, so an event may come before it
    assert f"{said.split()[0]} output hello from the script" == said
    first = next(line for line in lines if " epoch " in line)
    assert re.search(
        r" epoch=1 step=8 train_loss=[\d.]+ valid_loss=[\d.]+ saved=true seconds=[\d.]+ device=cpu$", first
    )


def test_the_run_folder_says_what_the_run_is(finished: Finished) -> None:
    info = json.loads((finished.path / "run.json").read_text())
    assert info["script"] == str(finished.cwd / "job.py")
    assert info["arguments"] == {"lr": "0.1", "epochs": "3"}
    assert (info["seed"], info["threads"], info["argv"]) == (0, 1, [])
    assert info["settings"]["run"]["threads"] == 1
    assert (finished.path / "best.safetensors").is_file() and (finished.path / "final.safetensors").is_file()
    assert (finished.path.stat().st_mode & 0o777) == 0o700


@pytest.mark.timeout(300)
def test_a_terminal_from_header_to_ctrl_c(job: Path) -> None:
    """The header, the table, a worker killed and replaced, the live line, and one Ctrl-C that saves."""
    plan = job / "plan.json"
    fault = {"kind": "sigkill", "step": 11, "phase": "backward", "amount": 0}
    plan.write_text(json.dumps({"claims": str(job / "claims"), "faults": [fault]}))
    words = ("train", "job.py", "epochs=500", "nap=0.05")
    terminal = Terminal(*words, cwd=job, HOLDFAST_CHAOS=str(plan), NO_COLOR="1")
    try:
        terminal.wait_for(r"\n      3 +[\d.]+ +[\d.]+ .*cpu")
        terminal.wait_for(r"epoch \d+/500 [━╸─]+ +\d+ % +\d/8  [\d.]+ it/s  .* left")
        terminal.type("\x03")
        assert terminal.wait() == 130
    finally:
        terminal.end()
    text = terminal.text
    name = run_folder(job).name
    assert text.startswith("holdfast 0.1.0 · job · ")
    assert f"\nrun    runs/{name}\n" in text
    assert "\ndiffers from default: epochs=500, nap=0.05\n" in text
    assert re.search(r"\n  epoch   train_loss   valid_loss   saved     time   device\n ─{6}  ─{11}  ", text)
    assert re.search(r" \d\d:\d\d:\d\d  ! the worker on cpu was killed from outside \(SIGKILL\) at step +F007\n", text)
    assert re.search(r"\n           ↺ new worker on cpu, try 1 of 10\n", text)
    assert re.search(r"\n           ✓ training again after [\d.]+ m?s\n", text)
    stop = re.search(r"saving step ([\d ]+), \^C again to stop now\n", text)
    assert stop and re.search(r"\n• stopped at step [\d ]+ in .* on cpu", text)
    assert re.search(r"\n  faults   1 killed worker; .* lost", text)
    assert f"\n  saved    step {_step(job)} in runs/{name}/checkpoints/{_step(job):06d}\n" in text
    assert terminal.raw.count("\x1b[?25l") == terminal.raw.count("\x1b[?25h") == 1, "the cursor comes back"


def _step(job: Path) -> int:
    return int(json.loads((run_folder(job) / "receipt.json").read_text())["steps"])


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_closed_terminal_saves_and_asks_to_be_resumed(job: Path) -> None:
    terminal = Terminal("train", "job.py", "epochs=500", "nap=0.05", cwd=job)
    try:
        terminal.wait_for(r"\n      1 +[\d.]+")
        terminal.close()
        assert terminal.wait() == 75
    finally:
        terminal.end()
    info = json.loads((run_folder(job) / "run.json").read_text())
    assert (info["state"], info["exit_code"]) == ("STOPPED", 75)
    assert (run_folder(job) / f"checkpoints/{_step(job):06d}").is_dir()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_broken_pipe_does_not_stop_the_run(job: Path) -> None:
    """`holdfast train job.py | head -1`: the reader leaves, the training goes on."""
    import subprocess
    import sys

    from .driving import environment

    command = [sys.executable, "-m", "holdfast", "train", "job.py"]
    with subprocess.Popen(
        command, cwd=job, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert b" start run=" in process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert (process.wait(), errors) == (0, b"")
    assert json.loads((run_folder(job) / "run.json").read_text())["state"] == "FINISHED"


# The script's own errors ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_script_that_raises_at_its_first_step(job: Path) -> None:
    done = holdfast("train", "job.py", "fail_at=0", "--json", cwd=job)
    data = done.json
    assert (done.code, data["state"], data["exit_code"]) == (1, "FAILED", 1)
    assert data["error"]["message"] == "job.py raised ValueError: the script's own mistake"
    folder = run_folder(job)
    assert "output ValueError: the script's own mistake\n" in done.err
    assert f"\nhint: its traceback and output are in runs/{folder.name}/output.log\n" in done.err
    traceback = (folder / "traceback.txt").read_text()
    assert 'raise ValueError("the script\'s own mistake")' in traceback and "supervisor" not in traceback
    assert data["receipt"]["faults"] == {"user_error": 1}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_script_that_raises_at_import_is_seen_by_detach(job: Path) -> None:
    (job / "job.py").write_text("import nothing_of_this_name\n\n\ndef train(session):\n    pass\n")
    done = holdfast("train", "job.py", "--detach", cwd=job)
    assert done.code == 1
    assert done.err.startswith("error: job.py raised ModuleNotFoundError: No module named 'nothing_of_this_name'\n")
    assert "hint: its traceback and output are in " in done.err
    shown = holdfast("status", cwd=job)
    assert " · job · FAILED " in shown.out


# What a run is given --------------------------------------------------------------------------------------


def test_secrets_are_not_kept(job: Path) -> None:
    from holdfast.console.order import read_order, run_info

    (job / "job.py").write_text("def train(session, api_key='', lr=1.0):\n    pass\n")
    words = ["api_key=hunter2", "lr=0.5"]
    order = read_order(str(job / "job.py"), words, argv=["--token", "hunter3", "--n=1"])
    info = run_info(order)
    assert order.arguments == {"api_key": "hunter2", "lr": "0.5"}
    assert info["arguments"] == {"api_key": "***", "lr": "0.5"}
    assert info["argv"] == ["--token", "***", "--n=1"]


def test_what_the_nursery_may_import_ahead(job: Path) -> None:
    (job / "helper.py").write_text("")
    (job / "job.py").write_text(
        "import json, helper, torch, nothing_of_this_name\nfrom numpy import linalg\n\ndef train(session): pass\n"
    )
    assert preload_for(script.read(job / "job.py")) == ["json"]


def test_threads_follow_what_this_process_may_use() -> None:
    assert threads_for(3) == 3
    assert 1 <= threads_for("auto", {}) <= len(os.sched_getaffinity(0))
    assert threads_for("auto", {"OMP_NUM_THREADS": ""}) == threads_for("auto", {"OMP_NUM_THREADS": "many"})
    assert threads_for("auto", {"OMP_NUM_THREADS": "3"}) == threads_for("auto", {"OMP_NUM_THREADS": " 3,2"}) == 3
    assert threads_for(2, {"OMP_NUM_THREADS": "3"}) == 2, "the setting comes first"


def test_rungs_end_on_the_cpu() -> None:
    cpu = [Rung("cpu"), Rung("cpu", "fp32")]
    assert rungs_for("cpu") == cpu
    assert rungs_for("pretend:0") == [Rung("pretend:0"), Rung("pretend:0", "fp32"), *cpu]
    assert rungs_for("auto")[-2:] == cpu


def machine(root: Path) -> Path:
    """A folder that looks like the kernel's files of a machine with two NVIDIA and two AMD cards."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "kfd"):
        (root / "dev").mkdir(exist_ok=True)
        (root / "dev" / name).touch()
    for number, version in enumerate((0, 110000, 90402)):
        node = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 16\ngfx_target_version {version}\n")
    return root


@pytest.mark.parametrize(
    ("build", "env", "found"),
    [
        ({"cuda": "12.8"}, {}, ["cuda:0", "cuda:1", "cpu"]),
        ({"hip": "6.4"}, {}, ["cuda:0", "cuda:1", "cpu"]),
        ({}, {}, ["cpu"]),
        ({"cuda": "12.8"}, {"CUDA_VISIBLE_DEVICES": "1"}, ["cuda:0", "cpu"]),
        ({"cuda": "12.8"}, {"CUDA_VISIBLE_DEVICES": ""}, ["cpu"]),
        ({"cuda": "12.8"}, {"CUDA_VISIBLE_DEVICES": "-1"}, ["cpu"]),
        ({"cuda": "12.8"}, {"HIP_VISIBLE_DEVICES": ""}, ["cuda:0", "cuda:1", "cpu"]),
        ({"hip": "6.4"}, {"HIP_VISIBLE_DEVICES": "0"}, ["cuda:0", "cpu"]),
    ],
)
def test_devices_are_seen_without_a_driver(
    build: dict[str, str | None], env: dict[str, str], found: list[str], tmp_path: Path
) -> None:
    assert inventory.candidates(root=machine(tmp_path), build=build, env=env) == found


@pytest.mark.parametrize(
    ("name", "env", "refused"),
    [
        ("auto", {}, False),
        ("cpu", {}, False),
        ("cuda:1", {}, False),
        ("cuda:2", {}, True),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": ""}, True),
        ("cuda:1", {"CUDA_VISIBLE_DEVICES": "1"}, True),
        ("mps", {}, True),
        ("pretend:0", {}, False),
    ],
)
def test_a_device_that_is_not_here_is_refused(name: str, env: dict[str, str], refused: bool, tmp_path: Path) -> None:
    root, build = machine(tmp_path), {"version": "2.12.1", "cuda": "12.8"}
    if not refused:
        inventory.check_here(name, root=root, build=build, env=env)
        return
    with pytest.raises(UserError) as caught:
        inventory.check_here(name, root=root, build=build, env=env)
    assert caught.value.message == f"there is no device `{name}` here"
    assert (
        caught.value.hints[0] == f"on this machine: {', '.join(inventory.candidates(root=root, build=build, env=env))}"
    )


def test_a_board_with_the_gpu_in_its_chip_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvhost-gpu").touch()
    inventory.check_here("cuda:0", root=tmp_path, build={"version": "2.12.1", "cuda": "12.8"}, env={})


@pytest.mark.all
@pytest.mark.parametrize("command", [["train", "job.py"], ["run", "--device", "xpu:7", "--", "true"]])
def test_nothing_is_made_where_the_device_is_not(command: list[str], job: Path) -> None:
    words = [*command, "--device", "mps"] if command[0] == "train" else command
    done = holdfast(*words, cwd=job)
    assert done.code == 2 and not (job / "runs").exists()
    assert "there is no device `mps` here" in done.err or "this torch cannot use `xpu:7`" in done.err


def test_a_device_this_torch_cannot_serve() -> None:
    cpu_only: dict[str, str | None] = {"version": "2.12.1+cpu"}
    with pytest.raises(UserError) as caught:
        inventory.check("cuda:0", build=cpu_only)
    assert caught.value.message == "this torch cannot use `cuda:0`"
    assert caught.value.cause == "torch 2.12.1+cpu was built without it"
    assert inventory.check("cuda", build={"version": "2.12.1", "cuda": "12.8"}) == "cuda:0"
    assert inventory.check("cpu:0", build=cpu_only) == "cpu"
