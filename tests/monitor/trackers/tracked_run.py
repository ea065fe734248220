"""A run folder that a test writes like a supervisor, and the tracker processes that follow it.

run = TrackedRun(tmp_path, "mlflow", {"track.mlflow": address})     # the processes are started
run.log(1, loss=0.5)
run.event("fault", code="F005", step=4, sentence="…")
run.kill("mlflow")                                                  # kill -9 of that tracker's process
run.end("FINISHED")
run.wait()                                                          # until no tracker process is left
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil

from holdfast.cli import track
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from tests.waiting import wait_until


class TrackedRun:
    def __init__(
        self, root: Path, to: str, settings: dict[str, str] | None = None, *, path: Path | None = None
    ) -> None:
        self.settings = Settings.load({"track.to": to, "run.tensorboard": "false", **(settings or {})}, env={})
        self.to = to.split(",")
        info = {"state": "RUNNING", "created": "2026-11-15T09:12:04Z", "arguments": {"lr": "0.1"}, "seed": 7}
        self.folder = RunFolder.create(root, "eeg", info) if path is None else RunFolder.open(path)
        self.resume(0)

    def resume(self, step: int) -> None:
        """A sitting begins: the run is held, and has tracker processes of its own."""
        self.folder.lock()
        self.folder.update_info(state="RUNNING")
        self.event("start", device="cpu", step=step)
        assert track.start(self.folder, self.settings) == []

    def log(self, step: int, **values: float) -> None:
        self.event("log", step=step, epoch=0, values=values)

    def event(self, kind: str, **data: Any) -> None:
        self.folder.append(Event.now(kind, **data))

    def end(self, state: str = "FINISHED") -> None:
        if state != "CRASHED":
            self.event("end", state=state, step=1)
            self.folder.update_info(state=state)
        self.folder.close()

    def kept(self, name: str) -> dict[str, Any]:
        path = self.folder.path / "trackers" / f"{name}.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def sent(self, name: str) -> int:
        return int(self.kept(name).get("rows", 0))

    def wait_for(self, name: str, rows: int) -> None:
        assert wait_until(lambda: self.sent(name) >= rows), (self.kept(name), self.said())

    def said(self) -> str:
        path = self.folder.path / "trackers" / track.LOG
        return path.read_text() if path.exists() else ""

    def processes(self, word: str) -> list[psutil.Process]:
        """The tracker processes of this run with this word among their arguments."""
        found = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if str(self.folder.path.absolute()) in words and word in words:
                found.append(process)
        return found

    def kill(self, name: str) -> None:
        assert wait_until(lambda: self.processes(name)), self.said()
        for process in self.processes(name):
            process.kill()

    def wait(self) -> None:
        host = "holdfast.monitor.trackers.host"
        assert wait_until(lambda: not self.processes(host)), self.said()
