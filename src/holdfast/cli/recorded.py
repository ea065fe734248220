"""`holdfast doctor --recorded FOLDER`, `holdfast plan … --recorded FOLDER`: a machine that was written down.

Nothing is run. It shows the findings that need no probe, what a message that was printed there means, and what to do
step by step up to the probe that decides. `--json` has the same.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import ExitCode, HoldfastError
from holdfast.cli import doctor_text
from holdfast.console.output import Output, print_error
from holdfast.console.text import without_control
from holdfast.devices import advice, crash_advice, inventory_findings, knowledge_file, recorded, words
from holdfast.faults.terms import Level

if TYPE_CHECKING:
    from holdfast.devices.crash_advice import Opinion
    from holdfast.devices.findings import Finding
    from holdfast.devices.survey.records import Inventory
    from holdfast.planning.world import World

_SIGNS = {"error": "✗", "warning": "!", "note": "-"}


def show(args: argparse.Namespace, output: Output) -> int:
    """Print the page, or JSON; exit code 1 where something was found that keeps a card from training."""
    with recorded.load(Path(args.recorded)) as there:
        here = there.inventory()
        message = args.message or there.message
        found = inventory_findings.of_inventory(here, there.env)
        opinion = crash_advice.consult(here, there.env, message, there.ended)
        steps = advice.today(here, there.env)
        if output.as_json:
            output.json(_data(there.name, here, found, opinion, steps))
        else:
            width = min(doctor_text.WIDTH, max(output.out.width - 1, 40))
            for line in page(there.name, here, found, opinion, steps, width, verbose=bool(output.verbose)):
                output.print(without_control(line))
    bad = any(each.level == Level.ERROR for each in found) or opinion is not None
    return int(ExitCode.NO if bad else ExitCode.OK)


def plan(args: argparse.Namespace, script: str, world: World, output: Output, wrong: list[HoldfastError]) -> int:
    """`holdfast plan SCRIPT --recorded FOLDER`: what that machine could train on, what is in the way, what to do."""
    from holdfast.planning import job_survey

    with recorded.load(Path(args.recorded)) as there:
        here = there.inventory()
        found = inventory_findings.of_inventory(here, there.env)
        steps = advice.today(here, there.env)
        world = job_survey.recorded(world, here, found)
    if output.as_json:
        devices = [{"id": each.id, "name": each.name, "refused": each.refused or None} for each in world.devices]
        known = knowledge_file.current().to_json()
        output.json({"recorded": there.name, "devices": devices, "steps": [*steps], "knowledge": known})
    else:
        width = min(doctor_text.WIDTH, max(output.out.width - 1, 40))
        for line in plan_page(there.name, script, world, steps, width):
            output.print(without_control(line))
    for error in wrong:
        print_error(error, output.err)
    return int(wrong[0].exit_code if wrong else ExitCode.OK)


def plan_page(name: str, script: str, world: World, steps: Sequence[str], width: int) -> Iterator[str]:
    """Each device and what keeps it from training; then the steps, and the way that is open now."""
    yield f"a plan for {script} on a recorded machine · {name}"
    yield "Nothing was measured: how long it takes is known when `holdfast plan` runs there."
    yield ""
    for each in world.devices:
        state = each.refused or ("it works now, and is slow" if each.id == "cpu" else "")
        yield from _wrapped(f"{each.id:<9} ", f"{each.name}: {state}", width)
    usable = [each.id for each in world.devices if not each.refused]
    yield from _today(steps, width)
    yield ""
    first = usable[0] if usable else "cpu"
    yield from _wrapped("", f"Until then: `holdfast train {script} --device {first}`.", width)
    yield from _wrapped("", knowledge_file.sentence(knowledge_file.current(), date.today()), width)


def page(
    name: str,
    here: Inventory,
    found: Sequence[Finding],
    opinion: Opinion | None,
    steps: Sequence[str],
    width: int = doctor_text.WIDTH,
    *,
    verbose: bool = False,
) -> Iterator[str]:
    """The lines of the screen."""
    torch = f"torch {here.torch.version}" if here.torch.version else "no torch"
    system = "WSL2" if here.system.wsl else {"linux": "Linux", "macos": "macOS", "windows": "Windows"}[here.system.os]
    yield " · ".join(["a recorded machine", name, torch, system])
    yield "Nothing was run: this is what is known before any test."
    yield ""
    for device in here.devices:
        yield f"{device.id:<9} {words.describe(device, here.cpu)}"
        for each in found:
            if each.device == device.id and (verbose or each.level != Level.NOTE):
                yield from _wrapped(f"    {_SIGNS[each.level]} {each.code}  ", each.sentence(), width)
    for each in found:
        if each.device == inventory_findings.SYSTEM and (verbose or each.level != Level.NOTE):
            yield from _wrapped(f"    {_SIGNS[each.level]} {each.code}  ", each.sentence(), width)
    if opinion is not None:
        yield ""
        yield from _wrapped(f"The cause, as far as is known: {opinion.code}, ", opinion.sentence, width, indent="  ")
        yield from (f"  try    {command}" for command in opinion.commands)
    yield from _today(steps, width)
    yield ""
    yield from _wrapped("", knowledge_file.sentence(knowledge_file.current(), date.today()), width)


def _today(steps: Sequence[str], width: int) -> Iterator[str]:
    if steps:
        yield ""
        yield "What to do today:"
        for number, step in enumerate(steps, 1):
            yield from _wrapped(f"{number:>3}. ", step, width)


def _wrapped(head: str, text: str, width: int, indent: str | None = None) -> list[str]:
    later = " " * len(head) if indent is None else indent
    return textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    ) or [head]


def _data(
    name: str, here: Inventory, found: Sequence[Finding], opinion: Opinion | None, steps: Sequence[str]
) -> dict[str, Any]:
    said = None
    if opinion is not None:
        said = {"code": opinion.code, "text": opinion.sentence, "commands": list(opinion.commands)}
    return {
        "recorded": name,
        "findings": [{"device": each.device, **each.to_json()} for each in found],
        "opinion": said,
        "steps": [*steps],
        "inventory": here.to_json(),
        "knowledge": knowledge_file.current().to_json(),
    }
