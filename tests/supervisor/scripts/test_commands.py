"""Commands that start the process that trains: torchrun, accelerate, yolo, a shell. It has the hook, and its death is
seen through whoever started it; an error of its own still is its own."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.supervisor.scripts import hook_notes
from holdfast.supervisor.scripts.hook_notes import Notes
from tests.supervisor.scripts.driving import SCRIPTS, under_run

BIN = Path(sys.executable).parent


def program(name: str) -> str:
    """A command that was installed beside this Python."""
    found = shutil.which(name, path=str(BIN)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.long
@pytest.mark.timeout(400)
def test_torchrun_with_two_processes_that_train_one_model(tmp_path: Path) -> None:
    """Rank 0 is killed: torchrun ends the other one and itself with exit code 1, and all of it is started again."""
    torchrun = [program("torchrun"), "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d"]
    command = [*torchrun, "--rdzv-endpoint", "127.0.0.1:0", str(SCRIPTS / "ddp_script.py"), "--steps", "16"]
    ran = under_run(tmp_path, command=command, fault="kill@12", patience=380, GLOO_SOCKET_IFNAME="lo")
    assert ran.code == 0, ran.story()
    assert ran.faults == ["killed"], ran.story()
    assert "by --resume; 2 steps to repeat" in ran.said
    assert (ran.receipt["steps"], ran.receipt["steps_repeated"]) == (16, 2)
    assert ran.out.decode().rstrip().splitlines()[-1] == "steps 16"


@pytest.mark.timeout(400)
def test_yolo_goes_on_from_its_last_epoch(tmp_path: Path) -> None:
    if importlib.util.find_spec("ultralytics") is None:
        pytest.skip("ultralytics is not installed")
    yolo = program("yolo")
    data = pictures(tmp_path / "pictures")
    words = "epochs=3 imgsz=32 batch=4 device=cpu workers=0 plots=False val=False pretrained=False amp=False"
    command = [yolo, "detect", "train", f"data={data}", "model=yolov8n.yaml", *words.split(), f"project={tmp_path}/out"]
    ran = under_run(tmp_path, command=command, fault="kill@4", patience=380, YOLO_OFFLINE="true")
    assert ran.code == 0, ran.story()
    assert ran.faults == ["killed"], ran.story()
    assert "weights/last.pt by ultralytics" in ran.said, ran.said


@pytest.mark.timeout(400)
def test_yolo_from_python_goes_on_from_its_last_epoch(tmp_path: Path) -> None:
    if importlib.util.find_spec("ultralytics") is None:
        pytest.skip("ultralytics is not installed")
    ran = under_run(tmp_path, SCRIPTS / "yolo_script.py", 8, fault="kill@6", patience=380, YOLO_OFFLINE="true")
    assert (ran.code, ran.faults) == (0, ["killed"]), ran.story()
    assert "weights/last.pt by ultralytics" in ran.said, ran.said
    assert ran.receipt["steps_repeated"] < 4 and ran.out.rstrip().endswith(b"steps done"), ran.story()


@pytest.mark.timeout(400)
def test_yolo_gets_a_smaller_batch_where_memory_is_too_small(tmp_path: Path) -> None:
    if importlib.util.find_spec("ultralytics") is None:
        pytest.skip("ultralytics is not installed")
    data = pictures(tmp_path / "pictures")
    words = "epochs=2 imgsz=32 batch=4 device=cpu workers=0 plots=False val=False pretrained=False amp=False"
    command = [program("yolo"), "detect", "train", f"data={data}", "model=yolov8n.yaml", *words.split()]
    command.append(f"project={tmp_path}/out")
    ran = under_run(tmp_path, command=command, fault="small_memory@2", patience=380, YOLO_OFFLINE="true")
    assert ran.code == 0 and set(ran.faults) == {"out_of_memory"}, ran.story()
    assert "batch=2" in ran.said or "2 pieces" in ran.said, ran.said


STAND_IN = """
import torch

class Model:
    def __init__(self, net):
        self.ckpt_path = None

    def train(self, trainer=None, **words):
        if words.get("resume"):
            words["resume"] = {resume}
        net = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        first = 0
        if words.get("resume"):
            first = torch.load(words["resume"])["epoch"] + 1
            assert first > 0, "to 8 epochs is finished, nothing to resume"
        for epoch in range(first, 8):
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            torch.save({{"epoch": epoch}}, "last.pt")
            print("epoch", epoch, flush=True)
        torch.save({{"epoch": -1}}, "last.pt")
