"""What a run tells the world: journal, beat, metrics, the script's output, and a face if somebody looks.

teller = Teller(run_folder, face, "valid_loss")    # the metric that says what is best
teller.emit("fault", code="F005", step=3862)
teller.log(step, epoch, {"valid_loss": 0.61})      # also: is it the best so far?
teller.pump_output()                               # what the script printed since the last look
"""

from __future__ import annotations

import contextlib
import time
import traceback
from pathlib import Path
from typing import Any

from holdfast.base.board import Beat, Board, Phase
from holdfast.base.files import open_regular
from holdfast.faults.classification import Fault
from holdfast.faults.ladder import Move
from holdfast.record.best_weights import Best
from holdfast.record.evidence import last_words
from holdfast.record.receipt import Accounts
from holdfast.record.tensorboard import Scalars
from holdfast.record.time_spent import Spending
from holdfast.run.events import Event, utc_now
from holdfast.run.folder import RunFolder
from holdfast.run.messages import EpochEnded, Log, Restored, ScriptEpoch, Unheard

MOST_LOGGED = 20_000
"""Records that are remembered: more than a script logs from one commit to the next."""


class Face:
    """Who shows the run to somebody. This one shows nothing; the command line has others."""

    def event(self, event: Event) -> None: ...
    def beat(self, info: dict[str, Any]) -> None: ...
    def output(self, text: str) -> None: ...


class Teller:
    """Everything that leaves the supervisor goes through here."""

    def __init__(self, run: RunFolder, face: Face, best_metric: str) -> None:
        self.run = run
        self.face = face
        self.rate = Rate()
        self.spending = Spending()
        self.scalars = Scalars(run)
        self.readings: dict[str, Any] | None = None
        """What the sensors said last (sensors.py), for readers elsewhere."""
        self.energy_j: dict[str, float] = {}
        self.best = Best(run, best_metric)
        self._failed_over: set[str] = set()
        self._logged: dict[tuple[Any, ...], None] = {}
        """What was written last, in order."""
        self._batches = 0
        """Of the last epoch that had any: between two epochs the board knows none, and a total must not flicker."""
        self._epochs = 0
        """As the last worker said: its successor does not know them before it is in its loop."""
        self._output = run.path / "output.log"
        self._output_at = self.output_size()
        self._worker_at = self._output_at

    def emit(self, what: str, /, **data: Any) -> None:
        event = Event.now(what, **data)
        self.run.append(event)
        self.face.event(event)

    def failed_over(self, kind: str, error: Exception) -> None:
        """We failed over a message of another process: our own bug, told once of a kind, and no reason to stop."""
        if kind in self._failed_over:
            return
        self._failed_over.add(kind)
        text = f"holdfast failed over a message (`{kind}`): {type(error).__name__}: {error}"
        text += ". This is a bug: please report it with journal.jsonl. Training goes on"
        self.emit("note", text=text, traceback="".join(traceback.format_exception(error)))

    def emit_fault(
        self, fault: Fault, move: Move, folder: Path | None = None, *, whole: bool = False, sentence: str | None = None
    ) -> None:
        """`whole`: with all that is known, where no folder of the fault has it. `sentence`: in words of a script's."""
        self.emit(
            "fault",
            code=fault.code,
            kind=fault.kind.value,
            device=fault.device,
            step=fault.step,
            phase=fault.phase,
            sentence=sentence or fault.sentence(),
            action=move.action.value,
            reason=move.reason,
            **({} if folder is None else {"folder": str(folder)}),
            **({"fault": fault.to_json(), "move": move.to_json()} if whole else {}),
        )
        if sentence is None:  # the scalars of a script are what it logs itself
            self.scalars.say(fault.step, f"{fault.code} {fault.sentence()}")

    def log(self, step: int, epoch: int, values: dict[str, Any]) -> None:
        """Numbers that a worker repeats, as it went back to an earlier commit, are written once."""
        record = step, epoch, tuple(sorted(values.items()))
        if record not in self._logged:
            self._write_down(step, epoch, values)
            self._logged[record] = None
            if len(self._logged) > MOST_LOGGED:
                del self._logged[next(iter(self._logged))]
        self.best.consider(step, epoch, values)

    def remember(self) -> None:
        """Numbers that an earlier process has written down, and that this one may hear again."""
        for record in self.run.last_metrics():
            values = {name: value for name, value in record.items() if name not in ("time", "step", "epoch")}
            self._logged[record["step"], record["epoch"], tuple(sorted(values.items()))] = None

    def log_missing(self, step: int, epoch: int, values: dict[str, Any]) -> None:
        """What an earlier supervisor may have died over. Whether it is the best is seen when all of it is known."""
        if not any(record.get("step") == step and values.keys() <= record.keys() for record in self.run.last_metrics()):
            self.scalars.again(step)
            self._write_down(step, epoch, values)

    def _write_down(self, step: int, epoch: int, values: dict[str, Any]) -> None:
        self.scalars.log(step, values)
        # The journal comes first: trackers read numbers there, and log_missing() looks for them in the metrics. After a
        # kill between the two a number is written again, and not lost.
        self.emit("log", step=step, epoch=epoch, values=values)
        self.run.append_metrics({"time": utc_now(), "step": step, "epoch": epoch, **values})

    def heed(self, message: Log | Restored, board: Board) -> None:
        """Numbers of a worker, which are on the board as heard then; or the place that it goes on from."""
        if isinstance(message, Restored):
            self.best.go_on(message.step, message.epoch, ended=message.ended, inside=message.inside)
            return
        log = self.log_missing if isinstance(message, Unheard) else self.log
        log(message.step, message.epoch, message.values)
        board.hear()

    def epoch(self, message: EpochEnded | ScriptEpoch, **more: Any) -> bool:
        """An epoch is over: whether its weights are the best so far.

        One that comes again, as somebody may have died over it, is told once; without a snapshot its weights are gone.
        """
        best = (not message.again or message.sequence is not None) and self.best.taken(message.step)
        if not (message.again and self.told(message.epoch, message.step)):
            self.emit("epoch", **message.told, best=best, **more)
        return best

    def told(self, epoch: int, step: int) -> bool:
        """Whether the journal has the end of this epoch."""
        told = (event.data for event in self.run.newest_events(epoch) if event.kind == "epoch")
        return any((data.get("epoch"), data.get("step")) == (epoch, step) for data in told)

    def undo(self, step: int) -> bool:
        """What was logged after this step is not believed. True if the best weights on disk are not, either."""
        self._logged.clear()
        self.scalars.undo(step)
        return self.best.undo(step)

    def beat(self, beat: Beat, device: str, accounts: Accounts) -> None:
        """The board, mirrored for readers elsewhere."""
        batches = self._batches = beat.batches or self._batches
        epochs = self._epochs = beat.epochs or self._epochs
        total = epochs * batches or None
        epoch, batch = beat.epoch, beat.batch
        if beat.phase is Phase.SETUP and batches:  # a worker that was replaced is where its predecessor was
            epoch, batch = divmod(accounts.steps, batches)
        self.spending.note(beat)
        info = {
            "schema": 1,
            "time": utc_now(),
            "pid": beat.pid or None,
            "device": device,
            "phase": beat.phase.label,
            "silence_s": round(beat.silence, 3),
            "step": accounts.steps,
            "steps_total": total,
            "attempts": accounts.attempts + beat.attempts,
            "epoch": epoch,
            "epochs": epochs,
            "batch": batch,
            "batches": batches,
            "loss": beat.loss,
            "pieces": max(1, beat.pieces),
            "rate": self.rate.per_second(),
            "time_left_s": self.rate.time_left(accounts.steps, total),
            "progress": {"done": beat.done, "total": beat.total, "label": beat.label} if beat.total else None,
            "recoveries": accounts.recoveries,
            "loaders": beat.loaders,
            "phases_s": self.spending.total_s(),
            "recent_s": self.spending.recent_s(),
            "readings": self.readings,
            "energy_wh": {name: round(joules / 3600, 3) for name, joules in self.energy_j.items()},
        }
        self.run.write_beat(info)
        self.face.beat(info)

    # -- the script's own words ----------------------------------------------------------------------------

    def worker_begins(self) -> None:
        """What is printed from here on is the new worker's."""
        self._worker_at = self.output_size()

    def output_size(self) -> int:
        with contextlib.suppress(OSError):
            return self._output.stat().st_size
        return 0

    def pump_output(self) -> bool:
        """What the script printed since the last time, to the face; whether there was anything."""
        size = self.output_size()
        if size <= self._output_at:
            return False
        try:
            with open_regular(self._output) as file:
                file.seek(self._output_at)
                text = file.read(size - self._output_at)
        except OSError:  # somebody has just taken the folder away
            return False
        self._output_at = size
        self.face.output(text.decode(errors="replace"))
        return True

    def last_words(self) -> str:
        return last_words(self._output, self._worker_at)


