"""A fault, a probe, a remedy, a workload and an engine, each added by one file and at work in real processes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from holdfast.base import additions, processes
from holdfast.base.errors import UserError
from holdfast.cli import main as cli
from holdfast.devices import probe_catalog, remedies
from holdfast.devices.battery import Host, run_one
from holdfast.devices.results import ProbeResult
from holdfast.faults import added_kinds, classification, ladder, signatures
from holdfast.injection import ailments, chaos, symptoms
from holdfast.injection.symptoms import Symptom
from holdfast.optimize import engines
from holdfast.run import workload_registry
from holdfast.run.folder import read_events
from holdfast.testing import FaultPlan

FAULT = """
[licence_lost]
code = "X001"
slug = "licence-lost"
level = "warning"
title = "The licence server went away"
seen = "A library said that its licence server does not answer."
means = "Nothing is wrong with the device."
does = "Tries the step again, then a new worker, and then gives up."
you_can = "Start the server again."
sentence = "{device} lost its licence"
health = "alive"
family = "outside"
ladder = ["retry", "replace 3", "give_up"]

[[licence_lost.messages]]
text = ["licence server is unreachable"]
means = "the server that hands out licences does not answer"
action = "start it again"
backends = ["any"]
"""

PROBE = '''
from holdfast.devices.probe_catalog import Probe

PROBES = [Probe("big sort", "in_order", "index", ("", "descending"))]


def in_order(bench, spec):
    """Sort on the device, and look whether it is sorted."""
    import torch

    from holdfast.probes.compare import Outcome

    for check in spec["checks"]:
        bench.tell(check)
        with bench.on():
            numbers = bench.to(torch.randn(4096, generator=torch.Generator().manual_seed(3)))
            found = numbers.sort(descending=bool(check)).values.cpu()
        steps = found.diff()
        wrong = int((steps > 0).sum() if check else (steps < 0).sum())
        yield Outcome(float(wrong), 0.0, {"wrong": wrong})
'''

REMEDY = """
[slow-clock]
text = "let the card run at its slow clock"
cost = "a third of the speed"
source = "seen on one card"
backends = ["mycard"]
families = ["matmul"]
states = ["failed"]
env = { MY_CLOCK = "slow" }
"""

WORKLOAD = '''
"""Two spirals that a small network tells apart."""

import torch
from torch.nn.functional import mse_loss

import holdfast


def train(session: holdfast.Session, *, epochs: int = 2) -> None:
    torch.manual_seed(0)
    turn = torch.linspace(0, 6, 64).unsqueeze(1)
    points = torch.cat([turn * turn.cos(), turn * turn.sin()], dim=1)
    samples = torch.utils.data.TensorDataset(points, turn)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = holdfast.Loader(samples, batch_size=8)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(epochs):
        for batch in session.batches(data):
            session.step(lambda b: mse_loss(model(b[0]), b[1]), batch)
'''

ENGINE = '''
"""Linear layers with a ReLU between them, in numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.optimize.engines import Engine, Predict

FILE = "model.npz"
PRECISIONS = ("fp32",)
PREDICT = Predict(
    "numpy",
    "",
    """held = np.load(HERE / "{file}", allow_pickle=False)

def predict(x):
    for at in range(0, len(held.files), 2):
        x = np.maximum(x, 0) if at else x
        x = x @ held[f"p{{at}}"].T + held[f"p{{at + 1}}"]
    return [x]
""",
)


def build(work, about, target):
    from holdfast.optimize.build import model_of

    parameters = model_of(work, about).parameters()
    np.savez(target, **{f"p{at}": each.detach().numpy() for at, each in enumerate(parameters)})


@dataclass
class Layers:
    held: list


def load(path, about):
    with np.load(path, allow_pickle=False) as kept:
        held = [kept[f"p{at}"] for at in range(len(kept.files))]

    def run(inputs):
        x = inputs[0]
        for at in range(0, len(held), 2):
            x = np.maximum(x, 0) if at else x
            x = x @ held[at].T + held[at + 1]
        return [x]

    return Engine(run)
