"""What `holdfast doctor` prints: a line for each device, its findings below, a sentence at the end. Pure.

    for line in page(view): output.print(line)

    [✓] cpu      Ryzen 9 7950X, 16 cores, 64 GB        trusted        31 of 31 probes
    [!] cuda:0   RX 7900 XTX (gfx1100), 24 GB          use with care  28 of 31 probes
        ! D024  conv2d fp16 forward is wrong in fp16: off by 0.9 (limit 0.01), right in fp32
        • holdfast will train here without fp16

`•` says what holdfast does about it, `try` what you can do; notes are shown with -v.
"""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.console.output import counted, duration, size, table
from holdfast.console.text import without_control
from holdfast.devices import remedies
from holdfast.devices import words as device_words
from holdfast.devices.inventory_findings import LESS_WELL
from holdfast.devices.verdict import CARE, INFERENCE, REFUSED, TRUSTED, Policy, Verdict
from holdfast.faults.terms import Level

if TYPE_CHECKING:
    from holdfast.devices.examined import Examined
    from holdfast.devices.findings import Finding
    from holdfast.devices.results import ProbeResult
    from holdfast.devices.survey.records import Disk, Inventory

WIDTH = 96
"""Columns at the most; a narrower terminal has less."""
_LEVEL_SIGNS = {"error": "✗", "warning": "!", "note": "-"}
_INDENT = "    "
_BOOKS = ("known-bug", "no-kernels-for-this-card", "not-supported-by-its-maker")
_SHOWN = 4
"""Findings of one device that are shown; the rest is counted."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that is on the page."""

    version: str
    python: str
    inventory: Inventory
    seen: Sequence[Examined]
    machine: Sequence[Finding] = ()
    """About the disk and the system."""
    disk_bytes_s: float | None = None
    advice: Sequence[str] = ()
    script: str = "my_script.py"
    by: str = "--script"
    plan: bool = False
    """There is a `holdfast plan`."""
    asked: str | None = None
    """The only device that was asked for."""
    problem: str | None = None
    knowledge: str = ""
    """How old what is known of cards is, and where newer can be had."""
    verbose: bool = False
    width: int = WIDTH

    @property
    def usable(self) -> list[Examined]:
        return [each for each in self.seen if each.verdict.trainable]


def page(view: View) -> list[str]:
    """The whole of it; every text from outside is cleaned of control codes."""
    lines = [_header(view), "", *_devices(view), *_disk(view), *_system(view), "", *_closing(view)]
    return [without_control(line) for line in lines]


def _header(view: View) -> str:
    system, torch = view.inventory.system, view.inventory.torch
    names = {"linux": "Linux", "macos": "macOS", "windows": "Windows"}
    number = ".".join((system.kernel or "").split("-")[0].split(".")[:2])
    said = f"{names.get(system.os, system.os)} {number}".strip()
    if system.os == "macos" and system.name:  # nobody knows the number of its kernel
        said = system.name
    build = f"torch {torch.version}" if torch.version else "no torch"
    many = counted(len(view.seen), "device")
    return " · ".join([f"holdfast {view.version}", f"Python {view.python}", build, said, many])


# Devices ------------------------------------------------------------------------------------------------------------


def _devices(view: View) -> list[str]:
    rows = [_row(each, view) for each in view.seen]
    lines: list[str] = []
    for head, each in zip(_aligned(rows), view.seen, strict=True):
        lines += [head, *_details(each, view)]
    return lines


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """The sign and the name stand apart from the rest, as wide as the widest of them and never less than seven."""
    listed = list(rows)
    wide = max([7, *(len(row[1]) for row in listed)])
    return table([(f"{row[0]} {row[1]:<{wide}}", *row[2:]) for row in listed])


def _row(seen: Examined, view: View) -> tuple[str, str, str, str, str]:
    verdict = seen.verdict
    device = view.inventory.device(verdict.device)
    return (
        f"[{sign(verdict)}]",
        verdict.device,
        device_words.describe(device, view.inventory.cpu),
        verdict.words,
        _probes(seen),
    )


