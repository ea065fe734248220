"""The parts of `holdfast run` that need no process: checkpoints, ways to go on, patience, rungs, exceptions, loss."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from holdfast.base.board import _LABEL, SIZE, _Word
from holdfast.devices.verdict import Policy, Verdict
from holdfast.faults.ladder import Rung
from holdfast.run.setting_groups import WatchdogSettings
from holdfast.supervisor.scripts import batches, frameworks, hook_notes, rungs, silence_limit
from holdfast.supervisor.scripts.hook_notes import Notes
from holdfast.supervisor.scripts.loss import printed_loss
from holdfast.supervisor.scripts.own_checkpoints import damage, newest_whole, search
from holdfast.supervisor.scripts.rungs import arguments, rungs_for
from holdfast.supervisor.waits import COMPUTES, UNKNOWN, UNSEEN, Finding, Grade

WATCHDOG = WatchdogSettings()


# -- checkpoints -------------------------------------------------------------------------------------------------


def save(path: Path) -> Path:
    import torch

    torch.save({"model": torch.nn.Linear(20, 20).state_dict(), "step": 3}, path)
    return path


def test_a_whole_file_of_torch_is_whole_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    whole = save(tmp_path / "a.pt")
    assert damage(whole) is None
    data = whole.read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[: len(data) // 2])
    assert damage(tmp_path / "cut.pt") == "it is cut short or torn"

    member = max(zipfile.ZipFile(whole).infolist(), key=lambda each: each.file_size)
    begin = member.header_offset + 200
    flipped = bytearray(data)
    flipped[begin] ^= 4
    (tmp_path / "flipped.pt").write_bytes(flipped)
    assert "is not what was written" in str(damage(tmp_path / "flipped.pt"))
    (tmp_path / "empty.pt").write_bytes(b"")
    assert damage(tmp_path / "empty.pt") == "it is cut short or not a checkpoint"


@pytest.mark.all
def test_nothing_is_unpickled(tmp_path: Path) -> None:
    """A file that would run code when it is loaded: its structure is looked at, its content is not."""
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/executed",)

    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Evil()))
    assert damage(tmp_path / "evil.pt") is None
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Evil()))
    assert damage(tmp_path / "old.pt") is not None
    assert not (tmp_path / "executed").exists()


def test_safetensors_that_are_cut_short_are_noticed(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(16)
    path = tmp_path / "model.safetensors"
    for data, why in [(whole, None), (whole[:-3], "bytes instead of"), (whole[:6], "cut short"), (b"\xff" * 40, "cut")]:
        path.write_bytes(data)
        found = damage(path)
        assert (found is None) if why is None else (why in str(found)), (data, found)


def test_a_trainers_folder_needs_its_state_and_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-10"
    folder.mkdir()
    assert damage(folder) == "it holds no weights"
    save(folder / "optimizer.pt")
    assert damage(folder) == "its weights are missing"
    save(folder / "pytorch_model.bin")
    assert damage(folder) == "its trainer_state.json is missing or torn"
    (folder / "trainer_state.json").write_text('{"global_step": 10}')
    assert damage(folder) is None
    (folder / "optimizer.pt").write_bytes((folder / "optimizer.pt").read_bytes()[:500])
    assert str(damage(folder)).startswith("optimizer.pt: ")


def test_weights_alone_are_tried_last(tmp_path: Path) -> None:
    for age, name in enumerate(("final.pt", "best_model.pth", "model.safetensors", "epoch3.pt", "last.pt")):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    found = search([tmp_path], ("*.pt", "*.pth", "*.safetensors"), 0)
    names = [each.path.name for each in found]
    assert names == ["epoch3.pt", "last.pt", "final.pt", "best_model.pth", "model.safetensors"]


def test_only_checkpoints_of_this_run_are_found_the_newest_first(tmp_path: Path) -> None:
    old, first, second = (save(tmp_path / name) for name in ("old.pt", "a.pt", "b.pt"))
    now = time.time_ns()
    for path, age in ((old, 100), (first, 20), (second, 10)):
        os.utime(path, ns=(now - age * 10**9, now - age * 10**9))
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "journal.jsonl").touch()
    save(tmp_path / "runs" / "mine" / "inside.pt")
    found = search([tmp_path], ("*.pt",), now - 50 * 10**9)
    assert [each.path.name for each in found] == ["b.pt", "a.pt"]
    second.write_bytes(b"torn")
    newest, passed = newest_whole(search([tmp_path], ("*.pt",), now - 50 * 10**9))
    assert newest is not None and newest.path.name == "a.pt" and passed[0][0].path.name == "b.pt"


# -- how scripts go on -------------------------------------------------------------------------------------------

HERE = Path("/x/last.ckpt")


def way_of(tmp_path: Path, text: str, *words: str, **known: object) -> tuple[str, list[str], dict[str, str]] | None:
    script = tmp_path / "train.py"
    script.write_text(text)
    command = ["python", str(script), *words]
    way = frameworks.find_way(command, **known)  # type: ignore[arg-type]
    if way is None:
        return None
    new, env = way.begin(command, HERE)
    return way.name, new[2:], env


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ('p.add_argument("--resume", default=None)', [], ["--resume", str(HERE)]),
        ('p.add_argument("--resume", default=None)', ["--resume", "old"], ["--resume", str(HERE)]),
        ('p.add_argument("--resume", default=None)', ["--resume=old", "-v"], [f"--resume={HERE}", "-v"]),
        ('p.add_argument("--resume", action="store_true")\n', [], ["--resume"]),
        ("p.add_argument('--resume_from_checkpoint')", [], ["--resume_from_checkpoint", str(HERE)]),
        ("HfArgumentParser(TrainingArguments)", [], ["--resume_from_checkpoint", str(HERE)]),
        ("cli = LightningCLI(Model)", ["fit"], ["fit", "--ckpt_path", str(HERE)]),
        ("init_from = 'scratch' # 'scratch' or 'resume'", [], ["--init_from=resume"]),
    ],
)
def test_options_a_script_has_are_used(tmp_path: Path, text: str, words: list[str], expected: list[str]) -> None:
    found = way_of(tmp_path, text, *words)
    assert found is not None and found[1:] == (expected, {})


def test_frameworks_go_on_through_the_hook_if_they_fit_once(tmp_path: Path) -> None:
    ways = {"lightning": "Lightning", "transformers": "HF Trainer", "ultralytics": "ultralytics"}
    for fitted, name in ways.items():
        assert way_of(tmp_path, "", fitted=fitted, fits=1) == (name, [], {"HOLDFAST_RESUME": str(HERE)})
        assert way_of(tmp_path, "", fitted=fitted, fits=2) is None
        assert way_of(tmp_path, "", fitted=fitted, fits=0) is None
    assert way_of(tmp_path, "", fitted="somebody", fits=1) is None
    assert way_of(tmp_path, "print(1)") is None


def test_yolo_and_words_of_the_user(tmp_path: Path) -> None:
    command = ["/bin/yolo", "detect", "train", "model=yolo11n.yaml", "data=x.yaml", "device=0"]
    way = frameworks.find_way(command)
    assert way is not None and way.patterns[0] == "last.pt"
    resumed, _ = way.begin(command, HERE)
    assert resumed == ["/bin/yolo", "detect", "train", "data=x.yaml", "device=0", "resume=True", f"model={HERE}"]
    cpu = rungs_for("cpu")[0]
    assert arguments(cpu, resumed)[-1] == "device=cpu"
    other = Rung("cuda:1", env=(("CUDA_VISIBLE_DEVICES", "1"),))
    assert arguments(other, resumed)[-1] == "device=1" and "device=0" not in arguments(other, resumed)
    assert arguments(Rung("cuda:0"), resumed) == resumed and arguments(other, ["python", "x"]) == ["python", "x"]
    assert batches.divide(resumed, 4) == ([*resumed, "batch=4"], {})
    assert batches.divisible([*resumed, "batch=6"], None) == 6
    assert batches.divisible([*resumed, "batch=-1"], None) is None
    given = way_of(tmp_path, 'p.add_argument("--resume")', resume_with="--from '{checkpoint}' -x")
    assert given == ("--resume-with", ["--from", str(HERE), "-x"], {})


# -- patience and rungs ------------------------------------------------------------------------------------------


STUCK = Finding(Grade.STUCK, "others", "it waits for itself")
SOCKET = Finding(Grade.WAITS, "socket", "it waits for a socket")
NIGHT = Finding(Grade.WAITS, "sleep", "it sleeps", until=8 * 3600.0)
PROMPT = Finding(Grade.WAITS, "prompt", "it waits for its input")


@pytest.mark.parametrize(
    ("known", "limit"),
    [
        ({"stepping": True, "longest_gap": 0.1, "finding": STUCK}, 60.0),
        ({"stepping": True, "longest_gap": 30.0, "finding": STUCK}, 120.0),
        ({"stepping": True, "longest_gap": 0.1, "finding": STUCK, "lost": 9000.0}, 60.0),
        ({"stepping": True, "longest_gap": 0.1, "finding": COMPUTES}, 600.0),
        ({"stepping": True, "longest_gap": 0.1, "finding": COMPUTES, "lost": 9000.0}, 9000.0),
        ({"stepping": True, "longest_gap": 0.1, "finding": UNSEEN}, 600.0),
        ({"stepping": True, "longest_gap": 0.1, "finding": STUCK, "stretch": 4.0}, 240.0),
        ({"stepping": True, "longest_gap": 0.1, "finding": SOCKET}, 3600.0),
        ({"stepping": True, "longest_gap": 0.1, "finding": SOCKET, "lost": 9000.0}, 9000.0),
        ({"stepping": True, "longest_gap": 0.1, "finding": NIGHT, "silence": 100.0}, 28960.0),
        ({"stepping": True, "longest_gap": 0.1, "finding": PROMPT}, math.inf),
        ({"stepping": False, "longest_gap": 0.0, "finding": STUCK}, 1800.0),
        ({"stepping": False, "longest_gap": 0.0, "finding": UNKNOWN}, 1800.0),
        ({"stepping": False, "longest_gap": 0.0, "finding": COMPUTES}, math.inf),
        ({"stepping": False, "longest_gap": 0.0, "finding": UNSEEN}, math.inf),
        ({"stepping": False, "longest_gap": 0.0, "finding": SOCKET}, math.inf),
        ({"stepping": False, "longest_gap": 0.0, "finding": SOCKET, "trains": True}, 3600.0),
        ({"stepping": True, "longest_gap": 0.1, "finding": STUCK, "waiting": True}, math.inf),
    ],
)
def test_how_long_a_script_may_be_silent(known: dict[str, object], limit: float) -> None:
    assert silence_limit.allowed(settings=WATCHDOG, **known) == limit  # type: ignore[arg-type]


def test_the_last_rung_is_the_cpu_and_the_first_changes_nothing() -> None:
    rungs = rungs_for("auto")
    assert rungs[0].env == () and rungs[-1].device == "cpu"
    assert dict(rungs_for("cpu")[0].env)["CUDA_VISIBLE_DEVICES"] == ""
    assert rungs_for("cpu")[0].label == "cpu"
    told = (("CUDA_VISIBLE_DEVICES", "0"), ("HSA_ENABLE_INTERRUPT", "0"))
    assert Rung("cuda:0", env=told).label == "cuda:0 HSA_ENABLE_INTERRUPT=0"


def test_a_script_sees_what_the_doctor_left_of_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden from the first rung on, in numbers that count what the user had hidden already."""
    remedies = {"HSA_ENABLE_SDMA": "0", "HOLDFAST_REMEDIES": "cudnn-off"}
    verdicts = {
        "cuda:0": None,
        "cuda:1": Verdict("cuda:1", "refused", why="it kills its process"),
        "cuda:2": Verdict("cuda:2", "use_with_care", policy=Policy(("fp32", "fp16"), env=remedies)),
    }
    monkeypatch.setattr(rungs.inventory, "candidates", lambda: [*verdicts, "cpu"])
    monkeypatch.setattr(rungs, "_verdict", verdicts.get)
    told: list[str] = []
    found = rungs_for("auto", told.append, env={"CUDA_VISIBLE_DEVICES": "4,5,6"})
    assert told == ["cuda:1 is hidden from the script (holdfast doctor: refused, it kills its process)"]
    seen = [(rung.device, rung.precision, dict(rung.env).get("CUDA_VISIBLE_DEVICES")) for rung in found]
    assert seen == [
        ("cuda:0", "", "4,6"),
        ("cuda:0", "fp32", "4,6"),
        ("cuda:2", "", "6"),
        ("cuda:2", "fp32", "6"),
        ("cpu", "", ""),
    ]
    assert remedies.items() <= dict(found[2].env).items() and not remedies.items() & dict(found[0].env).items()
    verdicts["cuda:1"] = None
    assert rungs_for("auto", told.append)[0].env == () and len(told) == 1


