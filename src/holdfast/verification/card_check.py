"""What a device has to show before anybody says that it works: examined, trained on, and hurt. No torch here.

    faults, left_out = faults_for("amd", "cuda:0")     # what is safe to do to it, and why the rest is not done
    report = conduct("cuda:0", say=print)              # minutes; everything happens in child processes
    report["answer"], report["summary"]                # "yes", ["cuda:0 (RX 7900 XTX, gfx1100): …", …]

Faults that only a process feels are always made. Faults that the card itself feels are made where it is known that
they end with the process: elsewhere they can take the desktop, or the machine, along.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.base import interpreter
from holdfast.base.errors import HoldfastError
from holdfast.base.human import counted, duration
from holdfast.injection.chaos import FaultPlan
from holdfast.run import machine
from holdfast.run.scrubber import scrub
from holdfast.testing import bounded, experiment
from holdfast.verification import plain_training

JOB = Path(__file__).with_name("proof.py")
STEPS = 60
LIMIT_S = 300.0
"""For all of it."""
_FOR_DOCTOR = 0.6
"""Of the time, at most."""
PROCESS = ("sigkill", "segfault", "oom_in_step", "hang")
"""Felt by the process alone."""
SPOKEN = ("transient", "device_assert")
"""An accelerator's errors, in its own words, raised without it: on a CPU they would be the script's own."""
REAL = ("cuda_oom", "cuda_assert", "cuda_illegal", "endless_kernel")
"""Done to the card itself."""
SAFE: dict[str, tuple[str, ...]] = {"nvidia": ("cuda_oom", "cuda_assert"), "amd": ("cuda_oom",)}
"""By the maker, of those: what is known to end with the process."""
_WHY = {
    ("amd", "cuda_assert"): "ROCm is built without kernel asserts: a bad index can reset the card and the desktop",
    "cuda_illegal": "a write outside of all memory can reset a card that shows the screen",
    "endless_kernel": "a kernel without an end freezes a screen on the same card",
    "cuda_assert": "the chaos kit can do it through CUDA alone",
    "cuda_oom": "the chaos kit can do it through CUDA alone",
}

Say = Callable[[str], None]
Ask = Callable[[str], bool]


def faults_for(kind: str, device: str, *, plain: bool = False) -> tuple[list[str], dict[str, str]]:
    """What is done to a device of this maker, and what is left out with the reason; `plain`: without our own loop."""
    processor = kind == "cpu" or device == "cpu"
    real = () if processor else SAFE.get(kind, ())
    done = [*PROCESS] if processor else [*PROCESS, *SPOKEN, *real]
    left_out = {} if processor else {name: _WHY.get((kind, name)) or _WHY[name] for name in REAL if name not in real}
    if not plain:
        return done, left_out
    cannot = {name: plain_training.WHY_NOT for name in done if name not in plain_training.FAULTS}
    return [name for name in done if name not in cannot], {**left_out, **cannot}


def conduct(
    asked: str | None,
    *,
    full: bool = False,
    steps: int = STEPS,
    say: Say,
    ask: Ask | None = None,
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """Everything, in order; what fails is a result, and the rest is done all the same where it can be.

    `ask` is asked before a device is touched that may freeze the machine; after a no the CPU is verified instead. It
    takes no longer than `limit_s`, the time of the answer aside: what is not done then is missing in the report.
    """
    danger = dangers(asked) if ask is not None and asked != "cpu" else []
    declined = ask is not None and bool(danger) and not ask(question(danger))
    if declined:
        say("the card is not touched; the processor is verified, and what is known of the card is written down")
        asked = "cpu"
    began = time.monotonic()

    def left_s() -> float:
        return began + limit_s - 2 * bounded.GRACE_S - time.monotonic()

    say("1/2 doctor: what the device can do, in isolated processes")
    seen = examine(asked, full=full, limit_s=_FOR_DOCTOR * limit_s)
    device = choose(seen, asked)
    about: dict[str, Any] = next((each for each in seen.get("devices", ()) if each.get("id") == device), {})
    kind = str(about.get("kind") or device.partition(":")[0])
    plain = importlib.util.find_spec("numpy") is None
    faults, left_out = faults_for(kind, device, plain=plain)
    say(f"2/2 training on {device}: twice undisturbed, then with {counted(len(faults), 'fault')}")
    usable = device in seen.get("usable", ())
    trained = train(device, faults, steps=steps, say=say, left_s=left_s, plain=plain) if usable else None
    unfinished = "out_of_time" in seen or "out_of_time" in (trained or {})
    report = {
        "schema": 1,
        "what": "holdfast verify",
        "date": time.strftime("%Y-%m-%d"),
        "holdfast": __version__,
        "device": device,
        "seconds": round(time.monotonic() - began, 1),
        "limit_s": limit_s,
        "answer": "yes" if good(about, trained) else "unfinished" if unfinished else "no",
        "summary": summary(device, about, trained, left_out),
        "training": trained,
        "faults_left_out": left_out,
        "asked": {"about": danger, "answer": "no" if declined else "yes"} if danger else None,
        "doctor": seen,
        "machine": machine.look(),
    }
    cleaned: dict[str, Any] = scrub(report)
    return cleaned


def dangers(asked: str | None) -> list[str]:
    """Why the cards that would be touched may freeze the machine or the screen, each in a sentence."""
    from holdfast.devices import inventory_findings, survey

    here = survey.take()
    cards = [card for card in here.gpus if card.visible and asked in (None, card.id)]
    found = []
    for card in cards:
        name = card.name or card.arch or card.id
        if card.display:
            found.append(f"{name} shows the screen: a hang of it freezes the desktop")
        elif card.display is None and (here.system.os != "linux" or here.system.wsl):
            found.append(
                f"{name} may show the screen, which cannot be told here: a hang of it would freeze the desktop"
            )
        if card.kind in ("amd", "intel"):
            found.append(f"{name} may be reset by its driver when a kernel hangs; that can take the desktop along")
        bugs = inventory_findings.bugs_of(card, here, os.environ)
        found += [f"{name}: {bug.title}" for bug in bugs if "froze" in bug.shows or bug.lost_when_ended]
        if card.masquerading:
            found.append(f"{name} runs as {card.claimed_arch} and is {card.arch}: that has taken machines down")
    return list(dict.fromkeys(found))


def question(danger: Sequence[str]) -> str:
    """What a person is asked."""
    return "\n".join(
        [
            "This runs kernels on the card for some minutes. It may freeze the machine:",
            *(f"  - {each}" for each in danger),
            "Save your work first. Go on?",
        ]
    )


def examine(asked: str | None, *, full: bool, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """The doctor's own report, from a process of its own; what stopped it, where it has none."""
    words = ["doctor", "--json", "--fresh", *(["--full"] if full else []), *(["--device", asked] if asked else [])]
    try:
        done = bounded.run(interpreter.module("holdfast", *words), limit_s=limit_s)
    except bounded.OutOfTime:
        said = f"the doctor was not done in {limit_s:.0f} s"
        return {"devices": [], "usable": [], "error": said, "out_of_time": True}
    try:
        data = json.loads(done.out)
    except ValueError:
        data = None
    if isinstance(data, dict):
        return data
    return {"devices": [], "usable": [], "error": f"ended with {done.code}: {done.errors[-2000:]}"}


