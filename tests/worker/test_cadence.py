"""How often a session commits, and what it notices of the steps between two commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.record.receipt import cadence_words
from holdfast.run.settings import Settings
from holdfast.worker.cadence import Cadence
from holdfast.worker.session import Session
from tests.worker.local_runs import run


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_ranks_commit_when_the_first_one_wishes() -> None:
    """Rank 0 says in the middle of a body whether it ends with a commit, for the time at which it will end."""
    clock = Clock()
    settings = Settings.load({}, cwd="/", env={})
    first, other = (Cadence(settings, together=True, clock=clock) for _ in range(2))
    commits = []
    since = 0
    for step in range(1, 41):
        clock.now += 0.06
        first.agreed = other.agreed = first.wishes()
        clock.now += 0.04
        since += 1
        due = first.due(since)
        assert other.due(since) == due, "whatever its own clock says"
        if due:
            commits.append(step)
            clock.now += 0.001
            first.taken(0.001)  # the other measures nothing
            since = 0
    assert commits[0] == 1 and commits[-1] - commits[-2] in (9, 10), "snapshot.lose is 1 s, a step 0.1 s"
    assert not other.due(5), "an agreement is for one body"


def simulated(steps: int, step_s: float, commit_s: float, between_faults: float | None = None, **changes: Any) -> Any:
    """The steps after which a worker commits, and its cadence."""
    clock = Clock()
    settings = Settings.load({key.replace("__", "."): value for key, value in changes.items()}, cwd="/", env={})
    cadence = Cadence(settings, clock=clock)
    cadence.after_losses(between_faults, 3, 49.2)
    commits, since = [], 0
    for step in range(1, steps + 1):
        clock.now += step_s
        since += 1
        if cadence.due(since):
            clock.now += commit_s
            cadence.taken(commit_s)
            commits.append(step)
            since = 0
    return commits, cadence


def distance(commits: list[int]) -> int:
    return max(after - before for before, after in zip(commits[-4:], commits[-3:], strict=False))


def test_a_fault_costs_a_second_and_a_new_worker_commits_soon() -> None:
    commits, cadence = simulated(5000, 0.005, 0.0005)
    assert commits[0] == 1 and commits[1] <= 4
    assert 150 <= distance(commits) <= 200
    said = cadence.words()
    assert (said["rule"], said["every_s"]) == ("lose", 1.0) and "1 s" in said["why"]


def test_a_step_longer_than_that_is_committed() -> None:
    commits, cadence = simulated(10, 3.0, 0.02)
    assert commits == list(range(1, 11))
    assert cadence.words()["every_steps"] == 1 and "longer" in cadence.words()["why"]


def test_dear_commits_keep_to_their_share_of_the_time() -> None:
    commits, cadence = simulated(5000, 0.1, 0.3)
    assert 270 <= distance(commits) <= 310
    assert cadence.words()["rule"] == "cost"
    commits, _ = simulated(5000, 0.1, 0.3, snapshot__cost="10")
    assert 25 <= distance(commits) <= 31


def test_a_loss_that_was_set_comes_before_the_cost() -> None:
    commits, cadence = simulated(2000, 0.1, 0.3, snapshot__lose="2s")
    assert distance(commits) <= 20
    assert cadence.words()["rule"] == "lose"


def test_many_faults_bring_more_commits() -> None:
    commits, cadence = simulated(5000, 0.005, 0.0005, between_faults=15.0)
    assert distance(commits) <= 25  # sqrt(2 * 0.5 ms * 15 s) = 0.12 s
    assert cadence.words()["rule"] == "faults"
    assert cadence.words()["why"] == "3 workers were lost in 49 s", "what happened, not what is expected"


def test_the_receipt_tells_the_cadence_in_words() -> None:
    said = {"every_steps": 33, "every_s": 0.732, "commit_ms": 1.6612, "why": "3 workers were lost in 49 s"}
    words = cadence_words({"cadence": said})
    assert words == "every 33 steps (0.7 s), 1.66 ms per commit: 3 workers were lost in 49 s"
    assert cadence_words({"cadence": {**said, "every_s": 120.0, "every_steps": 1}}).startswith("every step, 1.66 ms")
    assert cadence_words({"steps": 20, "cadence": said}).startswith("every 0.7 s, 1.66 ms"), "33 steps never came"
    assert "every 33 steps (2m 00s)" in cadence_words({"cadence": {**said, "every_s": 120.0}})


def test_a_number_of_steps_that_was_set_is_kept() -> None:
    assert simulated(9, 0.005, 0.0005, snapshot__every="3")[0] == [3, 6, 9]
    assert simulated(3, 0.005, 0.0005, snapshot__every="1")[0] == [1, 2, 3]


def test_news_come_when_the_choice_has_changed() -> None:
    _, cadence = simulated(2000, 0.005, 0.0005)
    assert cadence.news() is not None and cadence.news() is None
    assert cadence.news(last=True)["again"] is True
    for _ in range(20):
        cadence.taken(0.5)
    assert cadence.news()["rule"] == "cost"


class Table(nn.Module):
    """Rows of which each is used in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(12)])


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_what_is_not_finite_between_two_commits_is_noticed_at_the_next(tmp_path: Path, bad: str) -> None:
    """A loss, though its gradients are finite; a gradient, though nobody uses the parameter again."""

    def train(session: Session) -> None:
        model = Table()
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

        def fn(step: int) -> torch.Tensor:
            loss = model.rows[step].square().sum()
            if step == 4:
                return loss + float("inf") if bad == "loss" else (model.rows[step] * 0.0).sqrt().sum()
            return loss

        while session.step_count < 9:
            session.step(fn, session.step_count)

    with pytest.raises(holdfast.ScriptFailed, match="not finite") as raised:
        run(tmp_path, train, snapshot__every="8")
    if bad == "loss":
        assert "step 5" in str(raised.value)


@pytest.mark.parametrize(("step_s", "commit_s"), [(0.01, 0.06), (0.1, 0.2), (0.5, 0.01), (0.02, 1.5)])
def test_a_sparing_cadence_keeps_to_the_cost_from_the_first_commit_on(step_s: float, commit_s: float) -> None:
    """From the third commit on, all but the first have taken 1 % of the time since the first."""
    clock = Clock()
    cadence = Cadence(Settings.load({}, cwd="/", env={}), sparing=True, clock=clock)
    since, spent, begun, commits = 0, 0.0, 0.0, 0
    for _ in range(int(400 / step_s)):
        clock.now += step_s
        since += 1
        if not cadence.due(since):
            continue
        commits += 1
        since = 0
        if commits > 2:
            assert spent + commit_s <= 0.0101 * (clock.now - begun), commits
        clock.now += commit_s
        cadence.taken(commit_s)
        spent += commit_s if commits > 1 else 0.0
        begun = begun or clock.now
    assert commits >= min(400.0 / (100 * commit_s), 100) / 2, "it commits as often as the cost allows"
