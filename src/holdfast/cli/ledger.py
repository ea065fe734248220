"""`holdfast ledger`: how far each device is trusted, why, and what it has done.

holdfast ledger                       every device that was ever used on this machine
holdfast ledger -v                    with the last lines that were written
holdfast ledger --forget cuda:0       lift its quarantine or probation; its history stays
holdfast ledger pardon cuda:0         take back a verdict on its numbers; that there was one stays
"""

from __future__ import annotations

import argparse
from typing import Any

from holdfast.base import processes
from holdfast.base.errors import ExitCode, UserError
from holdfast.console.output import Output, add_flags, count, duration, shorten, table
from holdfast.console.text import without_control
from holdfast.console.usage import Parser, similar
from holdfast.devices.identity import by_key
from holdfast.devices.ledger import Ledger
from holdfast.devices.ledger_summary import LedgerState, Line, Standing, Standings, Trust

_SHOWN = 20
_LISTED = 5
"""Suspicions that are shown of a device."""


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "ledger",
        description="""\
Show how far each device of this machine is trusted, and why.

examples:
  holdfast ledger                     every device
  holdfast ledger -v                  also the last entries of the ledger
  holdfast ledger --forget cuda:0     lift a quarantine; the history stays
  holdfast ledger pardon cuda:0       take back the verdict "computes wrong numbers"

The ledger counts hours of use and faults. Two freezes of the machine put a device in quarantine.
""",
    )
    parser.add_argument(
        "act",
        nargs="?",
        choices=["pardon"],
        help="`pardon`: take back the verdict that a device computes wrong numbers",
    )
    parser.add_argument("device", nargs="?", metavar="DEVICE", help="the device to pardon")
    parser.add_argument("--forget", metavar="DEVICE", help="lift the quarantine or probation of this device")
    add_flags(parser, plain=True)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Settle what an earlier boot left open, then show or forget."""
    output = Output.from_args(args)
    ledger = Ledger()
    for settled in ledger.settle(processes.boot_id()):
        output.note(without_control(f"• {settled.sentence}"))
    if args.forget:
        return _forget(ledger, args.forget, output)
    if args.act == "pardon":
        return _pardon(ledger, args.device, output)
    if output.as_json:
        output.json(_data(ledger))
        return ExitCode.OK
    standings = ledger.standings()
    if not standings:
        output.note(f"no device was used on this machine yet; the ledger will be {shorten(str(ledger.path))}")
        return ExitCode.OK
    for line in _plain(ledger, standings) if output.plain else _page(ledger, standings):
        output.print(without_control(line))
    if output.verbose:
        output.print()
        for entry in ledger.lines()[-_SHOWN:]:
            output.print(without_control(story(entry)))
    return ExitCode.OK


def _trust(ledger: Ledger, standing: Standing) -> Trust:
    return ledger.trust(by_key(standing.device, standing.label), standing.rung)


def _page(ledger: Ledger, standings: Standings) -> list[str]:
    """A table, then why where there is a reason, then what is in use."""
    rows, reasons = [], []
    for standing in standings.values():
        trust = _trust(ledger, standing)
        rows.append(
            (
                standing.label,
                standing.name or "-",
                standing.rung or "-",
                trust.state,
                duration(standing.seconds),
                count(standing.steps),
                count(standing.faults),
                count(len(standing.freezes)),
            )
        )
        if trust.state in (LedgerState.PROBATION, LedgerState.QUARANTINED):
            reasons += _reason(standing, trust)
        reasons += _suspicions(standing)
    header = ("DEVICE", "NAME", "RUNG", "TRUST", "USED", "STEPS", "FAULTS", "FREEZES")
    using = [f"in use: {_named(line)} by {line.text('run', 'a run')} since {line.time}" for line in ledger.in_use()]
    return [*table(rows, header=header, right=(4, 5, 6, 7)), *reasons, *([""] if using else []), *using]


def _reason(standing: Standing, trust: Trust) -> list[str]:
    since = f" since {trust.since[:10]}" if trust.since else ""
    rung = f" {standing.rung}" if standing.rung else ""
    until = f"until {trust.until}" if trust.until else ""
    return ["", f"{standing.label}{rung}: {trust.state}{since}", f"  because  {trust.why}", f"  {until}"]


def _suspicions(standing: Standing) -> list[str]:
    """What disagreed with the CPU, who confirmed it, and what became of it; the newest last."""
    lines = [f"  {_suspicion(each)}" for each in standing.suspicions[-_LISTED:]]
    rung = f" {standing.rung}" if standing.rung else ""
    return ["", f"{standing.label}{rung}: numbers that disagreed with the CPU", *lines] if lines else []


def _suspicion(told: dict[str, Any]) -> str:
    by = f"confirmed by {told.get('by')}" if told.get("confirmed") else "suspected, not confirmed"
    pardoned = f"; pardoned {str(told['pardoned'])[:10]}" if told.get("pardoned") else ""
    return f"{str(told.get('time'))[:10]}  {told.get('why')}; {by}{pardoned}"


def _plain(ledger: Ledger, standings: Standings) -> list[str]:
    """One rung a line, words apart by tabs."""
    return [
        "\t".join(
            [
                each.label,
                each.device,
                each.rung or "-",
                _trust(ledger, each).state,
                f"{each.seconds:.0f}",
                str(each.faults),
                str(len(each.freezes)),
            ]
        )
        for each in standings.values()
    ]


def _data(ledger: Ledger) -> dict[str, Any]:
    devices = []
    for standing in ledger.standings().values():
        trust = _trust(ledger, standing)
        devices.append(
            {
                "device": standing.label,
                "key": standing.device,
                "name": standing.name or None,
                "rung": standing.rung,
                "trust": trust.state,
                "since": trust.since,
                "until": trust.until,
                "why": trust.why or None,
                "hours": standing.seconds / 3600,
                "steps": standing.steps,
                "uses": standing.uses,
                "faults": standing.faults,
                "freezes": len(standing.freezes),
                "last": standing.last,
                "suspicions": standing.suspicions,
            }
        )
    using = [{"device": each.label, "rung": each.rung, "run": each.data.get("run")} for each in ledger.in_use()]
    return {"path": str(ledger.path), "devices": devices, "in_use": using}


def story(line: Line) -> str:
    """A line of the ledger in words."""
    what = {
        "open": f"in use by {line.text('run')} ({line.text('act')})",
        "close": f"{line.text('how')}: {line.data.get('steps', 0)} steps in {line.data.get('seconds', 0)} s",
        "settled": f"{line.text('decision')}: {line.text('why')}",
        "note": f"{line.text('what')}: {_facts(line.facts())}",
        "forget": "forgotten on request",
        "pardon": "pardoned on request",
        "total": "the lines before this one, added up",
    }.get(line.kind, line.kind)
    evidence = line.data.get("evidence")
    shown = "".join(f"\n    {text}" for text in evidence) if isinstance(evidence, list) else ""
    return f"{line.time[:19]}  {_named(line)}  {what}{shown}"


def _named(line: Line) -> str:
    return f"{line.label} {line.rung}".strip()


def _facts(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value not in (None, ""))


def _pardon(ledger: Ledger, wanted: str | None, output: Output) -> int:
    if wanted is None:
        raise UserError("`holdfast ledger pardon` needs a device", hints=["holdfast ledger pardon cuda:0"])
    key, label = _known(ledger, wanted)
    suspected = [
        each for standing in ledger.standings().values() if standing.device == key for each in standing.suspicions
    ]
    ledger.pardon(by_key(key, label))
    if ledger.problem:
        raise UserError("nothing was pardoned", cause=ledger.problem)
    if output.as_json:
        output.json({"pardoned": key, "suspicions": len(suspected)})
    else:
        output.print(f"✓ the verdict on the numbers of {label} is taken back; it stays in the history")
    return ExitCode.OK


def _known(ledger: Ledger, wanted: str) -> tuple[str, str]:
    """The key and the label of the one device that is meant."""
    known = {standing.device: standing.label for standing in ledger.standings().values()}
    found = [
        key for key, label in known.items() if wanted in (key, label) or (key.startswith("pci ") and wanted in key)
    ]
    if not found:
        tips = similar(wanted, known.values(), "device")
        listed = [f"known: {', '.join(sorted(set(known.values())))}"] if known else []
        raise UserError(f"the ledger has no device `{wanted}`", hints=[*tips, *listed])
    if len(found) > 1:
        raise UserError(f"`{wanted}` names several cards", hints=[f"name one: `{key}`" for key in found])
    return found[0], known[found[0]]


def _forget(ledger: Ledger, wanted: str, output: Output) -> int:
    key, label = _known(ledger, wanted)
    ledger.forget(by_key(key, label))
    if ledger.problem:
        raise UserError("nothing was changed", cause=ledger.problem)
    if output.as_json:
        output.json({"forgotten": key})
    else:
        output.print(f"✓ {label} is trusted again; its history stays")
    return ExitCode.OK
