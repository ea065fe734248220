"""A smaller batch after memory ran out, where a script has a way to be told: the effective batch stays what it was.

batch = divisible(command, notes)            # what one process computes at once; None where nobody can change it
command, env = divide(command, 2)            # the same job in halves

Trainer of transformers     per_device_train_batch_size / 2, gradient_accumulation_steps * 2, through the hook:
                            the optimizer makes the same steps on the same samples
yolo … train                batch= / 2; ultralytics collects gradients up to `nbs` (64) samples by itself
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.supervisor.scripts.frameworks import is_yolo
from holdfast.supervisor.scripts.hook_notes import Notes

YOLO_BATCH = 16
"""What ultralytics takes if nothing is said."""


def divisible(command: Sequence[str], notes: Notes | None) -> int | None:
    """The batch that can be divided, and how far; None if it cannot be changed from outside."""
    if is_yolo(command):
        said = [word.partition("=")[2] for word in command if word.startswith("batch=")]
        size = said[-1] if said else str(YOLO_BATCH)
        return int(size) if size.isdecimal() and int(size) > 1 else None  # -1 and fractions: it chooses by itself
    return notes.batch if notes is not None else None


def divide(command: list[str], pieces: int) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of the same job with a batch in so many pieces."""
    if not is_yolo(command):
        return command, {"HOLDFAST_PIECES": str(pieces)}
    batch = divisible(command, None) or YOLO_BATCH
    return [*(word for word in command if not word.startswith("batch=")), f"batch={max(1, batch // pieces)}"], {}
