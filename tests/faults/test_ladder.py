"""Histories in, moves out. Left of the arrow what happened, right of it what the ladder must answer.

12 crash (dead)      step 12; "-" is before the first step; in brackets evidence or a dead process
ok 5                 five steps were committed
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base import dataclass_json
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import FAMILIES, Limits, Move, Past, Rung, next_move, table
from holdfast.faults.terms import Action, Health

GPU = (Rung("cuda:0"), Rung("cpu"))
CPU = (Rung("cpu"),)
REMEDY = (Rung("cuda:0"), Rung("cuda:0", env=(("HSA_ENABLE_INTERRUPT", "0"),)), Rung("cpu"))


def replay(history: str, rungs: tuple[Rung, ...] = GPU, **options: object) -> None:
    """Answer each fault of a history and compare the whole, as text."""
    lines = [line.strip() for line in history.strip().splitlines()]
    answered: list[str] = []
    past: list[Past] = []
    rung = 0
    for line in lines:
        if line.startswith("ok"):
            last = past[-1]
            past[-1] = Past(last.fault, last.move, last.rung, last.committed + int(line.split()[1]))
            answered.append(line)
            continue
        happened = line.partition("->")[0].strip()
        fault = _fault(happened, rungs[rung].device)
        move = next_move(fault, past, rungs, rung, **options)  # type: ignore[arg-type]
        past.append(Past(fault, move, rung))
        rung = move.rung
        answered.append(f"{happened} -> {_shown(move)}")
    assert answered == [" ".join(line.split()) for line in lines]


def _fault(text: str, device: str) -> Fault:
    words = text.replace("(", " ").replace(")", " ").split()
    evidence: dict[str, object] = {"exitcode": -6} if "dead" in words else {}
    for word in words:
        if word.startswith("pieces="):
            evidence["pieces"] = int(word.removeprefix("pieces="))
    step = None if words[0] == "-" else int(words[0])
    return Fault(Kind(words[1]), device=device, step=step, evidence=evidence)


def _shown(move: Move) -> str:
    text = move.action.value
    if move.pieces > 1:
        text += f" {move.pieces}"
    if move.action is Action.NEXT_RUNG:
        text += f" {move.rung}"
    if move.new_worker and move.action not in (Action.REPLACE, Action.NEXT_RUNG):
        text += " in a new worker"
    return text


def test_out_of_memory_is_tried_whole_then_in_pieces_then_on_the_cpu_then_elsewhere() -> None:
    replay(
        """
        12 out_of_memory -> retry
        12 out_of_memory -> split 2
        12 out_of_memory -> split 4
        12 out_of_memory -> split 8
        12 out_of_memory -> cpu_batch
        12 out_of_memory -> next_rung 1
        """,
        batch=8,
    )


def test_a_split_never_makes_more_pieces_than_samples() -> None:
    replay(
        """
        3 out_of_memory -> retry
        3 out_of_memory -> split 2
        3 out_of_memory -> split 4
        3 out_of_memory -> split 6
        3 out_of_memory -> cpu_batch
        """,
        batch=6,
    )


def test_what_cannot_be_split_goes_to_the_cpu() -> None:
    replay(
        """
        3 out_of_memory -> retry
        3 out_of_memory -> cpu_batch
        3 out_of_memory -> next_rung 1
        """,
        batch=64,
        splittable=False,
    )
    replay("3 out_of_memory -> retry\n3 out_of_memory -> cpu_batch", batch=1)


def test_a_batch_of_unknown_size_is_split_up_to_a_limit() -> None:
    replay(
        """
        3 out_of_memory -> retry
        3 out_of_memory -> split 2
        3 out_of_memory -> split 4
        3 out_of_memory -> cpu_batch
        """,
        limits=Limits(pieces=4),
    )


def test_out_of_memory_on_the_last_rung_ends_when_there_is_nothing_smaller() -> None:
    replay(
        """
        3 out_of_memory -> retry
        3 out_of_memory -> split 2
        3 out_of_memory -> give_up
        """,
        CPU,
        batch=2,
    )


def test_each_step_starts_its_own_tries() -> None:
    replay(
        """
        12 out_of_memory -> retry
        12 out_of_memory -> split 2
        ok 1
        13 out_of_memory -> retry
        13 out_of_memory -> split 2
        """,
        batch=8,
    )


def test_a_step_that_was_already_in_pieces_is_retried_in_as_many_and_then_split_further() -> None:
    replay(
        """
        12 out_of_memory (pieces=4) -> retry 4
        12 out_of_memory (pieces=4) -> split 8
        12 out_of_memory (pieces=8) -> split 16
        """,
        batch=64,
    )


def test_what_only_the_worker_knows_may_come_as_evidence() -> None:
    """The supervisor asks with the worker's fault, but without its batch."""
    fault = Fault(Kind.OUT_OF_MEMORY, "cuda:0", step=3)
    history = [Past(fault, next_move(fault, [], GPU, 0), 0)]
    assert next_move(fault, history, GPU, 0).action is Action.SPLIT
    assert next_move(fault.at(batch=1), history, GPU, 0).action is Action.CPU_BATCH
    assert next_move(fault.at(splittable=False), history, GPU, 0).action is Action.CPU_BATCH
    assert next_move(fault.at(batch=1), history, GPU, 0, batch=8).action is Action.SPLIT