class Rate:
    """Steps a second, from commits seen: a mean over the recent past that survives restarts.

    The time left that is shown counts down and is drawn to the newest estimate, so that one slow evaluation or a
    restart does not make it jump.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []
        self._shown: tuple[float, float] | None = None
        """When, and the time left that was said then."""
        self._learning_since = 0.0

    def note(self, step: int) -> None:
        self._marks.append((time.monotonic(), step))
        if len(self._marks) > 400:
            del self._marks[: len(self._marks) // 2]

    def forget(self) -> None:
        """From here on the run goes at another speed."""
        self._marks = []
        self._shown = None

    def per_second(self) -> float | None:
        if len(self._marks) < 2:
            return None
        (begin, first), (end, last) = self._marks[0], self._marks[-1]
        return None if end <= begin else round((last - first) / (end - begin), 4)

    def time_left(self, step: int, total: int | None, now: float | None = None) -> float | None:
        rate = self.per_second()
        if not rate or not total:
            return None
        now = time.monotonic() if now is None else now
        estimate = max(0, total - step) / rate
        if self._shown is None:
            self._learning_since = now
        elif estimate > 0:
            then, said = self._shown
            expected = max(0.0, said - (now - then))
            # Fast at first, when little is known; later a new estimate is approached over about a minute.
            slowness = min(60.0, max(1.0, 0.5 * (now - self._learning_since)))
            estimate = expected + min(1.0, (now - then) / slowness) * (estimate - expected)
        self._shown = (now, estimate)
        return round(estimate, 1)