def choose(seen: dict[str, Any], asked: str | None) -> str:
    """The device that was asked for; else the first accelerator that can be used, else the CPU."""
    usable: Sequence[str] = seen.get("usable", ())
    return asked or next((each for each in usable if each != "cpu"), "cpu")


def train(
    device: str, faults: Sequence[str], *, steps: int, say: Say, left_s: Callable[[], float], plain: bool = False
) -> dict[str, Any]:
    """The same training undisturbed, twice, and with the faults; what is left of the runs goes with their folder."""
    try:
        if plain:
            return plain_training.train(device, faults, steps=steps, say=lambda text: say(f"    {text}"), left_s=left_s)
        return _with_our_loop(device, faults, steps=steps, say=say, left_s=left_s)
    except HoldfastError as error:
        late = {"out_of_time": True} if isinstance(error, bounded.OutOfTime) else {}
        return {"error": error.to_json(), "faults_asked": [*faults], **late}


def _with_our_loop(
    device: str, faults: Sequence[str], *, steps: int, say: Say, left_s: Callable[[], float]
) -> dict[str, Any]:
    spread = {name: 6 + number * max((steps - 10) // len(faults), 2) for number, name in enumerate(faults)}
    runs = Path(tempfile.mkdtemp(prefix="holdfast-verify-"))
    words = [f"steps={max(steps, spread[faults[-1]] + 4)}", f"run.device={device}", "run.tensorboard=no"]

    def plan(_: int) -> FaultPlan:
        return FaultPlan.parse(",".join(f"{name}@{step}" for name, step in spread.items()))

    try:

        def told(text: str) -> None:
            say(f"    {text}")

        done = experiment.run(JOB, words, plan, runs=runs, flags=["-q"], say=told, left_s=left_s)
    finally:
        shutil.rmtree(runs, ignore_errors=True)
    keep = ("state", "exit_code", "device_timeline", "metrics", "receipt")
    return {"faults_asked": [*faults], **{name: done.summary.get(name) for name in keep}}


def good(about: dict[str, Any], trained: dict[str, Any] | None) -> bool:
    """Examined and fit, trained to the end, every fault survived, no step lost, no other bits than undisturbed."""
    receipt = (trained or {}).get("receipt") or {}
    return bool(
        about.get("verdict") in ("trusted", "use_with_care")
        and receipt.get("survived")
        and receipt.get("steps_lost") == 0
        and receipt.get("weights_equal") is not False
        and receipt.get("faults_injected") == receipt.get("faults_planned")
    )


def summary(device: str, about: dict[str, Any], trained: dict[str, Any] | None, left_out: dict[str, str]) -> list[str]:
    """What came out, in lines for people."""
    name = ", ".join(str(part) for part in (about.get("name"), about.get("arch")) if part)
    probes = about.get("probes") or {}
    bad = sum(int(probes.get(word) or 0) for word in ("failed", "crashed", "hung"))
    verdict = str(about.get("verdict") or "not examined").replace("_", " ")
    lines = [f"device    {device}{f' ({name})' if name else ''}"]
    lines.append(f"doctor    {verdict}: {probes.get('passed', 0)} checks passed, {bad} did not")
    lines += [
        f"          {each['code']} {each['text']}" for each in about.get("findings", ()) if each["level"] != "note"
    ]
    lines += _training(trained)
    return lines + [f"left out  {name}: {why}" for name, why in left_out.items()]


def _training(trained: dict[str, Any] | None) -> list[str]:
    if trained is None:
        return ["training  not tried: the device cannot be used"]
    if "error" in trained:
        error = trained["error"]
        return [f"training  {error.get('message')}", *([f"          {error['cause']}"] if error.get("cause") else [])]
    receipt = trained.get("receipt") or {}
    came = f"{receipt.get('faults_injected')} of {receipt.get('faults_planned')}"
    return [
        f"training  {trained.get('state')}, {receipt.get('steps')} steps, {duration(receipt.get('seconds_lost'))} lost",
        f"faults    {came} came ({', '.join(trained['faults_asked'])}); "
        f"{'survived' if receipt.get('survived') else 'not survived'}, {receipt.get('steps_lost')} steps lost",
        f"weights   {receipt.get('why')}",
        *([f"without   {trained['without']}"] if trained.get("without") else []),
    ]
