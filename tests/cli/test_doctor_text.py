"""The screens of `holdfast doctor`, as text: every machine of the fixtures, with probes that went well or did not.

HOLDFAST_UPDATE=1 writes tests/snapshots/doctor anew; read the difference before you commit it.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import doctor, doctor_text
from holdfast.console.output import Screen
from holdfast.devices import diagnosis, inventory_findings, probe_catalog
from holdfast.devices.advice import advice
from holdfast.devices.examined import Examined, Patient
from holdfast.devices.remedies import search
from holdfast.devices.results import ProbeResult, skipped
from holdfast.devices.survey import Disk, Inventory
from holdfast.devices.verdict import Case, judge
from tests.devices import machines

SNAPSHOTS = Path(__file__).parent.parent / "snapshots" / "doctor"
DISK = Disk("runs", 412_000_000_000, 1_000_000_000_000, "ext4", False, False, False)


PROBES = ("first step", "memory pattern", "transfer", "linear fp32", "conv2d fp32", "conv2d fp16", "network bf16")
PROBES += ("network fp32", "memory limit", "network in company")
"""A set of our own: the screens need not change with the quick set."""


@dataclass(frozen=True)
class Story:
    """What the probes of one machine show; what is not named passes."""

    machine: str
    bad: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By check: status, error, bound, and evidence."""
    on: str = "cuda:0"
    cured_by: Mapping[str, str] = field(default_factory=dict)
    """The variable that makes everything pass."""
    verbose: bool = False
    asked: str | None = None


CRASH = {"status": "crashed", "signal": "SIGSEGV", "seconds": 4.2}
STORIES = {
    **{name: Story(name) for name in machines.NAMES},
    "rx-5600-xt-masquerading": Story(
        "rx-5600-xt-masquerading", {"conv2d fp32 forward": CRASH, "network fp32 backward": CRASH}
    ),
    "rx-7900-xtx-cured": Story(
        "rx-7900-xtx",
        {"transfer pinned": {"status": "hung", "seconds": 60.0}, "conv2d fp32 backward": {"status": "hung"}},
        cured_by={"HSA_ENABLE_SDMA": "0"},
    ),
    "rx-7900-xtx-bf16": Story("rx-7900-xtx", {"network bf16 forward": {"error": 3.1e-2, "bound": 4e-3}}),
    "rx-7900-xtx-wrong-gradients": Story(
        "rx-7900-xtx",
        {"conv2d fp32 backward": {"error": 999.0, "bound": 4e-6}, "network fp32 backward": {"bound": 1e-5}},
    ),
    "gtx-1060-no-kernels": Story(
        "gtx-1060", {"first step": {"why": "CUDA error: no kernel image is available for execution on the device"}}
    ),
    "h200-less-memory": Story(
        "h200", {"memory limit": {"error": 0.4, "bound": 0.1, "reached_bytes": 100 << 30, "reported_bytes": 139 << 30}}
    ),
    "h200-verbose": Story("h200", verbose=True),
    "h200-asked": Story("h200", {"linear fp32 forward": {"error": 0.5, "bound": 1e-6}}, asked="cuda:0"),
    "cpu-only-broken": Story("cpu-only", {"linear fp32 forward": {"error": 0.5, "bound": 1e-6}}, on="cpu"),
}


def result(device: str, probe: probe_catalog.Probe, check: str, said: Mapping[str, Any] | None) -> ProbeResult:
    own = dict(said or {"status": "passed"})
    status = own.pop("status", "failed")
    numbers = {name: own.pop(name) for name in ("error", "bound") if name in own}
    seconds = own.pop("seconds", 0.25)
    return ProbeResult(
        probe.named(check), device, status, seconds=seconds, evidence={**probe.traits(check), **own}, **numbers
    )


