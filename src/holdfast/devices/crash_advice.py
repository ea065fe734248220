"""What a good engineer would say: a machine, what it printed and how it ended; one finding, one sentence, commands.

    opinion = consult(inventory, env, "Memory access fault by GPU node-1 …", "crashed")
    opinion.code, opinion.sentence, opinion.commands     # "D050", "known of such devices: …", ("export …",)

Pure. The causes are gone through from the one that explains most: what the script or its data did, what keeps torch
from the card at all, a card under a false name, a build without code for it, then what others have reported of such
cards, those whose words are in the message ahead. Nothing is run, so nothing is proven: the probes do that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.devices import inventory_findings
from holdfast.devices.findings import Finding
from holdfast.faults.kinds import CODES, Kind
from holdfast.faults.signatures import Signature, match_text

if TYPE_CHECKING:
    from holdfast.devices.facts import Bug
    from holdfast.devices.survey.records import Inventory

ENDED = ("raised", "crashed", "hung", "froze", "wrong", "slow", "missing")
_THE_SCRIPT = (Kind.USER_ERROR, Kind.BAD_DATA)
_CAUSES = (
    *("torch-does-not-import", "no-driver", "driver-mismatch", "driver-too-old", "no-device-file"),
    *("no-access-to-device", "torch-without-gpu-support", "torch-for-other-cards", "wsl-without-gpu"),
    *("masquerade", "no-kernels-for-this-card", "wsl-runtime-sees-no-card", "hidden-by-environment"),
)
"""What explains everything else, the most telling first."""
_LESS = ("masquerade-of-a-sibling", "shows-the-screen")
"""What may explain it where nothing better is known."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What is said about one case."""

    code: str
    """D… for a finding, F… for a fault that the message names and no finding explains."""
    sentence: str
    commands: tuple[str, ...] = ()
    device: str = ""
    source: str = ""
    finding: Finding | None = None


def consult(inventory: Inventory, env: Mapping[str, str], message: str = "", ended: str = "") -> Opinion | None:
    """The one thing to say first; None where nothing is known that fits."""
    known = match_text(message) if message else None
    if known is not None and known.kind in _THE_SCRIPT:
        return _of_signature(known)
    found = inventory_findings.of_inventory(inventory, env)
    for slug in _CAUSES:
        first = next((each for each in found if each.about.slug == slug and _matters(each, inventory)), None)
        if first is not None:
            return _of_finding(first, _leftovers(inventory, env, ended))
    reported = _reported(inventory, env, message, ended)
    if reported is not None:
        return reported
    for slug in _LESS:
        first = next((each for each in found if each.about.slug == slug), None)
        if first is not None and (message or ended):
            return _of_finding(first)
    return _of_signature(known) if known is not None else None


def _matters(finding: Finding, inventory: Inventory) -> bool:
    """Not what is the matter with graphics inside of the CPU, or a second card, where another one is fine."""
    card = inventory.device(finding.device)
    return card is None or not card.integrated or all(each.integrated for each in inventory.gpus)


def _reported(inventory: Inventory, env: Mapping[str, str], message: str, ended: str) -> Opinion | None:
    """What others have reported of such a card: by its words, then by how it ended."""
    for card in sorted(inventory.gpus, key=lambda each: bool(each.integrated)):
        bugs = inventory_findings.bugs_of(card, inventory, env) if inventory_findings.served(card, inventory) else []
        by_words = [bug for bug in bugs if message and any(re.search(each, message) for each in bug.says)]
        # A message without any word of a report speaks against it.
        by_end = [bug for bug in bugs if ended and ended in bug.shows and not (message and bug.says)]
        for bug in _ranked(by_words, ended) or _ranked(by_end, ended):
            return _of_finding(inventory_findings.known_bug(card, bug, inventory, env))
    return None


def _leftovers(inventory: Inventory, env: Mapping[str, str], ended: str) -> list[Finding]:
    """Variables that can end a run like this one, and stay in force when the cause is out of the way."""
    bugs = [(card, bug) for card in inventory.gpus for bug in inventory_findings.bugs_of(card, inventory, env)]
    set_here = [(card, bug) for card, bug in bugs if bug.when.get("env") and "no-masquerade" not in bug.remedies]
    fits = {bug.id: (card, bug) for card, bug in set_here if ended and ended in bug.shows}
    return [inventory_findings.known_bug(card, bug, inventory, env) for card, bug in fits.values()]


def _ranked(bugs: Sequence[Bug], ended: str) -> list[Bug]:
    """Those that end as this one did ahead, then those that name fewer cards."""
    return sorted(bugs, key=lambda bug: (ended not in bug.shows, _wide(bug), bug.quiet))


def _wide(bug: Bug) -> int:
    """How many kinds of cards a report may be about, by the blanks in their names."""
    return sum(10 if sign == "*" else 1 for arch in bug.when.get("archs", ()) for sign in arch if sign in "*?")


def _of_finding(found: Finding, beside: Sequence[Finding] = ()) -> Opinion:
    cure = found.remedy
    source = found.evidence.get("source")
    more = [each.remedy for each in beside if each.remedy]
    commands = (*(cure.commands if cure else ()), *(word for each in more for word in each.commands))
    said = f"{found.sentence()}; {cure.text}" if cure and cure.text and not cure.text[0].isupper() else found.sentence()
    said += "".join(f"; {each.text}" for each in more)
    return Opinion(found.code, said, commands, found.device, source if isinstance(source, str) else "", found)


def _of_signature(known: Signature) -> Opinion:
    code = CODES[known.kind] if known.kind is not None else ""
    return Opinion(code, f"{known.means}; {known.action}")
