"""Faults for scripts that do not know of them: FAULT=kill@12 on a PYTHONPATH that begins with this folder.

FAULT=kill@3,9,10 comes at these steps, counted over all processes of the run.
FAULT=small_memory@2 is a device with room for two samples: a layer that gets more raises what torch raises.
FAULT_WHERE=visible: only while a device is visible, as the environment has it, however often the script starts;
FAULT_TIMES=3 times at most. Where it is hidden the script computes slowly, as on a CPU.

The user's own sitecustomize, and an optimizer hook of the user's own: `holdfast run` must leave both alone. A fault
with one step comes once in a run. A file named by FAULT_DONE has a line for each fault.
"""

import os
import sys
import threading
import time

KIND, _, AT = os.environ.get("FAULT", "").partition("@")
DONE = os.environ.get("FAULT_DONE", "")
COUNT = 0


def after_step(optimizer, args, kwargs):
    global COUNT
    COUNT += 1
    if os.environ.get("FAULT_WHERE") == "visible" and os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        time.sleep(0.4)
    if not (listed() if "," in AT else due(optimizer)):
        return
    with open(DONE, "a") as file:
        file.write(f"{time.time()}\n")
    happen(KIND)


def due(optimizer):
    return int(AT) <= COUNT and (may_again() or not os.path.exists(DONE) or again(optimizer))


def listed():
    """One step more of all processes: is it one of those that were asked for?"""
    with open(f"{DONE}.steps", "a") as file:
        file.write(".")
        file.flush()
        return str(file.tell()) in AT.split(",")


def may_again():
    """On a device that is visible, until it has failed often enough."""
    if os.environ.get("FAULT_WHERE") != "visible":
        return False
    if not os.path.exists(DONE):
        return True
    with open(DONE) as file:
        seen = len(file.readlines())
    return os.environ.get("CUDA_VISIBLE_DEVICES") != "" and seen < int(os.environ["FAULT_TIMES"])


def again(optimizer):
    """FAULT_AGAIN=cuda: at every start on such a device."""
    kind = os.environ.get("FAULT_AGAIN")
    return bool(kind) and optimizer.param_groups[0]["params"][0].device.type == kind


def happen(kind):
    import ctypes
    import signal

    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "damaged":
        newest = max(states("."), key=os.path.getmtime, default=None)
        if newest is not None:
            os.truncate(newest, os.path.getsize(newest) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "full_disk":
        with open("filler", "wb", buffering=0) as file:
            try:
                while file.write(b"x" * (1 << 20)) == 1 << 20:
                    pass
            except OSError:
                pass
    elif kind == "hang":
        lock = threading.Lock()
        while lock.acquire():  # the second time it waits for itself
            pass
    elif kind == "hang_gil":
        semaphore = ctypes.create_string_buffer(64)
        ctypes.PyDLL(None).sem_init(semaphore, 0, 0)
        while True:  # a signal ends a wait
            ctypes.PyDLL(None).sem_wait(semaphore)
    elif kind == "spin_gil":
        import re

        re.match(r"(a+)+$", "a" * 60 + "b")
    elif kind == "segfault":
        ctypes.string_at(0)
    elif kind == "abort":
        os.abort()
    elif kind == "oom":
        raise MemoryError("no memory is left for this test")
    elif kind == "device_oom":
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
    elif kind == "real_device_oom":
        import torch

        free, _ = torch.cuda.mem_get_info()
        kept = [torch.empty(free // 2, dtype=torch.uint8, device="cuda") for _ in range(4)]
        raise AssertionError(f"{len(kept)} times half of the free memory fitted")
    elif kind == "device_error":
        import torch

        raise torch.AcceleratorError("CUDA error: device-side assert triggered")
    elif kind == "device_assert":
        import torch

        torch.zeros(4, device="cuda")[torch.tensor([99], device="cuda")].sum().item()
    elif kind == "endless_kernel":
        import torch

        torch.cuda._sleep(2**62)
        torch.cuda.synchronize()
    elif kind == "own":
        raise ValueError("a mistake of the script's own")
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "terminate_parent":  # what a cluster does with the process that it started
        os.kill(os.getppid(), signal.SIGTERM)
    elif kind == "kill_parent":
        os.kill(os.getppid(), signal.SIGKILL)


def states(folder):
    """Files that hold a script's state."""
    kinds = (".pt", ".ckpt", ".safetensors", ".bin")
    for place, _, names in os.walk(folder):
        yield from (os.path.join(place, name) for name in names if name.endswith(kinds))


def watch():
    while "torch.optim.optimizer" not in sys.modules:
        time.sleep(0.005)
    module = sys.modules["torch.optim.optimizer"]
    while getattr(module.__spec__, "_initializing", False):  # the hook of holdfast is set within: ours comes after it
        time.sleep(0.001)
    if KIND == "small_memory":
        while "torch.nn" not in sys.modules or getattr(sys.modules["torch"].__spec__, "_initializing", False):
            time.sleep(0.005)
        return room_for(int(AT))
    module.register_optimizer_step_post_hook(after_step)


def room_for(samples):
    import torch

    for cls in (torch.nn.Linear, torch.nn.Conv2d):

        def hold(self, x, forward=cls.forward):
            if self.training and len(x) > samples:  # without gradients more fits
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            return forward(self, x)

        cls.forward = hold


if KIND and AT:
    threading.Thread(target=watch, daemon=True).start()
