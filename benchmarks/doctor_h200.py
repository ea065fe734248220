"""What the doctor says of a real CUDA card; everything is kept, whatever fails.

    python benchmarks/doctor_h200.py --out DIR                  # within 8 minutes on an H200
    python benchmarks/doctor_h200.py --out DIR --parts full     # some of it
    python benchmarks/doctor_h200.py --quick --device cpu       # does this file work? Keeps nothing

`doctor.json` in DIR has all parts and is written again after each; `doctor.txt` has the screens and the table of errors
against their bounds; `machine.tar.gz` is the inventory as a fixture (scripts/capture_machine.py). A part that fails is
kept as its error and does not stop the others. The exit code is 1 if one failed or a bound of the project is broken.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT, STATE, Bound, adopt, at_most, command, exactly, gpu, machine, say, told, versions, write

from holdfast.console.output import table
from holdfast.devices import doctor
from holdfast.devices.battery import Host, run_one
from holdfast.devices.doctor import Doctor
from holdfast.devices.examined import Listener, Patient
from holdfast.devices.remedies import BACKENDS
from holdfast.devices.results import ProbeResult
from holdfast.injection import symptoms
from holdfast.injection.symptoms import Symptom

TESTS = ("tests/devices/test_devices_cuda.py", "tests/devices/test_battery_cuda.py")
PRODUCTS = ("linear", "conv2d", "attention", "lstm")
OLD_NAME, NEW_NAME = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"


@dataclass
class Order:
    """What the parts need to know, and where they leave what they have to show."""

    device: str
    out: Path
    scratch: Path
    until: float
    quick: bool
    pages: list[str] = field(default_factory=list)

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def show(self, title: str, text: str) -> None:
        """A page of doctor.txt, which is written at once."""
        self.pages.append(f"{'=' * 100}\n{title}\n{'=' * 100}\n{text.rstrip()}\n")
        (self.out / "doctor.txt").write_text("\n".join(self.pages), encoding="utf-8")

    def holdfast(self, *words: str, most: float, state: str = "state", **variables: str) -> Ran:
        """The command as a person types it, with a state folder of its own."""
        env = {**os.environ, STATE: str(self.scratch / state), **variables}
        began = time.monotonic()
        try:
            done = subprocess.run(
                command(*words),
                capture_output=True,
                text=True,
                env=env,
                cwd=self.scratch,
                timeout=max(5.0, min(most, self.left)),
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise TimeoutError(f"holdfast {' '.join(words)}: not over after {late.timeout:.0f} s") from None
        seconds = round(time.monotonic() - began, 2)
        text = done.stderr if "--json" in words else f"{done.stdout}\n{done.stderr}"
        self.show(f"$ holdfast {' '.join(words)}    ({seconds} s, exit code {done.returncode})", text)
        return Ran(done.returncode, done.stdout, seconds)


@dataclass(frozen=True)
class Ran:
    code: int
    text: str
    seconds: float

    def json(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.text)
        return said


# The parts --------------------------------------------------------------------------------------------------


def capture(order: Order) -> dict[str, Any]:
    """The files and tool output the inventory is made of, and what it makes of them here."""
    script = ROOT / "scripts" / "capture_machine.py"
    words = [sys.executable, str(script), "h200", "--to", str(order.scratch / "capture")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60.0, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    with tarfile.open(order.out / "machine.tar.gz", "w:gz") as tar:
        tar.add(order.scratch / "capture" / "h200", arcname="h200")
    from holdfast.devices import survey

    return {"inventory": survey.take(folder=order.scratch).to_json()}


def quick(order: Order) -> dict[str, Any]:
    """The quick set three times, the first with everything cold; then what is remembered."""
    rounds = [
        order.holdfast("doctor", "--fresh", "--json", "--device", order.device, most=90.0)
        for _ in range(1 if order.quick or order.left < 300.0 else 3)
    ]
    whole = order.holdfast("doctor", "--fresh", "-v", most=120.0)
    again = order.holdfast("doctor", most=60.0)
    said = [each.json()["devices"][0] for each in rounds]
    return {
        "verdicts": [each["verdict"] for each in said],
        "seconds": [each.seconds for each in rounds],
        "examination_seconds": [each["seconds"] for each in said],
        "all_devices_seconds": whole.seconds,
        "remembered_seconds": again.seconds,
        "exit_codes": [each.code for each in (*rounds, whole, again)],
        "device": said[-1],
    }


def quick_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [
        exactly("verdict of the quick set, each time", sorted(set(measured["verdicts"])), ["trusted"]),
        at_most("seconds to a quick verdict, the fastest", min(measured["seconds"]), 15.0, quick=False),
        exactly("exit codes", sorted(set(measured["exit_codes"])), [0]),
    ]


def where_time_goes(order: Order) -> dict[str, Any]:
    """The quick set once more, with the moment at which each check began and ended."""
    watch = Stopwatch()
    with Doctor(listener=watch, fresh=True, only=()) as doctor:
        doctor.examine(Patient(order.device))
    order.show("where the time of the quick set goes", "\n".join(watch.lines))
    return {"lines": watch.lines}


class Stopwatch(Listener):
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.lines: list[str] = []

    def checks(self, device: str, name: str) -> None:
        self.lines.append(f"{time.monotonic() - self.began:7.3f}  {name}")

    def result(self, result: ProbeResult) -> None:
        self.lines.append(f"{time.monotonic() - self.began:7.3f}  {result.probe}: {result.status}, {result.seconds} s")


def recurrent(order: Order) -> dict[str, Any]:
    """An LSTM in half precision, in many shapes and ways: which of them are far from float64?"""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "jobs" / "recurrent.py"), order.device],
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    order.show("recurrent layers", done.stdout + done.stderr[-2000:])
    return {"lines": done.stdout.splitlines(), "code": done.returncode}


class Recorder(Listener):
    """Keeps results as they come: what is cut has not been for nothing."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.results: list[ProbeResult] = []
        self.tried: list[str] = []
        self._until = order.until

    def result(self, result: ProbeResult) -> None:
        self.results.append(result)
        if result.status not in ("passed", "skipped"):
            say(f"  {result.probe}: {result.status}, {result.evidence.get('why')}")
        if time.monotonic() > self._until:
            raise TimeoutError(f"cut after {len(self.results)} checks")

    def tries(self, device: str, remedy: Any, probe: str) -> None:
        self.tried.append(f"{remedy.name} for {probe}")


