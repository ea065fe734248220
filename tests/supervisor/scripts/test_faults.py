"""Real faults in scripts that know nothing of holdfast: the job finishes, its exit code is right, nothing is hidden.

The whole table, framework by fault, is measured by `make bench`; here are one script for every fault, and one fault for
every framework.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast.run.folder import list_runs
from holdfast.supervisor.scripts.words import repeats
from tests.disks import fill, make_room, small_disk
from tests.supervisor.scripts.driving import SCRIPTS, by_itself, environment, holdfast, same_weights, under_run

PLAIN = SCRIPTS / "plain_script.py"
STEPS = 30
SOON = ("watchdog.loop=4s", "watchdog.evaluate=20s", "watchdog.term_grace=0.5s")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    assert by_itself(folder, PLAIN, "--steps", STEPS).code == 0
    return folder


def steps_printed(out: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"^step (\d+) ", out, re.M)]


@pytest.mark.all
@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("kill", "killed"),
        ("segfault", "crash"),
        ("hang", "hang"),
        ("hang_gil", "hang"),
        ("oom", "host_memory"),
    ],
)
def test_a_plain_script_finishes(tmp_path: Path, reference: Path, fault: str, kind: str) -> None:
    at = random.Random(fault).randrange(7, STEPS - 2)
    ran = under_run(tmp_path, PLAIN, "--steps", STEPS, settings=SOON if kind == "hang" else (), fault=f"{fault}@{at}")
    assert ran.code == 0, ran.story()
    assert ran.faults == [kind], ran.story()
    assert same_weights(reference, tmp_path)
    saved = at // 5 * 5
    repeated = at - saved
    assert (ran.receipt["steps"], ran.receipt["steps_repeated"]) == (STEPS, repeated), ran.story()
    printed = steps_printed(ran.out)
    assert printed[-1] == STEPS
    assert f"by --resume; {repeats(repeated)}" in ran.said, ran.story()
    assert ran.run is not None
    folder = ran.run.path / "faults" / "01"
    assert (folder / "fault.json").exists() and (folder / "README.txt").exists()
    if fault.startswith("hang"):
        stacks = "".join(path.read_text() for path in folder.glob("stacks-*.txt"))
        assert "sitecustomize.py" in stacks and "plain_script.py" in stacks
    if fault == "segfault":
        assert "Segmentation fault" in (folder / "stacks-python.txt").read_text()


@pytest.mark.long
def test_a_script_with_an_option_nobody_knows_goes_on_with_the_words_that_were_given(
    tmp_path: Path, reference: Path
) -> None:
    script = tmp_path / "own_words.py"
    script.write_text(PLAIN.read_text().replace('"--resume"', '"--begin-at", dest="resume"'))
    words = ("--resume-with", "--begin-at {checkpoint}")
    ran = under_run(tmp_path, script, "--steps", STEPS, settings=words, fault="kill@18")
    assert (ran.code, ran.faults) == (0, ["killed"]), ran.story()
    assert f"from checkpoint-00015.pt by --resume-with; {repeats(3)}" in ran.said, ran.story()
    assert (ran.receipt["steps"], ran.receipt["steps_repeated"]) == (STEPS, 3), ran.story()
    assert b"resumed at step 15" in ran.out and same_weights(reference, tmp_path)


@pytest.mark.long
def test_an_error_of_its_own_is_passed_on_and_never_retried(tmp_path: Path) -> None:
    alone = by_itself(tmp_path / "alone", PLAIN, "--steps", STEPS, fault="own@9")
    ran = under_run(tmp_path / "watched", PLAIN, "--steps", STEPS, fault="own@9")
    assert (ran.code, ran.out, ran.err) == (1, alone.out, alone.err)
    assert ran.faults == [] and ran.restarts == []
    assert ran.run is not None and ran.run.state() == "FAILED"
    end = ran.events[-1].data
    assert end["error"]["message"] == "the script raised ValueError: a mistake of the script's own"


def test_a_fault_without_end_is_given_up(tmp_path: Path) -> None:
    """Three crashes at the same place, no other device, no checkpoint: exit 4, and the reason."""
    ran = under_run(tmp_path, command=["sh", "-c", "kill -SEGV $$"])
    assert ran.code == 4, ran.story()
    assert len(ran.faults) == 4 and set(ran.faults) == {"crash"}
    assert b"error: gave up" in ran.err and b"holdfast explain F002" in ran.err


@pytest.mark.long
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, reference: Path) -> None:
    """The newest is cut short while the script is still running: the one before it is taken."""
    child = subprocess.Popen(
        holdfast("run", "--", sys.executable, str(PLAIN), "--steps", str(STEPS), "--pause", "0.1"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(b"step 16 "):
            break
    newest = tmp_path / "checkpoint-00015.pt"
    newest.write_bytes(newest.read_bytes()[:700])
    pid = list_runs(tmp_path / "runs")[-1].info["script_pid"]
    os.kill(pid, signal.SIGKILL)
    out, err = child.communicate(timeout=100)
    assert child.returncode == 0, err
    assert b"checkpoint-00015.pt is skipped: it is cut short or torn" in err
    assert b"from checkpoint-00010.pt" in err
    assert out.rstrip().endswith(b"steps %d" % STEPS)
    assert same_weights(reference, tmp_path)


@pytest.mark.long
def test_a_disk_that_is_full_when_the_result_is_written_is_waited_for(tmp_path: Path) -> None:
    """A file that small fails at its very end, with words of the C++ library that do not speak of space."""
    with small_disk(tmp_path / "disk", "8m") as disk:
        work = tmp_path / "work"
        work.mkdir()
        fill(disk)
        command = [sys.executable, str(SCRIPTS / "loop_script.py"), "2", "9"]
        child = subprocess.Popen(
            holdfast("run", f"run.folder={tmp_path / 'runs'}", "--", *command),
            cwd=disk, env=environment(work), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert child.stderr is not None
        said = b""
        for line in child.stderr:
            said += line
            if b"waiting for room on the disk" in line:
                make_room(disk)
                break
        out, err = child.communicate(timeout=100)
        assert child.returncode == 0, (said + err).decode()[-3000:]
        assert b"F021" in said and out.rstrip().endswith(b"steps 18")
        assert (disk / "final.pt").stat().st_size > 0


@pytest.mark.long
def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        work = tmp_path / "work"
        work.mkdir()
        command = [sys.executable, str(PLAIN), "--steps", str(STEPS), "--pause", "0.1"]
        child = subprocess.Popen(
            holdfast("run", f"run.folder={tmp_path / 'runs'}", "--", *command),
            cwd=disk,
            env=environment(work),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(b"step 11 "):
                break
        fill(disk)
        timer = threading.Timer(6.0, make_room, [disk])
        timer.start()
        out, err = child.communicate(timeout=100)
        timer.join()
        assert child.returncode == 0, err.decode()[-3000:]
        assert b"a disk is full" in err and b"F021" in err
        assert out.rstrip().endswith(b"steps %d" % STEPS)


def test_silence_of_a_plain_program_is_noticed(tmp_path: Path) -> None:
    """No torch: it waits for a lock of its own for ever, the first time."""
    code = "import os, threading\nlock = threading.Lock()\nlock.acquire()\n"
    code += "if not os.path.exists('x'):\n    open('x', 'w'); lock.acquire()\nprint('done')"
    (tmp_path / "p.py").write_text(code)
    ran = under_run(tmp_path, "-S", "p.py", settings=("watchdog.setup=3s", "watchdog.term_grace=0.2s"))
    assert (ran.code, ran.out) == (0, b"done\n"), ran.story()
    assert ran.faults == ["hang"] and "it waits for threads of its own" in ran.said


@pytest.mark.all
def test_a_program_that_computes_in_silence_is_left_alone(tmp_path: Path) -> None:
    code = "import time\nend = time.time() + 3\nwhile time.time() < end: pass\nprint('done')"
    (tmp_path / "p.py").write_text(code)
    ran = under_run(tmp_path, "-S", "p.py", settings=("watchdog.setup=1s",))
    assert (ran.code, ran.out, ran.faults) == (0, b"done\n", [])


FRAMEWORKS = [
    pytest.param("lightning", ["lightning_script.py", "2", "10"], id="lightning"),
    pytest.param("transformers", ["trainer_script.py", "2", "10"], id="transformers"),
    pytest.param("accelerate", ["accelerate_script.py", "--steps", "20"], id="accelerate launch"),
]


@pytest.mark.parametrize(("module", "words"), FRAMEWORKS)
@pytest.mark.long
def test_a_framework_goes_on_by_itself(tmp_path: Path, module: str, words: list[str]) -> None:
    """Killed in the middle, with a script from the framework's own introduction: it goes on from its checkpoint."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    command = [sys.executable, str(SCRIPTS / words[0]), *words[1:]]
    if module == "accelerate":  # by its own command, which trains in a process that it starts
        command[:1] = [str(Path(sys.executable).with_name("accelerate")), "launch", "--cpu", "--num_processes", "1"]
    ran = under_run(tmp_path, command=command, fault="kill@12")
    assert ran.code == 0, ran.story()
    assert ran.faults == ["killed"], ran.story()
    assert ran.out.decode().rstrip().splitlines()[-1].startswith("steps 20")
    assert ran.receipt["steps"] == 20 and ran.receipt["steps_repeated"] == 2, ran.said


@pytest.mark.long
def test_a_stopped_run_goes_on_with_resume(tmp_path: Path, reference: Path) -> None:

    command = [sys.executable, str(PLAIN), "--steps", str(STEPS), "--pause", "0.1"]
    child = subprocess.Popen(
        holdfast("run", "--", *command), cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(b"step 12 "):
            break
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 128 + signal.SIGTERM
    time.sleep(0.1)
    run = list_runs(tmp_path / "runs")[-1]
    assert run.state() == "STOPPED"
    done = subprocess.run(
        holdfast("resume", str(run.path)), cwd=os.sep, env=environment(tmp_path), capture_output=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert b"resumed at step 10" in done.stdout
    assert run.state() == "FINISHED"
    assert (run.receipt() or {})["steps"] == STEPS
    assert same_weights(reference, tmp_path)
