"""Histories in, verdicts out. A line is a moment in seconds and what is seen there:

12.5  forward             the worker enters a phase
12.9  beat                a sign of life inside it
30    ? fine, 5 allowed   asked: how long may it be silent, and is it hung?
40    dies                the next worker starts with what this one taught
"""

from __future__ import annotations

import pytest

from holdfast.base.board import Board, Phase, PhaseTimes
from holdfast.faults.classification import Kind
from holdfast.run.setting_groups import WatchdogSettings
from holdfast.run.settings import Settings
from holdfast.supervisor.waits import COMPUTES
from holdfast.supervisor.watchdog import allowed_silence, merge_known
from holdfast.supervisor.worker_watch import Watch

PHASES = {phase.label: phase for phase in Phase}
STEP = ("data", "to-device", "forward", "backward", "optimizer", "snapshot")


def settings(**changes: str) -> WatchdogSettings:
    return Settings.load({f"watchdog.{key}": value for key, value in changes.items()}, cwd="/", env={}).watchdog


def replay(history: str, watchdog: WatchdogSettings | None = None, stretch: float = 1.0) -> None:
    """Run a history over a real board with a clock of its own; compare the verdicts as text."""
    lines = [line.strip() for line in history.strip().splitlines()]
    now = 0

    def clock() -> int:
        return now

    def fresh() -> Board:
        board = Board.create()
        board._clock = clock
        board.beat()
        return board

    board, known = fresh(), {}
    answered = []
    for line in lines:
        moment, _, what = line.partition(" ")
        what = what.strip()
        now = round(float(moment) * 1e9)
        if what == "beat":
            board.beat()
        elif what == "dies":
            known = merge_known(known, board.read())
            board.close()
            board = fresh()
        elif what.startswith("?"):
            beat = board.read()
            limit = allowed_silence(beat, known, watchdog or settings(), stretch=stretch)
            what = f"? {'hung' if beat.silence > limit else 'fine'}, {limit:.4g} allowed"
        else:
            board.enter(PHASES[what])
        answered.append(f"{moment} {what}")
    board.close()
    assert answered == [" ".join(line.split()) for line in lines]


def steps(start: float, count: int, **seconds: float) -> str:
    """So many steps in a row, each phase as long as said, or 0.1 s."""
    lines = []
    for _ in range(count):
        for phase in STEP:
            lines.append(f"{start:.3f} {phase}")
            start += seconds.get(phase.replace("-", "_"), 0.1)
    return "\n".join(lines)


def test_a_script_may_prepare_for_half_an_hour_and_longer_if_it_tells_so() -> None:
    replay(
        """
        1799  ? fine, 1800 allowed
        1801  ? hung, 1800 allowed
        1802  beat
        3000  ? fine, 1800 allowed
        3600  beat
        5399  ? fine, 1800 allowed
        """
    )


def test_the_first_step_may_take_minutes() -> None:
    replay(
        """
        0     data
        0.1   to-device
        0.2   forward
        30    ? fine, 180 allowed
        30    backward
        200   ? fine, 180 allowed
        220   ? hung, 180 allowed
        """
    )


def test_after_three_times_a_phase_is_held_to_what_it_took() -> None:
    replay(
        steps(0.0, 3, forward=2.0)
        + """
        10.0  forward
        17.9  ? fine, 8 allowed
        18.1  ? hung, 8 allowed
        """
    )


def test_a_fast_phase_has_a_floor() -> None:
    replay(
        steps(0.0, 20)
        + """
        20.0  forward
        24.9  ? fine, 5 allowed
        25.1  ? hung, 5 allowed
        """
    )


def test_steps_that_vary_tenfold_raise_no_alarm() -> None:
    history, start = [], 0.0
    for number in range(40):
        seconds = 10.0 if number % 7 == 3 else 1.0
        history.append(steps(start, 1, forward=seconds))
        start += seconds + 0.5
    replay("\n".join(history) + f"\n{start:.1f} forward\n{start + 9:.1f} ? fine, 39.84 allowed")


def test_what_was_slow_long_ago_is_forgotten() -> None:
    """One step took a minute; 800 fast ones later a hang is noticed in five seconds again."""
    replay(
        steps(0.0, 3)
        + "\n"
        + steps(10.0, 1, forward=60.0)
        + "\n"
        + steps(100.0, 850)
        + """
        700.0 forward
        709.0 ? hung, 8.618 allowed
        """
    )


def test_the_first_steps_may_be_slow_without_spoiling_what_follows() -> None:
    """Warm-up takes 30 s; it counts as the slowest for a while, and no longer."""
    replay(
        steps(0.0, 1, forward=30.0)
        + "\n"
        + steps(40.0, 2)
        + """
        50.0  forward
        60.0  ? fine, 119.1 allowed
        """
    )


def test_a_first_evaluation_may_walk_a_whole_data_set() -> None:
    replay(
        steps(0.0, 5)
        + """
        10.0  evaluate
        500   ? fine, 600 allowed
        611   ? hung, 600 allowed
        """
    )


