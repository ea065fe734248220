"""Beside a script that is not changed: the weights at its end, as a checksum, into the file that RECORD_TO names."""

import os
import sys

_OPTIMIZERS = []


def _follow():
    import atexit

    from torch.optim.optimizer import register_optimizer_step_post_hook

    def after_step(optimizer, args, kwargs):
        if not any(optimizer is each for each in _OPTIMIZERS):
            _OPTIMIZERS.append(optimizer)

    after_step._torchdynamo_disable = True
    register_optimizer_step_post_hook(after_step)
    atexit.register(_record, os.getpid())


def _record(pid):
    if os.getpid() != pid or not _OPTIMIZERS:
        return
    import hashlib

    digest = hashlib.sha256()
    for optimizer in _OPTIMIZERS:
        for group in optimizer.param_groups:
            for param in group["params"]:
                digest.update(param.detach().cpu().contiguous().numpy().tobytes())
    with open(os.environ["RECORD_TO"], "w") as file:
        file.write(digest.hexdigest())


if os.environ.get("RECORD_TO") and any(word.endswith(os.environ.get("RECORD_OF", "?")) for word in sys.orig_argv[1:2]):
    _follow()
