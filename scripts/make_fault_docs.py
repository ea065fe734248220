#!/usr/bin/env python3
"""Write docs/faults.md from the texts and messages the program itself uses.

python scripts/make_fault_docs.py             write it
python scripts/make_fault_docs.py --check     exit 1 if it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pages import keep, said

from holdfast.faults.classification import CODES, Explanation, Signature, explanations, signatures
from holdfast.faults.kernel_messages import messages, seen_with
from holdfast.faults.ladder import Entry, Limits, table
from holdfast.faults.terms import Action, Health

_HEALTH = {
    Health.ALIVE: "usable",
    Health.DEAD: "lost",
    Health.MACHINE: "lost, and the device",
}


def render() -> str:
    """The whole page."""
    return "\n".join(
        [
            "<!-- Made by scripts/make_fault_docs.py from src/holdfast/faults: edit there, not here. -->",
            "# Faults",
            "",
            "What can happen to a run, what holdfast does about it, and what you can do.",
            "`holdfast explain F005` prints the same;",
            '`holdfast explain "<message>"` finds the fault behind an error.',
            "",
            *_overview(),
            *(line for row in explanations() for line in _section(row)),
            *_harmless(),
            *_kernel_log(),
        ]
    )


def _overview() -> Iterator[str]:
    yield "| code | fault | level | what is tried, in this order |"
    yield "|---|---|---|---|"
    policy = table(Limits())
    for row in explanations():
        tried = ", ".join(_entry(entry) for entry in policy[row.kind])
        yield f"| [{row.code}](#{row.code.lower()}) | `{row.kind}` | {row.level} | {tried} |"
    yield ""
    yield "*retry*: the same step again in the same process, or in a new one if that is not usable any more."
    yield "*split*: the step in pieces. *cpu batch*: this batch on the CPU. *replace*: a new worker from the snapshot"
    yield "on the same [rung](concepts.md#ladder). *next rung*: the same on the next rung. *fail* and *give up*: the"
    yield "run stops with its state saved. What cannot help is left out, such as *split* with a batch of one. Tries are"
    yield "counted per step and rung; for faults from outside, since the last committed step."
    yield ""
    yield "In the tables of messages, `/…/` is a regular expression. Under *on*, *device* is any accelerator, and *any*"
    yield "is the CPU as well. Under *process*, *lost* is a process that cannot use the device any more."
    yield ""


def _entry(entry: Entry) -> str:
    action, times = (entry, 1) if isinstance(entry, Action) else entry
    words = action.value.replace("_", " ")
    return words if times == 1 else f"{words} (up to {times} in all)"


def _section(row: Explanation) -> Iterator[str]:
    yield f'<a id="{row.code.lower()}"></a>'
    yield ""
    yield f"## {row.code} {row.title}"
    yield ""
    yield f"`{row.slug}` · {row.level}"
    yield ""
    yield from said(row)
    yield from _messages([known for known in signatures() if known.kind is row.kind])
    names = ", ".join(f"[{line.code}](#{line.id})" for line in seen_with(row.kind) if line.xid != 0)
    if names:
        yield f"In the kernel log: {names}."
        yield ""


def _messages(known: list[Signature]) -> Iterator[str]:
    if not known:
        return
    yield "| message or sign | on | means | process | what helps |"
    yield "|---|---|---|---|---|"
    for row in known:
        where, left = ", ".join(row.backends), _HEALTH[row.health]
        yield f"| {_sign(row)} | {where} | {row.means} | {left} | {row.action} |"
    yield ""


def _harmless() -> Iterator[str]:
    yield "## Messages that are no fault"
    yield ""
    yield from _messages([known for known in signatures() if known.kind is None])


def _kernel_log() -> Iterator[str]:
    yield "## In the kernel log"
    yield ""
    yield "Lines that are kept with a fault where the log may be read ([evidence.md](evidence.md))."
    yield "`holdfast explain` takes the name of a line, or the line itself."
    yield ""
    unused = [str(row.xid) for row in messages() if row.unused]
    numbers = ", ".join(unused)
    yield f"NVIDIA's catalogue lists these numbers as unused; a line with one is kept all the same: Xid {numbers}."
    yield "The column *NVIDIA* has the immediate action that the catalogue names."
    yield ""
    yield "| name | line | means | what helps | NVIDIA | seen with |"
    yield "|---|---|---|---|---|---|"
    for row in messages():
        if row.unused:
            continue
        codes = ", ".join(f"[{CODES[kind]}](#{CODES[kind].lower()})" for kind in row.kinds)
        sign = row.sign.replace("|", "\\|")
        nvidia = f"`{row.nvidia}`" if row.nvidia else "-"
        yield f'| <a id="{row.id}"></a>{row.code} | `{sign}` | {row.means} | {row.action} | {nvidia} | {codes} |'
    yield ""


def _sign(row: Signature) -> str:
    """How it is recognised: the texts or the pattern, as code; else what is observed, in words."""
    if row.observed is not None:
        return row.observed
    parts = [*row.text, *([f"/{row.regex}/"] if row.regex else [])]
    return "<br>".join(f"`{part}`".replace("|", "\\|") for part in parts)


if __name__ == "__main__":
    sys.exit(keep("faults.md", render(), sys.argv[1:]))
