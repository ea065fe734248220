"""What `holdfast serve` gains by batching, whether it ever loses or mixes up an answer, and what silence does to it.

The server is a process of its own, and so are its clients (jobs/serve_load.py): sixteen of them against one that asks
one question at a time, turn by turn. Then 100,000 questions, each of whose answers is compared; then 10,000 connections
that say nothing, while others ask. HOLDFAST_BENCH_RUNS as in optimize.py; HOLDFAST_BENCH_REQUESTS for fewer questions.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import JOBS, Bound, at_most, command, exactly, say

from holdfast.base import processes
from holdfast.optimize.pipeline import Options, optimize
from optimize import at_least, run_of

TOKEN = "benchmark-token-of-this-run"


def serving(scratch: Path, quick: bool) -> dict[str, Any]:
    """Served models: sixteen clients against one, 100,000 answers compared, 10,000 silent connections."""
    total = 400 if quick else int(os.environ.get("HOLDFAST_BENCH_REQUESTS", "100000"))
    measured = {}
    for name, workload, many in (("policy", "ecosystem", 4000), ("eeg", "eeg-challenge1", 600)):
        folder = scratch / name
        spec = {"kind": "run", "folder": str(run_of(scratch, workload, quick))}
        options = Options(seconds=0.5, profile=False, batches=(16,), engines=("onnxruntime fp32",))
        chosen = optimize(spec, folder, options, tell=lambda text: say(f"  {text}"))["chosen"]
        with Served(folder) as served:
            measured[name] = {
                "engine": f"{chosen['name']}, {chosen['threads']} threads",
                **gain(served, 160 if quick else many),
                "json_per_s_16_clients": _json(served, 32 if quick else many // 4),
            }
            if name == "policy":
                measured["soak"] = served.load(16, total)
                measured["silent"] = _silence(served, 300 if quick else 10_000)
            measured[name] |= {"server_rss_bytes": served.rss(), "inputs_per_batch": served.inputs_per_batch()}
    return measured


def gain(served: Served, many: int) -> dict[str, Any]:
    """Five turns: one client, then sixteen."""
    one, all_of_them = [], []
    served.load(16, max(32, many // 10))
    for _ in range(5):
        one.append(served.load(1, max(20, many // 4)))
        all_of_them.append(served.load(16, many))
    ratios = sorted(b["per_s"] / a["per_s"] for a, b in zip(one, all_of_them, strict=True))
    rows = [*one, *all_of_them]
    return {
        "times_one_at_a_time": round(statistics.median(ratios), 2),
        "ratios": [round(each, 2) for each in ratios],
        "one_at_a_time": _middle(one),
        "16_clients": _middle(all_of_them),
        "questions": sum(each["requests"] for each in rows),
        "wrong": sum(each["wrong"] for each in rows),
        "lost": sum(each["lost"] for each in rows),
    }


def _middle(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return sorted(rows, key=lambda row: float(row["per_s"]))[len(rows) // 2]


def _json(served: Served, many: int) -> float:
    """The same questions as JSON: how much of the time is text."""
    with Load(served, "json") as load:
        return float(load.ask(16, many)["per_s"])


def _silence(served: Served, count: int) -> dict[str, Any]:
    """So many connections that say nothing; a client among them asks now and then."""
    before, held, slowest, refused = served.rss() or 0, [], 0.0, 0
    descriptors = served.descriptors()
    with contextlib.ExitStack() as stack:
        for number in range(count):
            try:
                held.append(stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=60)))
            except OSError:
                break
            if number % max(1, count // 40) == 0:
                began = time.perf_counter()
                refused += served.ask() != 200
                slowest = max(slowest, time.perf_counter() - began)
        after = served.ask()
        most = served.descriptors()
    time.sleep(1.0)
    return {
        "connections": len(held),
        "questions_refused_meanwhile": refused + (after != 200),
        "slowest_answer_s": round(slowest, 3),
        "descriptors_before_most_after": [descriptors, most, served.descriptors()],
        "growth_bytes": (served.rss() or 0) - before,
    }


def serving_bounds(measured: dict[str, Any]) -> list[Bound]:
    rows = [measured["policy"], measured["eeg"], measured["soak"]]
    return [
        exactly("answers lost", sum(each["lost"] for each in rows), 0),
        exactly("answers mixed up", sum(each["wrong"] for each in rows), 0),
        at_least("questions in the soak", measured["soak"]["requests"], 100_000),
        at_least("16 clients, times one at a time, policy", measured["policy"]["times_one_at_a_time"], 4.0),
        at_least("16 clients, times one at a time, EEG", measured["eeg"]["times_one_at_a_time"], 1.2),
        at_least("silent connections", measured["silent"]["connections"], 10_000),
        exactly("questions refused meanwhile", measured["silent"]["questions_refused_meanwhile"], 0),
        at_most("bytes the silent ones left behind", measured["silent"]["growth_bytes"], 60_000_000),
    ]


class Load:
    """Clients in a process of their own."""

    def __init__(self, served: Served, form: str) -> None:
        words = [sys.executable, str(JOBS / "serve_load.py"), str(served.port), str(served.folder), form]
        environment = {**os.environ, "HOLDFAST_SERVE_TOKEN": TOKEN}
        self.child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        said = self._line()
        assert said["questions"] > 1, "all kept inputs have the same answer: a mix-up could not be seen"

    def _line(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        said: dict[str, Any] = json.loads(self.child.stdout.readline())
        return said

    def ask(self, clients: int, requests: int) -> dict[str, Any]:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{clients} {requests}\n")
        self.child.stdin.flush()
        return self._line()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(60)


class Served:
    """`holdfast serve`, or another server of the same bundle, in a process of its own."""

    def __init__(self, folder: Path, *more: str, words: Sequence[str] | None = None) -> None:
        self.folder = folder
        words = words or command("serve", str(folder), "--port", "0", "--batch", "16", *more)
        self.child = subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOLDFAST_SERVE_TOKEN": TOKEN}
        )
        assert self.child.stdout is not None
        found = re.search(r":(\d+)/predict", self.child.stdout.readline())
        assert found
        self.port = int(found[1])
        try:
            self.clients = Load(self, "npy")
        except BaseException:
            self.child.terminate()
            raise

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.clients.__exit__()
        self.child.terminate()
        self.child.wait(20)

    def load(self, clients: int, requests: int) -> dict[str, Any]:
        return self.clients.ask(clients, requests)

    def rss(self) -> int | None:
        seen = processes.inspect(self.child.pid)
        return None if seen is None else seen.rss_bytes

    def descriptors(self) -> int | None:
        try:
            return len(os.listdir(f"/proc/{self.child.pid}/fd"))
        except OSError:
            return None

    def ask(self) -> int:
        """One question on a connection of its own; its status."""
        from holdfast.optimize import bundle

        with np.load(self.folder / bundle.CHECK, allow_pickle=False) as kept:
            inputs = [kept[name][:1] for name in kept.files if name.startswith("i")]
        body = io.BytesIO()
        for each in inputs:
            np.save(body, each)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-npy"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/predict", body.getvalue(), headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def inputs_per_batch(self) -> float:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        text = connection.getresponse().read().decode()
        found = {name: float(value) for name, value in re.findall(r"^holdfast_serve_(\w+) ([\d.]+)$", text, re.M)}
        return round(found["inputs_total"] / max(1.0, found["batches_total"]), 2)
