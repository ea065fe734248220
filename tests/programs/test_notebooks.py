"""`holdfast.train` in real Jupyter kernels and in a program: the run outlives its kernel, and errors are exceptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.base.errors import UserError
from holdfast.base.files import read_json
from holdfast.programs.training_run import start
from holdfast.run.folder import list_runs
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"

pytest.importorskip("ipykernel", reason="ipykernel is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")

JOB = """
import torch, holdfast
GATE = {gate!r}
HOW = {{'run.device': 'cpu', 'snapshot.every': 1}}
def train(session, steps=40):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    session.protect(model=model, optimizer=optimizer)
    import os, time
    while session.step_count < steps:
        while session.step_count == steps // 2 and not os.path.exists(GATE):
            session.progress(1, 2, "waiting")
            time.sleep(0.05)
        session.step(lambda b: model(b).square().mean(), torch.randn(8, 4))
        session.log(loss=float(session.step_count))
"""


class Kernel:
    """A real kernel, spoken to as Jupyter does."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3", cwd=str(folder), startup_timeout=100)

    def run(self, text: str) -> str:
        """What the cell printed; the error it raised is raised here."""
        printed: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = self.client.execute_interactive(text, timeout=100, output_hook=hear)["content"]
        if reply["status"] != "ok":
            raise AssertionError(f"{reply['ename']}: {reply['evalue']}")
        return "".join(printed)

    def kill(self) -> None:
        pid = self.manager.provisioner.pid
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not self.manager.is_alive())

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernels(tmp_path: Path) -> Iterator[Any]:
    made: list[Kernel] = []

    def start() -> Kernel:
        made.append(Kernel(tmp_path))
        return made[-1]

    yield start
    for kernel in made:
        kernel.close()
    for each in list_runs(tmp_path / "runs"):  # of a test that failed: its run outlives the kernel, as it should
        left = holdfast.TrainingRun(each.path)
        if left.live:
            os.kill(int((read_json(each.path / "run.json") or {})["pid"]), signal.SIGTERM)
            wait_until(lambda left=left: not left.live)


