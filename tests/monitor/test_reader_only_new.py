"""The reader reads only what is new, line by line, and an index remembers the rest."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from holdfast.monitor import index, reader, sentences
from tests.monitor.folders import at, logged, make_run, plain, stamp

pytestmark = pytest.mark.usefixtures("cache")


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


@pytest.mark.all
def test_what_was_logged_last_is_known_before_the_rest_is_read(tmp_path: Path) -> None:
    path = make_run(tmp_path, "STOPPED").path
    with open(path / "metrics.jsonl", "a") as file:
        for step in range(2000, 32_000):
            file.write(json.dumps({"time": stamp(step), "step": step, "epoch": 20, "train_loss": 1 / step}) + "\n")
        file.write('{"time": "half a li')
    run = reader.open(path, cached=False, budget_s=0.0)
    assert run.behind > 1 << 20 and len(run.metrics["train_loss"]) < 30_000
    assert run.metrics.last() == {"train_loss": 1 / 31_999, "valid_bacc": run.metrics["valid_bacc"].last}
    assert "still being read" not in sentences.sentence(run)  # the journal is small, and read
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
    assert run.problems == ["4 torn lines skipped in journal and metrics"]


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


@pytest.mark.all
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


@pytest.mark.all
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


@pytest.mark.sample(4, 1)
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
