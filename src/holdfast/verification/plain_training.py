"""The training of `holdfast verify` in plain torch, for a Python that has nothing but torch.

    trained = train("cuda:0", ["sigkill", "segfault"], steps=60, say=print, left_s=lambda: 200.0)
    trained["receipt"]["weights_equal"]    # True: the same bits before the faults and after them
    python -m holdfast.verification.plain_training cuda:0 60      one training, in a process of its own

holdfast's own loop needs numpy. What a card can do shows without it: does it train, twice to the same bits, and does
it do so again after a process was killed on it, crashed, or asked it for more memory than it has? Nothing is resumed:
the process after a fault begins anew. No torch in the parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.base import interpreter
from holdfast.run.states import RunState
from holdfast.testing.bounded import GRACE_S, OutOfTime

FAULTS = ("sigkill", "segfault", "cuda_oom")
"""Those of `holdfast verify` that a process can have without holdfast's loop."""
WHY_NOT = "holdfast's own loop needs numpy, which this Python does not have"
_ALL_MEMORY = 1 << 50


def train(
    device: str, faults: Sequence[str], *, steps: int, say: Callable[[str], None], left_s: Callable[[], float]
) -> dict[str, Any]:
    """Twice undisturbed, once with each fault, and once more after them; the report's `training`.

    Where time runs out, what was done until then is in it.
    """
    asked = [name for name in faults if name in FAULTS]
    whole: list[str | None] = []
    came, lost_s, late = 0, 0.0, False
    try:
        for number in (1, 2):
            whole.append(_whole(device, steps, say, left_s, f"reference run {number} of 2"))
        for name in asked:
            say(f"run with {name}")
            began = time.monotonic()
            came += _disturbed(device, steps, name, left_s)
            lost_s += time.monotonic() - began
        whole.append(_whole(device, steps, say, left_s, "run after the faults"))
    except OutOfTime:
        late = True
    same, why = _compare(whole, late=late)
    receipt = {
        "steps": steps,
        "steps_lost": 0,
        "seconds_lost": round(lost_s, 1),
        "faults_planned": len(asked),
        "faults_injected": came,
        "survived": not late and None not in whole,
        "weights_equal": same,
        "weights_sha256": whole[0] if whole else None,
        "why": why,
    }
    state = RunState.STOPPED if late else RunState.FINISHED if receipt["survived"] else RunState.FAILED
    more = {"out_of_time": True} if late else {}
    return {"faults_asked": asked, "state": state, "without": WHY_NOT, "receipt": receipt, **more}


def _compare(whole: Sequence[str | None], *, late: bool) -> tuple[bool | None, str]:
    """Are all the same? The first two are undisturbed, the last one comes after the faults."""
    if None in whole:
        return False, "a training did not end"
    if len(set(whole[:2])) > 1:
        return None, "two undisturbed runs differ from each other: the job is not deterministic by itself"
    if late:
        return None, f"time ran out; {len(whole)} of 3 trainings were done, with equal weights"
    if len(set(whole)) == 1:
        return True, "the weights are those of the undisturbed runs, bit for bit"
    return False, "the weights differ from those of two equal undisturbed runs"


def _whole(device: str, steps: int, say: Callable[[str], None], left_s: Callable[[], float], name: str) -> str | None:
    """The digest of the weights; None where the process ended without one."""
    say(name)
    return _lines(_start(device, steps), left_s(), until=None)


def _disturbed(device: str, steps: int, fault: str, left_s: Callable[[], float]) -> bool:
    """The fault, in the middle of a training; whether it came."""
    if fault == "sigkill":
        process = _start(device, steps)
        _lines(process, left_s(), until=steps // 2)
        return process.returncode not in (0, None)
    process = _start(device, steps, fault)
    digest = _lines(process, left_s(), until=None)
    return digest is not None if fault == "cuda_oom" else process.returncode not in (0, None)


def _start(device: str, steps: int, *words: str) -> subprocess.Popen[str]:
    command = interpreter.module("holdfast.verification.plain_training", device, str(steps), *words)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def _lines(process: subprocess.Popen[str], limit_s: float, *, until: int | None) -> str | None:
    """What the process says, to its end; at step `until`, and when its time is over, it is killed.

    One that hangs inside of a driver outlives that, so nobody waits for it: a thread listens.
    """
    found: list[str] = []

    def listen() -> None:
        for line in process.stdout or ():
            said = json.loads(line)
            found.extend([said["weights"]] if "weights" in said else [])
            if until is not None and said.get("step", 0) >= until:
                process.kill()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    listener.join(max(limit_s, 0.0))
    late = listener.is_alive()
    if late:
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    if late:
        raise OutOfTime("the time that was given is over")
    return found[0] if found else None


# The process that trains ---------------------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    """`DEVICE STEPS [FAULT]`: a line a step, and one with the digest of the weights."""
    import torch
    from torch.nn.functional import cross_entropy

    from holdfast.verification.proof import Listener, Waves

    device, steps, fault = torch.device(argv[0]), int(argv[1]), argv[2] if len(argv) > 2 else ""
    torch.set_num_threads(1)  # the network is small, and threads wait for each other on a busy machine
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = Listener().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    waves, batch = Waves(160), 16
    for step in range(1, steps + 1):
        samples = [waves[(step * batch + place) % len(waves)] for place in range(batch)]
        inputs = torch.stack([wave for wave, _ in samples]).to(device)
        labels = torch.tensor([label for _, label in samples]).to(device)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if step == steps // 2 and fault:
            _suffer(fault, device)
        print(json.dumps({"step": step, "loss": float(loss.detach())}), flush=True)
    print(json.dumps({"weights": _digest(model.state_dict().values())}), flush=True)
    return 0


def _suffer(fault: str, device: Any) -> None:
    import torch

    if fault == "segfault":
        ctypes.string_at(0)
    try:
        torch.empty(_ALL_MEMORY, dtype=torch.uint8, device=device)
    except RuntimeError:  # out of memory is one; training goes on
        return


def _digest(tensors: Any) -> str:
    """Of all bytes. `tolist` is slow, and needs no numpy."""
    import torch

    total = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        total.update(bytes(flat.view(torch.uint8).tolist()))
    return total.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
