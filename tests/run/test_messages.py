"""Messages of a process that trains: what is sent is received as it was, and what is made up is not."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from holdfast.base.dataclass_json import read_strictly
from holdfast.base.errors import GaveUp, from_json
from holdfast.faults.blame import Cpu, Finding
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Move, Rung
from holdfast.faults.terms import Action
from holdfast.run.commit_points import Wish
from holdfast.run.messages import (
    ArenasKept,
    AttachAnswer,
    EpochEnded,
    FaultMended,
    Found,
    Log,
    Message,
    Missing,
    Note,
    Owed,
    RankEnded,
    RankWanted,
    Refused,
    SaveReport,
    ScriptEpoch,
    SlotsAt,
    Suspicion,
    received,
)
from holdfast.run.worker_config import WorkerConfig

FAULT = Fault(Kind.HANG, "cuda:0", 12, "forward", "silent", {"limit_s": 3.0})


def over(message: Message) -> Message | None:
    """As it comes out of a channel."""
    return received(json.loads(json.dumps(message.to_json())))


@pytest.mark.parametrize(
    "message",
    [
        Log(step=12, epoch=0, values={"loss": 0.3}),
        EpochEnded(epoch=1, step=20, loss=None),
        EpochEnded(epoch=1, step=20, loss=0.5, sequence=7, again=True),
        ScriptEpoch(epoch=1, step=20),
        FaultMended(FAULT, Move(Action.SPLIT, 1, pieces=4, reason="memory")),
        Found(Finding(Cpu.FINE, "it passes"), {"samples": [3]}),
        Missing(2, (4, 5), "an evaluation went without them"),
        Suspicion(9, "mm differs", {"confirmed": True, "by": "torch"}),
        Note("memory: trying it again", pieces=2),
        AttachAnswer(2, "run", {"seed": 3}, (SlotsAt(("/slots/0",)),), exact={"files": []}),
        ArenasKept((SlotsAt(slots=4, where="file"),)),
        Owed((Wish("epoch", ("best",), sequence=7, best={"value": 0.5}),)),
        SaveReport("end", ("final",), 0.5, {"step": 4}, "the disk is full", 28),
        RankWanted(("train", "x.py"), {"RANK": "0"}, "/"),
        RankEnded(None),
    ],
)
def test_a_message_comes_as_it_was_sent(message: Message) -> None:
    assert over(message) == message


def test_a_worker_reads_the_configuration_that_the_supervisor_wrote() -> None:
    config = WorkerConfig(
        generation=3,
        name="run",
        folder="/runs/run",
        scratch="/tmp/x",
        script="train.py",
        argv=("--epochs", "2"),
        arguments={"lr": "0.1"},
        settings={"run": {"stacks": True}},
        rungs=(Rung("cuda:0", env=(("A", "1"),)), Rung("cpu", "fp32")),
        rung=1,
        seed=7,
        threads=None,
        checkpoint=None,
        pids={"supervisor": 1, "keeper": None},
        leave_out=({"step": 4},),
        arenas=(SlotsAt(slots=5),),
        fault=FAULT,
    )
    came = read_strictly(WorkerConfig, json.loads(json.dumps(config.to_json())))
    assert came == config and came.device == "cpu"
    with pytest.raises(ValueError, match="rung"):
        read_strictly(WorkerConfig, {**config.to_json(), "rung": "1"})


def test_a_loss_may_be_no_number() -> None:
    came = over(EpochEnded(epoch=1, step=20, loss=math.nan))
    assert isinstance(came, EpochEnded) and came.loss is not None and math.isnan(came.loss)


def test_an_error_comes_as_the_error_it_is() -> None:
    error = GaveUp("it is over", cause="the disk", hints=["free it"])
    came = over(Refused(error.to_json()))
    assert isinstance(came, Refused)
    assert type(from_json(came.error)) is GaveUp and from_json(came.error).to_json() == error.to_json()


def test_an_unknown_kind_is_no_message() -> None:
    assert received({"kind": "surprise", "step": 1}) is None
    assert received({}) is None


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"kind": "log", "step": 12, "epoch": 0}, "values"),
        ({"kind": "log", "step": "12", "epoch": 0, "values": {}}, "step"),
        ({"kind": "log", "step": True, "epoch": 0, "values": {}}, "step"),
        ({"kind": "log", "step": 12, "epoch": 0, "values": [1]}, "values"),
        ({"kind": "arena", "capacity": None}, "capacity"),
        ({"kind": "epoch", "epoch": 0, "step": 5, "loss": "low"}, "loss"),
        ({"kind": "epoch", "epoch": 0, "step": 5, "loss": None, "sequence": "7"}, "sequence"),
        ({"kind": "missing", "count": 1, "samples": [1, "2"], "text": ""}, "samples"),
        ({"kind": "lost", "fault": {"kind": "no such kind"}}, "fault"),
        ({"kind": "lost", "fault": 3}, "fault"),
        ({"kind": "fault", "fault": FAULT.to_json(), "move": {"action": "dance", "rung": 0}}, "move"),
        ({"kind": "refused", "error": "no"}, "error"),
    ],
)
def test_a_field_that_is_missing_or_of_another_type_is_named(data: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"`{field}`"):
        received(data)


def test_the_journal_has_no_field_that_was_not_said() -> None:
    assert Note("so far").told == {"text": "so far"}
    assert EpochEnded(epoch=1, step=20, loss=None, sequence=7, again=True).told == {
        "epoch": 1,
        "step": 20,
        "loss": None,
    }
    assert ScriptEpoch(epoch=1, step=20).told == {"epoch": 1, "step": 20}