def full(order: Order) -> dict[str, Any]:
    """Every check there is: its time, its error and its bound."""
    recorder = Recorder(order)
    about = next(each for each in _devices() if each["id"] == order.device)
    patient = Patient(order.device, about["name"], about["arch"], BACKENDS.get(about["kind"]))
    began, cut, verdict = time.monotonic(), "", None
    os.environ[STATE] = str(order.scratch / "state")
    try:
        with Doctor(listener=recorder, full=True, fresh=True, budget_s=40.0) as doctor:
            verdict = doctor.examine(patient).verdict.to_json()
    except TimeoutError as error:
        cut = str(error)
    seconds = round(time.monotonic() - began, 1)
    order.show(f"the full battery on {order.device}: {seconds} s", _table(recorder.results))
    counts = {word: sum(each.status == word for each in recorder.results) for word in ("passed", "failed", "crashed")}
    counts |= {word: sum(each.status == word for each in recorder.results) for word in ("hung", "skipped")}
    if verdict is not None:
        order.holdfast("doctor", "--device", order.device, most=30.0)
    return {
        "seconds": seconds,
        "cut": cut,
        "counts": counts,
        "verdict": verdict,
        "tried": recorder.tried,
        "checks": doctor.summary(recorder.results),
        "not_passed": [each.to_json() for each in recorder.results if each.status != "passed"],
        "share_of_bound": _shares(recorder.results),
        "sustained": next((each.evidence for each in recorder.results if each.probe == "sustained load"), None),
        "memory": next((each.evidence for each in recorder.results if each.probe == "memory limit"), None),
    }


def full_bounds(measured: dict[str, Any]) -> list[Bound]:
    counts = measured["counts"]
    bad = counts["failed"] + counts["crashed"] + counts["hung"]
    return [
        exactly("checks of the full battery that fail", bad, 0),  # docs/doctor.md says why two do on an H200
        Bound("checks of the full battery that pass", counts["passed"], 60, counts["passed"] >= 60),
        exactly("the battery was done to its end", measured["cut"], ""),
    ]


def _table(results: list[ProbeResult]) -> str:
    rows = []
    for each in results:
        error, bound = (f"{value:.1e}" if value is not None else "-" for value in (each.error, each.bound))
        share = f"{each.error / each.bound:.3f}" if each.bound and each.error is not None else "-"
        why = str(each.evidence.get("why") or "")[:70] if each.status != "passed" else ""
        rows.append((each.probe, each.status, error, bound, share, f"{each.seconds:.2f}", why))
    header = ("CHECK", "ENDED", "OFF BY", "BOUND", "SHARE", "SECONDS", "")
    return "\n".join(table(rows, header=header, right=(2, 3, 4, 5)))


