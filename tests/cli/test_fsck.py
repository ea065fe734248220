"""`holdfast fsck`: what it says of good, damaged, crashed, copied and hostile run folders, and its exit code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.files import remove
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder, write_json
from holdfast.state import checkpoint, layout

from .driving import Done, environment, holdfast, said

PLAN = layout.plan([("model.weight", "F32", (64, 8)), ("optimizer.state.3.exp_avg", "F32", (64, 8))])


def payload(step: int) -> memoryview:
    data = bytearray(PLAN.total_bytes)
    data[: PLAN.data_start] = PLAN.header
    data[PLAN.span("model.weight")] = bytes([step]) * 2048
    data[PLAN.span(layout.META)] = PLAN.pack_meta({"parts": {"model": "module"}, "session": {"step": step}})
    return memoryview(data)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run that was stopped at step 30, as the keeper and the supervisor leave it."""
    info = {"created": "2026-11-15T09:12:00.000Z", "state": "STOPPED", "exit_code": 75}
    made = RunFolder.create(tmp_path / "runs", "job", info)
    for step in (10, 20, 30):
        saved = checkpoint.write(made.path / "checkpoints", payload(step), step=step)
        made.append(Event.now("checkpoint", step=step, path=str(saved.path), seconds=0.0))
    checkpoint.write_weights(made.path / "best.safetensors", payload(20), step=20)
    made.append_metrics({"step": 30, "loss": 0.5})
    write_json(made.path / "receipt.json", {"steps": 30})
    write_json(made.next_fault_folder() / "fault.json", {"sentence": "a fault"})
    made.close()
    return made


