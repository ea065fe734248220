"""Memory: what is written is read back, up to the limit and beyond; and on the way there and back.

for outcome in fill(bench, spec): ...       # facts: {"reported_bytes": ..., "reached_bytes": ...}
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from holdfast.base import processes
from holdfast.probes.bench import Bench, Skip, is_out_of_memory
from holdfast.probes.compare import Outcome

PATTERN = 32 << 20
CHUNK = 256 << 20
HOST = 128 << 20
"""Of the machine's own memory, which others need as well, no more than this is filled."""
RESERVE = 512 << 20
"""Bytes of a card left for the screen and for libraries."""
SHORT = 0.1
"""The share of the reported memory that may turn out not to be there: fragments, and what libraries take."""
_PRIME = 1_000_003


def pattern(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """What is written comes back, bit by bit, and a copy on the device is the same."""
    bench.tell("")
    right = torch.arange(PATTERN // 4, dtype=torch.int32) * _PRIME
    with bench.on():
        there = bench.to(right)
        copied = there.clone()
        wrong = int((copied != there).sum()) + int((copied.cpu() != right).sum())
    yield Outcome(float(wrong), 0.0, {"bytes": PATTERN, "wrong_words": wrong})


def transfer(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """Every way a batch may travel, at sizes from one word to some megabytes."""
    ways = {
        "there and back": _plain,
        "pinned": _pinned,
        "async": _async,
        "strided": _strided,
        "on the device": _within,
    }
    for check in spec["checks"]:
        bench.tell(check)
        try:
            wrong = 0
            began, moved = time.perf_counter(), 0
            for words in (1, 7, 1021, 65_536, 4_194_304):
                right = torch.arange(words, dtype=torch.int32) * _PRIME
                with bench.on():
                    back = ways[check](bench, right)
                wrong += int((back != right).sum())
                moved += 8 * words
            rate = moved / max(time.perf_counter() - began, 1e-9)
            yield Outcome(float(wrong), 0.0, {"wrong_words": wrong, "bytes_per_second": round(rate)})
        except Skip as skip:
            yield Outcome(skip=str(skip))


def _plain(bench: Bench, right: Tensor) -> Tensor:
    return bench.to(right).cpu()


def _pinned(bench: Bench, right: Tensor) -> Tensor:
    if bench.device.type not in ("cuda", "xpu"):
        raise Skip("this device has no pinned memory")
    there = right.pin_memory().to(bench.device, non_blocking=True)
    back = torch.empty_like(right).pin_memory()
    back.copy_(there, non_blocking=True)
    bench.wait()
    return back


def _async(bench: Bench, right: Tensor) -> Tensor:
    """On a second stream, while the first computes."""
    if bench.device.type not in ("cuda", "xpu"):
        raise Skip("this device has no streams")
    backend = getattr(torch, bench.device.type)
    busy = torch.ones(512, 512, device=bench.device)
    side = backend.Stream(device=bench.device)
    for _ in range(8):
        busy = busy @ busy * (1 / 512)
    with backend.stream(side):
        there = right.pin_memory().to(bench.device, non_blocking=True)
        back = torch.empty_like(right).pin_memory()
        back.copy_(there, non_blocking=True)
    side.synchronize()
    bench.wait()
    return back


def _strided(bench: Bench, right: Tensor) -> Tensor:
    wide = torch.stack([right, -right], 1)
    return bench.to(wide)[:, 0].cpu()


def _within(bench: Bench, right: Tensor) -> Tensor:
    there = bench.to(right)
    again = torch.empty_like(there)
    again.copy_(there)
    return again.flip(0).flip(0).cpu()


def fill(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """As much as the driver says is free, written and read back: half of it in the quick set."""
    reported = bench.memory()
    room = processes.available_memory()
    if reported is None and bench.kind != "cpu":
        raise Skip("this device does not say how much memory it has")
    if reported is None:
        wanted = min(HOST, (room or HOST) // 4)
    else:
        share = 0.95 if spec["full"] else 0.5
        wanted = int(min(reported[0] * share, max(reported[0] - RESERVE, reported[0] * 0.5)))
        if bench.shares_memory and room is not None:
            wanted = min(wanted, room // 2)
    chunk = max(4096, min(CHUNK, wanted // 8)) // 4 * 4
    bench.tell("")
    held: list[Tensor] = []
    why = ""
    with bench.on():
        while sum(each.nbytes for each in held) + chunk <= wanted:
            try:
                held.append(bench.allocate(chunk).fill_(len(held) + 1))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                why = "less memory than the driver says is free"
                break
        bench.wait()
        reached = sum(each.nbytes for each in held)
        wrong = sum(int((each != place + 1).sum()) for place, each in enumerate(held))
        held.clear()
        bench.release()
    short = max(0.0, 1.0 - reached / max(wanted - chunk, 1))
    facts: dict[str, Any] = {"reached_bytes": reached, "wanted_bytes": wanted, "wrong_words": wrong}
    if reported is not None:
        facts |= {"free_bytes": reported[0], "reported_bytes": reported[1]}
    said = "memory does not hold what is written" if wrong else why if short > SHORT else ""
    yield Outcome(short, SHORT, facts, why=said)


def recover(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """More than there is is asked for: an error has to come, and computing has to go on after it."""
    reported = bench.memory()
    too_much = 2 * reported[1] if reported is not None else 1 << 50
    bench.tell("")
    source = torch.Generator().manual_seed(0)
    left, right = (torch.randn(192, 192, generator=source) for _ in range(2))
    with bench.on():
        try:
            bench.allocate(too_much)
            bench.wait()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            said = type(error).__name__
        else:
            yield Outcome(facts={"asked_bytes": too_much}, why="twice the memory there is was given without an error")
            return
        bench.release()
        product = (bench.to(left) @ bench.to(right)).cpu().double()
    correct = left.double() @ right.double()
    yield Outcome(float((product - correct).norm() / correct.norm()), 1e-5, {"raised": said, "asked_bytes": too_much})
