"""From measurements to rows to a choice: pure functions, so their histories are written down here as data."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest

from holdfast.base.dataclass_json import read, write
from holdfast.planning.decide import Wanted, decide
from holdfast.planning.estimate import in_a_row, whole_run
from holdfast.planning.history import SIGMA, Correction, Past, correction
from holdfast.planning.job_survey import both
from holdfast.planning.measurement import MEASURED, PARTLY, Measurement, grown, heard
from holdfast.planning.option import Option
from holdfast.planning.options import options
from holdfast.planning.presets import Preset
from holdfast.planning.prices import Price
from holdfast.planning.world import Device, JobFacts, World

CPU = Measurement("job", "cpu", threads=2, status=MEASURED, start_s=4.0, setup_s=1.0, step_s=0.1, spread=0.2,
                  steps_seen=40, epochs=10, batches=100, between_s=2.0, closing_s=3.0, save_s=0.05)  # fmt: skip
CARD = dataclasses.replace(CPU, device="cuda:0", threads=0, step_s=0.01, between_s=0.2, power_w=200.0)


def world(**changes: Any) -> World:
    devices = (Device("cuda:0", "RX 7900 XTX", "trusted"), Device("cpu", verdict="trusted"))
    known: dict[str, Any] = {"jobs": (JobFacts("job", ("epochs", "side")),), "devices": devices, "cores": 4, **changes}
    return World(**known)


def row(where: str, time_s: float, cost: float | None = None, **more: Any) -> Option:
    return Option(more.pop("kind", "local"), where, time_s=time_s, low_s=time_s * 0.8, high_s=time_s * 1.2,
                  cost_usd=cost, **{"risk": "low", "device": where, **more})  # fmt: skip


# Estimating ---------------------------------------------------------------------------------------------------------


def test_a_run_is_the_sum_of_its_parts() -> None:
    found = whole_run(CPU, cores=4)
    assert found is not None
    assert found.parts["steps"] == pytest.approx(100.0)
    assert found.parts["evaluation"] == pytest.approx(20.0)
    assert found.time_s == pytest.approx(4 + 1 + 100 + 20 + 3 + found.parts["saves"])
    assert found.low_s < found.time_s < found.high_s
    assert found.high_s / found.time_s == pytest.approx(1.22, abs=0.02)  # nothing finished here yet: about 20 %


def test_a_larger_set_takes_as_many_times_the_steps_and_the_evaluation() -> None:
    """Runs that finished here were of the small set: none of them answers for the large one."""
    tried = dataclasses.replace(CPU, setup_s=3.0, prepared_s=2.0)
    past = (Past("job", "cpu", 150.0, 150.0, 150.0),)
    (small, *_), (large, *_) = (
        [each for each in options(world(larger=larger, past=past), [tried]) if each.device == "cpu"]
        for larger in (1, 1000)
    )
    assert small.spends["steps"] == pytest.approx(100.0) and large.spends["steps"] == pytest.approx(100_000.0)
    assert large.spends["evaluation"] == pytest.approx(20_000.0) and large.spends["closing"] == pytest.approx(3000.0)
    assert (small.spends["set-up"], large.spends["set-up"]) == pytest.approx((1.0, 2001.0))
    assert large.spends["start"] == small.spends["start"]
    assert any("1,000 times as large" in line for line in large.origin)
    assert not any("times as large" in line for line in small.origin)
    by_epoch = grown(dataclasses.replace(CPU, batches=None), 10)
    assert by_epoch.step_s == pytest.approx(1.0) and by_epoch.steps == 10


def test_faults_of_the_ledger_are_counted_in() -> None:
    calm, ill = whole_run(CPU), whole_run(CPU, rate=90.0, fault_s=20.0)
    assert calm is not None and ill is not None
    assert ill.faults == pytest.approx(90 * calm.time_s / 3600)
    assert ill.time_s == pytest.approx(calm.time_s + ill.faults * 20.0)
    assert ill.high_s > calm.high_s + ill.faults * 20.0


def test_what_was_not_seen_is_said_and_makes_the_interval_wider() -> None:
    whole = whole_run(CPU)
    part = whole_run(dataclasses.replace(CPU, status=PARTLY, closing_s=None))
    none = whole_run(dataclasses.replace(CPU, status=PARTLY, closing_s=None, between_s=None))
    assert whole is not None and part is not None and none is not None
    assert any("end of the script" in note for note in part.notes)
    assert any("evaluation" in note for note in none.notes)
    assert none.high_s - none.time_s > part.high_s - part.time_s > whole.high_s - whole.time_s


def test_a_loop_that_does_not_say_its_length_has_no_time_until_it_is_told() -> None:
    endless = dataclasses.replace(CPU, epochs=None, batches=None, between_s=None, closing_s=None)
    assert whole_run(endless) is None
    told = whole_run(endless, steps=1000)
    assert told is not None and told.parts["steps"] == pytest.approx(100.0)


def test_stages_add_up_and_are_off_together() -> None:
    one = whole_run(CPU)
    assert one is not None
    two = in_a_row([one, one])
    assert (two.time_s, two.low_s, two.high_s) == pytest.approx((2 * one.time_s, 2 * one.low_s, 2 * one.high_s))


def test_runs_that_finished_here_correct_the_next_estimate() -> None:
    assert correction([], "job", "cpu") == Correction()
    past = [Past("job", "cpu", took_s=120.0, raw_s=100.0) for _ in range(6)]
    found = correction(past, "job", "cpu")
    assert 1.15 < found.factor < 1.20 and found.runs == 6
    assert found.sigma < SIGMA  # they agree with each other: the interval gets narrower
    assert correction(past, "job", "cuda:0") == Correction()
    wild = [Past("job", "cpu", took_s=100.0 * factor, raw_s=100.0) for factor in (0.5, 2.0, 0.6, 1.8)]
    assert correction(wild, "job", "cpu").sigma > 2 * SIGMA


def test_one_run_does_not_move_the_estimate_all_the_way() -> None:
    assert 1.0 < correction([Past("job", "cpu", took_s=300.0, raw_s=100.0)], "job", "cpu").factor < 2.5


def test_what_faults_took_is_not_held_against_the_measurement() -> None:
    past = [Past("job", "cpu", took_s=160.0, raw_s=100.0, lost_s=60.0, faults=2)]
    assert correction(past, "job", "cpu").factor == pytest.approx(1.0)


@pytest.mark.parametrize("off", [0.05, 0.1, 0.25])
def test_nine_of_ten_runs_end_inside_the_interval_once_some_have_finished(off: float) -> None:
    """Runs that are off by a constant of this machine and by chance: the interval learns both."""
    draw = random.Random(5)
    inside, past = 0, []
    for _ in range(400):
        found = whole_run(CPU, correction(past, "job", "cpu"))
        assert found is not None
        took = found.raw_s * 1.15 * draw.lognormvariate(0.0, off)
        inside += len(past) >= 6 and found.low_s <= took <= found.high_s
        past = [*past, Past("job", "cpu", took_s=took, raw_s=found.raw_s)][-10:]
    assert 0.88 <= inside / 394 <= 0.99


# Hearing a trial ----------------------------------------------------------------------------------------------------


def test_words_become_a_measurement() -> None:
    words: list[dict[str, Any]] = [
        {"imported": 0.5}, {"epochs": 3}, {"setup": 2.0}, {"batches": 8}, {"warm": [1, 9.0]}, {"warm": [1, 5.0]},
        *({"steps": [2, 0.4]} for _ in range(5)), {"between": 1.5}, {"closing": 0.7}, {"save": 0.1},
        {"tuning": {"choice": {"threads": 1, "precision": "fp32"}, "basis": "measured", "took_s": 1.5}}, {"end": True},
    ]  # fmt: skip
    found = heard(words, 3.0, job="job", device="cpu")
    assert found.status == MEASURED and found.steps == 24
    assert found.step_s == pytest.approx(0.2) and found.steps_seen == 10  # the warm ones do not count
    assert found.start_s == pytest.approx(3.5)
    assert found.setup_s == pytest.approx(0.5)  # the machine remembers what was tuned
    assert found.tuned == "1 thread" and found.tuner


def test_a_tuner_that_was_cut_short_takes_its_time_in_the_run() -> None:
    tuning = {"choice": {}, "basis": "measured in part: a run takes 60 s", "took_s": 5.0}
    words: list[dict[str, Any]] = [
        {"epochs": 3},
        {"setup": 7.0},
        {"batches": 8},
        {"steps": [1, 0.4]},
        {"tuning": tuning},
    ]
    assert heard(words, 3.0, job="job", device="cpu").setup_s == pytest.approx(62.0)


def test_a_trial_that_was_cut_after_some_steps_counts_partly() -> None:
    words: list[dict[str, Any]] = [{"epochs": 3}, {"setup": 2.0}, {"batches": 8}, {"steps": [1, 0.4]}]
    found = heard(words, 3.0, job="job", device="cpu")
    assert (found.status, found.step_s, found.closing_s) == (PARTLY, 0.4, None)


def test_two_trials_of_one_job_are_put_together() -> None:
    first = dataclasses.replace(CPU, setup_s=60.0, prepared_s=58.0, closing_s=None, status=PARTLY, steps_seen=50)
    again = dataclasses.replace(CPU, setup_s=2.0, step_s=0.5, steps_seen=3, between_s=None)
    found = both(first, again)
    assert (found.setup_s, found.step_s, found.between_s, found.closing_s) == (2.0, 0.1, 2.0, 3.0)
    assert (found.status, found.prepared_s) == (MEASURED, 0.0)


def test_a_loop_of_transactions_is_measured_by_its_epochs() -> None:
    words: list[dict[str, Any]] = [{"epochs": 30}, {"setup": 1.0}, {"warm_epoch": 9.0}, {"epoch": 4.0}, {"epoch": 4.2},
                                   {"closing": 2.0}, {"end": True}]  # fmt: skip
    found = heard(words, 3.0, job="job", device="cpu")
    assert (found.batches, found.steps) == (None, 30)
    assert found.step_s == pytest.approx(4.1)


# Rows ---------------------------------------------------------------------------------------------------------------


def test_every_device_policy_and_smaller_form_is_a_row() -> None:
    presets = (Preset("half the epochs", epochs_argument="epochs", share=0.5), Preset("small", (("side", "32"),)))
    small = dataclasses.replace(CARD, preset="small", step_s=0.005)
    rows = options(world(presets=presets), [CARD, CPU, small])
    assert [(row.where, row.preset) for row in rows if row.kind == "local"] == [
        ("cuda:0", "as asked"),
        ("cpu, 2 threads", "as asked"),
        ("cuda:0", "half the epochs"),
        ("cpu, 2 threads", "half the epochs"),
        ("cuda:0", "small"),
    ]
    half = next(row for row in rows if (row.device, row.preset) == ("cpu", "half the epochs"))
    assert half.parts[0].arguments == {"epochs": "5"}
    assert half.spends["steps"] == pytest.approx(50.0)


def test_energy_is_that_of_the_trial_and_costs_what_electricity_costs() -> None:
    rows = options(world(electricity=0.5), [CARD, CPU])
    card, cpu = rows[0], rows[1]
    assert card.time_s is not None and card.energy_wh == pytest.approx(200.0 * card.time_s / 3600)
    assert card.cost_usd == pytest.approx(card.energy_wh / 2000)
    assert cpu.energy_wh is None and cpu.cost_usd is None  # unknown, not zero


def test_devices_that_may_not_train_say_by_what() -> None:
    devices = (
        Device("cuda:0", verdict="refused", why="conv2d crashes", codes=("D002",)),
        Device("cuda:1"),
        Device("cuda:2", verdict="trusted", trust="quarantined"),
    )
    told = [row.refused_by for row in options(world(devices=devices), []) if row.kind == "local"]
    assert told[0] == "refused by the doctor: D002: conv2d crashes"
    assert "holdfast doctor" in told[1] and "quarantine" in told[2]


def test_rented_cards_are_estimated_from_what_was_measured_and_say_how() -> None:
    prices = (Price("H200", "RunPod", 4.59, None, "a list", "2026-08-22"), Price("T4", "AWS", 0.53, 0.1, "a list", ""),
              Price("T4", "GCP", 0.59, None, "a list", ""), Price("XYZ 9000", "AWS", 1.0))  # fmt: skip
    rows = [row for row in options(world(prices=prices), [CARD, CPU]) if row.kind == "cloud"]
    assert [row.where for row in rows] == ["AWS T4 spot", "AWS T4", "RunPod H200"]  # unknown cards have no time
    h200 = rows[-1]
    assert h200.basis == "estimated" and h200.time_s is not None and h200.low_s is not None and h200.high_s is not None
    there = 1000 * 0.003 + 5.0 * 1.3 / 5.6 + 4.0 + 1.0 + 0.1  # 2.3 ms a step, but its kernels take 3 to start
    assert h200.time_s == pytest.approx(there + 300.0, rel=0.01)
    assert h200.low_s < h200.time_s < h200.high_s
    assert any("2026-08-22" in line for line in h200.origin)


def test_only_a_cpu_to_compare_with_makes_the_interval_wider() -> None:
    prices = (Price("H200", "RunPod", 4.59, None, "a list", "2026-08-22"),)
    wide = []
    for device, found in ((Device("cpu"), CPU), (Device("cuda:0", "NVIDIA H100 PCIe", "trusted"), CARD)):
        slow = dataclasses.replace(found, step_s=100.0)
        (row,) = (each for each in options(world(prices=prices, devices=(device,)), [slow]) if each.kind == "cloud")
        assert row.low_s is not None and row.high_s is not None
        wide.append((row.high_s - 605) / (row.low_s - 155))
    assert wide[0] > 1.3 * wide[1] > 1.3 * 3.0


def test_only_what_the_device_does_is_faster_on_a_faster_one() -> None:
    prices = (Price("H200", "RunPod", 4.59),)
    mine = dataclasses.replace(CPU, compute=0.6)
    alone = world(prices=prices, devices=(Device("cpu"),))
    (rented,) = (row for row in options(alone, [mine]) if row.kind == "cloud")
    assert rented.time_s is not None and rented.time_s > 300.0 + 0.4 * 100.0  # the data are read no faster there
    assert any("60 % of a step is the device's" in line for line in rented.origin)


def test_an_update_that_may_be_bound_by_the_cpu_is_not_promised_to_be_faster() -> None:
    prices = (Price("H200", "RunPod", 4.59),)
    mine = dataclasses.replace(CPU, batches=None, epochs=30, step_s=8.0, between_s=0.0)
    (rented,) = (row for row in options(world(prices=prices, devices=(Device("cpu"),)), [mine]) if row.kind == "cloud")
    assert rented.high_s is not None and rented.high_s >= 600.0 + 240.0
    assert rented.low_s is not None and rented.low_s < 200.0


def test_a_machine_without_a_card_is_advised_one_and_windows_its_other_half() -> None:
    alone = options(world(devices=(Device("cpu"),)), [CPU])
    assert [row.where for row in alone if row.kind == "advice"] == ["a new card (RTX 4060 Ti)"]
    windows = options(world(devices=(Device("cpu"),), system="windows", cards=("RX 5700",)), [CPU])
    assert any("WSL2" in row.where for row in windows)
    assert not [row for row in options(world(), [CARD, CPU]) if row.kind == "advice"]


def test_without_a_trial_what_finished_here_is_remembered() -> None:
    past = tuple(Past("job", "cpu", took_s=took) for took in (100.0, 120.0, 110.0))
    (found,) = [row for row in options(world(devices=(Device("cpu"),), past=past), []) if row.kind == "local"]
    assert (found.basis, found.time_s) == ("remembered", 110.0)


# Deciding -----------------------------------------------------------------------------------------------------------

GPU, SLOW = row("cuda:0", 100.0, 0.4, risk="medium"), row("cpu", 900.0, 0.2)
SMALL = row("cpu small", 300.0, 0.1, rank=1, score=0.8, preset="small")
RENTED = row("AWS T4", 400.0, 1.0, kind="cloud")
ROWS = [GPU, SLOW, SMALL, RENTED]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (Wanted(), "cuda:0"),  # done first
        (Wanted(deadline_s=1000), "cpu"),  # in time, and cheapest
        (Wanted(deadline_s=200), "cuda:0"),
        (Wanted(risk="low"), "cpu"),
        (Wanted(risk="low", deadline_s=950), "cpu small"),  # the late end of the CPU is late; a smaller job is not
        (Wanted(risk="low", deadline_s=500, budget_usd=2), "AWS T4"),  # as asked comes before smaller
        (Wanted(budget_usd=0.3), "cpu"),
        (Wanted(min_score=0.7), "cpu small"),  # the only score that is known
        (Wanted(min_score=0.9), None),
        (Wanted(deadline_s=10), None),
    ],
)
def test_the_best_row_that_keeps_to_what_is_wanted(wanted: Wanted, chosen: str | None) -> None:
    found = decide(ROWS, wanted)
    assert (None if found.chosen is None else ROWS[found.chosen].where) == chosen
    assert found == decide(ROWS, wanted)
    assert found.why


def test_each_row_says_why_it_will_not_do() -> None:
    judged = decide(ROWS, Wanted(deadline_s=350, budget_usd=0.3, risk="low")).judged
    late = [f"may be late: up to {minutes}m 00s" for minutes in (18, 6, 8)]
    assert [each.refused_by for each in judged] == ["costs $0.40 of $0.30", *late]
    assert decide(ROWS, Wanted()).judged[3].refused_by == "costs money: give --budget"


def test_a_dominated_row_says_by_what() -> None:
    judged = decide([SLOW, row("cpu, 1 thread", 1200.0, 0.2), row("same", 905.0, 0.2), SMALL], Wanted()).judged
    assert [(each.dominated_by, each.dominated_how) for each in judged] == [
        (None, ""),
        (0, "faster"),
        (None, ""),  # half a percent is within what a measurement can tell
        (None, ""),  # smaller, but faster
    ]


def test_the_row_after_the_device_fails_for_good_is_the_cpu() -> None:
    assert decide(ROWS, Wanted()).after == 1
    assert decide([SLOW], Wanted()).after is None


def test_a_choice_is_as_good_as_any_other_row_that_will_do() -> None:
    """Whatever the rows: what is chosen is not refused, and no less of the job is done than could be."""
    draw = random.Random(7)
    for _ in range(300):
        rows = [
            row(f"r{number}", draw.uniform(1, 100), draw.choice([None, draw.uniform(0, 5)]),
                kind=draw.choice(["local", "cloud"]), risk=draw.choice(["low", "medium", "high"]),
                rank=draw.randrange(3), score=draw.choice([None, draw.random()]))
            for number in range(draw.randrange(1, 7))
        ]  # fmt: skip
        wanted = Wanted(draw.choice([None, 50.0]), draw.choice([None, 2.0]), None, draw.choice([None, "medium"]))
        found = decide(rows, wanted)
        good = [number for number, each in enumerate(found.judged) if not each.refused_by]
        assert (found.chosen in good) if good else found.chosen is None
        if found.chosen is not None:
            mine = rows[found.chosen]
            assert mine.rank == min(rows[number].rank for number in good)


def test_a_saved_world_gives_the_same_rows() -> None:
    known = world(prices=(Price("T4", "AWS", 0.53, 0.1, "a list", "2026-08-22"),), past=(Past("job", "cpu", 100.0),),
                  presets=(Preset("small", (("side", "32"),)),))  # fmt: skip
    again = read(World, json.loads(json.dumps(write(known))))
    assert again == known
    measured = read(Measurement, json.loads(json.dumps(write(CPU))))
    assert measured == CPU and again is not None
    assert options(again, [CPU]) == options(known, [CPU])


@pytest.mark.parametrize("data", [None, [], {}, {"job": 3, "device": "cpu"}, {"jobs": "x", "devices": 3}])
def test_what_is_no_record_is_none(data: object) -> None:
    assert read(World, data) is None and read(Measurement, data) is None


def test_a_field_of_the_wrong_type_counts_as_not_given() -> None:
    found = read(Measurement, {"job": "j", "device": "cpu", "step_s": "fast", "pieces": 2.5, "tuner": 1})
    assert found == Measurement("j", "cpu")


# What came to no step -----------------------------------------------------------------------------------------------

STUCK = Measurement("job", "cpu", threads=2, why="its first step did not end in 12 s", slow=True, unended_s=12.0,
                    epochs=10, batches=100, took_s=18.0)  # fmt: skip
HALF = Preset("side 32", (("side", "32"),), instead_of=(("side", "64"),))
HERE = (Device("cpu", verdict="trusted"),)


def stuck(*more: Measurement, trial: Measurement = STUCK, **changes: Any) -> Option:
    rows = options(world(devices=HERE, **changes), [trial, *more])
    (found,) = (each for each in rows if each.kind == "local" and each.preset == "as asked")
    return found


def test_a_job_that_was_too_slow_is_reckoned_from_a_smaller_form() -> None:
    small = dataclasses.replace(CPU, preset="side 32")
    found = stuck(small, presets=(HALF,))
    measured = whole_run(small, cores=4)
    assert measured is not None and found.time_s is not None and found.low_s is not None and found.high_s is not None
    more = measured.parts["steps"] + measured.parts["evaluation"]
    assert found.time_s == pytest.approx(measured.time_s + 3 * more)  # four times the pixels
    assert found.low_s <= measured.time_s < found.time_s < found.high_s
    assert found.basis == "estimated" and not found.refused_by
    assert (
        "4 times the work" in found.origin[1] and found.origin[0] == "not measured: its first step did not end in 12 s"
    )


def test_the_side_that_was_given_counts_and_not_the_default() -> None:
    small = dataclasses.replace(CPU, preset="side 32")
    given = (JobFacts("job", ("epochs", "side"), (("side", "128"),)),)
    assert "16 times the work" in stuck(small, presets=(HALF,), jobs=given).origin[1]
    words = Preset("small", (("size", "nano"),), instead_of=(("size", "tiny"),))
    named = stuck(dataclasses.replace(CPU, preset="small"), presets=(words,), jobs=(JobFacts("job", ("size",)),))
    assert named.high_s is None and "at least as long as the form `small`" in named.origin[1]


def test_the_same_job_that_finished_here_goes_before_anything_else() -> None:
    same = [Past("job", "cpu", took_s=each, arguments=(("lr", "1"),), steps=1000) for each in (90.0, 100.0, 130.0)]
    job = (JobFacts("job", ("epochs", "side"), (("lr", "1"),)),)
    found = stuck(dataclasses.replace(CPU, preset="side 32"), presets=(HALF,), past=tuple(same), jobs=job)
    assert (found.basis, found.time_s) == ("remembered", 100.0)
    assert "3 runs of the same that finished here" in found.origin[1]


def test_a_run_with_other_arguments_says_what_a_step_took() -> None:
    other = (Past("job", "cpu", took_s=60.0, lost_s=10.0, arguments=(("side", "8"),), steps=500),)
    found = stuck(past=other)
    assert (found.basis, found.time_s) == ("remembered", pytest.approx(100.0))  # 1,000 steps of 0.1 s
    assert found.low_s == pytest.approx(100 / 3) and found.high_s == pytest.approx(300.0)


def test_with_nothing_else_the_first_step_that_did_not_end_is_multiplied() -> None:
    found = stuck()
    assert (found.basis, found.time_s, found.low_s, found.high_s) == ("estimated", 12_000.0, 18.0, None)
    assert "1,000 steps of that length" in found.origin[1]
    decided = decide([found], Wanted(deadline_s=3600.0))
    assert decided.judged[0].refused_by == "late"
    assert decide([found], Wanted()).chosen == 0


def test_where_no_step_began_at_least_a_lower_end_is_known() -> None:
    found = stuck(
        trial=dataclasses.replace(STUCK, unended_s=0.0, epochs=None, batches=None, why="no step began in 18 s")
    )
    assert (found.time_s, found.low_s, found.refused_by) == (None, 18.0, "no step began in 18 s")


def test_a_script_that_raises_is_not_reckoned() -> None:
    broken = dataclasses.replace(STUCK, slow=False, raised=True, why="it raised ValueError: no")
    assert stuck(dataclasses.replace(CPU, preset="side 32"), trial=broken, presets=(HALF,)).time_s is None


def test_a_script_that_does_not_say_its_length_is_told_what_a_thousand_steps_take_or_goes_by_its_last_run() -> None:
    endless = dataclasses.replace(CPU, epochs=None, batches=None, between_s=None, closing_s=None)
    told = stuck(trial=endless)
    assert "give --steps; 1,000 of them take 1m 40s" in told.refused_by
    known = stuck(trial=endless, past=(Past("job", "cpu", took_s=60.0, steps=2000),))
    assert known.spends["steps"] == pytest.approx(200.0)
