"""The metrics, against numbers worked out by hand and formulas written another way."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from holdfast.run import workload_registry
from holdfast.workloads.eeg import baselines, challenge2, classify_data, closing, scores


def test_nrmse_is_rmse_over_the_population_spread() -> None:
    truth, guess = [1.0, 2.0, 3.0, 6.0], [1.0, 2.0, 3.0, 2.0]
    assert scores.nrmse(truth, guess) == pytest.approx(2.0 / math.sqrt(3.5))  # rmse 2, variance 14 / 4
    assert scores.nrmse(truth, truth) == 0.0


def test_the_mean_gets_exactly_one() -> None:
    truth = np.random.default_rng(0).normal(1.6, 0.4, 1000)
    assert scores.nrmse(truth, np.full(1000, truth.mean())) == pytest.approx(1.0, abs=1e-12)


def test_overall_reproduces_rows_of_the_final_leaderboard() -> None:
    """Challenge 1, Challenge 2 and overall as they were published."""
    for one, two, overall in (
        (0.91394, 0.98519, 0.96381),
        (0.92991, 0.97843, 0.96388),
        (0.88668, 0.99816, 0.96472),
        (0.91946, 0.99169, 0.97002),
        (0.90932, 1.0, 0.97280),
        (0.91060, 1.0, 0.97318),
    ):
        assert scores.overall(one, two) == pytest.approx(overall, abs=1.1e-5)


def test_pearson() -> None:
    random = np.random.default_rng(1)
    y, p = random.normal(size=50), random.normal(size=50)
    assert scores.pearson(y, p) == pytest.approx(np.corrcoef(y, p)[0, 1], abs=1e-12)
    assert scores.pearson(y, 3 * y + 1) == pytest.approx(1.0)
    assert scores.pearson(y, -y) == pytest.approx(-1.0)


@pytest.mark.parametrize("guess", [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
def test_a_constant_has_no_correlation(guess: list[float]) -> None:
    assert math.isnan(scores.pearson([1.0, 2.0, 3.0], guess))


def test_auroc_counts_pairs_and_halves_ties() -> None:
    random = np.random.default_rng(2)
    label = random.random(60) < 0.4
    guess = random.integers(0, 8, 60).astype(float)  # many ties
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in guess[label] for b in guess[~label]]
    assert scores.auroc(label, guess) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    assert scores.auroc([True, True, False], [3, 2, 1]) == 1.0
    assert math.isnan(scores.auroc([True, True], [1, 2]))


def test_slow_is_above_the_median() -> None:
    assert scores.slow([1, 2, 3, 4]).tolist() == [False, False, True, True]


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="3 true values, 2 guesses"):
        scores.nrmse([1, 2, 3], [1, 2])


def test_a_draw_holds_whole_subjects() -> None:
    subjects = np.array(["a", "a", "a", "b", "c", "c"])
    for rows in scores.draws(subjects, 50, seed=3):
        drawn = subjects[rows]
        assert (drawn == "a").sum() % 3 == 0 and (drawn == "c").sum() % 2 == 0
        assert (drawn == "a").sum() / 3 + (drawn == "b").sum() + (drawn == "c").sum() / 2 == 3


def test_the_interval_of_a_mean_is_the_known_one() -> None:
    """One row a subject: the spread of the mean is sd / sqrt(n)."""
    random = np.random.default_rng(4)
    y = random.normal(size=400)
    low, high = scores.interval(lambda a, b: float(a.mean()), y, y, np.arange(400), times=2000)
    assert (high - low) / 2 == pytest.approx(1.96 * y.std() / 20, rel=0.08)
    assert low < y.mean() < high


def test_more_windows_of_the_same_subjects_make_it_no_surer() -> None:
    random = np.random.default_rng(5)
    person = random.normal(size=20)
    once = scores.interval(lambda a, b: float(a.mean()), person, person, np.arange(20))
    many = np.repeat(person, 30)
    again = scores.interval(lambda a, b: float(a.mean()), many, many, np.repeat(np.arange(20), 30))
    assert again == pytest.approx(once)


def test_luck_is_inside_the_noise_and_knowledge_is_not() -> None:
    random = np.random.default_rng(6)
    subjects = np.repeat(np.arange(40), 5)
    y = random.normal(size=200)
    assert scores.inside_noise(y, 0.02 * random.normal(size=200), 0.0, subjects)
    assert not scores.inside_noise(y, 0.5 * y, 0.0, subjects)


def test_calibrating_shrinks_and_never_turns_round() -> None:
    random = np.random.default_rng(7)
    y = random.normal(2.0, 1.0, 500)
    loud = 3.0 * (y + random.normal(size=500)) + 5
    gain, bias = scores.calibrate(y, loud, centre=float(y.mean()))
    assert 0.1 < gain < 0.25
    assert scores.nrmse(y, gain * loud + bias) == pytest.approx(math.sqrt(1 - scores.pearson(y, loud) ** 2), rel=1e-6)
    assert scores.calibrate(y, -y, centre=2.0) == (0.0, 2.0)
    assert scores.calibrate(y, 0.1 * y, centre=2.0)[0] == 1.0
    assert scores.calibrate(y, np.ones(500), centre=2.0) == (0.0, 2.0)


def test_shrunk_nrmse_is_never_above_one() -> None:
    random = np.random.default_rng(8)
    y, p = random.normal(size=80), random.normal(size=80) * 100
    assert scores.shrunk_nrmse(y, p) <= 1.0 + 1e-12


def test_unknown_is_null() -> None:
    assert scores.rounded(float("nan")) is None
    assert scores.rounded(0.123456) == 0.1235


# Baselines ------------------------------------------------------------------------------------------------------


def test_constant_is_the_mean_of_what_is_known() -> None:
    assert baselines.constant([1.0, float("nan"), 3.0]) == 2.0


def test_age_and_sex_finds_a_line_and_bears_gaps() -> None:
    random = np.random.default_rng(9)
    people = np.stack([random.uniform(5, 18, 300), random.integers(0, 2, 300)], axis=1).astype(float)
    y = 2.0 - 0.1 * people[:, 0] + 0.3 * people[:, 1]
    people[7, 0] = np.nan
    asked = np.array([[10.0, 1.0], [np.nan, 0.0]])
    found = baselines.age_and_sex(people, y, asked, ridge=1e-6)
    assert found[0] == pytest.approx(1.3, abs=0.02)
    assert found[1] == pytest.approx(2.0 - 0.1 * np.nanmean(people[:, 0]), abs=0.05)
    assert np.isfinite(baselines.age_and_sex(np.full((5, 2), np.nan), np.arange(5.0), asked)).all()


def test_the_oracle_knows_each_subject() -> None:
    assert baselines.subject_mean([1, 3, 10], ["a", "a", "b"]).tolist() == [2.0, 2.0, 10.0]


def test_one_subject_has_no_interval_and_shows_nothing() -> None:
    truth = np.linspace(0.5, 2.5, 40)
    found = scores.measured(truth, truth + 0.01, np.full(40, "S1"), 1.5, auroc_too=True)
    assert found["nrmse"] < 0.1 and found["nrmse_low"] is found["r_high"] is found["auroc_low"] is None
    assert found["inside_noise"] is True


@pytest.mark.parametrize(("people", "known"), [(2, False), (4, False), (5, True)])
def test_fewer_than_five_subjects_have_no_interval_and_it_is_said(people: int, known: bool) -> None:
    """Of two subjects, half of all draws are one of them twice: what looks like an interval is one or the other."""
    truth = np.tile(np.linspace(0.5, 2.5, 20), people)
    subjects = np.repeat([f"S{each}" for each in range(people)], 20)
    guess = truth + np.random.default_rng(0).normal(0, 0.2, len(truth))
    found = {"challenge": 1, "subjects": people, "windows": len(truth), **scores.measured(truth, guess, subjects, 1.5)}
    assert (found["nrmse_low"] is not None) is known and found["inside_noise"] is not known
    told = "\n".join(closing.of_run(found))
    assert ("[" in told) is known and (
        f"no interval: {people} subjects say too little about others" in told
    ) is not known
    spread = challenge2.mean_r_interval(np.stack([truth] * 2, 1), np.stack([guess] * 2, 1), subjects)
    assert bool(np.isfinite(spread).all()) is known


@pytest.mark.parametrize("label", [0.1, -1.7234, 1e-9, 0.0])
def test_equal_labels_have_no_score_and_it_is_said(label: float) -> None:
    """The mean of equal numbers is rounded, so their standard deviation is some 1e-17: nothing may be divided by it."""
    truth, guess = np.full(19, label), np.random.default_rng(0).normal(size=19)
    assert math.isnan(scores.nrmse(truth, guess)) and math.isnan(scores.pearson(truth, guess))
    assert math.isnan(scores.pearson(guess, truth))
    found = scores.measured(truth, guess, np.full(19, "S1"), 0.2, auroc_too=True)
    assert found["nrmse"] is found["r"] is found["auroc"] is None
    assert found["no_nrmse"] == "1 test subject with one and the same label"
    row = {"factor": "externalizing", **found, "baselines": scores.baseline_rows(truth, truth, constant=0.2)}
    assert closing.of_scores(row) == ["  externalizing: no nrmse: 1 test subject with one and the same label"]
    amount = classify_data.amounts(truth, guess, np.full(19, "S1"))
    assert classify_data.amount_lines(amount) == ["  no nrmse: 1 test subject with one and the same label"]
    assert "no_nrmse" not in scores.measured(np.arange(19.0), guess, np.full(19, "S1"), 0.2)


def test_what_no_challenge_scored_has_no_overall_score_and_it_is_said(tmp_path: Path) -> None:
    for number, more in ((1, {"nrmse": 0.9}), (2, {"nrmse": None, "no_nrmse": "1 test subject with one label"})):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "scores.json").write_text(json.dumps({"challenge": number, **more}))
    told = closing.lines([tmp_path / "1", tmp_path / "2"])
    assert told == ["no overall score: Challenge 2 has no nrmse (1 test subject with one label)"]


def test_the_scores_that_a_plan_shows_are_those_that_were_measured() -> None:
    """`holdfast plan` shows the score of workload.toml with its basis; benchmarks/results has the run of seed 0."""
    results = Path(__file__).parents[3] / "benchmarks" / "results"
    runs = json.loads((results / "eeg-pretraining-simulated-cpu.json").read_text())["measured"]["runs"]
    measured = next(row for row in runs if row["seed"] == 0 and not row["pretrained"])
    demo = json.loads((results / "eeg-demo-cpu.json").read_text())["measured"]
    for number, key in ((1, "r"), (2, "mean_r")):
        workload = workload_registry.find(f"eeg-challenge{number}")
        assert workload is not None and workload.score is not None
        value, _, basis = workload.score
        assert value == pytest.approx(measured[f"challenge{number}"][key], abs=0.0051)
        assert basis.startswith(
            f"{demo[f'challenge{number}']['subjects']} held-out subjects of the simulated set, seed 0"
        )
