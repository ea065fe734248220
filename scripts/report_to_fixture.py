#!/usr/bin/env python3
"""Make a fixture of a report that somebody sent: `tests/devices/reports/NAME.json`, which the tests hold from then on.

python scripts/report_to_fixture.py REPORT               named after the device and the date
python scripts/report_to_fixture.py REPORT --name rx5700 --message "HIP error: …"

The report is that of `holdfast verify`. Kept are the machine as the doctor saw it, the verdict with the codes of its
findings, and what holdfast says about it today; the test says when that changes. Read both before you commit.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from holdfast.devices import crash_advice, recorded
from holdfast.devices.survey.records import Device, TorchBuild
from holdfast.run.scrubber import left_in

OUT = Path(__file__).resolve().parent.parent / "tests" / "devices" / "reports"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--name")
    parser.add_argument("--message", default="", help="what was printed when it failed, if the sender says so")
    parser.add_argument("--to", type=Path, default=OUT)
    args = parser.parse_args(argv)
    report = json.loads(args.report.read_text(encoding="utf-8"))
    if report.get("what") != "holdfast verify" or report.get("schema") != 1:
        print(f"{args.report} is no report of holdfast verify", file=sys.stderr)
        return 2
    fixture = convert(report, args.message)
    text = json.dumps(fixture, indent=1, ensure_ascii=False) + "\n"
    if left_in(text):
        print(f"{args.report} names what is private; nothing was written", file=sys.stderr)
        return 1
    path = args.to / f"{args.name or _name(report)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(path)
    return 0


def convert(report: dict[str, Any], message: str = "") -> dict[str, Any]:
    """The case in short, with what is said about it today."""
    doctor = report["doctor"]
    here = doctor["inventory"]
    system = here["system"]
    about = next((each for each in doctor["devices"] if each["id"] == report["device"]), {})
    case = {
        "title": f"holdfast verify on {about.get('name') or report['device']}: {report['answer']}",
        "source": f"a report of holdfast verify {report['holdfast']}, {report['date']}",
        "machine": {
            "os": "wsl2" if system["wsl"] else system["os"],
            "name": system["name"],
            "kernel": system["kernel"],
            "processor": system["machine"],
            "versions": system["versions"],
            "device_files": system["device_files"],
            "troubles": system["troubles"],
            "cards": [_known(each, Device) for each in here["devices"] if each["kind"] != "cpu"],
            "torch": _known(here["torch"], TorchBuild),
            "env": {},
        },
        "message": message,
        "ended": _ended(about),
        "verdict": about.get("verdict"),
        "findings": sorted({each["code"] for each in about.get("findings", ())}),
    }
    there = recorded.short(case, "report")
    said = crash_advice.consult(there.inventory(), there.env, there.message, there.ended)
    said_json = {"code": said.code, "sentence": said.sentence, "commands": [*said.commands]} if said else None
    return {**case, "expect": said_json}


def _known(said: dict[str, Any], kind: Any) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in said.items() if name in names and name != "uuid"}


def _ended(about: dict[str, Any]) -> str:
    """The worst that a probe ended with."""
    probes = about.get("probes") or {}
    words = (("hung", "hung"), ("crashed", "crashed"), ("failed", "wrong"))
    return next((word for name, word in words if probes.get(name)), "")


def _name(report: dict[str, Any]) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{report['device']}-{report['date']}".lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
