"""faults/NN/: everything that is known about one fault, with one sentence on top.

    folder = collect(run, fault, move, beat, words, stacks, crash_stack, gathering=gathering)
    add_verdict(folder, verdict.to_json())         # minutes later, when blame was proven

README.txt is for people and is made from the other files, so it can be made again whenever one of them changes.
Every file is replaced whole. A full disk costs evidence, never the run: nothing here raises for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from holdfast.base.board import Beat
from holdfast.base.files import read_bounded
from holdfast.base.folders import Folder, write_whole
from holdfast.faults.classification import Fault
from holdfast.faults.ladder import Move
from holdfast.record.evidence import counters, drm, environment
from holdfast.run.events import utc_now
from holdfast.run.folder import RunFolder, read_json

FILES = {
    "fault.json": "the fault, what was done about it and the board, for programs",
    "stderr.txt": "the last lines the worker printed",
    "stacks-python.txt": "where its Python code was",
    "stacks-native.txt": "where its native code was",
    "kernel.txt": "what the kernel said while the worker lived and shortly after",
    "kernel.json": "the same, for programs",
    "counters.json": "memory kills, throttling, bus and memory errors, pressure",
    "again.py": "computes the operator that was wrong again, on the device and on the CPU",
    "finding.json": "that operator: shapes, dtypes, the numbers, what rounding explains",
    "case.safetensors": "its inputs and what the device made of them",
    "environment.json": "versions, hardware and variables; secrets are left out",
}
"""What may be in the folder, in the order in which a person reads it."""
_CASE_FILES = ("case.safetensors", "finding.json", "again.py")
"""Of an operator that was wrong."""
_LARGEST_CASE = 256 << 20
_WIDTH = 110


class Gatherer(Protocol):
    """Who adds to the folder what takes long to ask for, later and in processes of its own."""

    def begin(self, folder: Path, fault: Fault, run: RunFolder) -> None: ...


def collect(
    run: RunFolder,
    fault: Fault,
    move: Move,
    beat: Beat | None,
    words: str,
    stacks: dict[str, str],
    crash_stack: str,
    *,
    gathering: Gatherer | None = None,
) -> Path:
    """Write what is at hand into a folder of its own, at once. The rest is the gathering's, and comes later."""
    try:
        folder = run.next_fault_folder()
    except OSError:  # the disk is full or gone; the run goes on without this evidence
        return run.path / "faults"
    record: dict[str, Any] = {
        "sentence": fault.sentence(),
        "cause": fault.cause(),
        "time": utc_now(),
        "fault": fault.to_json(),
        "move": move.to_json(),
    }
    if beat is not None:
        record["board"] = _board(beat)
    write_json(folder / "fault.json", record, durable=True)
    write_text(folder / "stderr.txt", words)
    _take_case(folder, fault.evidence.get("case"))
    for name, text in {**({"python": crash_stack} if crash_stack else {}), **stacks}.items():
        write_text(folder / f"stacks-{name}.txt", text)
    if gathering is None:
        write_counters(folder, None, counters.read())
        write_json(folder / "environment.json", environment.look(info=run.info))
    else:
        gathering.begin(folder, fault, run)
    write_text(folder / "README.txt", readme(folder, record))
    return folder


def _take_case(folder: Path, case: object) -> None:
    """The operator that computed wrongly, for whoever wants to see it again."""
    if not isinstance(case, str):
        return
    with contextlib.suppress(OSError), Folder.at(folder, inner=2) as place:
        for name in _CASE_FILES:
            place.replace(name, read_bounded(Path(case) / name, _LARGEST_CASE))


def write_counters(folder: Path, before: dict[str, Any] | None, now: dict[str, Any]) -> None:
    """The counters now, and by how much they grew since the worker began."""
    grown = counters.rose(before, now) if before else None
    write_json(folder / "counters.json", {"rose": grown, **now, "coredumps": drm.coredumps()})


def add_verdict(folder: Path, verdict: Mapping[str, Any]) -> None:
    """Add who was at fault, reached by a replay or by hand, to the evidence of a fault."""
    add(folder, "fault.json", verdict=dict(verdict))


def add(folder: Path, name: str, **more: Any) -> None:
    """Add something to one of the JSON files, and tell it in the README."""
    write_json(folder / name, {**(read_json(folder / name) or {}), **more}, durable=name == "fault.json")
    write_readme(folder)


def _board(beat: Beat) -> dict[str, Any]:
    board: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(beat), default=str))
    board["times"] = {phase.label: dataclasses.asdict(times) for phase, times in beat.times.items() if times.count}
    board["phase"] = beat.phase.label
    return board


