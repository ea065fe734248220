"""Clients of a served bundle, in processes of their own: each sends its next question when it has its answer.

    echo "16 10000" | python serve_load.py PORT BUNDLE npy      # 16 clients, 10,000 questions; a line of JSON

Every question is one of the inputs that are kept in the bundle, whose answer is known, so an answer that is another
question's is found. The bytes are prepared, and the clients share half of the cores, a process on each: what is
measured is the server. While a client sends a large body, the others of its process wait, so one process alone is
hardly more than one client where bodies are large.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TOLERANCE = {"tf32": 2e-3, "fp16": 4e-3, "bf16": 2e-2}
"""Of the largest answer, where kernels for larger batches round otherwise; 2e-5 for all others."""


class Questions:
    """The requests as bytes, and what a right answer to each is."""

    def __init__(self, folder: Path, token: str, form: str) -> None:
        from holdfast.optimize import bundle

        opened = bundle.open_bundle(folder)
        with np.load(folder / bundle.CHECK, allow_pickle=False) as kept:
            inputs = [kept[f"i{number}"] for number in range(len(opened.inputs))]
        engine = opened.engine()
        self.form = form
        self.answers = [engine.run([each[row : row + 1] for each in inputs])[0] for row in range(len(inputs[0]))]
        self.good: list[set[bytes]] = [set() for _ in self.answers]
        self.requests = []
        names = [each["name"] for each in opened.inputs]
        for row in range(len(inputs[0])):
            body, kind = _body([each[row : row + 1] for each in inputs], names, form)
            head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: {kind}\r\n"
            self.requests.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.tolerance = TOLERANCE.get(opened.manifest["precision"], 2e-5) * max(
            float(np.abs(each).max()) for each in self.answers
        )
        self.asked: list[int] = []
        """Questions whose answers cannot be taken for each other's."""
        for row, mine in enumerate(self.answers):
            if all(float(np.abs(mine - self.answers[other]).max()) > 4 * self.tolerance for other in self.asked):
                self.asked.append(row)

    def right(self, row: int, body: bytes) -> bool:
        if body in self.good[row]:
            return True
        if self.form == "json":
            found = np.array(next(iter(json.loads(body).values())), np.float32)
        else:
            found = np.load(io.BytesIO(body), allow_pickle=False)
        if found.shape != self.answers[row].shape or np.abs(found - self.answers[row]).max() > self.tolerance:
            return False
        if len(self.good[row]) < 1000:  # the same numbers come in few forms: batches of other sizes round otherwise
            self.good[row].add(body)
        return True


def _body(arrays: list[Any], names: list[str], form: str) -> tuple[bytes, str]:
    if form == "json":
        data = {name: each.tolist() for name, each in zip(names, arrays, strict=True)}
        return json.dumps(data).encode(), "application/json"
    file = io.BytesIO()
    for each in arrays:
        np.save(file, each)
    return file.getvalue(), "application/x-npy"


class Client:
    def __init__(self, port: int, number: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rng = np.random.default_rng((os.getpid(), number))
        self.rows: list[int] = []
        self.row, self.since, self.heard = 0, 0.0, b""

    def ask(self, questions: Questions) -> None:
        if not self.rows:
            self.rows = self.rng.choice(questions.asked, size=512).tolist()
        self.row = self.rows.pop()
        self.since = time.perf_counter()
        self.sock.sendall(questions.requests[self.row])

    def hear(self) -> tuple[int, bytes] | None:
        """The status and the body once they are there; OSError if the server hung up."""
        data = self.sock.recv(1 << 18)
        if not data:
            raise ConnectionError
        self.heard = data = self.heard + data if self.heard else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        at = data[:end].lower().find(b"content-length: ") + 16
        length = int(data[at : data.index(b"\r", at)])
        if len(data) < end + 4 + length:
            return None
        self.heard = b""
        return int(data[9:12]), data[end + 4 :]


class Heard(NamedTuple):
    """What the clients of one process found."""

    times: list[float]
    wrong: int
    lost: int
    began: float
    ended: float
    cpu_s: float


def load(port: int, questions: Questions, clients: int, requests: int) -> Heard:
    """So many questions by so many clients."""
    cpu = time.process_time()
    selector = selectors.DefaultSelector()
    everyone = [Client(port, number) for number in range(clients)]
    times: list[float] = []
    wrong = lost = 0
    left = requests - clients
    began = time.perf_counter()
    for each in everyone:
        each.ask(questions)
        selector.register(each.sock, selectors.EVENT_READ, each)
    waiting = clients
    while waiting:
        ready = selector.select(120)
        if not ready:
            lost += waiting
            break
        for key, _ in ready:
            each = key.data
            try:
                answer = each.hear()
            except OSError:
                lost += 1
                waiting -= 1
                selector.unregister(each.sock)
                continue
            if answer is None:
                continue
            times.append(time.perf_counter() - each.since)
            status, body = answer
            if status != 200:
                lost += 1
            elif not questions.right(each.row, body):
                wrong += 1
            if left > 0:
                left -= 1
                each.ask(questions)
            else:
                waiting -= 1
    ended = time.perf_counter()
    for each in everyone:
        each.sock.close()
    return Heard(times, wrong, lost + max(0, left), began, ended, time.process_time() - cpu)


class Crowd:
    """Processes with clients in them."""

    def __init__(self, port: int, questions: Questions, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(processes)]
        self.ends = [mine for mine, _ in pairs]
        for _, theirs in pairs:
            context.Process(target=_member, args=(port, questions, theirs), daemon=True).start()
            theirs.close()

    def load(self, clients: int, requests: int) -> dict[str, Any]:
        members = self.ends[:clients]
        for number, (mine, each) in enumerate(zip(_shares(clients, len(members)), members, strict=True)):
            each.send((mine, _shares(requests, len(members))[number]))
        heard = [each.recv() for each in members]
        times = sorted(spent for each in heard for spent in each.times)
        spent = max(each.ended for each in heard) - min(each.began for each in heard)
        told = {f"p{share}_ms": round(1000 * times[int(share / 100 * (len(times) - 1))], 3) for share in (50, 95, 99)}
        return {
            "clients": clients, "processes": len(members), "requests": requests, "per_s": round(len(times) / spent, 1),
            **told, "wrong": sum(each.wrong for each in heard), "lost": sum(each.lost for each in heard),
            "client_cpu_s": round(sum(each.cpu_s for each in heard), 3),
        }  # fmt: skip


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (number < total % parts) for number in range(parts)]


def _member(port: int, questions: Questions, end: Any) -> None:
    with contextlib.suppress(EOFError):
        while True:
            end.send(load(port, questions, *end.recv()))


def main() -> int:
    """Each line on stdin is a pair `clients requests`; each answer a line of JSON."""
    port, folder, form = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    questions = Questions(folder, os.environ["HOLDFAST_SERVE_TOKEN"], form)
    crowd = Crowd(port, questions, max(1, (os.cpu_count() or 1) // 2))
    print(json.dumps({"questions": len(questions.asked)}), flush=True)
    for line in sys.stdin:
        clients, requests = map(int, line.split())
        print(json.dumps(crowd.load(clients, requests)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
