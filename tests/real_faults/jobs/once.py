"""The job with a worker that dies once, or always, at a place no phase of a step can name."""

from __future__ import annotations

import os
import signal

from job import Job

import holdfast


def train(session: holdfast.Session, *, epochs: int = 3, at: str = "", always: bool = False) -> None:
    """`at`: "setup", before anything is protected; "start", before the first commit; "end", after the last one."""
    done = session.run.folder / "died"

    def die(place: str) -> None:
        if place == at and (always or not done.exists()):
            done.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    die("setup")
    job = Job(session)
    die("start")
    for _ in session.epochs(epochs):
        job.diary.draw()
        for batch in session.batches(job.data):
            job.step(batch)
        job.evaluate()
        job.diary.draw()
        die("epoch")
    job.diary.draw()  # after the loop: belongs to the last commit of all
    job.ema.update_parameters(job.model)
    close, job.data.close = job.data.close, lambda: (die("end"), close())  # the session's last act
