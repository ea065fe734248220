"""What the first machine knows of the ladders of ranks on other machines, and what it writes down of it. No torch.

    far = FarLadders(job, run_folder)
    far.began(3, pid, "cuda:1")                      # a process over there, on this device
    far.wants_to_leave(pid); far.leaves(pid)         # its next process is to be on another device
    far.ended(3, pid, message.answer, host="node-2") # what its ladder has decided, for the rank that writes the journal
    far.heard(3, pid, message, host="node-2")        # trust and verdicts, for the journal
    far.tell()                                       # verdicts whose faults are in the journal by now

Each machine judges its own ranks (rank_ladder.py): the device, its probes and the ledger are there. Processes are
numbered as the first machine knows them (roster.far). What comes from another machine is checked before it is written:
its types, its lengths, and that it is about a rank of that machine, by its seat and its host name.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from holdfast.base import dataclass_json
from holdfast.distributed import rank_ladder, rank_undo
from holdfast.distributed.job import Job
from holdfast.distributed.machine_link import TrustTold, VerdictTold, sentence, shortened
from holdfast.distributed.rank_ladder import TICK, Answer
from holdfast.run.folder import RunFolder

_MOST_VERDICTS = 256
"""Of those whose faults are not in the journal yet; the oldest goes."""
_MOST_SUSPICION = 1 << 14
"""Characters of the numbers that a suspicion or a fault comes with."""


class FarLadders:
    """The ladders of all machines but the first."""

    def __init__(self, job: Job, run: RunFolder) -> None:
        self._job = job
        self._run = run
        self._devices: dict[int, str] = {}
        self._leaving: set[int] = set()
        self._verdicts: list[VerdictTold] = []
        self._looked = 0.0

    # -- processes -----------------------------------------------------------------------------------------

    def began(self, seat: int, pid: int, device: str) -> None:
        self._devices[seat] = shortened(device)
        self._leaving.discard(pid)
        rank_ladder.forget(self._job, pid)

    def device_of(self, seat: int) -> str:
        """Empty if no ladder is kept for this seat."""
        return self._devices.get(seat, "")

    def wants_to_leave(self, pid: int) -> None:
        self._leaving.add(pid)

    def leaves(self, pid: int) -> bool:
        return pid in self._leaving

    def ended(
        self, seat: int, pid: int, answer: dict[str, Any] | None, *, generation: int, host: str, late: bool = False
    ) -> Answer | None:
        """What the ladder of that process has decided, if it is new; the rank that writes the journal tells it.

        `generation` is the number of the group that there is now: a way back of another machine reaches no further.
        `late`: the connection was lost in between, and others may have gone on from a state that is not right. What
        they have committed since then is given up as well.
        """
        self._leaving.discard(pid)
        if late and rank_ladder.answer(self._job, pid) is not None:
            return None
        try:
            made = None if answer is None else dataclass_json.read_strictly(Answer, answer)
        except ValueError:
            made = None
        if made is None:
            return None
        said = made.fault.evidence if len(json.dumps(made.fault.evidence)) <= _MOST_SUSPICION else {}
        facts = {**_printable(said), "rank": seat, "host": host, "device": shortened(made.before)}
        case = facts.pop("case", None)  # a folder over there: nothing is read from a folder of that name here
        if isinstance(case, str):
            facts["case_there"] = case
        fault = replace(made.fault, device=f"rank {seat}", message=sentence(made.fault.message), evidence=facts)
        undone = made.undone
        if undone is not None:
            reach = generation if late else min(undone.generation, generation)
            undone = rank_undo.note(self._job, replace(undone, seat=seat, generation=reach))
        move = replace(made.move, reason=sentence(made.move.reason))
        made = Answer(fault, move, shortened(made.before), shortened(made.after), undone)
        rank_ladder.note_answer(self._job, pid, made)
        return made

    # -- the journal ---------------------------------------------------------------------------------------

    def heard(self, seat: int, pid: int, message: TrustTold | VerdictTold, *, host: str) -> None:
        if isinstance(message, TrustTold):
            data: dict[str, Any] = {"device": shortened(message.device), "host": host}
            if message.state:
                data["state"] = shortened(message.state)
            if message.suspicion is not None and len(json.dumps(message.suspicion)) <= _MOST_SUSPICION:
                data["suspicion"] = message.suspicion
            rank_ladder.append_trust(self._run, seat, "trust", {**data, "text": sentence(message.text)})
            return
        verdict = replace(message.verdict, why=sentence(message.verdict.why), samples=(), tensor=None)
        told = replace(
            message, seat=seat, pid=pid, verdict=verdict, host=host, device=shortened(message.device),
            code=shortened(message.code),
        )  # fmt: skip
        self._verdicts = [*self._verdicts, told][-_MOST_VERDICTS:]

    def tell(self, *, last: bool = False) -> None:
        """The verdicts whose faults are in the journal."""
        if not self._verdicts or (not last and time.monotonic() - self._looked < TICK):
            return
        self._looked = time.monotonic()
        waiting = []
        for told in self._verdicts:
            folder = rank_ladder.told_in(self._job, told.pid)
            if folder is None:
                waiting.append(told)
            else:
                rank_ladder.append_verdict(self._run, told, folder)
        self._verdicts = waiting


def _printable(value: Any) -> Any:
    """Every text in it as one line of the record."""
    if isinstance(value, str):
        return sentence(value)
    if isinstance(value, dict):
        return {shortened(str(name)): _printable(each) for name, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list | tuple) else value