def test_a_second_evaluation_is_held_to_the_first() -> None:
    replay(
        steps(0.0, 5)
        + """
        10.0  evaluate
        30.0  loop
        40.0  evaluate
        60.0  ? fine, 80 allowed
        121   ? hung, 80 allowed
        """
    )


def test_compiling_and_saving_have_allowances_of_their_own_every_time() -> None:
    replay(
        steps(0.0, 9)
        + """
        100   compile
        160   forward
        161   compile
        1900  ? fine, 1800 allowed
        1962  ? hung, 1800 allowed
        2000  save
        3799  ? fine, 1800 allowed
        """
    )


def test_a_recompilation_that_took_longer_than_the_allowance_may_take_as_long_again() -> None:
    replay(
        """
        0     compile
        1000  forward
        1001  compile
        4000  ? fine, 4000 allowed
        5002  ? hung, 4000 allowed
        """
    )


def test_a_new_worker_inherits_what_the_old_one_taught() -> None:
    replay(
        steps(0.0, 5, forward=2.0)
        + """
        20.0  forward
        21.0  dies
        22.0  data
        22.1  to-device
        22.2  forward
        27.2  ? fine, 8 allowed
        31.0  ? hung, 8 allowed
        """
    )


def test_its_first_step_may_take_as_long_as_the_first_step_of_the_old_one() -> None:
    """The first step of every worker warms up anew: 40 s once, 1 s each later."""
    replay(
        steps(0.0, 1, forward=40.0)
        + "\n"
        + steps(50.0, 600)
        + """
        500.0 dies
        501.0 data
        501.2 forward
        560.0 ? fine, 160 allowed
        662.0 ? hung, 160 allowed
        """
    )


def test_a_worker_that_died_in_its_first_step_taught_nothing() -> None:
    replay(
        """
        0     data
        0.1   forward
        1.0   dies
        2.0   data
        2.1   forward
        182   ? fine, 180 allowed
        182.2 ? hung, 180 allowed
        """
    )


def test_what_several_workers_taught_adds_up() -> None:
    """Each dies in its second step; after three of them a step is no longer new."""
    history = "\n".join(steps(10.0 * number, 1) + f"\n{10 * number + 5} dies" for number in range(4))
    replay(
        history
        + """
        50.0  forward
        54.9  ? fine, 5 allowed
        55.1  ? hung, 5 allowed
        """
    )


def test_setup_is_not_inherited() -> None:
    replay(
        """
        0     data
        1     dies
        2     beat
        1801  ? fine, 1800 allowed
        """
    )


@pytest.mark.parametrize("stretch", [1.0, 4.0, 16.0])
def test_a_step_that_was_once_called_hung_gets_longer(stretch: float) -> None:
    replay(
        steps(0.0, 5, forward=2.0)
        + f"""
        20.0  forward
        21.0  ? fine, {8 * stretch:.4g} allowed
        """,
        stretch=stretch,
    )


def test_the_settings_say_how_patient_it_is() -> None:
    replay(
        steps(0.0, 5, forward=2.0)
        + """
        20.0  forward
        25.9  ? fine, 6 allowed
        26.1  ? hung, 6 allowed
        30.0  backward
        30.5  ? fine, 1 allowed
        40.0  evaluate
        60.0  ? hung, 7 allowed
        """,
        settings(factor="3", floor="1s", evaluate="7s"),
    )


def test_merging_keeps_the_slowest_first_time_and_forgets_nothing_by_a_short_life() -> None:
    board = Board.create()
    known = {Phase.FORWARD: PhaseTimes(count=500, slowest_s=2.0, first_s=9.0)}
    assert merge_known(known, board.read())[Phase.FORWARD] == known[Phase.FORWARD]
    board.close()


def test_a_step_that_was_called_hung_is_allowed_four_times_as_long() -> None:
    """For a script that attached itself, too: its limits by phase come from the same memory as its hangs."""
    told: list[dict[str, object]] = []
    watch = Watch(Settings().watchdog, lambda kind, **data: told.append({"kind": kind, **data}))
    board = Board.create()
    board.enter(Phase.FORWARD)
    beat = board.read()
    before = watch.limit(beat)
    fault = watch.fault_of(beat, 12.0, before, "cuda:0", "no step and no output", {"busy": False})
    assert (fault.kind, fault.step, fault.evidence["silence_s"], fault.evidence["busy"]) == (
        Kind.HANG,
        None,
        12.0,
        False,
    )
    assert watch.limit(beat) == 4 * before == watch.stretch(beat) * before
    watch.warn("it is silent", COMPUTES, 12.0, float("inf"))
    assert watch.warned(COMPUTES)
    assert told == [{"kind": "silent", "text": "it is silent", "seconds": 12.0, "limit_s": None, "waits": False}]
    watch.heard()
    assert not watch.warned(COMPUTES), "the next silence is told anew"
    board.close()