def sign(verdict: Verdict) -> str:
    """✓ ! ☠ ✗: a device that kills processes is not merely wrong."""
    if verdict.state in (CARE, INFERENCE):
        return "!"
    if verdict.state == TRUSTED:
        return "✓"
    dead = verdict.probes.get("crashed", 0) + verdict.probes.get("hung", 0)
    return "☠" if dead else "✗"


def _probes(seen: Examined) -> str:
    counts = seen.verdict.probes
    done = sum(counts.get(status, 0) for status in ("passed", "failed", "crashed", "hung"))
    if not done:
        return "not probed"
    when = f", {duration(seen.age_s)} ago" if seen.remembered and seen.age_s is not None else ""
    return f"{counts.get('passed', 0)} of {done} probes{when}"


# Below a device -----------------------------------------------------------------------------------------------------


def _details(seen: Examined, view: View) -> list[str]:
    verdict = seen.verdict
    wanted = worth_showing(verdict, verbose=view.verbose)
    shown = wanted if view.verbose else wanted[:_SHOWN]
    lines = [line for each in shown for line in finding_lines(each, view)]
    if len(wanted) > len(shown):
        lines.append(f"{_INDENT}  and {len(wanted) - len(shown)} more: holdfast doctor -v")
    if not wanted and verdict.why and verdict.state != TRUSTED:
        lines += _wrapped("-", "", verdict.why, view)
    if seen.stale:
        lines += _wrapped("•", "", f"probed again: {seen.stale}", view)
    lines += _script_line(seen, view)
    for text in policy_lines(verdict):
        lines += _wrapped("•", "", text, view)
    for command, why in _to_try(verdict, shown):
        line = f"{_INDENT}  try    {command}"
        lines.append(f"{line}     ({why})" if why and len(line) + len(why) + 7 <= view.width else line)
    return lines + (_checks(seen.results) if view.verbose else [])


def _script_line(seen: Examined, view: View) -> list[str]:
    """One step of the user's script that went well; what went wrong is a finding."""
    result = seen.script
    if result is None or result.status not in ("passed", "skipped"):
        return []
    if result.status == "skipped":
        return _wrapped("-", "", f"{view.script} was not tried: {result.evidence.get('why')}", view)
    unknown = result.evidence.get("not_compared")
    if result.error is None:
        return _wrapped("✓", "", f"one step of {view.script} works; not compared: {unknown}", view)
    off = f"off by {result.error:.1g}, limit {result.bound:.1g}" if result.bound is not None else f"{result.error:.1g}"
    same = "agrees with the CPU" if seen.verdict.device != "cpu" else "works"
    return _wrapped("✓", "", f"one step of {view.script} {same} ({off}), {duration(result.seconds)}", view)


def worth_showing(verdict: Verdict, *, verbose: bool = False) -> list[Finding]:
    """All but notes; and what books say only where the probes have something to explain, the first of each kind."""
    if verbose:
        return list(verdict.findings)
    shown: list[Finding] = []
    for each in verdict.findings:
        book = each.about.slug in _BOOKS
        told = any(other.about.slug == each.about.slug for other in shown)
        if each.level != Level.NOTE and not (book and (verdict.state == TRUSTED or told)):
            shown.append(each)
    return shown


def finding_lines(finding: Finding, view: View) -> list[str]:
    """`! D024  sentence`, with the number of further probes that say the same."""
    also = finding.evidence.get("also")
    more = f"; {counted(len(also), 'more probe')} alike" if isinstance(also, list) and also else ""
    lines = _wrapped(_LEVEL_SIGNS.get(finding.level, "-"), finding.code, sentence(finding) + more, view)
    if view.verbose and isinstance(also, list) and also:
        lines += _wrapped(" ", " " * len(finding.code), f"also: {', '.join(str(each) for each in also)}", view)
    return lines


def sentence(finding: Finding) -> str:
    """Its sentence; where its evidence does not fill one, which probe it was."""
    said = finding.sentence()
    probe, why = finding.evidence.get("probe"), finding.evidence.get("why")
    if said != finding.title or not isinstance(probe, str):
        return said
    return f"{said[0].lower()}{said[1:]}: {probe}" + (f" ({why})" if isinstance(why, str) and why else "")


