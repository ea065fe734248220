"""A fault for a script that does not know of it: STRANGER_FAULT=kill@12 on a PYTHONPATH that begins with this folder.

It comes after so many steps of an optimizer, once in a run: the file that STRANGER_DONE names remembers it.
"""

import os
import signal

KIND, _, AT = os.environ.get("STRANGER_FAULT", "").partition("@")
DONE = os.environ.get("STRANGER_DONE", "")
COUNT = 0


def after_step(optimizer, args, kwargs):
    global COUNT
    COUNT += 1
    if int(AT) > COUNT or os.path.exists(DONE):
        return
    with open(DONE, "w", encoding="ascii"):
        pass
    if KIND == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if KIND == "stop":  # what a cluster sends, to the process that it started
        os.kill(os.getppid(), signal.SIGTERM)
    while KIND == "hang":
        pass


if KIND:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(after_step)
