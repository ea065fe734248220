"""A script that never calls `session.log` has a curve all the same: the loss of its epochs, drawn by every face."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.human import metric
from holdfast.monitor import payload, reader, report
from holdfast.monitor.terminal import large, pages
from holdfast.monitor.terminal.scene import curve_of, look
from tests import warm
from tests.cli.driving import SCRIPT, Done, holdfast, run_folder

from .serving import Page

SILENT = SCRIPT.rpartition("        with session.evaluating():")[0]
ABOUT = "last step of each epoch"
STEPS = [8, 16, 24, 32]


@dataclass(frozen=True)
class Unlogged:
    """A run of such a script, and what its journal says."""

    cwd: Path
    done: Done

    @property
    def path(self) -> Path:
        return run_folder(self.cwd)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "journal.jsonl").read_text().splitlines()]

    @property
    def losses(self) -> list[float]:
        return [event["loss"] for event in self.events if event["event"] == "epoch"]

    @property
    def course(self) -> str:
        return f"{metric(self.losses[0])} → {metric(self.losses[-1])}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def unlogged(tmp_path_factory: pytest.TempPathFactory) -> Unlogged:
    folder = tmp_path_factory.mktemp("job")
    assert "session.step(" in SILENT and "session.log" not in SILENT
    (folder / "job.py").write_text(SILENT)
    return Unlogged(folder, warm.holdfast("train", "job.py", "lr=0.1", "epochs=4", "run.threads=1", cwd=folder))


@pytest.fixture(scope="module")
def page(unlogged: Unlogged, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(unlogged.cwd / "runs", cache=tmp_path_factory.mktemp("cache"))
    yield page
    page.close()


@pytest.mark.long
def test_nothing_is_said_to_have_been_logged(unlogged: Unlogged) -> None:
    assert unlogged.done.code == 0, unlogged.done.err
    assert len(set(unlogged.losses)) == 4 and not [each for each in unlogged.events if each["event"] == "log"]
    shown = holdfast("show", "latest", "--json", cwd=unlogged.cwd).json
    assert (shown["metrics"], shown["best"]) == ({}, None)


@pytest.mark.all
def test_show_has_it(unlogged: Unlogged) -> None:
    said = holdfast("show", "latest", cwd=unlogged.cwd).out
    (line,) = [line for line in said.splitlines() if line.startswith("  epoch_loss")]
    assert line.endswith(f"{unlogged.course}  ({ABOUT})")


def test_watch_has_it(unlogged: Unlogged) -> None:
    said = holdfast("watch", "-1", cwd=unlogged.cwd).out
    (line,) = [line for line in said.splitlines() if line.startswith("epoch_loss  ")]
    lowest = unlogged.losses.index(min(unlogged.losses))
    assert f"{unlogged.course}   best {metric(min(unlogged.losses))} @ epoch {lowest + 1}" in line


def test_a_large_terminal_says_what_it_is(unlogged: Unlogged) -> None:
    run = reader.open(unlogged.path)
    last = metric(unlogged.losses[-1])
    assert f"├ epoch_loss ({ABOUT}) {last} ─" in "\n".join(large.picture(look(run), 100, 30))
    assert pages.graph(curve_of(run, "epoch_loss"), 100, 20, ascii=False)[0].startswith(
        f"epoch_loss ({ABOUT})   {unlogged.course}"
    )


@pytest.mark.all
def test_the_report_has_it(unlogged: Unlogged, tmp_path: Path) -> None:
    data = report.data(reader.open(unlogged.path))
    assert data["series"]["m:epoch_loss"]["x"] == STEPS and data["series"]["m:epoch_loss"]["y"] == unlogged.losses
    first = data["head"]["charts"][0]
    assert (first["title"], first["unit"], first["lines"][0]["key"]) == ("epoch_loss", ABOUT, "m:epoch_loss")
    assert holdfast("report", "latest", "-o", str(tmp_path / "all.csv"), cwd=unlogged.cwd).code == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "all.csv").read_text())))
    assert [(int(row["step"]), float(row["epoch_loss"])) for row in rows] == [*zip(STEPS, unlogged.losses, strict=True)]


@pytest.mark.all
def test_the_page_has_it(unlogged: Unlogged, page: Page) -> None:
    ident = unlogged.path.name
    head = page.json(f"/api/run/{ident}")["head"]
    assert [(chart["title"], chart["unit"]) for chart in head["charts"] if chart["kind"] == "metric"] == [
        ("epoch_loss", ABOUT)
    ]
    series = page.json(f"/api/run/{ident}/series?key=m:epoch_loss&points=50")["series"]["m:epoch_loss"]
    assert (series["x"], series["y"]) == (STEPS, unlogged.losses) and None not in series["t"]
    rate = page.json(f"/api/run/{ident}/series?key=rate")["series"]["rate"]
    assert rate["x"] == STEPS[1:]
    assert all(each is None or each > 0 for each in rate["y"]), "None: two epochs that ended in one millisecond"
    table = page.ask(f"/api/run/{ident}/metrics.csv?name=epoch_loss")[2].decode().splitlines()
    assert table[0] == "time,step,epoch,epoch_loss" and len(table) == 5
    beside = page.json(f"/api/compare?run={ident}&key=m:epoch_loss")
    assert beside["metrics"] == ["epoch_loss"] and beside["series"][ident]["m:epoch_loss"]["y"] == unlogged.losses


def test_what_a_program_is_told_stays_what_was_logged(unlogged: Unlogged) -> None:
    run = reader.open(unlogged.path)
    assert list(run.metrics) == [] and run.best is None
    assert payload.head(run, "x")["metrics"] == {}
    [told] = holdfast("watch", "--json", cwd=unlogged.cwd).json["runs"]
    assert told["metrics"] == {}