def fsck(run: RunFolder, *words: str) -> Done:
    return said("fsck", *(words or (run.name,)), cwd=run.path.parent.parent)


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything in a folder, with what would change if it were touched."""
    entries = [folder, *folder.rglob("*")]
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in entries}


def test_a_good_run(run: RunFolder) -> None:
    before = snapshot(run.path)
    done = fsck(run)
    text = re.sub(r" +[\d.]+ k?B", " SIZE", done.out)
    assert text.replace(run.name, "calm-heron") == (
        "calm-heron · job · STOPPED\n"
        "\n"
        "Checkpoints\n"
        "  [✓] step 30 SIZE  good\n"
        "  [✓] step 20 SIZE  good\n"
        "  [✓] step 10 SIZE  good\n"
        "\n"
        "Weights\n"
        "  [✓] best.safetensors SIZE  good\n"
        "\n"
        "Records\n"
        "  [✓] run.json SIZE  readable\n"
        "  [✓] journal.jsonl SIZE  3 lines\n"
        "  [✓] metrics.jsonl SIZE  1 line\n"
        "  [✓] receipt.json SIZE  readable\n"
        "\n"
        "Faults\n"
        "  [✓] 1 folder SIZE  readable\n"
        "\n"
        "No damage was found.\n"
        "`holdfast resume calm-heron` continues from step 30.\n"
    ), text
    assert (done.code, done.err) == (0, "")
    assert snapshot(run.path) == before, "it only reads"


def test_a_damaged_tensor_is_named(run: RunFolder) -> None:
    path = run.path / "checkpoints" / "000030" / "state.safetensors"
    damage(path, PLAN.span("optimizer.state.3.exp_avg").start + 5)
    done = fsck(run, "latest")
    assert done.code == 1
    lines = done.out.splitlines()
    assert re.fullmatch(r"  \[✗\] step 30  [\d.]+ kB  damaged: its bytes are not the ones written", lines[3])
    assert lines[4] == "        optimizer.state.3.exp_avg"
    assert lines[-2:] == [
        "Damaged or missing: checkpoints/000030.",
        f"`holdfast resume {run.name}` continues from step 20.",
    ]
    found = fsck(run, run.name, "--json").json
    assert (found["schema"], found["run"], found["good"], found["exit_code"]) == (1, run.name, False, 1)
    assert found["damaged"] == ["checkpoints/000030"]
    assert found["newest_good"] == {"step": 20, "path": str(run.path.absolute() / "checkpoints" / "000020")}
    first = found["checkpoints"][0]
    assert (first["step"], first["state"], first["tensors"]) == (30, "damaged", ["optimizer.state.3.exp_avg"])
    quiet = fsck(run, run.name, "-q")
    assert (quiet.code, quiet.out) == (1, "checkpoints/000030: its bytes are not the ones written\n")


def test_everything_else_that_can_be_wrong(run: RunFolder) -> None:
    shutil.rmtree(run.path / "checkpoints" / "000030")
    (run.path / "checkpoints" / ".000040.4711.tmp").mkdir()
    damage(run.path / "best.safetensors", -1)
    with open(run.path / "journal.jsonl", "a") as file:
        file.write('{"time": "2026-11-15T09:00:00.000Z", "event": "rec')
    (run.path / "receipt.json").write_text("{")
    (run.path / "faults" / "01" / "fault.json").unlink()
    done = fsck(run)
    assert done.code == 1
    for words in (
        r"\[✗\] step 30 +-  missing: the journal names it, but the file is gone",
        r"\[✓\] step 20 +[\d.]+ kB  good",
        r"\[✗\] best.safetensors .* damaged: its bytes are not the ones written",
        r"\[!\] journal.jsonl .* 4 lines, 1 torn line, skipped",
        r"\[✗\] receipt.json .* damaged: it is not JSON",
        r"\[✗\] faults/01 +-  missing: it is not there",
        r"\[!\] checkpoints/.000040.4711.tmp +-  noted: left by a writer that was killed",
        r"Damaged or missing: checkpoints/000030, best.safetensors, receipt.json and 1 more\.",
        rf"`holdfast resume {run.name}` continues from step 20\.",
    ):
        assert re.search(words, done.out), f"{words}\n{done.out}"


def test_a_torn_line_alone_is_no_damage(run: RunFolder) -> None:
    """A power cut leaves one, every reader passes it over, and a resume ends it."""
    with open(run.path / "journal.jsonl", "a") as file:
        file.write('{"event": "rec')
    assert fsck(run).code == 0


def test_a_run_json_that_is_damaged_is_what_it_is_for(run: RunFolder) -> None:
    (run.path / "run.json").write_text('{"form')
    for word in (run.name, str(run.path)):
        done = fsck(run, word)
        assert done.code == 1
        assert re.search(r"\[✗\] run.json .* damaged: it is not JSON", done.out)
        assert "step 30" in done.out


def test_all_damaged_is_said_plainly(run: RunFolder) -> None:
    for path in checkpoint.candidates(run.path / "checkpoints"):
        os.truncate(path / "digest.json", 100)
    done = fsck(run)
    assert done.code == 1
    assert done.out.endswith("No checkpoint can be used: `holdfast resume` starts from the beginning.\n")
    assert fsck(run, run.name, "--json").json["newest_good"] is None


def test_weights_of_another_run(run: RunFolder, tmp_path: Path) -> None:
    other = RunFolder.create(tmp_path / "others", "job", {})
    checkpoint.write_weights(run.path / "final.safetensors", payload(30), origin=None)
    shutil.copy(run.path / "final.safetensors", other.path / "final.safetensors")
    done = fsck(run, str(other.path))
    assert done.code == 1
    assert f"damaged: it belongs to another run: {run.name}" in done.out


def test_a_run_that_saved_nothing_yet_is_good(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "runs", "job", {"state": "RUNNING"})
    made.append(Event.now("start"))
    made.close()
    done = fsck(made)
    assert done.code == 0
    assert done.out.startswith(f"{made.name} · job · CRASHED\n")
    assert "No checkpoint can be used" in done.out


def test_a_finished_run_without_its_weights(run: RunFolder) -> None:
    run.update_info(state="FINISHED")
    write_json(run.path / "receipt.json", {"weights_sha256": "ab" * 32})
    done = fsck(run)
    assert done.code == 1
    assert re.search(r"\[✗\] final.safetensors +-  missing: the receipt names it, but the file is gone", done.out)
    assert "holdfast resume" not in done.out


def test_a_hostile_folder_is_read_without_harm(run: RunFolder, tmp_path: Path) -> None:
    """Links out of the folder, pipes, devices, folders for files, control characters, numbers without end."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "000099").mkdir()
    path = run.path
    for name in ("receipt.json", "metrics.jsonl", "best.safetensors"):
        (path / name).unlink()
    (path / "receipt.json").symlink_to("/etc/passwd")
    os.mkfifo(path / "metrics.jsonl")
    (path / "best.safetensors").symlink_to("/dev/zero")
    (path / "final.safetensors").write_bytes((1 << 63).to_bytes(8, "little") + b"{}")
    (path / "journal.jsonl").write_bytes(b"\0" * (3 << 20))
    (path / "beat.json").write_text("[" * 100_000)
    (path / "lock").symlink_to(secret / "lock")
    remove(path / "faults")
    (path / "faults").symlink_to(secret)
    checkpoints = path / "checkpoints"
    (checkpoints / "000040").symlink_to(secret)
    (checkpoints / "9" / "state.safetensors").mkdir(parents=True)
    (checkpoints / ("1" * 200)).mkdir()
    (checkpoints / "²").mkdir()
    damaged = checkpoints / "000020" / "digest.json"
    record = json.loads(damaged.read_text())
    record["tensors"] = {"\x1b[2J\x1b]0;owned\x07 evil": {"bytes": 10**30, "sha256": "0"}}
    damaged.write_text(json.dumps(record))
    write_json(path / "run.json", {**run.info, "state": "RUNNING", "workload": "\x1b[2Jjob", "format": 1})
    before = snapshot(secret)
    done = fsck(run, str(path))
    assert done.code == 1, done.err
    assert "Traceback" not in done.err
    assert "\x1b" not in done.out and "\x07" not in done.out
    assert "[✓] step 30" in done.out
    assert "111" not in done.out, "no step has two hundred digits"
    for words in (
        "step 40",
        "damaged: it is a link, not a folder",
        "receipt.json        -  damaged: it cannot be read: a link, not a file",
        "metrics.jsonl       -  damaged: it cannot be read: a pipe, not a file",
        "faults  -  damaged: it is a link, not a folder",
    ):
        assert words in done.out, f"{words}\n{done.out}"
    assert fsck(run, str(path), "--json").json["good"] is False
    assert snapshot(secret) == before


def test_a_read_only_copy(run: RunFolder, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        done = fsck(run, str(copy))
        assert (done.code, done.err) == (0, "")
    finally:
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o700)


def test_what_is_no_run_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for word in ("nothing", ".", "/dev/null"):
        done = said("fsck", word, cwd=tmp_path)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: no run `{word}` in runs\n")


def test_plain_signs_where_there_are_no_others(run: RunFolder) -> None:
    damage(run.path / "best.safetensors", -1)
    done = fsck(run, run.name, "--ascii")
    assert "[ok] step 30" in done.out and "[x] best.safetensors" in done.out
    assert done.out.isascii()


def test_help_has_examples() -> None:
    done = holdfast("fsck", "--help", cwd=Path("/"))
    assert done.code == 0
    assert "  holdfast fsck calm-heron              by name, by folder, or `latest`" in done.out


def test_it_imports_no_torch(run: RunFolder) -> None:
    code = (
        "import sys; from holdfast.cli.main import main; main(['fsck', sys.argv[1], '-q']); "
        "assert not {'torch', 'numpy', 'safetensors', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(run.path)], check=True, env=environment(), timeout=60)
