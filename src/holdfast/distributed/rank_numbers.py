"""Numbers that are not finite: from which rank's part of the batch they come, and from which samples. No torch.

    note(job, Case(seat, group, fault, own=True))    # each rank that notices, before it leaves the group
    case = to_look_into(group.of_all(noted(job, seat)), step)  # in the next group, the same in every rank
    fault = blame(parts, step)                       # before that step: what all ranks have found in their parts

The loss and the gradients are sums over all ranks, so every rank sees the same number that is not finite, and none can
tell from it where it comes from. All go back to the last commit. Before the step each rank computes its own part of it
again, as the worker of an ordinary run does with the whole batch (worker/step_inquiry.py). The ranks exchange what they
found and come to the same verdict: then all leave the same samples out, or all end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.base import dataclass_json
from holdfast.base.errors import ScriptFailed
from holdfast.distributed.job import Job
from holdfast.faults.blame import Blame, Verdict, judge
from holdfast.faults.classification import CODES, Fault, Kind


@dataclass(frozen=True, slots=True)
class Case:
    """A step whose numbers were not finite, as one rank has noted it."""

    seat: int
    group: int
    """The number of the group in which it was noticed."""
    fault: Fault
    own: bool = False
    """The loss of this rank's own part was not finite. Gradients are looked at after they were added."""
    looked: bool = False
    """The ranks have looked into it and found nothing: the step is taken as it is."""
    again: bool = False
    """The step was taken after a look, and failed again: from here on the ladder of the rank decides and tells."""

    @property
    def step(self) -> int:
        return self.fault.step or 0

    def named(self) -> Fault:
        """The fault as users know it, with the rank if its loss says which."""
        if not self.own:
            return replace(self.fault, device="ranks")
        facts = {**self.fault.evidence, "what": f"the loss of rank {self.seat}", "seat": self.seat}
        return replace(self.fault, device=f"rank {self.seat}", evidence={**facts, "device": self.fault.device})

    def noted_by(self, seat: int, *, looked: bool = False, again: bool = False) -> Case:
        """As this rank notes it: all have looked in vain, or the step has failed again."""
        own = self.own and seat == self.seat
        return replace(self, seat=seat, own=own, looked=self.looked or looked, again=self.again or again)


def note(job: Job, case: Case) -> None:
    job.note(_name(case.seat), dataclass_json.write(case))


def noted(job: Job, seat: int) -> list[dict[str, Any]]:
    """What this rank has noted, for `of_all`."""
    found = job.noted(_name(seat))
    return [found] if found else []


def forget(job: Job, seat: int) -> None:
    job.forget(_name(seat))


def _name(seat: int) -> str:
    return f"numbers-{seat}"


def to_look_into(known: Iterable[dict[str, Any]], step: int) -> Case | None:
    """The first step after `step`, from which the run goes on, that has to be looked into; None if there is none.

    If the own loss of one rank alone was not finite, it is that rank's. If it was so in several, an earlier step may
    have spoiled the weights.
    """
    cases = [dataclass_json.read_strictly(Case, each) for each in known]
    first = min((each.step for each in cases if each.step > step), default=None)
    found = [each for each in cases if each.step == first]
    own = [each for each in found if each.own]
    if not found:
        return None
    chosen = own[0] if len(own) == 1 else replace(found[0], own=False)
    return replace(chosen, looked=any(each.looked for each in found), again=any(each.again for each in found))


# -- what all have found -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has found in its part of the batch."""

    rank: int
    seat: int
    counts: bool
    """False for a rank without a part: it computes a sample of another, which does not count for it."""
    fault: Fault | None = None
    """With a verdict; None if the numbers of this part were finite, or that cannot be told."""
    every: tuple[dict[str, Any], ...] = ()
    """All samples of this part, where each of them gives numbers that are not finite."""


def blame(parts: Sequence[Part], step: int) -> Fault | None:
    """The fault with the verdict of all ranks; None where no rank can say more than that the numbers were not finite.

    Samples are at fault if others of the batch are fine. So a rank of which each sample is bad says little by itself:
    if that is so in all parts it is the code, else these samples.
    """
    counted = [each for each in parts if each.counts]
    alone = sum(len(each.every) for each in counted) == 1 and step > 1  # other steps have passed
    whole = bool(counted) and all(each.every for each in counted) and not alone
    told = parts if whole else [_of_samples(each) for each in parts]
    for wanted in (Blame.DATA, Blame.CODE, Blame.DEVICE, Blame.PRECISION):
        found = [each for each in told if each.fault is not None and each.fault.blame == wanted]
        if found:
            return _together(found)
    return None


def _of_samples(part: Part) -> Part:
    """Each sample of this part is bad, and those of another part are not."""
    if not part.every or part.fault is None:
        return part
    verdict = judge(part.fault, None, None)
    said = replace(verdict, blame=Blame.DATA, why=verdict.why.removesuffix(", whatever the sample"), samples=part.every)
    return replace(part, fault=part.fault.at(verdict=said.to_json()))


def _together(found: Sequence[Part]) -> Fault:
    """One fault, of the first of these ranks, with the samples of all of them."""
    first = found[0]
    assert first.fault is not None
    verdicts = [judge(each.fault, None, None) for each in found if each.fault is not None]
    samples = {int(sample["index"]): sample for each in verdicts for sample in each.samples}
    verdict = replace(verdicts[0], samples=tuple(samples.values()))
    seats = sorted(each.seat for each in found)
    return first.fault.at(verdict=verdict.to_json(), rank=first.rank, seat=first.seat, seats=seats)


def verdict_of(fault: Fault) -> Verdict:
    """With the ranks that it is about, for people."""
    verdict = judge(fault, None, None)
    seats = fault.evidence.get("seats")
    if not isinstance(seats, list):
        return verdict
    who = f"rank {seats[0]}" if len(seats) == 1 else f"ranks {', '.join(map(str, seats[:-1]))} and {seats[-1]}"
    return replace(verdict, why=f"{who}: {verdict.why}")


def finite_again(case: Case) -> Verdict:
    """The step was looked into, nothing was found, and it has passed."""
    blamed = Blame.DEVICE if case.own and case.fault.device != "cpu" else Blame.UNKNOWN
    who = f"rank {case.seat}: " if case.own else ""
    return Verdict(blamed, f"{who}the same step gave finite numbers the second time", repeatable=False)


def failure(fault: Fault) -> ScriptFailed:
    """What ends the run, in the words of a run in one process."""
    verdict = verdict_of(fault)
    proven = verdict.blame in (Blame.DATA, Blame.CODE, Blame.PRECISION)
    code = CODES[Kind.BAD_DATA] if verdict.blame is Blame.DATA else fault.code
    hints = [f"`holdfast explain {code}` says what this means"]
    if verdict.blame is Blame.DATA:
        hints.insert(0, "train without such samples: `data.skip_bad=true` (`data.most_bad` says how many)")
    error = ScriptFailed(
        verdict.sentence() if proven else fault.sentence(),
        cause=f"it appeared as: {fault.sentence()}" if proven else fault.cause(),
        hints=hints,
    )
    error.blame = verdict.to_json() if proven else None
    return error
