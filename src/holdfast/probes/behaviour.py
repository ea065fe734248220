"""How a device behaves: at the first step, twice over, with a second process, under load.

for outcome in load(bench, spec): ...       # facts: {"steps": 4100, "slower": 1.07, "first_wrong_s": None}
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

from holdfast.probes import layers
from holdfast.probes.bench import Bench, Skip
from holdfast.probes.compare import Outcome, Tensors, Work, bound, distance, expectation

FIRST_STEP = 60.0
"""Seconds from opening the device to the end of the first step after which a newcomer has given up."""
PACE = 6
"""Steps that are timed, before a load and after it."""
SAME = 1e-5
"""A product of large matrices may differ by this from the same product before: sums may be taken in another order."""
SIGMAS = 6.0
"""How far a count of random numbers may be from its mean: more than that happens once in half a billion times."""


def first_step(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """From the first touch of the device to the end of the first step, with cold caches."""
    bench.tell("")
    with bench.on():
        work = Work(layers.build("network", small=bench.small), [8], bench=bench)
        work.backward()
        bench.wait()
        first = time.monotonic() - bench.opened
        work.backward()
        bench.wait()
    second = time.monotonic() - bench.opened - first
    limit = float(spec["options"].get("bound_s", FIRST_STEP))
    yield Outcome(first, limit, {"first_s": round(first, 3), "second_s": round(second, 4), **_facts(bench)})


def _facts(bench: Bench) -> dict[str, Any]:
    """What the device says about itself."""
    facts: dict[str, Any] = {"torch": torch.__version__}
    if bench.device.type in ("cuda", "xpu"):
        properties = getattr(torch, bench.device.type).get_device_properties(bench.device)
        said = {
            name: getattr(properties, name, None) for name in ("name", "gcnArchName", "total_memory", "major", "minor")
        }
        facts |= {name: value for name, value in said.items() if value is not None}
        if bench.device.type == "cuda":
            facts["built_for"] = torch.cuda.get_arch_list()
    return facts


def same(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """The same input twice: bit by bit the same answer, where torch is asked for that."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    bench.set_precision("fp32")
    warnings.simplefilter("always")
    layer = layers.build(spec["layer"], small=bench.small)
    bench.tell("")
    with bench.on(), warnings.catch_warnings(record=True) as said:
        answers = [Work(layer, [spec["batch"]], bench=bench).backward() for _ in range(3)]
        bench.wait()
    if any("deterministic" in str(each.message) for each in said):
        raise Skip("torch has no kernel for it that gives the same bits each time")
    first = answers[0]
    different = [name for other in answers[1:] for name in first if not torch.equal(first[name], other[name])]
    worst = max(distance(other, first)[0] for other in answers[1:])
    yield Outcome(float(len(different)), 0.0, {"different": different[:4], "apart": worst})


def chance(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """Random numbers have the mean and the spread they should have, and a seed brings them back."""
    count = 1 << 20
    for check in spec["checks"]:
        bench.tell(check)
        with bench.on():
            torch.manual_seed(11)
            if check == "uniform":
                drawn = torch.rand(count, device=bench.device).cpu().double()
                apart = abs(float(drawn.mean()) - 0.5) / (1 / (12 * count)) ** 0.5
                inside = bool((drawn >= 0).all() and (drawn < 1).all())
            elif check == "normal":
                drawn = torch.randn(count, device=bench.device).cpu().double()
                apart = max(abs(float(drawn.mean())) * count**0.5, abs(float(drawn.var()) - 1) * (count / 2) ** 0.5)
                inside = bool(torch.isfinite(drawn).all())
            elif check == "dropout":
                drawn = F.dropout(torch.ones(count, device=bench.device), 0.3, training=True).cpu().double()
                apart = abs(float((drawn == 0).double().mean()) - 0.3) / (0.21 / count) ** 0.5
                inside = bool(((drawn == 0) | ((drawn - 1 / 0.7).abs() < 1e-6)).all())
            else:
                drawn = torch.randn(4096, device=bench.device).cpu()
                torch.manual_seed(11)
                again = torch.randn(4096, device=bench.device).cpu()
                apart, inside = 0.0, bool(torch.equal(drawn, again))
        yield Outcome(apart, SIGMAS, {"sigmas": round(apart, 2)}, why="" if inside else "numbers that cannot be")


# Going on -----------------------------------------------------------------------------------------------------------


def steps(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """Steps for some time, each held against the CPU. With a second process beside it, this is the check of company."""
    yield _going_on(bench, spec, float(spec["options"]["seconds"]))


def load(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """The same for long, with as much work as the device takes: it gets warm, clocks fall, faults show."""
    seconds = float(spec["options"].get("seconds", 20.0))
    yield _going_on(bench, spec, seconds if bench.real else min(seconds, 5.0), heavy=True)


def occupy(bench: Bench, seconds: float) -> None:
    """Be the second process: compute until killed."""
    work = Work(layers.build("network", small=bench.small), [8], bench=bench)
    until = time.monotonic() + seconds
    with bench.on():
        while time.monotonic() < until:
            work.backward()
            bench.wait()


def _going_on(bench: Bench, spec: dict[str, Any], seconds: float, *, heavy: bool = False) -> Outcome:
    bench.set_precision("fp32")
    layer, sizes = layers.build(spec["layer"], small=bench.small), [spec["batch"]]
    answers = Work(layer, sizes, double=True).answers("backward")
    right, limit = answers["backward"], bound(expectation(layer, sizes, "fp32", answers)["backward"], "fp32")
    bench.tell("")
    steps, worst, tensor = 0, 0.0, ""
    with bench.on():
        cold = _pace(bench) if heavy else None
        began = time.monotonic()
        burden = _Burden(bench) if heavy else None
        work = Work(layer, sizes, bench=bench)
        while steps == 0 or time.monotonic() - began < seconds:
            found: Tensors = work.backward()
            bench.wait()
            steps += 1
            error, name = distance(found, right)
            if error > worst:
                worst, tensor = error, name
            if not error <= limit:
                break
            apart = burden.carry() if burden is not None else 0.0
            if not apart <= SAME:
                facts = {"after_s": round(time.monotonic() - began, 2), "steps": steps, "tensor": "a large product"}
                return Outcome(apart, SAME, facts)
        took = round(time.monotonic() - began, 2)
        pace = _compared(cold, _pace(bench)) if cold is not None and worst <= limit else {}
    more: dict[str, Any] = {"tensor": tensor, **pace}
    facts = {"after_s": took, "steps": steps, **more}
    return Outcome(worst, limit, facts)


def _pace(bench: Bench) -> float:
    """Seconds of a step of a network that gives a device something to do: the fastest, which others disturbed least."""
    layer = layers.build("network")
    layer.shape = (3, 32, 32)
    return min(Work(layer, [16], bench=bench).pace(PACE))


def _compared(cold: float, warm: float) -> dict[str, Any]:
    return {"step_ms": round(cold * 1e3, 3), "slower": round(warm / max(cold, 1e-9), 3)}


class _Burden:
    """Large products, the same again and again: each has to be as the first one, but for the order of sums."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        size = 4096 if bench.real else 384
        source = torch.Generator().manual_seed(5)
        self.left = bench.to(torch.randn(size, size, generator=source) / size**0.5)
        self.first = self.left @ self.left
        self.rounds = 16 if bench.real else 2

    def carry(self) -> float:
        """How far the last one is from the first."""
        for _ in range(self.rounds):
            product = self.left @ self.left
        return float((product - self.first).norm() / self.first.norm())
