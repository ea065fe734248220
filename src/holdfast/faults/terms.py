"""The words in which faults are told and answered: how bad, what is left, which belong together, what is done.

The code, files of faults (`faults.toml`, `more/`, those of HOLDFAST_ADD), JSON and the screen have the same ones.
"""

from __future__ import annotations

from holdfast.base.text_enum import TextEnum


class Level(TextEnum):
    """From what is good to know to what makes a device useless: of faults and of the doctor's findings."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Health(TextEnum):
    """What is left of the worker's process after a fault."""

    ALIVE = "alive"
    """Still usable."""
    DEAD = "dead"
    """Needs a new process."""
    MACHINE = "machine"
    """A new process is not enough: the device needs a reset or the machine a reboot."""


class Family(TextEnum):
    """Kinds of fault that count against each other: a crash after a hang at one step is the second time."""

    MEMORY = "memory"
    DEVICE = "device"
    OUTSIDE = "outside"
    HOST = "host"
    LOADER = "loader"
    UNFIT = "unfit"
    SCRIPT = "script"
    NUMBERS = "numbers"
    STORAGE = "storage"


class Action(TextEnum):
    """What the supervisor and the worker know how to do."""

    RETRY = "retry"
    """Roll back, free memory, the same step whole in the same process."""
    SPLIT = "split"
    """Roll back, then the same step in `pieces` microbatches of exact weight."""
    CPU_BATCH = "cpu_batch"
    """This batch on the CPU, then back."""
    REPLACE = "replace"
    """A new worker from the snapshot, on the same rung."""
    NEXT_RUNG = "next_rung"
    """A new worker from the snapshot, on another rung."""
    FAIL = "fail"
    """Stop: the script's own error."""
    GIVE_UP = "give_up"
    """Stop: nothing is left to try. The state is saved."""