def test_out_of_memory_that_took_the_process_along_is_answered_in_a_new_one() -> None:
    replay(
        """
        12 out_of_memory (dead) -> replace
        12 out_of_memory (dead) -> split 2 in a new worker
        12 out_of_memory (dead) -> cpu_batch in a new worker
        12 out_of_memory (dead) -> next_rung 1
        """,
        batch=2,
    )


def test_a_transient_error_is_retried_once_then_the_worker_is_replaced_then_the_rung() -> None:
    replay(
        """
        7 transient -> retry
        7 transient -> replace
        7 transient -> next_rung 1
        """
    )


def test_a_transient_error_that_went_away_is_forgotten() -> None:
    replay(
        """
        7 transient -> retry
        ok 1
        8 transient -> retry
        ok 40
        48 transient -> retry
        """
    )


@pytest.mark.parametrize("kind", ["device_lost", "crash", "exit", "hang"])
def test_a_lost_worker_is_replaced_and_the_second_time_at_a_step_moves_on(kind: str) -> None:
    replay(
        f"""
        7 {kind} -> replace
        7 {kind} -> next_rung 1
        7 {kind} -> replace
        7 {kind} -> replace
        7 {kind} -> replace
        7 {kind} -> give_up
        """
    )


def test_a_lost_worker_at_another_step_is_no_second_time() -> None:
    replay(
        """
        7 crash -> replace
        ok 1
        8 crash -> replace
        ok 1
        9 crash -> replace
        """
    )


def test_a_step_that_is_repeated_before_the_fault_comes_back_counts_as_the_same_place() -> None:
    """A new worker may repeat the step before; that it was committed again is no progress."""
    replay(
        """
        7 device_lost -> replace
        ok 1
        7 device_lost -> next_rung 1
        """
    )


def test_different_faults_of_one_device_at_one_step_count_together() -> None:
    replay(
        """
        7 transient -> retry
        7 hang -> replace
        7 crash -> next_rung 1
        """
    )
    replay("7 hang -> replace\n7 transient -> next_rung 1")


def test_before_the_first_step_the_place_is_since_the_last_commit() -> None:
    replay(
        """
        - crash -> replace
        - crash -> next_rung 1
        ok 3
        - crash -> replace
        """
    )


@pytest.mark.parametrize("kind", ["killed", "nursery_died", "keeper_died", "supervisor_died"])
def test_what_comes_from_outside_never_moves_the_run_but_ends_without_progress(kind: str) -> None:
    replay("\n".join([*[f"7 {kind} -> replace"] * 10, f"7 {kind} -> give_up"]))
    replay("\n".join([f"{step} {kind} -> replace\nok 1" for step in range(40)]))


def test_kills_do_not_count_against_the_device() -> None:
    replay(
        """
        7 killed -> replace
        7 killed -> replace
        7 crash -> replace
        7 killed -> replace
        7 crash -> next_rung 1
        """
    )


def test_kills_of_all_sorts_count_together_and_over_rungs() -> None:
    replay(
        """
        1 killed -> replace
        1 nursery_died -> replace
        1 unsupported -> next_rung 1
        1 keeper_died -> replace
        1 killed -> give_up
        """,
        limits=Limits(outside=3),
    )


def test_host_memory_gives_up_at_the_third_time() -> None:
    replay(
        """
        7 host_memory -> replace
        7 host_memory -> replace
        7 host_memory -> give_up
        """
    )


@pytest.mark.parametrize("kind", ["loader_died", "loader_stuck"])
def test_a_loader_that_fails_again_in_a_new_worker_is_the_scripts_matter(kind: str) -> None:
    replay(f"7 {kind} -> replace\n7 {kind} -> fail")
    replay(f"7 {kind} -> replace\nok 9\n16 {kind} -> replace")