def _wrapped(mark: str, code: str, text: str, view: View) -> list[str]:
    first = f"{_INDENT}{mark} {code}  " if code else f"{_INDENT}{mark} "
    return textwrap.wrap(
        text,
        view.width,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def policy_lines(verdict: Verdict) -> list[str]:
    """What holdfast does about it; nothing for a device that needs nothing, or gets nothing to do."""
    if verdict.state == REFUSED:
        return [] if not verdict.probes else ["holdfast will not train here"]
    if verdict.state == INFERENCE:
        return ["holdfast will not train here; results of the forward pass are right"]
    will, yours = _will(verdict.policy), _yours(verdict.policy)
    lines = [f"holdfast will {_and(will)}"] if will else []
    return [*lines, *([f"in your script, avoid {_and(yours)}"] if yours else [])]


def _will(policy: Policy) -> list[str]:
    will = []
    if policy.dtype:
        will.append("train here in fp32")
    elif policy.off:
        will.append(f"train here without {_and(policy.off)}")
    if policy.memory_headroom_bytes:
        will.append(f"keep {size(policy.memory_headroom_bytes)} of its memory free")
    if policy.microbatch:
        will.append(f"compute {counted(policy.microbatch, 'sample')} at once and no more")
    if policy.sdpa_off:
        will.append(f"not use {_and(policy.sdpa_off)} attention")
    for name in policy.remedies:
        remedy = remedies.named(name)
        if remedy is not None and remedy.tried:
            will.append(f"use {remedy.text} (cost: {remedy.cost})")
    return will


def _yours(policy: Policy) -> list[str]:
    """What only the script can leave out."""
    words = {"channels_last": "channels_last", "changing shapes": "batches of changing shape"}
    words |= {"double backward": "gradients of gradients", "a second process": "a second process on this device"}
    return [words[name] for name in policy.avoid if name in words]


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _to_try(verdict: Verdict, shown: Sequence[Finding]) -> list[tuple[str, str]]:
    """Commands for a person, where holdfast cannot help by itself: each once, with what it is good for."""
    if verdict.trainable:
        return []
    commands: dict[str, str] = {}
    for each in shown:
        for place, command in enumerate(each.remedy.commands if each.remedy else ()):
            commands.setdefault(command, "" if place else each.remedy.text if each.remedy else "")
    return list(commands.items())[:3]


def _checks(results: Sequence[ProbeResult]) -> list[str]:
    """Every check: how it ended, what it was off by and what is allowed, how long it took."""
    rows = []
    for each in results:
        why = str(each.evidence.get("why") or "") if each.status != "passed" else ""
        error, bound = (f"{value:.1e}" if value is not None else "-" for value in (each.error, each.bound))
        rows.append((each.probe, each.status, error, bound, duration(each.seconds), why[:60]))
    header = ("CHECK", "ENDED", "OFF BY", "LIMIT", "TIME", "")
    return ["", *(f"{_INDENT}{line}" for line in table(rows, header=header, right=(2, 3, 4))), ""] if rows else []


# The machine --------------------------------------------------------------------------------------------------------


def _disk(view: View) -> list[str]:
    disk = view.inventory.disk
    if disk is None:
        return []
    mine = [each for each in view.machine if each.device == "disk" and (view.verbose or each.level != Level.NOTE)]
    wide = max([7, *(len(each.verdict.device) for each in view.seen)])
    return [
        f"[{_mark(mine)}] {'disk':<{wide}}  {_disk_words(disk, view)}",
        *(line for each in mine for line in finding_lines(each, view)),
    ]


def _disk_words(disk: Disk, view: View) -> str:
    parts = [disk.folder, f"{size(disk.free_bytes)} free" if disk.free_bytes is not None else None]
    parts.append(f"{size(view.disk_bytes_s)}/s until it is on the disk" if view.disk_bytes_s else None)
    parts.append("in memory: lost after a reboot" if disk.in_memory else None)
    parts.append("over the network" if disk.over_network else None)
    return ", ".join(part for part in parts if part)


def _system(view: View) -> list[str]:
    mine = [each for each in view.machine if each.device == "system" and (view.verbose or each.level != Level.NOTE)]
    less = [each.code for each in view.machine if each.about.slug in _less_well(view)]
    if not mine and not less:
        return []
    wide = max([7, *(len(each.verdict.device) for each in view.seen)])
    lines = [f"[{_mark(mine)}] {'system':<{wide}}  {view.inventory.system.name or platform.system()}"]
    lines += [line for each in mine for line in finding_lines(each, view)]
    if less and not view.verbose:
        text = f"{len(less)} things work less well than on Linux ({less[0]} to {less[-1]}): holdfast doctor -v"
        lines += _wrapped("•", "", text, view)
    return lines


def _less_well(view: View) -> tuple[str, ...]:
    return LESS_WELL.get(view.inventory.system.os, ())


def _mark(found: Sequence[Finding]) -> str:
    levels = [each.level for each in found]
    return "✗" if "error" in levels else "!" if "warning" in levels else "✓"


# The end ------------------------------------------------------------------------------------------------------------


def _closing(view: View) -> list[str]:
    lines = [_sum(view)]
    measured = [each for each in view.seen if not each.remembered and each.verdict.measured_at]
    if view.problem:
        lines.append(f"Verdicts could not be saved: {view.problem}.")
    elif measured:
        lines.append("Verdicts saved for 30 days or until driver, torch or kernel changes.")
    elif any(each.remembered for each in view.seen):
        lines.append("Verdicts from before; `holdfast doctor --fresh` probes again.")
    lines += _paragraph(view.knowledge, view) if view.knowledge else []
    if view.advice:
        lines.append("")
        for text in view.advice:
            lines += _paragraph(text, view, "  ")
    lines += ["", *_next(view)]
    return lines


def _paragraph(text: str, view: View, indent: str = "") -> list[str]:
    return textwrap.wrap(text, view.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _sum(view: View) -> str:
    """One sentence that says whether all is well."""
    names = [_named(each.verdict) for each in view.usable]
    left = [each for each in view.seen if not each.verdict.trainable]
    refused = sum(each.verdict.state == REFUSED for each in left)
    rest = f" {refused} refused." if refused else ""
    rest += f" {len(left) - refused} for inference only." if len(left) > refused else ""
    if not names:
        return f"No device here can train.{rest}" if not view.asked else f"{view.asked} cannot train."
    none = " No GPU was found." if not view.inventory.gpus and not view.asked else ""
    return f"{counted(len(names), 'device')} you can train on: {', '.join(names)}.{rest}{none}"


def _named(verdict: Verdict) -> str:
    return f"{verdict.device} (with care)" if verdict.state == CARE else verdict.device


def _next(view: View) -> list[str]:
    """What to type now: codes to look up, then the one sentence a newcomer needs."""
    rows = []
    codes = [each.code for seen in view.seen for each in worth_showing(seen.verdict)]
    codes += [each.code for each in view.machine if each.level != Level.NOTE]
    if codes:
        rows.append((f"  holdfast explain {codes[0]}", "what this finding means and how it was measured"))
    if view.plan and view.usable:
        rows.append((f"  holdfast plan {view.script}", "compare time and cost of each way to run it"))
    lines = table(rows, gap=6)
    if any(each.about.slug == "own-script-fails-everywhere" for seen in view.seen for each in seen.verdict.findings):
        last = f"Mend {view.script}, then type `holdfast doctor {view.by} {view.script}` again."
    elif view.usable:
        best = next((each for each in view.usable if each.verdict.device != "cpu"), view.usable[0]).verdict
        where = "the CPU" if best.device == "cpu" else best.device
        care = " with care, as above" if best.state == CARE else ""
        only = f" --device {view.asked}" if view.asked else ""
        last = (
            f"Now type `holdfast train {view.script}{only}`: it trains on {where}{care} and survives crashes and hangs."
        )
    elif view.inventory.torch.version is None:
        last = "Now type `pip install torch`, then `holdfast doctor` again."
    elif view.asked:
        last = "Now type `holdfast doctor` without --device to see what else is here."
    else:
        last = f"Now type `holdfast explain {codes[0]}`." if codes else "Now type `holdfast doctor --fresh --full`."
    return [*lines, *([""] if lines else []), *([last] if view.width >= WIDTH else _paragraph(last, view))]