def _shares(results: list[ProbeResult]) -> dict[str, Any]:
    """How much of its bound a right device uses, by precision: near 1 means false alarms, near 0 a blunt check."""
    found: dict[str, list[float]] = {}
    for each in results:
        precision = each.evidence.get("precision")
        if precision and each.bound and each.error is not None and each.status == "passed":
            found.setdefault(str(precision), []).append(each.error / each.bound)
    return {
        name: {
            "checks": len(values),
            "median": round(sorted(values)[len(values) // 2], 4),
            "max": round(max(values), 4),
        }
        for name, values in found.items()
    }


def tf32(order: Order) -> dict[str, Any]:
    """Products in fp32 and in TF32; and with each switched on or off from outside, whatever the script asks for."""
    found: dict[str, Any] = {}
    with Host() as host:
        for layer in PRODUCTS:
            found[layer] = {name: _checks(order.device, f"{layer} {name}", host) for name in ("fp32", "tf32")}
    for name, probe, env in (
        ("torch's override on", "linear fp32", {OLD_NAME: "1"}),
        ("NVIDIA's override on", "linear fp32", {NEW_NAME: "1"}),
        ("forced off", "linear tf32", {NEW_NAME: "0"}),
    ):
        with Host(env) as host:
            found[name] = _checks(order.device, probe, host)
    order.show("TF32 on and off", json.dumps(found, indent=1))
    return found


def _checks(device: str, probe: str, host: Host) -> dict[str, Any]:
    return doctor.summary(run_one(device, probe, host=host))


def tf32_bounds(measured: dict[str, Any]) -> list[Bound]:
    exact, coarse = (measured["linear"][name] for name in ("fp32", "tf32"))
    at = [(exact[f"linear fp32 {check}"], coarse[f"linear tf32 {check}"]) for check in ("forward", "backward")]
    apart = all((tf32["error"] or 0.0) > fp32["bound"] for fp32, tf32 in at)
    off = measured["forced off"]["linear tf32 forward"]["error"]
    limit = exact["linear fp32 forward"]["bound"]
    return [
        exactly("TF32 is above the bound of fp32", apart, True, quick=False),
        exactly("TF32 that is switched off from outside is told by its error", off <= limit, True, quick=False),
    ]


def planted(order: Order) -> dict[str, Any]:
    """A wrong kernel through the chaos kit: found, with its code; and its cure is found by searching."""
    kernel = "convolution_backward"
    path = symptoms.write(order.scratch / "plant.json", [Symptom("wrong", kernel=kernel)])
    with Host({symptoms.PLANT: str(path)}) as host:
        alone = {name: _checks(order.device, name, host) for name in ("conv2d fp32", "linear fp32")}
    cure = "cudnn-off" if order.device.startswith("cuda") else "mkldnn-off"
    curable = symptoms.write(order.scratch / "curable.json", [Symptom("wrong", kernel=kernel, cure=cure)])
    words = ("doctor", "--fresh", "--json", "--device", order.device)
    done = order.holdfast(*words, most=150.0, state="planted", **{symptoms.PLANT: str(curable)})
    said = done.json()["devices"][0]
    return {
        "kernel": kernel,
        "alone": alone,
        "cure": cure,
        "seconds": done.seconds,
        "verdict": said["verdict"],
        "findings": [f"{each['code']} {each['text']}" for each in said["findings"]],
        "tried": said["tried"],
        "cures": said["cures"],
    }


def planted_bounds(measured: dict[str, Any]) -> list[Bound]:
    wrong = [each["status"] for each in measured["alone"]["conv2d fp32"].values()]
    right = [each["status"] for each in measured["alone"]["linear fp32"].values()]
    cures = [each["name"] for each in measured["cures"]]
    return [
        exactly("a planted wrong kernel is found", wrong, ["passed", "failed", "skipped"]),
        exactly("and nothing else", right, ["passed"] * 3),
        exactly("its cure is found", measured["cure"] in cures, True),
    ]


def own(order: Order) -> dict[str, Any]:
    """One step of a script of one's own, against the CPU."""
    words = ("--script", str(ROOT / "examples" / "windows.py"), "--json", "--device", order.device)
    done = order.holdfast("doctor", *words, most=90.0)
    device = done.json()["devices"][0]
    return {"seconds": done.seconds, "script": device["script"], "verdict": device["verdict"]}


def own_bounds(measured: dict[str, Any]) -> list[Bound]:
    statuses = [each["status"] for each in (measured["script"] or {}).values()]
    return [exactly("one step of an example agrees with the CPU", statuses, ["passed"])]


def tests(order: Order) -> dict[str, Any]:
    """The tests that need a card."""
    if importlib.util.find_spec("pytest") is None:
        return {"skipped": "pytest is not installed; the parts above do the same"}
    known = importlib.util.find_spec("pytest_timeout") is not None
    words = ["-m", "hardware", "-v", "-p", "no:cacheprovider", *([] if known else ["-o", "addopts=", "-W", "ignore"])]
    short = [*words, "-k", "not (test_battery_cuda and True)"] if order.left < 240.0 else words
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *short, *TESTS],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=max(30.0, order.left),
        check=False,
    )
    order.show("tests", done.stdout + done.stderr)
    lines = [line for line in done.stdout.splitlines() if "::" in line or " passed" in line or " failed" in line]
    return {"code": done.returncode, "lines": lines[-40:]}


