"""Who took the machine down: the policy as a table, no file and no boot."""

from __future__ import annotations

import pytest

from holdfast.devices.shutdown_cause import Case, Ended, Named, judge

CLEAN = Ended("clean", "wtmp: shutdown at 09:12")
UNCLEAN = Ended("unclean", "wtmp: booted at 09:13 without a shutdown before")
OURS, OTHER = "0000:03:00.0", "0000:0a:00.0"
XID = Named("gpu", "NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.", "0000:03:00")
XID_ELSEWHERE = Named("gpu", "NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus.", "0000:0a:00")
UNNAMED = Named("gpu", "[drm] Waiting for fences timed out!")
MCE = Named("machine", "mce: [Hardware Error]: Machine check events logged")

TABLE = {
    "a clean shutdown acquits": (Case(pci=OURS, ended=CLEAN), "clean"),
    "even if the card had said something": (Case(pci=OURS, ended=CLEAN, named=[XID]), "clean"),
    "the first time": (Case(pci=OURS, ended=UNCLEAN), "probation"),
    "the first time, nothing known": (Case(pci=OURS), "probation"),
    "the second time": (Case(pci=OURS, froze_before=1), "quarantine"),
    "the third time": (Case(pci=OURS, froze_before=2), "quarantine"),
    "the kernel names the card": (Case(pci=OURS, ended=UNCLEAN, named=[XID]), "probation"),
    "and did so before": (Case(pci=OURS, ended=UNCLEAN, named=[XID], froze_before=1), "quarantine"),
    "the kernel names another card": (Case(pci=OURS, named=[XID_ELSEWHERE]), "other"),
    "another card, and ours later": (Case(pci=OURS, named=[XID_ELSEWHERE, XID]), "other"),
    "no card by name": (Case(pci=OURS, named=[UNNAMED]), "probation"),
    "our own address is not known": (Case(pci=None, named=[XID]), "probation"),
    "the machine itself": (Case(pci=OURS, ended=UNCLEAN, named=[MCE]), "machine"),
    "the cause comes first in time": (Case(pci=OURS, named=[MCE, XID]), "machine"),
    "and what follows is its effect": (Case(pci=OURS, named=[XID, MCE]), "probation"),
    "a machine that goes down by itself": (Case(pci=OURS, downs=1), "power"),
    "explains one boot for each": (Case(pci=OURS, downs=1, excused=1), "probation"),
    "two of them explain two": (Case(pci=OURS, downs=2, excused=1), "power"),
    "though not what the kernel says": (Case(pci=OURS, downs=1, named=[XID]), "probation"),
    "and it excuses one in quarantine's reach": (Case(pci=OURS, downs=1, froze_before=1), "power"),
    "the CPU alone": (Case(on_cpu=True, ended=UNCLEAN), "down"),
    "the CPU beside a card": (Case(on_cpu=True, ended=UNCLEAN, others=["cuda:0"]), "beside"),
    "the CPU, shut down": (Case(on_cpu=True, ended=CLEAN), "clean"),
    "the CPU is never blamed": (Case(on_cpu=True, froze_before=5, named=[MCE]), "down"),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_table(name: str) -> None:
    case, decision = TABLE[name]
    judgement = judge(case)
    assert judgement.decision == decision
    assert judgement.blamed is (decision in ("probation", "quarantine"))
    assert judgement.why


def test_every_decision_shows_its_evidence() -> None:
    assert judge(Case(pci=OURS, ended=UNCLEAN, named=[XID])).evidence == (UNCLEAN.evidence, XID.text)
    assert judge(Case(pci=OURS, ended=CLEAN)).evidence == (CLEAN.evidence,)
    assert judge(Case(pci=OURS, ended=UNCLEAN, others=["cuda:1"])).evidence == (UNCLEAN.evidence, "also in use: cuda:1")
    assert judge(Case(pci=OURS, downs=2)).evidence == (
        "this machine also went down 2 times with nothing but the CPU in use",
    )
