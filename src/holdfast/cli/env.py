"""`holdfast env`: what a bug report needs to say about a machine, ready to paste.

Paths below the home folder are shortened, variables come from an allow-list, and what looks like a secret
is left out. It imports no torch and asks no driver, so it answers even where both would hang.
"""

from __future__ import annotations

import argparse
from typing import Any

from holdfast.base.errors import ExitCode
from holdfast.console.output import Output, add_flags, count, counted, size, table
from holdfast.run import machine


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "env",
        description="""\
Print versions, hardware and limits of this machine, ready to paste into a bug report.

examples:
  holdfast env                       a block of text
  holdfast env --json                the same as JSON

The output contains no secrets and no home paths.
""",
    )
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the block, or with --json the same facts."""
    output = Output.from_args(args)
    facts = machine.look()
    if output.as_json:
        output.json(facts)
    else:
        output.print("\n".join(block(facts)))
    return ExitCode.OK


def block(facts: dict[str, Any]) -> list[str]:
    """The facts as lines between code fences, which an issue tracker leaves as they are."""
    python = facts["python"]
    rows = [
        ("holdfast", facts["holdfast"] or "not installed"),
        ("Python", f"{python['version']} ({python['implementation']}), {python['executable']}"),
        ("system", _system(facts["system"])),
        ("CPU", _cpu(facts["cpu"])),
        ("memory", _memory(facts["memory"])),
        ("limits", _limits(facts["limits"])),
        ("torch", _torch(facts["torch"])),
        ("packages", _joined(f"{name} {version}" for name, version in facts["packages"].items() if version)),
        *_devices(facts),
        *_under("environment", [f"{name}={value}" for name, value in facts["environment"].items()]),
    ]
    return ["```text", *table(rows), "```"]


def _system(system: dict[str, Any]) -> str:
    inside = [f"WSL {system['wsl']}"] if system["wsl"] else []
    inside += [f"in a container ({system['container']})"] if system["container"] else []
    return ", ".join([system["name"], system["kernel"], system["machine"], *inside])


def _cpu(cpu: dict[str, Any]) -> str:
    cores = counted(cpu["count"], "core") if cpu["count"] else "unknown cores"
    fewer = cpu["usable"] and cpu["usable"] != cpu["count"]
    return f"{cpu['model'] or 'unknown'}, {cores}" + (f", {cpu['usable']} usable" if fewer else "")


def _memory(memory: dict[str, Any]) -> str:
    return (
        f"{size(memory['total_bytes'])}, {size(memory['available_bytes'])} available, "
        f"swap {size(memory['swap_bytes'])}, /dev/shm {size(memory['shm_free_bytes'])} "
        f"free of {size(memory['shm_bytes'])}"
    )


def _limits(limits: dict[str, Any]) -> str:
    seen = []
    if limits["memory_bytes"] is not None:
        seen.append(f"memory {size(limits['memory_bytes'])}")
    if limits["cpus"] is not None:
        seen.append(f"{limits['cpus']:g} CPUs")
    if limits["processes"] is not None:
        seen.append(f"{count(limits['processes'])} processes")
    return ", ".join(seen) or "none seen"


def _torch(torch: dict[str, Any]) -> str:
    if not torch["version"]:
        return "not installed"
    names = (("cuda", "CUDA"), ("hip", "HIP"), ("rocm", "ROCm"), ("xpu", "XPU"))
    builds = [f"{name} {torch[key]}" for key, name in names if torch[key]]
    return f"{torch['version']} ({', '.join(builds) or 'CPU only'})"


def _devices(facts: dict[str, Any]) -> list[tuple[str, str]]:
    cards = [_card(card) for card in facts["gpus"]] or ["none seen by the kernel"]
    access = facts["device_files"].items()
    files = [path if granted else f"{path} (no access)" for path, granted in access]
    return [*_under("GPU", cards), *_under("files", [" ".join(files)] if files else [])]


def _card(card: dict[str, Any]) -> str:
    name = card["name"] or "unknown card"
    if card["vendor"] and card["vendor"].lower() not in name.lower():
        name = f"{card['vendor']} {name}"
    memory = size(card["memory_bytes"]) if card["memory_bytes"] else None
    where = f"at {card['pci']}" if card["pci"] else None
    parts = (name, card["gfx"], memory, card["id"], where, card["driver"] or "no driver")
    return ", ".join(part for part in parts if part)


def _joined(words: Any) -> str:
    return ", ".join(words) or "none"


def _under(label: str, values: list[str]) -> list[tuple[str, str]]:
    """One row a value, with the label before the first."""
    return [(label if not i else "", value) for i, value in enumerate(values)]
