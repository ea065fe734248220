"""What is said when a script ends: what is repeated where no step can be seen, whose memory it was, its last words."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import cgroup
from holdfast.faults.classification import Kind, classify_exit
from holdfast.run.folder import list_runs
from holdfast.supervisor.scripts.loss import printed_epoch
from holdfast.supervisor.scripts.words import last_lines

from .driving import Ran, environment, holdfast, under_run

# -- work without steps ------------------------------------------------------------------------------------------

BY_HAND = """
import argparse, os, signal, time, zipfile
parser = argparse.ArgumentParser()
parser.add_argument("--resume")
parser.add_argument("--save", action="store_true")
args = parser.parse_args()
print("| epoch   2 | 10/20 batches", flush=True)
time.sleep(0.5)
if args.save and not args.resume:
    with zipfile.ZipFile("state.pt", "w") as archive:
        archive.writestr("state/data.pkl", b"x")
if not os.path.exists("killed"):
    open("killed", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.all
def test_where_no_step_is_seen_the_work_that_is_repeated_is_told_by_time_and_output(tmp_path: Path) -> None:
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    ran = under_run(tmp_path, "-S", "by_hand.py")
    assert (ran.code, ran.faults) == (0, ["killed"]), ran.story()
    assert "nothing to repeat" not in ran.said
    assert re.search(r"\d s of work to repeat \(epoch 2 was reached, \d+ B of output\)", ran.said), ran.said
    assert re.search(r"finished · 1 fault survived · .* of work repeated \(\d+ B of output\) ·", ran.said), ran.said
    assert ran.receipt["steps_repeated"] is None and ran.receipt["work_repeated_s"] >= 0.5
    assert ran.receipt["output_repeated_bytes"] == len("| epoch   2 | 10/20 batches\n")


@pytest.mark.all
def test_and_since_its_checkpoint_where_it_has_one(tmp_path: Path) -> None:
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    ran = under_run(tmp_path, "-S", "by_hand.py", "--save")
    assert (ran.code, ran.faults) == (0, ["killed"]), ran.story()
    assert re.search(r"from state.pt by --resume; (about )?\S+ m?s of work to repeat \(epoch 2", ran.said), ran.story()
    assert "nothing to repeat" not in ran.said
    lived = re.search(r"killed from outside by SIGKILL after (\S+) s", ran.said)
    assert lived and ran.receipt["work_repeated_s"] < float(lived[1])


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("| epoch   3 |   200/ 2983 batches", 3),
        ("Epoch: [12][ 0/391]", 12),
        ("Epoch 1/40\nEpoch 2/40", 2),
        ("epochs: 5, depoch 4, epoch 3.5", None),
    ],
)
def test_the_epoch_is_the_one_it_prints(text: str, epoch: int | None) -> None:
    assert printed_epoch(text) == epoch


# -- whose fault -------------------------------------------------------------------------------------------------