"""


@pytest.mark.long
@pytest.mark.parametrize("resume", ["self.ckpt_path", "str(words['resume'])"])
@pytest.mark.parametrize(("fault", "epochs"), [("kill@5", list(range(8))), ("", list(range(8)) * 2)])
def test_a_model_that_goes_on_by_its_last_file(tmp_path: Path, resume: str, fault: str, epochs: list[int]) -> None:
    """A stand-in for two versions of ultralytics: one takes the model's own path, the other the one it is given. Where
    its training was over when the script died, there is nothing to go on with, and it trains again."""
    (tmp_path / "ultralytics" / "engine").mkdir(parents=True)
    (tmp_path / "ultralytics" / "engine" / "model.py").write_text(STAND_IN.format(resume=resume))
    (tmp_path / "ultralytics" / "__init__.py").write_text("from ultralytics.engine.model import Model as YOLO")
    script = tmp_path / "train.py"
    died = (
        "" if fault else "import os, signal\nif not os.path.exists('was'): open('was', 'w'); os.kill(os.getpid(), 9)\n"
    )
    script.write_text(f"from ultralytics import YOLO\nYOLO('n.yaml').train(data='d')\n{died}print('steps done')\n")
    ran = under_run(tmp_path, script, fault=fault)
    assert (ran.code, ran.faults) == (0, ["killed"]), ran.story()
    assert "from last.pt by ultralytics" in ran.said, ran.said
    assert [int(line.split()[1]) for line in ran.out.decode().splitlines() if line.startswith("epoch")] == epochs


def pictures(folder: Path) -> Path:
    from PIL import Image

    for part in ("train", "val"):
        for number in range(8):
            image, label = folder / "images" / part / f"{number}.png", folder / "labels" / part / f"{number}.txt"
            image.parent.mkdir(parents=True, exist_ok=True)
            label.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (20 * number, 90, 200)).save(image)
            label.write_text(f"0 0.5 0.5 0.{number + 1} 0.4\n")
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [thing]\n")
    return folder / "data.yaml"


# -- whose end it was --------------------------------------------------------------------------------------------

TORCHRUN = ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "builtins.Exception"]
SUBPROCESS = ["subprocess.CalledProcessError", "builtins.Exception"]
OWN = {"types": ["builtins.ValueError", "builtins.Exception"], "text": "mine"}
LOST = {"types": ["builtins.RuntimeError", "builtins.Exception"], "text": "[gloo] Connection closed by peer"}


@pytest.mark.parametrize(
    ("what", "code", "trains", "left", "kind"),
    [
        ("torchrun's rank was killed", 1, 7, {"error-5": {"types": TORCHRUN, "returncode": -9}}, "killed"),
        ("before its first step", 1, None, {"error-5": {"types": TORCHRUN, "returncode": -11}}, "crash"),
        ("accelerate's child crashed", 1, 7, {"error-5": {"types": SUBPROCESS, "returncode": -11}}, "crash"),
        ("a tool of a script's own crashed", 1, None, {"error-5": {"types": SUBPROCESS, "returncode": -11}}, None),
        ("it trains and called a tool", 1, 5, {"error-5": {"types": SUBPROCESS, "returncode": -11}}, None),
        ("a shell's child was killed", 137, 7, {}, "killed"),
        ("it ended by itself", 1, 7, {"ended-7": {}, "error-5": {"types": SUBPROCESS, "returncode": -9}}, None),
        ("its own error", 1, 7, {"error-7": OWN, "error-5": {"types": TORCHRUN, "returncode": 1}}, None),
        ("it missed another", 1, 7, {"error-7": LOST, "error-5": {"types": TORCHRUN, "returncode": -9}}, "killed"),
    ],
)
def test_whose_end_it_was(
    tmp_path: Path, what: str, code: int, trains: int | None, left: dict[str, Any], kind: str | None
) -> None:
    watched = Notes(tmp_path / "notes")
    if trains is not None:
        (watched.folder / "who.json").write_text(json.dumps({"pid": trains}))
    for name, link in left.items():
        record = {"pid": int(name.partition("-")[2]), "chain": [link]}
        (watched.folder / f"{name}.json").write_text(json.dumps(record))
    fault = hook_notes.judge(watched, code, "", device="cpu", oom_kills=0)
    assert (fault.kind.value if fault else None) == kind, what
    watched.close()