@pytest.mark.parametrize("kind", ["unsupported", "driver"])
def test_a_device_that_cannot_is_left_at_once(kind: str) -> None:
    replay(f"0 {kind} -> next_rung 1")
    replay(f"0 {kind} -> give_up", (Rung("cuda:0"),))


def test_a_device_that_needs_a_reset_is_left_with_all_its_rungs() -> None:
    replay("4 driver -> next_rung 2", REMEDY)
    replay("4 unsupported -> next_rung 1\n4 unsupported -> next_rung 2", REMEDY)
    replay("4 hang -> replace\n4 hang -> next_rung 1\n4 hang -> replace\n4 hang -> next_rung 2", REMEDY)


@pytest.mark.parametrize("rungs", [GPU, CPU, REMEDY])
def test_the_scripts_own_error_is_never_retried(rungs: tuple[Rung, ...]) -> None:
    replay("7 user_error -> fail", rungs)


def test_a_rung_in_quarantine_is_passed_over() -> None:
    crashed = Fault(Kind.CRASH, device="cuda:0", step=5)
    again = [Past(crashed, Move(Action.REPLACE, 0), 0)]
    assert next_move(crashed, again, REMEDY, 0).rung == 1
    assert next_move(crashed, again, REMEDY, 0, barred={1}).rung == 2


def test_a_verdict_reached_while_the_cpu_was_slow_ends_the_run_at_once() -> None:
    """Silence in the sentinel is nobody's fault, but a label out of range is, also when it shows there."""
    slow = Fault(Kind.HANG, device="cuda:0", step=5, phase="sentinel")
    assert next_move(slow, [], GPU, 0).action is Action.REPLACE
    judged = slow.at(verdict={"blame": "data", "why": "the CPU raises IndexError for it alone", "repeatable": True})
    assert judged.blame == "data"
    assert next_move(judged, [], GPU, 0).action is Action.FAIL


def test_a_device_assert_caused_by_the_script_ends_with_the_scripts_error() -> None:
    """The proof of blame: the CPU raises the plain IndexError that the device could only assert."""
    replay(
        """
        7 device_lost -> replace
        7 device_lost -> next_rung 1
        7 user_error -> fail
        """
    )


def test_every_move_says_why() -> None:
    fault = Fault(Kind.CRASH, device="cuda:0", step=7)
    first = next_move(fault, [], GPU, 0)
    assert first.reason == "new worker on cuda:0, try 1 of 1"
    second = next_move(fault, [Past(fault, first, 0)], GPU, 0)
    assert second.reason == "cuda:0 → cpu"
    alone = next_move(fault, [], CPU, 0)
    assert alone.reason == "new worker on cpu, try 1 of 3"
    for kind in Kind:
        assert next_move(Fault(kind, step=1), [], GPU, 0).reason


def test_every_kind_has_a_row_that_ends_and_a_family() -> None:
    assert set(table()) == set(FAMILIES) == set(Kind)
    for row in table().values():
        assert row[-1] in (Action.FAIL, Action.GIVE_UP)


@given(data=st.data(), rungs=st.sampled_from([GPU, CPU, REMEDY]), batch=st.none() | st.integers(1, 10**6))
@settings(max_examples=150, deadline=None)
def test_no_mix_of_faults_without_progress_goes_on_for_ever(
    data: st.DataObject, rungs: tuple[Rung, ...], batch: int | None
) -> None:
    history: list[Past] = []
    rung = 0
    kinds = data.draw(st.lists(st.sampled_from(list(Kind)), min_size=1, max_size=6))
    for number in range(1000):
        dead = data.draw(st.booleans()) if number < 20 else True
        evidence: dict[str, object] = {"exitcode": 1} if dead else {}
        fault = Fault(kinds[number % len(kinds)], rungs[rung].device, step=5, evidence=evidence)
        move = next_move(fault, history, rungs, rung, batch=batch)
        assert rung <= move.rung < len(rungs)
        assert move.new_worker or fault.health is Health.ALIVE or move.action in (Action.FAIL, Action.GIVE_UP)
        if move.action in (Action.FAIL, Action.GIVE_UP):
            return
        history.append(Past(fault, move, rung))
        rung = move.rung
    pytest.fail("still going after 1000 faults at one step")


def test_rungs_and_moves_travel_as_json() -> None:
    for rung in REMEDY:
        assert Rung.from_json(rung.to_json()) == rung
    assert REMEDY[1].label == "cuda:0 HSA_ENABLE_INTERRUPT=0"
    move = Move(Action.SPLIT, 1, pieces=4, reason="in 4 pieces", new_worker=True)
    assert dataclass_json.read_strictly(Move, move.to_json()) == move