@pytest.mark.all
def test_the_words_of_a_device_on_the_cpu_do_not_pass_without_a_line(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text('raise RuntimeError("CUDA error: device-side assert triggered")')
    ran = under_run(tmp_path, "p.py", settings=("run.device=cpu",))
    assert (ran.code, ran.faults, ran.restarts) == (1, [], []), ran.story()
    assert 'its last message is a device error, "CUDA error: device-side assert triggered"' in ran.said, ran.story()
    own = under_run(tmp_path / "own", command=[sys.executable, "-c", "raise RuntimeError('a mistake')"])
    assert (own.code, own.said) == (1, "")


def fixture(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def test_the_cgroup_that_had_no_memory_left_is_named(tmp_path: Path) -> None:
    two = fixture(
        tmp_path / "2",
        {
            "member": "0::/user.slice/job.scope\n",
            "fs/user.slice/job.scope/memory.events": "low 0\nhigh 0\nmax 70\noom 2\noom_kill 3\noom_group_kill 0\n",
            "fs/user.slice/job.scope/memory.max": "2147483648\n",
            "fs/user.slice/memory.max": "max\n",
        },
    )
    assert cgroup.kills(two / "member", two / "fs") == 3
    limit = cgroup.exhausted(two / "member", two / "fs")
    assert limit is not None and (limit.path, limit.bytes) == ("/user.slice/job.scope", 2 << 30)
    outer = fixture(
        tmp_path / "outer",
        {
            "member": "0::/pod/box\n",
            "fs/pod/box/memory.events": "oom 0\noom_kill 1\n",
            "fs/pod/box/memory.max": "max\n",
            "fs/pod/memory.events": "oom 1\noom_kill 1\n",
            "fs/pod/memory.max": "1073741824\n",
        },
    )
    assert cgroup.exhausted(outer / "member", outer / "fs") == cgroup.Limit("/pod", 1 << 30)
    one = fixture(
        tmp_path / "1",
        {
            "member": "5:cpuset:/\n4:memory:/docker/abc\n0::/\n",
            "fs/memory/docker/abc/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
            "fs/memory/docker/abc/memory.limit_in_bytes": "536870912\n",
            "fs/memory/docker/abc/memory.failcnt": "12\n",
            "fs/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "fs/memory/memory.failcnt": "0\n",
        },
    )
    assert cgroup.kills(one / "member", one / "fs") == 7
    found = cgroup.exhausted(one / "member", one / "fs")
    assert found == cgroup.Limit("/docker/abc", 512 << 20)
    fault = classify_exit(exitcode=-9, last_words="", oom_kills=1, device="cpu", limit=found)
    assert fault.kind is Kind.HOST_MEMORY
    assert fault.sentence() == "the cgroup /docker/abc (its limit is 537 MB) ran out of memory"
    free = fixture(tmp_path / "free", {"member": "0::/\n", "fs/memory.max": "max\n", "fs/memory.events": "oom 0\n"})
    assert cgroup.exhausted(free / "member", free / "fs") is None
    nobody = classify_exit(exitcode=-9, last_words="", oom_kills=1, device="cpu")
    assert nobody.sentence() == "the machine ran out of memory"


@contextlib.contextmanager
def small_cgroup(limit: int) -> Iterator[Path]:
    """A cgroup below our own that may have so many bytes; skips where none can be made."""
    for parent in cgroup.folders():
        folder = parent / f"holdfast-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            name = "memory.max" if (folder / "memory.max").exists() else "memory.limit_in_bytes"
            if not (folder / name).exists():
                continue
            (folder / name).write_text(str(limit))
            with contextlib.suppress(OSError):  # no way around it through the swap
                (folder / "memory.swap.max").write_text("0")
            yield folder
            return
        except OSError:
            continue
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()
    pytest.skip("no memory cgroup can be made here: that needs root, or a delegated one")


def test_a_script_that_its_cgroup_ends_is_told_so(tmp_path: Path) -> None:
    """In a real one: the supervisor and the script are in it, the script takes more than there is."""
    limit = 160 << 20
    with small_cgroup(limit) as folder:
        code = "x = [bytearray(8 << 20) for _ in range(100)]"
        command = holdfast("run", "external.restart=false", "run.device=cpu", "--", sys.executable, "-S", "-c", code)
        enter = f'echo $$ > {folder / "cgroup.procs"} && exec "$@"'
        done = subprocess.run(
            ["sh", "-c", enter, "sh", *command], cwd=tmp_path, env=environment(tmp_path), capture_output=True,
            timeout=100, check=False,
        )  # fmt: skip
        runs = list_runs(tmp_path / "runs")
        ran = Ran(done.returncode, done.stdout, done.stderr, 0.0, tmp_path, runs[-1] if runs else None)
        if ran.code == -9 or not ran.faults:
            pytest.skip("the kernel ended the supervisor instead of the script")
        assert (ran.code, ran.faults) == (4, ["host_memory"]), ran.story()
        assert f"{folder.name} (its limit is 168 MB) ran out of memory" in ran.said, ran.story()


# -- the same end again and again --------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [137, 139])
def test_a_command_that_ends_with_such_a_code_by_itself_is_started_three_times(tmp_path: Path, code: int) -> None:
    script = f"echo started >> starts; echo 'reading \x1b[31mthe data\x1b[0m'; echo 'no such sample' >&2; exit {code}"
    ran = under_run(tmp_path, command=["sh", "-c", script])
    assert ran.code == 4, ran.story()
    assert (tmp_path / "starts").read_text().split() == ["started"] * 3, ran.story()
    summary = ran.err.decode().partition("error: gave up")[2]
    assert "its last output:" in summary and "no such sample" in summary and "reading the data" in summary, ran.story()
    assert f"it ended with code {code}, 3 times" in summary


def test_last_words_are_few_and_plain() -> None:
    words = "\n".join(f"line {number}" for number in range(50)) + "\n\n\x1b[1m10%\r100%\x1b[0m\n \n"
    assert last_lines(words) == ["line 46", "line 47", "line 48", "line 49", "100%"]


def test_the_archive_of_these_tests_is_taken_for_a_checkpoint(tmp_path: Path) -> None:
    from holdfast.supervisor.scripts.own_checkpoints import damage

    with zipfile.ZipFile(tmp_path / "state.pt", "w") as archive:
        archive.writestr("state/data.pkl", b"x")
    assert damage(tmp_path / "state.pt") is None