@pytest.mark.all
def test_the_example_runs_in_a_real_kernel(tmp_path: Path) -> None:
    import nbformat

    notebook = nbformat.read(NOTEBOOK, 4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=110, kernel_name="python3", resources=place).execute()
    shown = {cell.source.splitlines()[0]: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    cell = shown["run = holdfast.train(train, epochs=10)"]
    assert "FINISHED" in cell[0]["data"]["text/html"] and "step 120/120" in cell[0]["data"]["text/plain"]
    assert ": FINISHED, step 120>" in cell[-1]["data"]["text/plain"]
    assert "'valid_accuracy'" in shown['run.state, run.best, run.receipt["faults"]'][0]["data"]["text/plain"]
    (run,) = list_runs(tmp_path / "runs")
    said = holdfast.find(folder=tmp_path / "runs").best
    assert said is not None and shown["model = Net()"][0]["text"] == f"accuracy {said['value']:.3f}\n"
    assert shown["again = holdfast.find()"][0]["data"]["text/plain"] == "(True, 'best.safetensors')"
    assert run.info["arguments"] == {"epochs": "10"} and run.info["workload"] == "notebook"


@pytest.mark.all
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL on Windows")
def test_a_run_survives_its_kernel_and_is_found_again(tmp_path: Path, kernels: Any) -> None:
    gate = tmp_path / "gate"
    job = JOB.format(gate=str(gate))
    first = kernels()
    first.run(job + "\nrun = holdfast.train(train, steps=40, wait=False, settings=HOW)")
    (folder,) = list_runs(tmp_path / "runs")
    run = holdfast.TrainingRun(folder.path)
    assert wait_until(lambda: (run.step or 0) >= 20), run
    first.kill()
    worker = (read_json(folder.path / "beat.json") or {})["pid"]
    os.kill(worker, signal.SIGKILL)
    assert run.live, "neither took the run along"
    second = kernels()
    again = "\nrun = holdfast.train(train, steps=40, wait=False, settings=HOW)\nprint(run.name)"
    said = second.run(job + again)
    assert run.name in said and "this is it, not a second one" in said
    gate.touch()
    told = second.run(
        "import json\nrun = holdfast.find().wait()\nprint(json.dumps([run.name, run.state, run.receipt]))"
    )
    name, state, receipt = json.loads(told.splitlines()[-1])
    assert (name, state) == (run.name, "FINISHED") and sum(receipt["faults"].values()) == 1
    assert len(list_runs(tmp_path / "runs")) == 1
    quiet = digest_in_a_program(tmp_path, job)
    assert quiet == receipt["weights_sha256"], "the weights of an undisturbed run"


def digest_in_a_program(folder: Path, job: str) -> str:
    """The same function in an ordinary program: the digest of its weights."""
    program = folder / "program.py"
    calls = "run = holdfast.train(train, steps=40, settings=HOW)\nprint(run.receipt['weights_sha256'])"
    program.write_text(f"{job}\nif __name__ == '__main__':\n    " + calls.replace("\n", "\n    "))
    told = subprocess.run([sys.executable, str(program), "-f", "x.json"], cwd=folder, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return told.stdout.strip()


def test_an_error_is_an_exception_and_not_an_exit(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import holdfast\n"
        "def fit(session, path='a'):\n    raise ValueError('mine: ' + path)\n"
        "if __name__ == '__main__':\n"
        "    try:\n        holdfast.train(fit, path='b c', device='cpu')\n"
        "    except holdfast.ScriptFailed as error:\n"
        "        print(error, error.run.state, error.run.exit_code, *getattr(error, '__notes__', ['mine: b c']))\n"
    )
    told = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "FAILED 1" in told.stdout and "mine: b c" in told.stdout
    (run,) = list_runs(tmp_path / "runs")
    assert run.info["workload"] == "fit" and run.info["state"] == "FAILED"


@pytest.mark.all
@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.long)], ids=["train", "resume"])
def test_a_run_that_fails_before_its_start_is_told_raises_the_same(
    tmp_path: Path, monkeypatch: Any, again: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "broken.py"
    script.write_text("import holdfast\nraise ValueError('at import')\ndef train(session):\n    pass\n")
    for begin in (lambda: start("train", str(script)), lambda: holdfast.find().resume())[: 1 + again]:
        with pytest.raises(holdfast.ScriptFailed, match="at import") as caught:
            begin()
        run = caught.value.run  # type: ignore[attr-defined]
        assert (run.state, run.exit_code) == ("FAILED", 1)
        assert "at import" in "".join(getattr(caught.value, "__notes__", ["at import"]))


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C of another process cannot be sent on Windows")
def test_an_interrupt_saves_and_stops_and_it_can_go_on(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    gate = tmp_path / "gate"
    calls = (
        "try:\n        holdfast.train(train, settings=HOW)\n    except KeyboardInterrupt:\n        print('interrupted')"
    )
    program.write_text(f"{JOB.format(gate=str(gate))}\nif __name__ == '__main__':\n    {calls}\n")
    with subprocess.Popen([sys.executable, str(program)], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        assert wait_until(lambda: bool(list_runs(tmp_path / "runs")))
        run = holdfast.TrainingRun(list_runs(tmp_path / "runs")[0].path)
        assert wait_until(lambda: (run.step or 0) >= 20), run
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=100)
    assert (running.returncode, said) == (0, "stopped\n")
    assert run.state == "STOPPED" and isinstance(run.error, holdfast.Stopped)
    gate.touch()
    assert run.resume().state == "FINISHED" and run.step == 40


@pytest.mark.all
def test_main_in_a_kernel_ignores_its_arguments_and_does_not_end_it(tmp_path: Path, kernels: Any) -> None:
    job = JOB.format(gate="/")
    said = kernels().run(
        f"{job}\nimport sys\nprint(sys.argv[1] == '-f')\nholdfast.main(train)\nprint(holdfast.find().state)\n"
        "def bad(session):\n    raise ValueError('mine')\n"
        "try:\n    holdfast.main(bad)\nexcept ValueError as error:\n    print('raised', error)\n"
    )
    assert said.splitlines()[:2] == ["True", "FINISHED"] and said.splitlines()[-1] == "raised mine"


def fit(session: holdfast.Session, epochs: int = 3, rate: float = 0.1, note: str = "", pair: object = None) -> None:
    """Of a module: imported, not copied."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epoch": 3}, "unknown argument `epoch`"),
        ({"epochs": 2.5}, "the value of `epochs` cannot be handed to a worker"),
        ({"pair": object()}, "the value of `pair` cannot be handed to a worker"),
    ],
)
def test_arguments_are_checked_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        holdfast.train(fit, **arguments)
    assert not (tmp_path / "runs").exists()


def test_arguments_are_read_back_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    import inspect

    from holdfast.programs import calling
    from holdfast.run import script

    given = {"epochs": 5, "rate": 3e-4, "note": "a=b 'c' 3", "pair": [1, "2", None]}
    parameters = inspect.signature(fit).parameters
    words = [word.split("=", 1) for word in calling._words(fit, given)]
    assert {key: script.convert(key, text, parameters[key].default) for key, text in words} == given


def test_nothing_is_started_by_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STARTED_BY", "1")
    with pytest.raises(UserError, match="called by the worker"):
        holdfast.train(fit)