# -- README.txt ------------------------------------------------------------------------------------------------


def write_readme(folder: Path) -> None:
    """Make it again from what is there."""
    with contextlib.suppress(OSError):
        write_text(folder / "README.txt", readme(folder))


def readme(folder: Path, record: dict[str, Any] | None = None) -> str:
    """The page for people; its first line is the one sentence."""
    record = record or read_json(folder / "fault.json") or {}
    kernel = read_json(folder / "kernel.json") or {}
    lines = [_headline(record, kernel), ""]
    for label, text in _facts(folder, record, kernel):
        wrapped = textwrap.wrap(text, _WIDTH - 10, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [f"{label:<10}{wrapped[0]}", *(f"{'':<10}{line}" for line in wrapped[1:])]
    there = [name for name in sorted(os.listdir(folder), key=_reading_order) if _is_shown(name)]
    width = max((len(name) for name in there), default=0)
    lines += ["", "files", *(f"  {name:<{width}}  {_said_of(name)}".rstrip() for name in there)]
    return "\n".join(lines) + "\n"


def _headline(record: dict[str, Any], kernel: dict[str, Any]) -> str:
    sentence = str(record.get("sentence") or "a fault whose record cannot be read")
    worst = kernel.get("worst")
    more = f"; the kernel says: {worst}" if isinstance(worst, str) else ""
    named = ":" in sentence.partition(" ")[0]  # a device is written as torch writes it
    return f"{sentence if named else sentence[0].upper() + sentence[1:]}{more}."


def _facts(folder: Path, record: dict[str, Any], kernel: dict[str, Any]) -> Iterator[tuple[str, str]]:
    fault, move = (value if isinstance(value := record.get(name), dict) else {} for name in ("fault", "move"))
    code = fault.get("code")
    if code:
        yield "code", f"{code}; `holdfast explain {code}` says what it means"
    if record.get("time"):
        yield "when", str(record["time"])
    if record.get("cause"):
        yield "cause", str(record["cause"])
    if kernel:
        yield "kernel", _kernel_line(kernel)
    yield from _counted(read_json(folder / "counters.json") or {})
    if move.get("reason"):
        yield "then", str(move["reason"])
    yield "blame", _blame(record, fault)


def _kernel_line(kernel: dict[str, Any]) -> str:
    entries = kernel.get("entries")
    closed = kernel.get("unreadable")
    if isinstance(entries, list) and entries:
        means = dict.fromkeys(str(entry.get("sentence")) for entry in entries if isinstance(entry, dict))
        return "; ".join([*list(means)[:4], *([f"and {len(means) - 4} more"] if len(means) > 4 else [])])
    if isinstance(closed, dict) and closed:
        return "its log could not be read: " + ", ".join(f"{source}: {why}" for source, why in closed.items())
    return "said nothing about devices, memory or disks in that time"


def _counted(counted: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What grew while the worker lived, and what a driver asks for."""
    grown = counted.get("rose")
    if isinstance(grown, dict) and grown:
        yield "counted", ", ".join(f"{name} +{value}" for name, value in grown.items())
    cards = counted.get("nvidia")
    for card in cards if isinstance(cards, list) else []:
        asked = card.get("needs") if isinstance(card, dict) else None
        if asked:
            yield "driver", f"asks for {asked} of {card.get('device')}"
    if isinstance(cards, str):
        yield "driver", f"nvidia-smi: {cards}"


def _blame(record: dict[str, Any], fault: dict[str, Any]) -> str:
    known = fault.get("evidence")
    verdict = record.get("verdict") or (known.get("verdict") if isinstance(known, dict) else None)
    if not isinstance(verdict, dict):
        return "not known"
    said = verdict.get("sentence") or ": ".join(
        str(part) for part in (verdict.get("blame"), verdict.get("why")) if part
    )
    return str(said) or "not known"


def _reading_order(name: str) -> tuple[int, str]:
    known = list(FILES)
    return (known.index(name) if name in known else len(known), name)


def _is_shown(name: str) -> bool:
    return name != "README.txt" and not name.startswith(".")


def _said_of(name: str) -> str:
    return FILES.get(name, "")


# -- writing ---------------------------------------------------------------------------------------------------


def write_json(path: Path, data: dict[str, Any], *, durable: bool = False) -> None:
    write_text(path, json.dumps(data, indent=2, default=str), durable=durable)


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace a file whole, readable by its owner alone; nothing for nothing, and nothing where there is no room."""
    if not text:
        return
    text = text if text.endswith("\n") else f"{text}\n"
    with contextlib.suppress(OSError):
        write_whole(path, text.encode(errors="replace"), durable=durable, inner=2)
