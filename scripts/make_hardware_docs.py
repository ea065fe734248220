#!/usr/bin/env python3
"""Write docs/hardware.md from the facts the program itself uses.

python scripts/make_hardware_docs.py             write it
python scripts/make_hardware_docs.py --check     exit 1 if it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from pages import keep

from holdfast.devices import facts, knowledge
from holdfast.devices.facts import Bug, Source

_MAKERS = {"amd": "AMD", "nvidia": "NVIDIA", "apple": "Apple", "intel": "Intel"}
_WORDS = {
    "yes": "yes",
    "no": "no",
    "some": "some cards",
    "deprecated": "deprecated",
    "preview": "preview",
    "runtime": "runtime alone",
    "community": "community",
    "built": "built",
    "untested": "released, not tested",
}


def render() -> str:
    """The whole page."""
    return "\n".join(
        [
            "<!-- Made by scripts/make_hardware_docs.py from src/holdfast/devices/knowledge.json: edit there. -->",
            "# What is known about hardware",
            "",
            "Facts about cards, builds of torch and their bugs, each with its source and date. They explain what",
            "`holdfast doctor` finds. They never decide: a device is judged by what it does in the probes.",
            "What no source says is left out.",
            "",
            f"Collected on {facts.data()['collected']}. `holdfast doctor` shows the age and SHA-256 of its file;",
            "`holdfast doctor --knowledge FILE` (or `HOLDFAST_KNOWLEDGE`) reads a newer one. *Known by* is one of:",
            "document (the maker says it), source (read in source code), many reports, one report, measured (by us),",
            "computed. *Looked at* is the day on which the row was last compared with its source. Where the source was",
            "not found again, it is the month of the first look and the day of the second.",
            "",
            *_cards(),
            *_support(),
            *_wheels(),
            *_overrides(),
            *_platforms(),
            *_bugs(),
            *_sources(),
        ]
    )


def _cards() -> Iterator[str]:
    yield "## Cards"
    yield ""
    yield "| architecture | maker | products | PCI ids | known by | looked at | sources |"
    yield "|---|---|---|---|---|---|---|"
    for card in facts.cards():
        products = ", ".join(card.products) or "-"
        ids = " ".join(card.pci) or "-"
        known = f"{card.known} | {card.checked}"
        yield f"| `{card.arch}` | {_MAKERS[card.vendor]} | {products} | {ids} | {known} | {_refs(card.sources)} |"
    yield ""
    for card in facts.cards():
        for note in card.notes:
            yield f"- `{card.arch}`: {note.text} {_refs(note.sources)}"
    yield ""


def _support() -> Iterator[str]:
    yield from _supported("linux", "Linux")
    yield from _supported("windows", "Windows")


def _supported(os: str, title: str) -> Iterator[str]:
    rows = [row for row in facts.data()["support"] if os in row["os"]]
    spans = [row["from"] if row["from"] == row["to"] else f"{row['from']}-{row['to']}" for row in rows]
    yield f"## AMD's own support on {title}"
    yield ""
    if os == "linux":
        yield "*built*: AMD says that it builds, no more. *released, not tested*: AMD publishes builds and has no test"
        yield "on such a card. *runtime alone*: not the libraries. An empty cell is unknown."
        yield ""
    yield f"| ROCm | {' | '.join(spans)} |"
    yield f"|---|{'---|' * len(rows)}"
    for card in facts.cards():
        if any(card.arch in row["archs"] for row in rows):
            cells = (_WORDS[row["archs"][card.arch]] if card.arch in row["archs"] else "" for row in rows)
            yield f"| `{card.arch}` | {' | '.join(cells)} |"
    yield f"| channel | {' | '.join(row['channel'] for row in rows)} |"
    yield f"| known by | {' | '.join(row['known'] for row in rows)} |"
    yield f"| looked at | {' | '.join(facts.how(row)['checked'] for row in rows)} |"
    yield f"| source | {' | '.join(_refs([facts.source(row['source'])]) for row in rows)} |"
    yield ""


def _wheels() -> Iterator[str]:
    yield "## Builds of torch"
    yield ""
    yield "Code for an AMD card runs on that architecture alone. Code for an NVIDIA card runs on later cards with the"
    yield "same first number: code for `sm_86` on `sm_89`. In a command, replace `gfxnnnn` by your architecture."
    yield ""
    yield "| build | channel | system | has code for | install | known by | source |"
    yield "|---|---|---|---|---|---|---|"
    for row, wheel in zip(facts.data()["wheels"], facts.wheels(), strict=True):
        command = None if row.get("past") else wheel.install("gfxNNNN" if wheel.extra else wheel.archs[0])
        needs = [f"driver {wheel.driver} or later"] if wheel.driver else []
        where = ", ".join((*wheel.os, *([wheel.machine] if wheel.machine else []), *needs))
        archs = " ".join(wheel.archs)
        install = f"`{command}`" if command else "-"
        known = f"{wheel.known}, {wheel.checked}"
        yield f"| {wheel.name} | {wheel.channel} | {where} | {archs} | {install} | {known} | {_refs([wheel.source])} |"
    yield ""


def _overrides() -> Iterator[str]:
    yield "## HSA_OVERRIDE_GFX_VERSION"
    yield ""
    yield "What happens when this variable makes a card run as another: it depends on what the two numbers share."
    yield ""
    yield "| example | it is | why |"
    yield "|---|---|---|"
    for mine, theirs in (("gfx1031", "gfx1030"), ("gfx1010", "gfx1030"), ("gfx1010", "gfx1100")):
        said = knowledge.override(mine, theirs)
        assert said is not None
        yield f"| `{mine}` as `{theirs}` | {said.means} | {said.text} {_refs(said.sources)} |"
    yield ""


def _platforms() -> Iterator[str]:
    yield "## AMD cards under Windows and WSL2"
    yield ""
    for os, name in (("windows", "Windows"), ("wsl2", "WSL2")):
        for note in knowledge.platform_notes(os, "amd"):
            yield f"- {name}: {note.text} {_refs(note.sources)}"
    yield ""


def _bugs() -> Iterator[str]:
    yield "## Known bugs"
    yield ""
    yield "| where | what | cure | known by | sources |"
    yield "|---|---|---|---|---|"
    for bug in facts.bugs():
        cure = bug.cure.text if bug.cure else "none known"
        commands = "".join(f" `{each}`" for each in bug.cure.commands) if bug.cure else ""
        what = f'<a id="{bug.id}"></a>{bug.title}. {bug.text}'
        yield f"| {_where(bug)} | {what} | {cure}{commands} | {bug.known}, {bug.checked} | {_refs(bug.sources)} |"
    yield ""


def _where(bug: Bug) -> str:
    """Its conditions in short."""
    when = bug.when
    parts = [f"`{each}`" for each in when.get("archs", ())] or ["cards named in the text"]
    if "claimed" in when:
        parts.append(f"run as `{'`, `'.join(when['claimed'])}`")
    parts += [f"under {', '.join(when['os'])}"] if "os" in when else []
    for name in ("torch", "rocm", "cuda", "kernel"):
        if name in when:
            words = (f"{word} {when[name][word]}" for word in ("from", "to", "below") if word in when[name])
            span = " ".join(words)
            parts.append(f"{name} {span}")
    parts += [f"with `{when['env'][0]}`"] if "env" in when else []
    return ", ".join(parts)


def _sources() -> Iterator[str]:
    yield "## Sources"
    yield ""
    yield "*code*: read in source code. *document*: said by the maker. *report*: an issue or a user's word. *computed*:"
    yield "from data of others. *measured*: by us. A date with *read* is the day of reading, where the source has none."
    yield ""
    for number, source in enumerate(facts.sources(), 1):
        unsure = "; not complete" if not source.sure and "not complete" not in source.title else ""
        yield f'{number}. <a id="{source.id}"></a>{source.cite()} ({source.kind}{unsure})'
    yield ""


def _refs(sources: Iterable[Source]) -> str:
    numbers = {source.id: number for number, source in enumerate(facts.sources(), 1)}
    return " ".join(f"[[{numbers[each.id]}]](#{each.id})" for each in sources)


if __name__ == "__main__":
    sys.exit(keep("hardware.md", render(), sys.argv[1:]))
