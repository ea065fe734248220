"""How many of the bad behaviours of real devices each tester notices: ours, and those people have already.

A tester notices a behaviour if it says so: its exit code, or what it prints, is not what it is on a healthy device. One
that never comes back is counted as `hangs`: somebody who waits will notice. Each tester is run as its makers mean it to
be, and really computes with the ill kernels (jobs/ill/sitecustomize.py); the search for remedies, which begins when a
finding is made, is left out.

    python benchmarks/bench.py --parts testers                  # half an hour
    python benchmarks/testers.py "a hang" "a crash"             # these again, into the result that is kept
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import JOBS, RESULTS, ROOT, STATE, Bound, adopt, exactly, say, told, write

from holdfast.devices.battery import Host
from holdfast.devices.doctor import Doctor
from holdfast.devices.examined import Patient
from holdfast.injection import symptoms
from holdfast.injection.ailments import VARIABLE
from holdfast.injection.symptoms import EXAMPLES, Symptom
from holdfast.run.scrubber import scrub

DEVICE = "pretend:0"
HEALTHY = "nothing"
QUICK = ("a crash", "wrong gradients only")
PEERS: dict[str, tuple[str, ...]] = {
    "is_available": (sys.executable, "-c", "import torch; print(torch.cuda.is_available())"),
    "collect_env": (sys.executable, "-m", "torch.utils.collect_env"),
    "accelerate test": ("accelerate", "test"),
}
PATIENCE = 6.0
"""Times what a tester takes on a healthy device; then it hangs."""
LEAST = 90.0
"""Seconds of patience at least; a first launch that takes 75 s is no hang."""


def testers(scratch: Path, quick: bool) -> dict[str, Any]:
    """Each bad behaviour of the chaos kit before each tester; which of them say that something is wrong?"""
    return summed(rows_of(scratch, QUICK if quick else list(EXAMPLES)))


def rows_of(scratch: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each tester says of a healthy device, and of one with each of these."""
    chosen = {name: EXAMPLES[name] for name in names}
    peers = Peers(scratch)
    rows: dict[str, dict[str, Any]] = {}
    for name, symptom in {HEALTHY: None, **chosen}.items():
        listed = [symptom] if symptom is not None else []
        path = symptoms.write(scratch / "pretend.json", listed)
        rows[name] = {**peers.ask(path, healthy=symptom is None), "doctor": ours(path, scratch, listed)}
        said = {tester: answer["noticed"] for tester, answer in rows[name].items()}
        say(f"  {name}: {said} {rows[name]['doctor']['findings']}")
    return rows


def summed(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    ill = {name: row for name, row in rows.items() if name != HEALTHY}
    counts = {tester: sum(row[tester]["noticed"] != "no" for row in ill.values()) for tester in (*PEERS, "doctor")}
    return {"behaviours": len(ill), "noticed": counts, "rows": rows}


def testers_bounds(measured: dict[str, Any]) -> list[Bound]:
    healthy = [answer["noticed"] for answer in measured["rows"][HEALTHY].values()]
    return [
        exactly("behaviours that the doctor notices", measured["noticed"]["doctor"], measured["behaviours"]),
        exactly("what is said of a healthy device", sorted(set(healthy)), ["no"]),
    ]


# The others ---------------------------------------------------------------------------------------------------------


class Peers:
    """The testers people have; what they say of a healthy device is what they are held against."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.usual: dict[str, list[Answer]] = {}

    def ask(self, path: Path, *, healthy: bool) -> dict[str, dict[str, Any]]:
        found = {}
        for name, words in PEERS.items():
            if healthy:  # twice: what differs from one time to the next means nothing
                self.usual[name] = [self._run(words, path, 600.0) for _ in range(2)]
                answer = self.usual[name][1]
            else:
                answer = self._run(words, path, max(LEAST, PATIENCE * self.usual[name][0].seconds))
            found[name] = {"noticed": answer.noticed(self.usual[name]), **answer.to_json()}
        return found

    def _run(self, words: Sequence[str], path: Path, limit: float) -> Answer:
        ill = os.pathsep.join([str(JOBS / "ill"), str(ROOT / "src")])
        beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        mine = {"PYTHONPATH": ill, "PATH": beside, VARIABLE: str(path), "HF_HOME": str(self.scratch / "hf")}
        shutil.rmtree(path.with_suffix(".users"), ignore_errors=True)
        began = time.monotonic()
        with subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **mine},
            cwd=self.scratch,
            start_new_session=True,
        ) as tester:
            try:
                said = tester.communicate(timeout=limit)[0]
            except subprocess.TimeoutExpired:
                os.killpg(tester.pid, signal.SIGKILL)  # with all that it has started
                tester.communicate()
                return Answer(None, "", time.monotonic() - began)
        return Answer(tester.returncode, said, time.monotonic() - began)


class Answer:
    """What a tester said, and how it ended; no code if it never did."""

    def __init__(self, code: int | None, said: str, seconds: float) -> None:
        self.code, self.said, self.seconds = code, said, seconds

    def noticed(self, usual: Sequence[Answer]) -> str:
        if self.code is None:
            return "hangs"
        steady = set(usual[0].said.splitlines()) & set(usual[1].said.splitlines())
        same = self.code == usual[0].code and steady <= set(self.said.splitlines())
        return "no" if same else "yes"

    def to_json(self) -> dict[str, Any]:
        last = [line.strip() for line in self.said.splitlines() if line.strip()][-1:]
        return {"code": self.code, "seconds": round(self.seconds, 1), "last_line": scrub(last[0])[:160] if last else ""}


# Ours ---------------------------------------------------------------------------------------------------------------


def ours(path: Path, scratch: Path, listed: Sequence[Symptom]) -> dict[str, Any]:
    """The quick set, and where it says nothing the full one, as `holdfast doctor` and `holdfast doctor --full`."""
    answer: dict[str, Any] = {}
    for full in (False, True):
        shutil.rmtree(path.with_suffix(".users"), ignore_errors=True)
        os.environ[STATE] = str(scratch / f"state-{time.monotonic_ns()}")

        def host(env: Mapping[str, str]) -> Host:
            return Host({**env, VARIABLE: str(path)})

        with Doctor(full=full, fresh=True, host=host, budget_s=0.0) as doctor:
            seen = doctor.examine(Patient(DEVICE, backend="cuda"))
        found = [each for each in seen.verdict.findings if each.level != "note"]
        answer = {
            "noticed": "yes" if found or seen.verdict.state != "trusted" else "no",
            "set": "full" if full else "quick",
            "verdict": seen.verdict.state,
            "findings": [f"{each.code} {each.title}" for each in found],
            "seconds": round(seen.seconds, 1),
        }
        if answer["noticed"] == "yes" or not listed:
            return answer
    return answer


def main(names: Sequence[str]) -> int:
    path = RESULTS / "testers-cpu.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-testers-"))
    adopt(scratch)
    try:
        new = rows_of(scratch, names)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    rows = {name: new.get(name, row) for name, row in kept["measured"]["rows"].items()}
    kept["measured"] = summed(rows)
    bounds = testers_bounds(kept["measured"])
    write(path, kept, bounds)
    return int(bool(told(bounds, quick=False)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