'''

NET = """
import torch

def small():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
"""

CACHES = (
    classification.added, classification.signatures, classification.explanations, signatures._by_id,
    remedies.catalogue, probe_catalog.probes,
    engines.kinds,
)  # fmt: skip
Add = Callable[[str, str], Path]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Put one file into a folder of additions, which this process and its children then look in."""
    folder = tmp_path / "mine"

    def put(name: str, text: str) -> Path:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        monkeypatch.setenv(additions.VARIABLE, str(folder))
        _forget()
        return file

    yield put
    monkeypatch.undo()
    _forget()
    classification.Kind._value2member_map_.pop("licence_lost", None)


def _forget() -> None:
    for cache in CACHES:
        cache.cache_clear()


def holdfast(*words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


# Fault and workload ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_fault_and_a_workload_of_ours_meet_in_a_run(add: Add, tmp_path: Path) -> None:
    """Both are known by their files alone: the run is called by its name, and the fault is answered by its row."""
    add("workloads/two_spirals.py", WORKLOAD)
    add("faults/licence_lost.toml", FAULT)
    plan = tmp_path / "plan.json"
    FaultPlan.parse("licence_lost@5").write(plan)
    words = ["train", "two-spirals", "epochs=2", "--device", "cpu", "--json", "run.threads=1"]
    done = holdfast(*words, folder=tmp_path, **{chaos.VARIABLE: str(plan)})
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["state"] == "FINISHED"
    assert result["receipt"]["faults"] == {"licence_lost": 1}
    assert (result["receipt"]["steps"], result["receipt"]["steps_lost"]) == (16, 0)
    events = list(read_events(Path(result["folder"]) / "journal.jsonl"))
    fault = next(event for event in events if event.kind == "fault")
    assert fault.data["code"] == "X001"
    assert "two-spirals" in Path(result["folder"]).name
    shown = holdfast("show", "latest", "--plain", folder=tmp_path).stdout
    assert "cpu lost its licence at step 5" in shown


def test_a_fault_of_ours_is_explained_and_has_its_row(add: Add, tmp_path: Path) -> None:
    add("faults/licence_lost.toml", FAULT)
    shown = holdfast("explain", "X001", folder=tmp_path).stdout
    assert shown.startswith("X001 · licence-lost") and "Start the server again." in shown
    error = RuntimeError("the licence server is unreachable since noon")
    fault = classification.classify_exception(error, device="cpu")
    assert fault is not None and fault.code == "X001" and fault.health is classification.Health.ALIVE
    assert (
        classification.Kind("licence_lost") is fault.kind and classification.Fault.from_json(fault.to_json()) == fault
    )
    here = fault.at(step=5)
    rungs, history = [ladder.Rung("cpu")], []
    for wanted in ("retry", "replace", "replace", "replace", "give_up"):
        move = ladder.next_move(here, history, rungs, 0)
        assert move.action.value == wanted, len(history)
        history.append(ladder.Past(here, move, 0))


def test_a_fault_that_belongs_to_everybody_is_a_file_in_the_package(
    add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "licence_lost.toml").write_text(FAULT.replace("X001", "F091"))
    monkeypatch.setattr(added_kinds, "_HERE", tmp_path)
    _forget()
    assert classification.CODES[classification.Kind("licence_lost")] == "F091"
    assert ladder.FAMILIES[classification.Kind("licence_lost")] == "outside"


# Probe and remedy ------------------------------------------------------------------------------------------------

needs_fork = pytest.mark.skipif(processes.portable(), reason="these share one process to fork from")


@pytest.mark.long
@needs_fork
def test_a_probe_of_ours_runs_and_a_remedy_of_ours_cures(add: Add, tmp_path: Path) -> None:
    add("probes/big_sort.py", PROBE)
    add("remedies/slow_clock.toml", REMEDY)
    place = tmp_path / "pretend.json"
    symptoms.write(place, [Symptom("wrong", kernel="mm", cure="MY_CLOCK=slow")])
    assert "big sort" in [probe.name for probe in probe_catalog.select("pretend:0", full=True)]

    def run(probe: str, env: Mapping[str, str]) -> ProbeResult:
        with Host({ailments.VARIABLE: str(place), **env}) as host:
            return next(each for each in run_one("pretend:0", probe, host=host) if each.probe == probe)

    with Host({ailments.VARIABLE: str(place)}) as host:
        sorts = run_one("pretend:0", "big sort", host=host)
        products = run_one("pretend:0", "linear fp32", host=host)
    assert [(each.probe, each.status) for each in sorts] == [("big sort", "passed"), ("big sort descending", "passed")]
    assert sorts[0].evidence["wrong"] == 0
    bad = [each for each in products if each.status == "failed"]
    assert [each.probe for each in bad] == ["linear fp32 forward"]
    found = remedies.search(bad, backend="mycard", run=run, env={})
    assert [cure.remedy.name for cure in found.cures] == ["slow-clock"]
    assert remedies.known_environment({"MY_CLOCK": "slow", "LD_PRELOAD": "x"}) == {"MY_CLOCK": "slow"}


def test_a_probe_of_the_package_is_one_file(tmp_path: Path) -> None:
    probe = probe_catalog.find("index out of bounds")
    assert probe.function == "more.out_of_bounds.notice"
    code = "import sys; from holdfast.devices import probe_catalog as c; c.probes(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


# What is wrong is said at once ---------------------------------------------------------------------------------------

WRONG = {
    "faults/a.toml": [
        ("code = 'X001'", "`code` is outside of a table"),
        ("[a", "is not valid TOML"),
        (FAULT.replace("licence_lost", "hang"), "needs a name of its own"),
        (FAULT.replace("X001", "F001"), "needs a code of its own, not `F001`"),
        (FAULT.replace('"alive"', '"well"'), "`health` is `well`"),
        (FAULT.replace('"replace 3", "give_up"', '"replace 3"'), "`ladder` must end with"),
        (FAULT.replace('"retry"', '"pray"'), "`ladder` has `pray`"),
        (FAULT.replace("{device}", "{password}"), "`sentence` may use"),
        (
            FAULT.replace('text = ["licence server is unreachable"]', 'regex = "("'),
            "a `regex` that is not a regular expression",
        ),
        (FAULT.replace("title =", "tilte ="), "has no `title`"),
    ],
    "remedies/a.toml": [
        (REMEDY.replace("slow-clock", "tf32-off"), "a name that another has already"),
        (REMEDY.replace('env = { MY_CLOCK = "slow" }', ""), "changes nothing"),
        (REMEDY.replace('"a third of the speed"', "3"), "`cost` must be a text"),
    ],
    "probes/a.py": [
        ("PROBES = [", "SyntaxError"),
        ("x = 1", "has no attribute 'PROBES'"),
        ("PROBES = ['a']", "must be a list of Probe"),
        (PROBE.replace("big sort", "first step"), "called `first step` already"),
        (PROBE.replace('"index"', '"indexes"'), "has the family `indexes`, which does not exist"),
    ],
    "workloads/a.py": [("def train(session:", "cannot be read as a workload")],
    "engines/a.py": [
        ("FILE = ", "SyntaxError"),
        (ENGINE.replace("def load(", "def lode("), "it has no `load`"),
        (ENGINE.replace("FILE =", "NAME ="), "it has no `FILE`"),
        (ENGINE.replace("PREDICT = Predict(", "PREDICT = ("), "PREDICT is no `Predict`"),
        (ENGINE.replace('PRECISIONS = ("fp32",)', 'PRECISIONS = ("fp32")'), "PRECISIONS is 'fp32': it is a tuple"),
        (ENGINE.replace('"model.npz"', '"../model.npz"', 1), "FILE is '../model.npz'"),
        (ENGINE.replace('"model.npz"', '"predict.py"', 1), "FILE is 'predict.py'"),
        (ENGINE.replace("{{at}}", "{at}"), "a brace of its own is written twice"),
        (ENGINE + 'ONNX = "need"', "ONNX is 'need'"),
    ],
    "engines/openvino.py": [(ENGINE, "an engine is called `openvino` already")],
}


# Engine ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_an_engine_of_ours_is_tried_chosen_bundled_and_answers(add: Add, tmp_path: Path) -> None:
    add("engines/by_hand.py", ENGINE)
    (tmp_path / "net.py").write_text(NET)
    rows = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    words = ("--data", "rows.npy", "--engines", "eager,by_hand", "--seconds", "0.2", "--out", "bundle", "--json")
    done = holdfast("optimize", "net.py:small", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["profile"]["before"] and said["profile"]["after"] == []
    assert "Where the time goes, after: by_hand does not say" in (tmp_path / "bundle/report.html").read_text()
    manifest = json.loads((tmp_path / "bundle/manifest.json").read_text())
    assert (manifest["engine"], manifest["file"]) == ("by_hand", "model.npz")
    alone = subprocess.run(
        [sys.executable, "-I", "bundle/predict.py", "rows.npy"], cwd=tmp_path, capture_output=True, check=True
    )
    answers = np.load(io.BytesIO(alone.stdout))
    assert answers.shape == (8, 2)
    asked = holdfast("predict", "bundle", "rows.npy", "--out", "answers.npy", folder=tmp_path)
    assert asked.returncode == 0, asked.stderr
    np.testing.assert_allclose(np.load(tmp_path / "answers.npy"), answers, rtol=1e-6)
    without = holdfast("predict", "bundle", "rows.npy", folder=tmp_path, **{additions.VARIABLE: ""})
    assert without.returncode == 2
    assert (
        "its engine is 'by_hand', which is none of" in without.stderr and "HOLDFAST_ADD names others" in without.stderr
    )


@pytest.mark.parametrize(("name", "text", "said"), [(name, *case) for name, cases in WRONG.items() for case in cases])
def test_a_file_that_cannot_be_used_is_named(name: str, text: str, said: str, add: Add) -> None:
    file = add(name, text)
    with pytest.raises(UserError) as caught:
        cli.check_additions()
    words = f"{caught.value.message} {caught.value.cause or ''}"
    assert str(file) in words and said in words


def test_a_file_that_goes_bad_in_the_middle_of_a_run_breaks_nothing(add: Add) -> None:
    file = add("faults/licence_lost.toml", FAULT)
    cli.check_additions()
    file.write_text("[licence_lost")  # a new worker reads it now
    error = RuntimeError("CUDA error: device-side assert triggered")
    found = classification.classify_exception(error, device="cuda:0")
    assert found is not None and found.kind is classification.Kind.DEVICE_LOST
    assert ladder.next_move(found.at(step=1), [], [ladder.Rung("cuda:0")], 0).action is ladder.Action.REPLACE


def test_a_command_says_it_before_it_does_anything(add: Add, tmp_path: Path) -> None:
    add("faults/a.toml", FAULT.replace("X001", "F001"))
    done = holdfast("list", folder=tmp_path)
    assert done.returncode == 2 and "needs a code of its own" in done.stderr and "Traceback" not in done.stderr
    done = holdfast("list", folder=tmp_path, **{additions.VARIABLE: str(tmp_path / "nowhere")})
    assert done.returncode == 2 and "is not a folder" in done.stderr


def test_what_is_shown_as_an_example_is_what_works(add: Add) -> None:
    """The file in the docstring of added_kinds.py."""
    doc = textwrap.dedent((added_kinds.__doc__ or "").partition("\n\n")[2].partition("Such files are")[0])
    add("faults/licence_lost.toml", doc)
    cli.check_additions()
    assert classification.added()["licence_lost"].ladder == (("retry", 1), ("replace", 3), ("give_up", 1))


def test_files_without_train_are_no_workloads(add: Add) -> None:
    add("workloads/helper.py", '"""No workload: it only speaks of `def train(`."""\n')
    assert "helper" not in workload_registry.all_workloads()
    assert "registry" not in workload_registry.all_workloads()
