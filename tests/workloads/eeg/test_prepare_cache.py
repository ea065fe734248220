"""A cache is found again, mixed with nothing, and the same however often its making was ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import cache, prepare, recipe
from tests.disks import fill, make_room, small_disk
from tests.workloads.eeg.preparing import prepared
from tests.workloads.eeg.sets import make_set, signals_of, spoil, stem, write_recording


def test_the_same_again_is_found_and_not_made(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data")
    first = prepared(data, tmp_path / "cache")
    before = (first.folder / cache.SIGNALS).stat().st_mtime_ns
    again = prepared(data, tmp_path / "cache")
    assert again.reused and not first.reused
    assert again.lines() == first.lines()
    assert (first.folder / cache.SIGNALS).stat().st_mtime_ns == before


def other_content(data: Path) -> dict[str, Any]:
    write_recording(data, "sub-01", signals_of(77))
    return {}


def other_events(data: Path) -> dict[str, Any]:
    path = Path(f"{stem(data, 'sub-01')}_events.tsv")
    path.write_text(path.read_text().replace("5.5", "5.6"))
    return {}


def other_labels(data: Path) -> dict[str, Any]:
    path = data / "participants.tsv"
    path.write_text(path.read_text().replace("9.5", "9.6"))
    return {}


@pytest.mark.parametrize(
    "change",
    [other_content, other_events, other_labels, lambda data: {"band": (1.0, 40.0)}, lambda data: {"shift": 0.4}],
    ids=["content", "events", "labels", "band", "shift"],
)
def test_it_refuses_to_mix(tmp_path: Path, change: Callable[[Path], dict[str, Any]]) -> None:
    data = make_set(tmp_path / "data")
    first = prepared(data, tmp_path / "cache")
    options = change(data)
    with pytest.raises(prepare.OtherCache) as caught:
        prepared(data, tmp_path / "cache", **options)
    assert caught.value.hints[0] == "`--rebuild` makes it anew"
    anew = prepared(data, tmp_path / "cache", rebuild=True, **options)
    assert anew.key != first.key


def test_a_change_of_the_code_makes_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_set(tmp_path / "data")
    prepared(data, tmp_path / "cache")
    monkeypatch.setattr(recipe, "code_version", lambda: "another")
    with pytest.raises(prepare.OtherCache):
        prepared(data, tmp_path / "cache")


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data")
    target = tmp_path / "cache" / "challenge1-100hz"
    target.mkdir(parents=True)
    (target / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        prepared(data, tmp_path / "cache")
    assert (target / "thesis.tex").read_text() == "mine"


def test_two_processes_at_once(tmp_path: Path) -> None:
    from holdfast.workloads.eeg import locking

    data = make_set(tmp_path / "data")
    target = tmp_path / "cache" / "challenge1-100hz"
    target.mkdir(parents=True)
    with locking.held(target / "lock"), pytest.raises(UserError, match="another process is making the cache"):
        prepared(data, tmp_path / "cache")


def test_no_space_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    data = make_set(tmp_path / "data", task="RestingState")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(UserError, match=r"would need about 128 kB, 1\.0 kB are free"):
        prepared(data, tmp_path / "cache", "challenge2")


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))   # a file that cannot grow: what a full disk is to us
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from holdfast.base.errors import HoldfastError
from holdfast.workloads.eeg.prepare import prepare
try:
    prepare(sys.argv[1], sys.argv[2], kind="challenge1", band=None, notch=None, bad="keep", workers=1)
except HoldfastError as error:
    print(error.message, error.cause, error.saved, sep=chr(10))
"""


def test_a_disk_that_fills_up_leaves_what_can_be_gone_on_with(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=12)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(data), str(tmp_path / "cache")], capture_output=True, text=True, check=True
    )
    folder = tmp_path / "cache" / "challenge1-100hz"
    message, cause, saved = done.stdout.splitlines()
    assert message == f"no space is left for the cache in {folder}"
    assert (cause, saved) == ("File too large", "the recordings that were done stay")
    assert (folder / prepare.JOURNAL).read_bytes().count(b"\n") >= 2
    assert not (folder / cache.META).exists()
    with pytest.raises(UserError, match="no finished cache") as caught:
        cache.open(folder)
    assert "goes on where it was" in caught.value.hints[0]
    assert prepared(data, tmp_path / "cache").windows == 24


