"""The reader: what a run folder says, read once, whatever state the folder is in."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import UserError
from holdfast.monitor import index, reader, telling
from holdfast.monitor.downsample import BLOCK, Peaks, downsample
from holdfast.runfolder import RunFolder, write_json

from .folders import BEGAN, make_run, stamp


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of its own for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def plain(path: Path, **info: object) -> Path:
    path.mkdir(parents=True)
    write_json(path / "run.json", {"schema": 1, "format": 1, "run": path.name, "state": "STOPPED", **info})
    return path


def logged(path: Path, *records: dict[str, object]) -> None:
    with open(path / "metrics.jsonl", "a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps({"time": stamp(0), **record}) + "\n")


def at(step: int, epoch: int = 0, **values: object) -> dict[str, object]:
    return {"step": step, "epoch": epoch, **values}


# What it says -----------------------------------------------------------------------------------------------


def test_faults_have_their_blame_and_what_it_took(tmp_path: Path) -> None:
    run = reader.open(make_run(tmp_path).path)
    first, second = run.faults
    assert (first.code, first.blame, first.recovered_s, first.folder) == ("F005", "device", 17.0, "faults/01")
    assert (second.code, second.blame, second.recovered, second.lost_s) == ("F004", None, True, 9.5)
    assert run.faults_total == 2
    assert run.story.faults_by == {"F005 cuda:0": 1, "F004 cuda:0": 1}


def test_lanes_are_workers_on_devices(tmp_path: Path) -> None:
    run = reader.open(make_run(tmp_path).path)
    assert [(lane.device, lane.worker, lane.ended_by) for lane in run.lanes] == [
        ("cuda:0", 71, "F005"),
        ("cuda:0", 72, "F004"),
        ("cpu", 73, None),
    ]
    assert run.lanes[0].until == BEGAN + 600
    assert run.lanes[1].from_step == 399


@pytest.mark.parametrize("said", ["FINISHED", "STOPPED", "FAILED", "GAVE_UP", "CRASHED"])
def test_a_state_that_was_said_is_the_state(tmp_path: Path, said: str) -> None:
    assert reader.open(make_run(tmp_path, said).path).state == said


def test_who_holds_the_lock_lives(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "RECOVERING", boot_id=reader.boot_id())
    assert reader.open(folder.path).state == "CRASHED"
    folder.lock()
    run = reader.open(folder.path)
    assert run.state == "RECOVERING"
    folder.update_info(state="RUNNING", device="cuda:0")
    assert run.refresh() and run.state == "RUNNING"
    folder.update_info(device="cpu")
    assert run.refresh() and run.state == "MOVED"
    folder.close()
    assert run.refresh() and run.state == "CRASHED"


def test_a_run_on_another_machine_lives_while_it_beats(tmp_path: Path) -> None:
    folder = make_run(tmp_path, device="cuda:0")
    beat = json.loads((folder.path / "beat.json").read_text())
    write_json(folder.path / "beat.json", {**beat, "time": stamp(-100_000)})
    run = reader.open(folder.path)
    assert run.state == "CRASHED"  # the beat is old, by the clock
    write_json(folder.path / "beat.json", {**beat, "time": stamp(-99_999)})
    assert run.refresh()
    assert (run.state, run.elsewhere) == ("RUNNING", True)  # but it changed while we looked


def test_progress_settings_and_best(tmp_path: Path) -> None:
    best = {"name": "valid_bacc", "value": 0.86, "step": 1900, "epoch": 18}
    kept = {"watchdog": {"floor": 90.0}, "run": {"seed": 7}, "sources": {"watchdog.floor": "./holdfast.toml:7"}}
    run = reader.open(make_run(tmp_path, "FINISHED", best=best, settings=kept).path)
    assert run.best == {**best, "epoch": 19}
    assert [(each.key, each.shown, each.source) for each in run.settings] == [
        ("watchdog.floor", "90 s", "./holdfast.toml:7"),
        ("run.seed", "7", "default"),
    ]
    assert run.log_tail(2) == ["warning: channel Cz is flat", "epoch 2 done"]
    assert run.metrics["train_loss"].last == pytest.approx(0.69 * 0.965**18)


def test_a_glance_reads_no_journal(tmp_path: Path) -> None:
    run = reader.Run(make_run(tmp_path, "FINISHED").path)
    run.refresh(books=False)
    assert run.state == "FINISHED"
    assert run.books.journal.offset == 0


# Only what is new -------------------------------------------------------------------------------------------


def test_only_what_came_since_is_read(tmp_path: Path) -> None:
    path = plain(tmp_path / "run")
    logged(path, at(1, loss=1.0), at(2, loss=0.5))
    run = reader.open(path)
    before = run.books.metrics.offset
    assert before == (path / "metrics.jsonl").stat().st_size
    assert not run.refresh()
    logged(path, at(3, loss=0.25))
    assert run.refresh()
    assert list(run.metrics["loss"]) == [(1, 1.0), (2, 0.5), (3, 0.25)]


def test_what_was_logged_last_is_known_before_the_rest_is_read(tmp_path: Path) -> None:
    path = make_run(tmp_path, "STOPPED").path
    with open(path / "metrics.jsonl", "a") as file:
        for step in range(2000, 32_000):
            file.write(json.dumps({"time": stamp(step), "step": step, "epoch": 20, "train_loss": 1 / step}) + "\n")
        file.write('{"time": "half a li')
    run = reader.open(path, cached=False, budget_s=0.0)
    assert run.behind > 1 << 20 and len(run.metrics["train_loss"]) < 30_000
    assert run.metrics.last() == {"train_loss": 1 / 31_999, "valid_bacc": run.metrics["valid_bacc"].last}
    assert "still being read" not in telling.sentence(run)  # the journal is small, and read
    while run.refresh(0.0):
        pass
    assert run.metrics.last()["train_loss"] == run.metrics["train_loss"].last == 1 / 31_999


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path = plain(tmp_path / "run")
    line = json.dumps(at(1, loss=1.0))
    (path / "metrics.jsonl").write_text(line[:9])
    run = reader.open(path)
    assert len(run.metrics) == 0
    with open(path / "metrics.jsonl", "a") as file:
        file.write(line[9:] + "\n")
    assert run.refresh()
    assert list(run.metrics["loss"]) == [(1, 1.0)]
    assert run.problems == []


def test_torn_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    path = plain(tmp_path / "run")
    logged(path, at(1, loss=1.0))
    with open(path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 2, "ep\n\xff\xfe\x00\n[1, 2]\n' + b"x" * 300_000 + b"\n")
    logged(path, at(3, loss=3.0))
    run = reader.open(path)
    assert list(run.metrics["loss"]) == [(1, 1.0), (3, 3.0)]
    assert run.problems == ["4 torn lines passed over in journal and metrics"]


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = plain(tmp_path / "run")
    with open(path / "metrics.jsonl", "wb") as file:
        file.write(b"[" * (3 << 20) + b"\n")
    logged(path, at(1, loss=1.0))
    run = reader.open(path)
    assert list(run.metrics["loss"]) == [(1, 1.0)]


def test_a_file_that_is_another_one_is_read_anew(tmp_path: Path) -> None:
    path = plain(tmp_path / "run")
    logged(path, at(1, loss=1.0), at(2, loss=2.0))
    run = reader.open(path)
    (path / "metrics.jsonl").unlink()
    logged(path, at(7, other=7.0))
    assert run.refresh()
    assert list(run.metrics) == ["other"]


def test_steps_never_go_back(tmp_path: Path) -> None:
    path = plain(tmp_path / "run")
    logged(path, *(at(step, step // 4, loss=1.0 * step) for step in range(1, 11)))
    logged(path, at(8, 2, valid=0.5))
    logged(path, at(6, 1, loss=60.0), at(7, 1, loss=70.0))
    run = reader.open(path)
    assert list(run.metrics["loss"]) == [*((float(s), float(s)) for s in range(1, 6)), (6, 60.0), (7, 70.0)]
    assert list(run.metrics["valid"]) == []
    logged(path, at(7, 1, loss=71.0), at(8, 2, loss=8.0))
    run.refresh()
    assert list(run.metrics["loss"])[-2:] == [(7, 71.0), (8, 8.0)]


def test_a_metric_that_is_logged_with_different_others_is_one(tmp_path: Path) -> None:
    path = plain(tmp_path / "run")
    logged(path, at(1, loss=1.0), at(2, loss=2.0, lr=0.1), at(3, loss=3.0), at(4, lr=0.05))
    run = reader.open(path)
    assert list(run.metrics["loss"]) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert list(run.metrics["lr"]) == [(2, 0.1), (4, 0.05)]
    assert run.metrics.last() == {"loss": 3.0, "lr": 0.05}


def epochs(path: Path, *records: dict[str, object]) -> None:
    """Ends of epochs, as the journal has them."""
    with open(path / "journal.jsonl", "a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps({"time": stamp(0), "event": "epoch", **record}) + "\n")


@pytest.mark.parametrize(
    ("named", "drawn"),
    [
        ((), ["epoch_loss"]),
        (("accuracy",), ["epoch_loss", "accuracy"]),
        (("accuracy", "valid_loss"), ["accuracy", "valid_loss"]),
        (("epoch_loss",), ["epoch_loss"]),
    ],
)
def test_the_loss_of_epochs_is_drawn_where_no_loss_was_logged(
    tmp_path: Path, named: tuple[str, ...], drawn: list[str]
) -> None:
    path = plain(tmp_path / "run")
    epochs(path, at(10, 0, loss=0.5), at(20, 1, loss=0.4))
    logged(path, *(at(step, **dict.fromkeys(named, 7.0)) for step in (10, 20) if named))
    run = reader.open(path)
    assert (list(run.metrics), list(run.curves)) == (list(named), drawn)
    ours = "epoch_loss" in drawn and "epoch_loss" not in named
    assert [run.curves.about(name) for name in drawn] == ["last step of each epoch"] * ours + [""] * len(named)
    assert [value for _, value in run.curves[drawn[0]]] == ([0.5, 0.4] if ours else [7.0, 7.0])


def test_an_epoch_that_ends_again_counts_once_and_one_without_a_loss_not_at_all(tmp_path: Path) -> None:
    path = plain(tmp_path / "run")
    epochs(path, at(10, 0, loss=0.5), at(20, 1, loss=0.4), at(30, 2, loss=0.3))
    epochs(path, at(20, 1, loss=0.41), {**at(30, 2), "loss": None}, at(40, 3), {**at(50, 4), "loss": "low"})
    run = reader.open(path)
    assert list(run.curves["epoch_loss"]) == [(10, 0.5), (20, 0.41)]
    epochs(path, at(60, 5, loss=0.2))
    run.refresh()
    assert list(run.curves["epoch_loss"])[-1] == (60, 0.2)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    path = plain(tmp_path / "run")
    logged(path, at(1, loss=math.nan), at(2, loss=math.inf), {"step": 3, "epoch": 0, "loss": "x"}, at(4, loss=10**400))
    run = reader.open(path)
    values = [value for _, value in run.metrics["loss"]]
    assert math.isnan(values[0])
    assert values[1] == math.inf
    assert run.metrics["loss"].points(10)[0][:2] == [1, 2]


# The index --------------------------------------------------------------------------------------------------


def many(path: Path, first: int, last: int) -> None:
    generator = random.Random(first)
    logged(path, *(at(step, loss=generator.random(), lr=0.1) for step in range(first, last)))


def test_the_second_look_reads_nothing_again(tmp_path: Path, cache: Path) -> None:
    path = plain(tmp_path / "run")
    many(path, 1, 8000)
    first = reader.open(path)
    kept = list(cache.rglob("*.index"))
    assert len(kept) == 1 and kept[0].stat().st_mode & 0o777 == 0o600
    again = reader.Run(path)
    assert again.books.metrics.offset == (path / "metrics.jsonl").stat().st_size  # before anything was read
    many(path, 8000, 8010)
    again.refresh()
    assert list(again.metrics["loss"])[:7999] == list(first.metrics["loss"])
    assert len(again.metrics["loss"]) == 8009
    logged(path, at(5000, loss=5.0, lr=0.1))  # back behind what the index holds
    again.refresh()
    assert len(again.metrics["loss"]) == 5000 and again.metrics["loss"].last == 5.0
    assert again.events(last=5) == first.events(last=5)


def test_the_second_look_knows_the_losses_of_epochs(tmp_path: Path, cache: Path) -> None:
    path = plain(tmp_path / "run")
    epochs(path, *(at(10 * epoch, epoch, loss=1 / (1 + epoch), filler="x" * 100) for epoch in range(3000)))
    logged(path, at(1, accuracy=0.1))
    first = reader.open(path)
    assert len(list(cache.rglob("*.index"))) == 1
    again = reader.Run(path)
    assert again.books.journal.offset == (path / "journal.jsonl").stat().st_size  # before anything was read
    assert (
        list(again.curves["epoch_loss"]) == list(first.curves["epoch_loss"]) and len(again.curves["epoch_loss"]) == 3000
    )
    assert list(again.metrics["accuracy"]) == [(1, 0.1)] and list(again.curves) == ["epoch_loss", "accuracy"]


@pytest.mark.parametrize("damage", ["cut", "noise", "other file", "older"])
def test_an_index_that_does_not_fit_is_not_believed(tmp_path: Path, cache: Path, damage: str) -> None:
    path = plain(tmp_path / "run")
    many(path, 1, 8000)
    wanted = list(reader.open(path).metrics["loss"])
    (kept,) = cache.rglob("*.index")
    data = bytearray(kept.read_bytes())
    if damage == "cut":
        kept.write_bytes(data[: len(data) // 2])
    elif damage == "noise":
        data[40:2000] = random.Random(0).randbytes(1960)
        kept.write_bytes(data)
    elif damage == "older":
        kept.write_bytes(data.replace(index.MAGIC, b"holdfast index 0\n"))
    else:
        (path / "metrics.jsonl").unlink()
        many(path, 2, 7000)
        fresh = reader.Run(path, cached=False)
        fresh.refresh()
        wanted = list(fresh.metrics["loss"])
    assert list(reader.open(path).metrics["loss"]) == wanted


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    path = plain(tmp_path / "run")
    many(path, 1, 8000)
    assert len(reader.open(path).metrics["loss"]) == 7999


def test_events_are_found_by_where_they_begin(tmp_path: Path) -> None:
    path = plain(tmp_path / "run")
    with open(path / "journal.jsonl", "w", encoding="utf-8") as file:
        for number in range(6000):
            kind = "checkpoint" if number % 100 == 0 else "log" if number % 2 else "note"
            file.write(json.dumps({"time": stamp(number), "event": kind, "step": number}) + "\n")
    run = reader.open(path)
    assert [event.data["step"] for event in run.events(last=3)] == [5994, 5996, 5998]
    assert [event.data["step"] for event in run.events(last=2, kinds={"checkpoint"})] == [5800, 5900]
    assert len(run.events()) == 3000
    assert run.events(last=1, before=10)[0].data["step"] == 18


# Fewer points -----------------------------------------------------------------------------------------------


@given(st.lists(st.floats(), max_size=400), st.integers(1, 60))
def test_no_peak_is_lost(values: list[float], n: int) -> None:
    xs, ys = downsample(range(len(values)), values, n)
    assert len(xs) <= max(n, 3 * max(1, n // 2) + 2)
    assert list(xs) == sorted(set(xs))
    finite = [value for value in values if math.isfinite(value)]
    kept = [value for value in ys if math.isfinite(value)]
    assert bool(finite) == bool(kept)
    if finite:
        assert (min(finite), max(finite)) == (min(kept), max(kept))
    assert any(map(math.isnan, ys)) == (len(finite) < len(values))


def test_known_blocks_give_the_same_peaks() -> None:
    generator = random.Random(4)
    values = [generator.gauss(0, 1) for _ in range(40 * BLOCK + 77)]
    spikes = {3: 50.0, 9000: -60.0, 17000: 70.0, len(values) - 1: 80.0}
    for position, value in spikes.items():
        values[position] = value
    values[11111] = math.nan
    peaks = Peaks()
    peaks.extend(values[: 10 * BLOCK + 5])
    peaks.extend(values)
    positions = peaks.pick(values, 0, len(values), 40)
    assert set(spikes) | {0, 11111} <= set(positions)
    assert len(positions) <= 3 * 20 + 2 + 3
    again = Peaks(peaks.to_bytes())
    assert again.pick(values, 700, 30_000, 20) == peaks.pick(values, 700, 30_000, 20)
    assert {9000, 17000} <= set(again.pick(values, 700, 30_000, 20))


# Whatever is in the folder -----------------------------------------------------------------------------------


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, words in [("nowhere", "No such file"), ("file", "not a folder"), ("empty", "no readable run.json")]:
        with pytest.raises(UserError) as error:
            reader.open(tmp_path / name)
        assert words in str(error.value.cause)


def test_a_newer_holdfast_is_named_and_what_is_known_is_shown(tmp_path: Path) -> None:
    run = reader.open(make_run(tmp_path, "FINISHED", format=99).path)
    assert run.state == "FINISHED" and len(run.metrics) == 2
    assert "written by a newer holdfast (format 99; known here: 1): some may be missing" in run.problems


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_links_and_pipes_are_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text(json.dumps(at(1, secret=1.0)) + "\n")
    path = plain(tmp_path / "run")
    (path / "metrics.jsonl").symlink_to(secret)
    os.mkfifo(path / "journal.jsonl")
    os.mkfifo(path / "beat.json")
    (path / "output.log").symlink_to(secret)
    (path / "checkpoints").symlink_to("/")
    (path / "receipt.json").symlink_to(tmp_path / "run" / "run.json")
    run = reader.open(path)
    assert len(run.metrics) == 0 and run.log_tail() == [] and run.checkpoints == [] and run.receipt is None
    assert "metrics.jsonl: a link, not a file" in run.problems
    assert "journal.jsonl: a pipe, not a file" in run.problems


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = plain(tmp_path / "run")
    logged(path, at(1, loss=1.0))
    (path / "metrics.jsonl").chmod(0)
    assert "metrics.jsonl: Permission denied" in reader.open(path).problems


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
kinds = st.sampled_from(
    ["start", "worker", "fault", "verdict", "recovered", "moved", "epoch", "checkpoint", "undone", "end"]
)
keys = [
    "code",
    "device",
    "step",
    "epoch",
    "folder",
    "seconds",
    "lost_s",
    "pid",
    "generation",
    "best",
    "time",
    "to_step",
]
events = st.dictionaries(st.sampled_from(keys), anything, max_size=6)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    info=st.dictionaries(
        st.sampled_from(["state", "device", "accounts", "best", "settings", "created", "run"]), anything
    ),
    beat=st.dictionaries(
        st.sampled_from(["time", "step", "epoch", "epochs", "rate", "progress", "readings"]), anything
    ),
    journal=st.lists(st.tuples(kinds, events), max_size=8),
    metrics=st.lists(st.dictionaries(st.sampled_from(["step", "epoch", "time", "loss", "b"]), anything), max_size=8),
)
def test_no_content_makes_it_fail(
    tmp_path_factory: pytest.TempPathFactory,
    info: dict[str, object],
    beat: dict[str, object],
    journal: list[tuple[str, dict[str, object]]],
    metrics: list[dict[str, object]],
) -> None:
    """Every part of the page can be made of any folder."""
    from holdfast.monitor import compare, export, payload, prometheus, report

    path = tmp_path_factory.mktemp("any") / "run"
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"format": 1, **info}))
    (path / "beat.json").write_text(json.dumps(beat))
    lines = [json.dumps({**data, "event": kind}) for kind, data in journal]
    (path / "journal.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, metrics)) + "\n", encoding="utf-8")
    run = reader.open(path)
    json.dumps(report.data(run), allow_nan=False)
    json.dumps(compare.together([compare.side(run, "a"), compare.side(run, "b")]), allow_nan=False)
    json.dumps(export.to_json(run), allow_nan=False)
    assert payload.glance(run, "a")["id"] == "a"
    assert prometheus.exposition([run]).endswith("\n")
    assert "".join(export.csv_text(run)).startswith("time,step,epoch")


def test_it_needs_neither_torch_nor_the_runtime(tmp_path: Path) -> None:
    path = make_run(tmp_path).path
    code = f"""
