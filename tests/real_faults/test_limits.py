"""A real run under limits, with a pretended sensor: it warns, pauses, goes on, and ends with the same weights."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from holdfast.run.folder import read_json
from holdfast.supervisor import run_end
from holdfast.supervisor.supervisor import Supervisor
from tests.real_faults.conftest import Drive
from tests.waiting import wait_until

EPOCHS, PAUSE = 6, 0.05
SETTINGS = {"limits.cpu_c": "80", "limits.patience": "0.4s"}


def feel(path: Path, temperature: float) -> None:
    """What the sensors will say: written aside first, as they may look at any moment."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"devices": [{"device": "cpu", "temperature_c": temperature}]}))
    part.replace(path)


@pytest.mark.all
def test_a_hot_cpu_pauses_the_run_and_a_cool_one_lets_it_go_on(
    drive: Drive, reference: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensors = tmp_path / "sensors.json"
    feel(sensors, 95.0)
    monkeypatch.setenv("HOLDFAST_SENSORS", str(sensors))
    seen: dict[str, object] = {}

    def meanwhile(supervisor: Supervisor) -> None:
        folder = supervisor.run_folder

        def paused() -> bool:
            return bool(folder.info.get("state") == "PAUSED")

        def stays_paused() -> bool:
            before = paused()
            time.sleep(1.2)  # two looks of the sensors
            return before and paused()

        assert wait_until(paused, 60.0)
        assert wait_until(lambda: (read_json(folder.path / "beat.json") or {}).get("phase") == "rest")
        before = supervisor.accounts.steps
        time.sleep(1.5)
        seen["steps_in_the_pause"] = supervisor.accounts.steps - before
        worker = supervisor.worker
        assert worker is not None
        os.kill(worker.pid, signal.SIGKILL)  # a fault does not wait for a pause to be over
        assert wait_until(lambda: supervisor.worker is not None and supervisor.worker.pid != worker.pid)
        assert wait_until(stays_paused, 60.0)  # whether or not the new worker took a step before it was told to rest
        assert wait_until(lambda: (read_json(folder.path / "beat.json") or {}).get("phase") == "rest")
        seen["readings"] = (read_json(folder.path / "beat.json") or {}).get("readings")
        feel(sensors, 60.0)

    settings = {**SETTINGS, "limits.action": "pause"}
    run = drive(settings=settings, meanwhile=meanwhile, epochs=EPOCHS, pause=PAUSE)
    assert run.outcome.state == "FINISHED", run.story()
    assert [event.data["action"] for event in run.of("limit")] == ["warn", "pause", "resume"], run.story()
    assert run.of("limit")[0].data["text"] == "the CPU is at 95 °C, limits.cpu_c is 80 °C"
    assert seen["steps_in_the_pause"] == 0
    assert run.receipt["faults"] == {"killed": 1} and run.receipt["steps_lost"] == 0
    assert run.state() == reference(epochs=EPOCHS, pause=PAUSE).state()
    assert isinstance(seen["readings"], dict)
    assert [row["temperature_c"] for row in seen["readings"]["devices"] if row["device"] == "cpu"] == [95.0]
    assert (run.folder / "readings.jsonl").read_text().count('"temperature_c": 95.0') >= 1


def test_a_stop_is_heard_in_a_pause(drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sensors = tmp_path / "sensors.json"
    feel(sensors, 95.0)
    monkeypatch.setenv("HOLDFAST_SENSORS", str(sensors))

    def meanwhile(supervisor: Supervisor) -> None:
        assert wait_until(lambda: supervisor.run_folder.info.get("state") == "PAUSED", 60.0)
        os.kill(os.getpid(), signal.SIGTERM)  # a real one, to the process the supervisor is in

    monkeypatch.setattr(run_end, "STOP_PATIENCE", 3600.0)  # it must not wait until the worker's time is over
    run = drive(settings={**SETTINGS, "limits.action": "pause"}, meanwhile=meanwhile, epochs=EPOCHS, pause=PAUSE)
    assert run.outcome.state == "STOPPED", run.story()
    assert run.checkpoint().step == run.receipt["steps"]