def tests_bounds(measured: dict[str, Any]) -> list[Bound]:
    return [exactly("exit code of pytest", measured["code"], 0)] if "code" in measured else []


def _devices() -> list[dict[str, Any]]:
    from holdfast.devices import survey

    devices: list[dict[str, Any]] = survey.take().to_json()["devices"]
    return devices


# All of them ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    measure: Callable[[Order], dict[str, Any]]
    bounds: Callable[[dict[str, Any]], list[Bound]]


PARTS = {
    "capture": Part(capture, lambda measured: []),
    "quick": Part(quick, quick_bounds),
    "time": Part(where_time_goes, lambda measured: []),
    "recurrent": Part(recurrent, lambda measured: []),
    "tf32": Part(tf32, tf32_bounds),
    "own": Part(own, own_bounds),
    "full": Part(full, full_bounds),
    "planted": Part(planted, planted_bounds),
    "tests": Part(tests, tests_bounds),
}


def main() -> int:
    args = _arguments()
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-doctor-"))
    adopt(scratch)
    out = scratch / "out" if args.quick else args.out
    out.mkdir(parents=True, exist_ok=True)
    try:
        order = Order(args.device, out, scratch, time.monotonic() + args.limit, args.quick)
        return _all(args, order)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "doctor-h200"))
    parser.add_argument("--parts", default=",".join(PARTS), help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--limit", type=float, default=460.0, help="seconds; what is at work then is cut")
    parser.add_argument("--quick", action="store_true", help="a smoke test on any machine; its figures are not kept")
    args = parser.parse_args()
    unknown = [name for name in args.parts.split(",") if name not in PARTS]
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return args


def _all(args: argparse.Namespace, order: Order) -> int:
    began = time.monotonic()
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python benchmarks/doctor_h200.py --device {args.device} --parts {args.parts}",
        "machine": {"gpu": gpu(), **machine()},
        "versions": versions(),
        "seconds": 0.0,
    }
    bounds: list[Bound] = []
    wrong: list[str] = []
    for name in args.parts.split(","):
        say(f"{name}, after {time.monotonic() - began:.0f} s: {(PARTS[name].measure.__doc__ or '').splitlines()[0]}")
        if order.left < 15.0:
            report[name] = {"skipped": f"{order.left:.0f} s were left"}
            wrong.append(name)
            continue
        start = time.monotonic()
        try:
            report[name] = PARTS[name].measure(order)
            found = PARTS[name].bounds(report[name])
        except Exception as error:  # one part that fails must not lose what the others measured
            traceback.print_exc()
            order.show(f"{name} failed", traceback.format_exc())
            report.setdefault(name, {})["error"] = f"{type(error).__name__}: {error}"
            found = []
            wrong.append(name)
        report[name]["part_seconds"] = round(time.monotonic() - start, 1)
        bounds += found
        wrong += [bound.what for bound in told(found, quick=args.quick)]
        report["seconds"] = round(time.monotonic() - began, 1)
        write(order.out / "doctor.json", report, bounds)
    say("\n".join(page for page in order.pages if "--json" not in page)[-9000:])
    told(bounds, quick=args.quick)
    say(f"{report['seconds']} s; " + (f"not as it should be: {', '.join(wrong)}" if wrong else "all as it should be"))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