import sys
from holdfast.monitor import reader, payload, report
report.html(reader.open({str(path)!r}))
found = [name for name in sys.modules if name.startswith("holdfast.runtime") or name in ("torch", "numpy")]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_while_somebody_writes(tmp_path: Path) -> None:
    """A real writer in another process: every look is whole, and the last one has everything."""
    path = plain(tmp_path / "run")
    code = f"""
import sys, time
from pathlib import Path
from holdfast.runfolder import RunFolder
run = RunFolder(Path({str(path)!r}))
for step in range(1, 3001):
    run.append_metrics({{"time": "2026-11-15T09:12:04.000Z", "step": step, "epoch": 0, "loss": step / 2}})
    if step % 500 == 0:
        run.write_beat({{"step": step}})
        time.sleep(0.01)
"""
    writer = subprocess.Popen([sys.executable, "-c", code])
    run, seen = reader.open(path), 0
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (writer.poll() is None or seen < 3000):
        run.refresh()
        if "loss" in run.metrics:
            points = list(run.metrics["loss"])
            assert points == [(step, step / 2) for step in range(1, len(points) + 1)]
            assert len(points) >= seen
            seen = len(points)
    assert writer.wait() == 0
    assert seen == 3000 and run.problems == [] and run.beat == {"step": 3000}
    assert isinstance(run.folder, RunFolder)
