"""Bad samples without loader children: the process that reads dies, and the next one leaves out what it died of."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.data import sample_check, sample_marks
from holdfast.data.loader import Loader
from holdfast.data.read_limit import Patience
from holdfast.faults.bad_samples import BadSamples
from tests.data.loaders import POSIX, Clock, Hanging, leave
from tests.data.recordings import LENGTH, Recordings, known_from_the_start, make, segfault

pytestmark = POSIX


def read(folder: Path, act: str, how: str) -> None:
    """The life of one process: it leaves marks, reads everything, and writes down what came of it."""

    def tell(name: str, details: Any) -> None:
        with open(folder / "said", "a") as file:
            file.write(json.dumps([name, details]) + "\n")

    def outside() -> None:
        if not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    hang = Hanging(folder / "hanging")
    bad = {"segfault": segfault, "leave": leave, "hang": hang, "outside": outside}[act]
    sample_marks.begin(folder, tell=lambda message: tell(message.kind, message.told))
    loader = make(Recordings({9: bad}), 0, shuffle=how == "train", allow_missing=how == "missing")
    if act == "hang":  # this process is ours alone, and time goes on in it while a child hangs
        loader._pool.patience = Patience(floor_s=1.0, first_wait_s=1.0)
        sample_check.time = Clock(hang.now)  # type: ignore[assignment]
    try:
        values = list(loader) if how != "train" else [batch.value for batch in loader.batches(0, 0)]
        tell("values", torch.cat(values).tolist())
    except BadSamples as error:
        tell("bad", error.message)
    sample_marks.end()


class Story:
    """Processes that read the same data, one after the other."""

    def __init__(self, folder: Path, act: str, how: str) -> None:
        self.folder, self.act, self.how = folder, act, how
        self.hangs = act == "hang"

    def next(self) -> tuple[int | None, dict[str, Any]]:
        """How it ended, and what it said."""
        process = multiprocessing.get_context("fork").Process(target=read, args=(self.folder, self.act, self.how))
        process.start()
        if self.hangs:
            self.hangs = False
            self._kill_when_it_hangs(process)
        process.join(100)
        said = self.folder / "said"
        lines = said.read_text().splitlines() if said.exists() else []
        return process.exitcode, dict(json.loads(line) for line in lines)

    def _kill_when_it_hangs(self, process: Any) -> None:
        """As the watchdog would: it has been at sample 9 for a while."""
        marked = self.folder / f"reading-{process.pid}"
        while [suspect.index for suspect in sample_marks._read(marked)] != [9]:
            assert process.is_alive()
            time.sleep(0.05)
        process.kill()


@pytest.fixture
def story(tmp_path: Path) -> Callable[[str, str], Story]:
    return lambda act, how: Story(tmp_path, act, how)


def rows(loader: Loader) -> list[list[float]]:
    found: list[list[float]] = torch.cat([batch.value for batch in loader.batches(0, 0)]).tolist()
    return found


@pytest.mark.parametrize(
    ("act", "ends", "why"),
    [
        ("segfault", -signal.SIGSEGV, "ended the process that reads it (SIGSEGV)"),
        ("leave", 3, "ended the process that reads it (exit status 3)"),
        ("hang", -signal.SIGKILL, "hung the process that reads it"),
    ],
)
def test_the_next_process_leaves_out_what_the_last_one_died_of(
    story: Callable[[str, str], Story], act: str, ends: int, why: str
) -> None:
    run = story(act, "train")
    assert run.next() == (ends, {})
    code, said = run.next()
    assert code == 0
    assert (said["quarantined"]["index"], said["quarantined"]["source"]) == (9, "sub-09_eeg.set")
    assert said["quarantined"]["why"].startswith(why)
    assert said["values"] == rows(known_from_the_start([9], shuffle=True))


def test_one_that_was_killed_from_outside_misses_nothing(story: Callable[[str, str], Story], tmp_path: Path) -> None:
    run = story("outside", "train")
    assert run.next() == (-signal.SIGKILL, {})
    code, said = run.next()
    assert code == 0 and "quarantined" not in said
    assert said["values"] == rows(make(Recordings(), 0, shuffle=True))
    assert not list(tmp_path.glob("reading-*"))


def test_a_sample_that_ends_three_workers_is_out_even_if_a_child_can_read_it(tmp_path: Path) -> None:
    """Something about the worker itself, as with a dataset that uses the device."""
    loader = make(Recordings(), 0)
    for _ in range(3):
        sample_marks.begin(tmp_path).place(loader._here.kind, epoch=0, batch=2)[0] = 9
        sample_marks._current.clear()  # it died
    here = sample_marks.begin(tmp_path)
    try:
        assert [suspect.strikes for suspect in here.suspects(loader._here.kind)] == [3]
        assert rows(loader) == rows(known_from_the_start([9]))
        assert loader.quarantined[0]["why"] == "ended 3 workers that were reading it"
    finally:
        sample_marks.end()


@pytest.mark.parametrize(("deaths", "missing"), [(1, []), (2, [9])])
def test_where_a_child_can_read_nothing_the_second_worker_decides(
    tmp_path: Path, deaths: int, missing: list[int]
) -> None:
    """A dataset with num_workers=0 may well use what does not survive a fork."""

    class AtHome(Recordings):
        home = os.getpid()

        def __getitem__(self, index: int) -> torch.Tensor:
            if os.getpid() != self.home:
                raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
            return super().__getitem__(index)

    loader = make(AtHome(), 0)
    for _ in range(deaths):
        sample_marks.begin(tmp_path).place(loader._here.kind, epoch=0, batch=2)[0] = 9
        sample_marks._current.clear()
    sample_marks.begin(tmp_path)
    try:
        assert rows(loader) == rows(known_from_the_start(missing))
    finally:
        sample_marks.end()


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_dataset_that_cannot_be_sent_to_a_child_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(Recordings):
        pass

    monkeypatch.setenv("HOLDFAST_PORTABLE", "1")
    loader = make(Local(), 0)
    sample_marks.begin(tmp_path).place(loader._here.kind, epoch=0, batch=2)[0] = 9
    sample_marks._current.clear()
    sample_marks.begin(tmp_path)
    try:
        assert rows(loader) == rows(make(Recordings(), 0))
    finally:
        sample_marks.end()


def test_the_next_process_does_not_score_without_what_the_last_one_died_of(story: Callable[[str, str], Story]) -> None:
    run = story("segfault", "score")
    assert run.next()[0] == -signal.SIGSEGV
    assert run.next() == (
        0,
        {"bad": "the data are at fault: sample 9 (sub-09_eeg.set) ended the process that reads it (SIGSEGV)"},
    )


def test_the_next_process_scores_without_it_where_that_is_allowed(story: Callable[[str, str], Story]) -> None:
    run = story("leave", "missing")
    assert run.next()[0] == 3
    code, said = run.next()
    assert (code, said["missing"]["samples"]) == (0, [9])
    assert [row[0] for row in said["values"]] == [index for index in range(LENGTH) if index != 9]
