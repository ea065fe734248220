"""The process that measures: a script runs as in a run, but only a little of it, and says what each part took.

    python -m holdfast.planning.trial serve FD PARENT     torch imported, device never touched; forks one per trial
    python -m holdfast.planning.trial one CONFIG PARENT   a fresh interpreter, where forking is not possible

The script's own loop is cut short: some batches of an epoch, its evaluation, another epoch if there is time, then what
it does after its last epoch. So every part of a run is seen once, with the real data, model and snapshots. The words
are lines of JSON in a file of its folder, written as things happen: what was said before a crash or a kill counts.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.base.channel import Channel
from holdfast.worker.nursery import Nursery

WORDS, OUTPUT = "words.jsonl", "output.txt"


class TrialNursery(Nursery):
    """Has what a worker has, and forks one trial per message."""

    first = (*Nursery.first, "holdfast.planning.trial_step")

    def _live(self, config: dict[str, Any], fds: list[int]) -> int:
        multiprocessing.set_start_method("fork", force=True)  # loader processes, as in a worker
        return run(config)


def run(config: dict[str, Any]) -> int:
    """One trial, from its first word to its last."""
    with contextlib.suppress(OSError):
        if sys.platform != "win32":
            os.setsid()  # a group of its own, to be ended as one
    began = time.perf_counter()
    folder = Path(config["folder"])
    processes.redirect_output(folder / OUTPUT)  # what the script prints belongs to no table
    with open(folder / WORDS, "a", encoding="utf-8", buffering=1) as file:

        def say(**words: Any) -> None:
            file.write(json.dumps(words, default=str) + "\n")
            file.flush()

        say(began=True)
        from holdfast.planning import trial_step

        try:
            trial_step.conduct(config, say, began)
        except trial_step.Enough:
            say(cut=True)
        except BaseException as error:  # the edge of the process: whatever it is, it is the result
            say(**_told(error))
        say(end=True)
    return 0


def _told(error: BaseException) -> dict[str, Any]:
    from holdfast.base.errors import HoldfastError
    from holdfast.worker.session import LostWorker

    if isinstance(error, LostWorker):
        return {"lost": error.fault.sentence(), "kind": error.fault.kind.value}
    if isinstance(error, HoldfastError):
        return {"refused": error.to_json()}
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f"{Path(last[0].filename).name}, line {last[0].lineno}" if last else ""
    said = traceback.format_exception_only(type(error), error)[-1].strip()
    return {"raised": said, "where": where, "traceback": "".join(traceback.format_exception(error))[-8000:]}


def main(argv: list[str]) -> int:
    how, what, parent = argv[0], argv[1], int(argv[2])
    processes.die_with_parent(parent)
    if how == "serve":
        return TrialNursery(Channel.from_fd(int(what)), []).serve()
    return run(json.loads(Path(what).read_text(encoding="utf-8")))


if __name__ == "__main__":
    trial_code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(trial_code)  # nothing here is worth the time that Python takes to unload torch
