"""The doctor on a machine without a GPU: how long it takes, and whether a healthy CPU ever fails a check.

A check that fails on a healthy device costs somebody a good card. So the full battery is done twenty times in a row,
and not one of its checks may fail; how close the worst came to its bound is kept as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import STATE, Bound, at_most, command, exactly, say, spread

from holdfast.devices.battery import Host, run, select
from holdfast.devices.results import ProbeResult

ROUNDS, QUICK_ROUNDS = 20, 1
COMMANDS = 3


def doctor(scratch: Path, quick: bool) -> dict[str, Any]:
    """`holdfast doctor` some times, then the full battery on the CPU twenty times in a row."""
    commands = [_command(scratch) for _ in range(1 if quick else COMMANDS)]
    rounds = [_round(number, full=not quick) for number in range(QUICK_ROUNDS if quick else ROUNDS)]
    results = [each for one in rounds for each in one]
    bad = [f"{each.probe}: {each.status}, {each.evidence.get('why')}" for each in results if _bad(each)]
    shares = {each.probe: each.error / each.bound for each in results if each.error is not None and each.bound}
    worst = sorted(shares, key=lambda name: -max(_shares(results, name)))[:5]
    return {
        "command_seconds": [each["seconds"] for each in commands],
        "command_verdicts": [each["verdict"] for each in commands],
        "closing": commands[-1]["closing"],
        "rounds": len(rounds),
        "checks_each": Counter(each.status for each in rounds[0]),
        "statuses": Counter(each.status for each in results),
        "bad": bad,
        "seconds_each": spread([sum(each.seconds for each in one) for one in rounds]),
        "worst_share_of_bound": {name: round(max(_shares(results, name)), 3) for name in worst},
    }


def doctor_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        exactly("checks that a healthy CPU failed", measured["bad"], []),
        exactly("verdicts", sorted(set(measured["command_verdicts"])), ["trusted"]),
        at_most("seconds of `holdfast doctor`, the fastest", min(measured["command_seconds"]), 15.0, quick=False),
    ]


def _command(scratch: Path) -> dict[str, Any]:
    """As somebody types it for the first time."""
    env = {**os.environ, STATE: str(scratch / f"state-{time.monotonic_ns()}")}
    began = time.monotonic()
    done = subprocess.run(command("doctor"), capture_output=True, text=True, env=env, cwd=scratch, check=True)
    seconds = round(time.monotonic() - began, 2)
    say(f"  holdfast doctor: {seconds} s")
    again = subprocess.run(
        command("doctor", "--json"), capture_output=True, text=True, env=env, cwd=scratch, check=True
    )
    (cpu,) = [each for each in json.loads(again.stdout)["devices"] if each["id"] == "cpu"]
    return {"seconds": seconds, "verdict": cpu["verdict"], "closing": done.stdout.splitlines()[-1]}


def _round(number: int, *, full: bool) -> list[ProbeResult]:
    began = time.monotonic()
    with Host() as host:
        found = list(run("cpu", select("cpu", full=full), host, full=full))
    bad = [each.probe for each in found if _bad(each)]
    say(f"  round {number + 1}: {len(found)} checks in {time.monotonic() - began:.0f} s, bad: {bad}")
    return found


def _bad(result: ProbeResult) -> bool:
    return result.status not in ("passed", "skipped")


def _shares(results: list[ProbeResult], name: str) -> list[float]:
    return [each.error / each.bound for each in results if each.probe == name and each.error is not None and each.bound]