def test_a_full_disk_and_then_room(tmp_path: Path) -> None:
    data = make_set(tmp_path / "data", subjects=12)
    with small_disk(tmp_path / "disk", "1m") as disk:
        prepared(data, disk / "first")
        fill(disk)
        with pytest.raises(UserError, match="no space is left for the cache") as caught:
            prepared(data, disk / "cache")
        assert caught.value.cause == "No space left on device"
        make_room(disk)
        assert prepared(data, disk / "cache").windows == 24


SLOWLY = """
import sys, time
from holdfast.workloads.eeg import making
from holdfast.workloads.eeg.prepare import prepare
make = making.make
def slow(*args):
    time.sleep(0.05)
    return make(*args)
making.make = slow
prepare(sys.argv[1], sys.argv[2], kind="challenge1", band=None, notch=None, bad="keep", workers=1)
"""


@pytest.mark.all
def test_killed_again_and_again_it_becomes_the_same_cache(tmp_path: Path) -> None:
    """kill -9 at any moment; the bytes are those of a cache that was made in peace."""
    data = make_set(tmp_path / "data", subjects=14)
    peace = prepared(data, tmp_path / "peace")
    folder, kills = tmp_path / "war" / "challenge1-100hz", 0
    journal = folder / prepare.JOURNAL
    for least in (2, 5, 9):
        child = subprocess.Popen([sys.executable, "-c", SLOWLY, str(data), str(tmp_path / "war")])
        try:
            end = time.monotonic() + 60
            while child.poll() is None and time.monotonic() < end:
                if journal.exists() and journal.read_bytes().count(b"\n") >= least:
                    break
                time.sleep(0.005)
            child.kill()
        finally:
            kills += child.wait() == -signal.SIGKILL
    assert kills == 3
    with journal.open("ab") as file:
        file.write(b'{"recording": "torn')
    with (folder / cache.SIGNALS).open("ab") as file:
        file.write(b"half a window")
    done = journal.read_bytes().count(b"\n")
    assert done >= 9
    war = prepared(data, tmp_path / "war")
    assert war.key == peace.key
    for name in (cache.SIGNALS, cache.TABLE):
        assert (war.folder / name).read_bytes() == (peace.folder / name).read_bytes()
    assert not (folder / prepare.BUILDING).exists() and not journal.exists()


@pytest.mark.all
@pytest.mark.parametrize("band", [None, (0.5, 45.0)])
def test_several_processes_make_the_same_bytes(tmp_path: Path, band: tuple[float, float] | None) -> None:
    data = make_set(tmp_path / "data", subjects=5)
    spoil(data, "sub-03", cut=0.5)
    numbers = (1, 2, 3) if band else (1, 2)
    one, *others = (prepared(data, tmp_path / f"by-{each}", workers=each, band=band) for each in numbers)
    for other in others:
        assert other.key == one.key
        for name in (cache.SIGNALS, cache.TABLE, cache.META, prepare.REPORT):
            mine, theirs = ((each.folder / name).read_bytes() for each in (one, other))
            assert mine.replace(str(one.folder).encode(), str(other.folder).encode()) == theirs


@pytest.mark.all
@pytest.mark.sample(2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda each: each.name)
def test_a_command_that_is_ended_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    psutil = pytest.importorskip("psutil")
    data = make_set(tmp_path / "data", subjects=1, seconds=200, rate=500)
    for subject in range(2, 62):  # the same again under other names: enough work to be ended in its middle
        for path in (data / "sub-01" / "eeg").iterdir():
            other = data / f"sub-{subject:02d}" / "eeg" / path.name.replace("sub-01", f"sub-{subject:02d}")
            other.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, other)
    words = ["eeg", "prepare", str(data), str(tmp_path / "cache"), "--kind", "challenge1", "--workers", "2"]
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    journal = tmp_path / "cache" / "challenge1-100hz" / prepare.JOURNAL
    try:
        end = time.monotonic() + 60
        while not (journal.exists() and journal.stat().st_size) and time.monotonic() < end:
            time.sleep(0.02)
        others = psutil.Process(child.pid).children(recursive=True)
        assert len(others) >= 2
        os.killpg(child.pid, number) if number == signal.SIGINT else child.kill()  # a terminal tells the whole group
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    _, left = psutil.wait_procs(others, timeout=100)
    assert left == []
    if number == signal.SIGINT:
        assert child.returncode == 130
        assert "Traceback" not in err
        assert err.splitlines()[-1] == "the same command goes on where it was"