def examined(patient: Patient, story: Story) -> Examined:
    device = patient.device
    if patient.unusable:
        verdict = judge(device, Case([], unusable=patient.unusable), patient.findings, name=patient.name)
        return Examined(verdict)
    bad = story.bad if device == story.on else {}
    if not bad and any(each.about.slug == "no-kernels-for-this-card" for each in patient.findings):
        said = "HIP error: invalid device function" if patient.backend == "rocm" else "CUDA error: no kernel image"
        bad = {"first step": {"why": said}}
    results = [
        result(device, probe, check, bad.get(probe.named(check)))
        for probe in probe_catalog.select(device, only=PROBES)
        for check in probe.checks
    ]
    if "first step" in bad:
        late = [
            skipped(probe, device, probe.checks, "not tried: first step fails")
            for probe in probe_catalog.select(device, only=PROBES)[1:]
        ]
        results = [results[0], *(each for probe in late for each in probe)]

    def run(check: str, env: Mapping[str, str]) -> ProbeResult:
        passes = bool(story.cured_by) and all(env.get(name) == value for name, value in story.cured_by.items())
        return result(device, probe_catalog.find(check), "", None if passes else {"status": "crashed"})

    found = search(results, backend=patient.backend, run=run, env={})
    said = [*patient.findings, *diagnosis.of_results(device, results, found)]
    verdict = judge(device, Case(results, found), said, name=patient.name, arch=patient.arch)
    return Examined(replace(verdict, measured_at="2026-11-15T00:21:07.000Z"), tuple(results), found, seconds=9.5)


def view_of(story: Story, root: Path) -> tuple[doctor_text.View, Inventory]:
    there = machines.load(story.machine, root)
    here = replace(there.inventory(), disk=DISK)
    if here.system.os == "linux":  # the kernel of this machine otherwise
        here = replace(here, system=replace(here.system, kernel="6.8.0-45-generic"))
    found = inventory_findings.of_inventory(here, there.env)
    seen = [examined(patient, story) for patient in doctor.patients(here, found, story.asked)]
    usable = [each.verdict.device for each in seen if each.verdict.trainable]
    view = doctor_text.View(
        version="0.1.0",
        python="3.12.4",
        inventory=here,
        seen=seen,
        machine=[each for each in found if each.device in ("system", "disk")],
        disk_bytes_s=1.9e9,
        advice=[] if story.asked else advice(here, usable),
        asked=story.asked,
        verbose=story.verbose,
    )
    return view, here


def held_against(path: Path, text: str) -> None:
    if os.environ.get("HOLDFAST_UPDATE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs: HOLDFAST_UPDATE=1 writes it anew"


@pytest.mark.parametrize("name", STORIES)
def test_the_screen(name: str, tmp_path: Path) -> None:
    view, _ = view_of(STORIES[name], tmp_path)
    held_against(SNAPSHOTS / f"{name}.txt", "\n".join(doctor_text.page(view)) + "\n")


@pytest.mark.parametrize("name", STORIES)
def test_every_screen_ends_with_what_to_type(name: str, tmp_path: Path) -> None:
    view, _ = view_of(STORIES[name], tmp_path)
    lines = doctor_text.page(view)
    assert lines[-1].startswith("Now type `") and lines[-1].endswith(".")
    assert all(len(line) <= 120 for line in lines), [line for line in lines if len(line) > 120]
    screen = Screen(io.StringIO(), color=False, unicode=False, tty=False, width=80)
    assert all(screen.fit(line).isascii() for line in lines), [line for line in lines if not screen.fit(line).isascii()]


@pytest.mark.parametrize("name", [name for name in STORIES if name in machines.NAMES or name == "rx-7900-xtx-cured"])
def test_the_json(name: str, tmp_path: Path) -> None:
    view, here = view_of(STORIES[name], tmp_path)
    usable = [each.verdict.device for each in view.usable]
    data = doctor._data(here, view.seen, usable, view.machine, view.advice)
    assert set(data) == {"devices", "usable", "machine", "advice", "inventory", "knowledge"}
    for device in data["devices"]:
        wanted = {"id", "name", "arch", "verdict", "policy", "probes", "findings"}
        assert wanted <= set(device)
        assert set(device["probes"]) == {"passed", "failed", "crashed", "hung", "skipped"}
        for each in device["findings"]:
            assert {"code", "level", "title", "evidence", "remedy"} <= set(each)
    short = {
        **data,
        "inventory": None,
        "knowledge": None,
        "devices": [{**each, "checks": None} for each in data["devices"]],
    }
    held_against(SNAPSHOTS / f"{name}.json", json.dumps(short, indent=1, ensure_ascii=False) + "\n")