@pytest.mark.long
def test_remedies_are_switched_on_in_a_script_that_knows_nothing_of_them(tmp_path: Path) -> None:
    watched = Notes(tmp_path / "notes")
    code = "import torch; print(torch.backends.cudnn.enabled, torch.__spec__.loader.__class__.__name__)"
    env = watched.environment({**os.environ, "HOLDFAST_REMEDIES": "cudnn-off,unknown"})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False SourceFileLoader\n", "")
    watched.close()


# -- the hook ----------------------------------------------------------------------------------------------------


def hook() -> object:
    spec = importlib.util.spec_from_file_location("hook", hook_notes.HOOK / "_holdfast_hook.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_hook_and_the_board_mean_the_same_words() -> None:
    module = hook()
    for name in (
        "MAGIC",
        "PID",
        "BEATS",
        "PHASE",
        "SINCE",
        "STEP",
        "ATTEMPT",
        "ATTEMPTS",
        "COUNTS",
        "SLOWEST",
        "FIRST",
    ):
        assert getattr(module, name) == _Word[name], name
    for name in ("FITS", "TORCH", "MARKS", "MARKED"):
        assert getattr(module, name) == getattr(hook_notes, name), name
    ours = {hook_notes.FITS, hook_notes.TORCH, *range(hook_notes.MARKS, hook_notes.MARKS + 2 * hook_notes.MARKED)}
    tables = {first + phase for first in (64, 96, 128, _Word.SPENT) for phase in range(32)}
    theirs = {*(int(word) for word in _Word), *tables, *range(_LABEL.start // 8, _LABEL.stop // 8)}
    assert not ours & theirs and max(ours) < SIZE // 8


def test_steps_of_a_foreign_script_say_nothing_about_phases(tmp_path: Path) -> None:
    """What the hook writes for itself is not read as time spent in phases that a script of ours has."""
    watched = Notes(tmp_path / "notes")
    module = hook()
    module._folder, module._mine = str(watched.folder), os.getpid()  # type: ignore[attr-defined]
    module._words = module._open_board()  # type: ignore[attr-defined]
    for _ in range(200):
        module._after_step(None, (), {})  # type: ignore[attr-defined]
    beat = watched.board.read()
    assert (beat.step, len(watched.marks(0))) == (200, hook_notes.MARKED)
    assert sum(each.spent_s for each in beat.times.values()) == 0
    module._words.release()  # type: ignore[attr-defined]
    watched.close()


def test_the_users_own_sitecustomize_is_still_his(tmp_path: Path) -> None:
    """Imported once, under its own name, by whoever imports it; and no trace of ours where there is none."""
    watched = Notes(tmp_path / "notes")
    code = "import sys; print(sys.modules.get('sitecustomize'), [p for p in sys.path if 'hook' in p])"
    for with_own in (False, True):
        own = tmp_path / "own"
        own.mkdir(exist_ok=True)
        if with_own:
            (own / "sitecustomize.py").write_text("import sys; sys.mine = 'here'")
            code = "import sys, sitecustomize; print(sys.mine, sitecustomize.__file__)"
        env = watched.environment({**os.environ, "PYTHONPATH": str(own)})
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        if with_own:
            assert done.stdout == f"here {own / 'sitecustomize.py'}\n"
        else:
            assert done.stdout.endswith("[]\n") and "hook" not in done.stdout
    watched.close()


@pytest.mark.parametrize(
    ("types", "text", "kind"),
    [
        (["torch.OutOfMemoryError", "builtins.RuntimeError"], "CUDA out of memory. Tried", "out_of_memory"),
        (
            ["torch.AcceleratorError", "builtins.RuntimeError"],
            "CUDA error: device-side assert triggered",
            "device_lost",
        ),
        (["builtins.MemoryError"], "", "host_memory"),
        (["builtins.OSError"], "[Errno 28] No space left on device", "disk_full"),
        (["builtins.RuntimeError"], "[enforce fail at inline_container.cc:815] . unexpected pos 64 vs 0", "disk_full"),
        (["builtins.RuntimeError"], "basic_ios::clear: iostream error", None),
        (["builtins.ValueError"], "CUDA out of memory, says the script", None),
        (["my.Error", "builtins.Exception"], "nothing", None),
        (["builtins.UnicodeDecodeError", "builtins.UnicodeError", "builtins.ValueError"], "bad", None),
    ],
)
def test_an_exception_is_judged_as_in_our_own_workers(tmp_path: Path, types: list[str], text: str, kind: str) -> None:
    watched = Notes(tmp_path / "notes")
    (watched.folder / "error-1.json").write_text(json.dumps({"chain": [{"types": types, "text": text}]}))
    fault = hook_notes.judge(watched, 1, "", device="cuda:0", oom_kills=0)
    assert (fault.kind.value if fault else None) == kind
    watched.close()


@pytest.mark.parametrize(
    ("text", "where", "full"),
    [
        ("basic_ios::clear: iostream error", "/x/torch/serialization.py:835", True),
        ("basic_ios::clear: iostream error", "C:\\x\\torch\\serialization.py:835", True),
        ("ios_base::clear: unspecified iostream_category error", "/x/torch/serialization.py:835", True),
        ("basic_ios::clear: iostream error", "/home/me/my_csv.py:3", False),
        ("basic_ios::clear: iostream error", "", False),
    ],
)
def test_a_file_of_the_c_library_is_the_disk_only_where_torch_saves(text: str, where: str, full: bool) -> None:
    error = hook_notes.rebuild([hook_notes.Raised(("builtins.RuntimeError",), text, where)])
    assert hook_notes.full_disk(error) is full


def test_notes_are_read_like_a_file_from_anywhere(tmp_path: Path) -> None:
    watched = Notes(tmp_path / "notes")
    for text in ("[]", "{", '{"chain": 3}', '{"chain": [3]}', '{"chain": [{"types": 3, "text": {}}]}'):
        (watched.folder / "error-1.json").write_text(text)
        (watched.folder / "who.json").write_text(text)
        assert hook_notes.judge(watched, 1, "", device="cpu", oom_kills=0) is None
        assert watched.frameworks == [] and watched.device is None
    watched.close()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Epoch 3: train_loss=0.412, lr=1e-3\n", 0.412),
        ("{'loss': '11.69', 'grad_norm': '9.3'}\n", 11.69),
        ("loss 1.5e-3 \x1b[32mloss: 0.25\x1b[0m\n", 0.25),
        ("loss nan\n", None),
        ("no closs 3\n", None),
        ("loss 0.1", None),
    ],
)
def test_the_loss_is_the_one_it_prints(text: str, value: float | None) -> None:
    assert printed_loss(text) == value
