"""A real MLflow server with SQLite on the loopback: started, killed and started again while a run is tracked."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.monitor.trackers.tracked_run import TrackedRun
from tests.waiting import wait_until

mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'holdfast[mlflow]'")
pytestmark = pytest.mark.timeout(600)  # its server takes half a minute to start on a slow machine, and starts twice


class Server:
    """`mlflow server`, which can be killed with its workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        words += ["--backend-store-uri", f"sqlite:///{self.folder / 'mlflow.db'}"]
        words += ["--artifacts-destination", str(self.folder / "artifacts")]
        log = open(self.folder / "server.log", "ab")  # noqa: SIM115
        env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words], stdout=log, stderr=log, start_new_session=True, env=env
        )
        log.close()
        assert wait_until(self._answers, 200), (self.folder / "server.log").read_text()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    made.start()
    yield made
    made.kill()


def history(client: Any, run: str, key: str) -> list[tuple[int, float]]:
    return sorted((each.step, each.value) for each in client.get_metric_history(run, key))


def test_a_run_arrives_once_whatever_happens_to_the_server(server: Server, tmp_path: Path) -> None:
    run = TrackedRun(tmp_path, "mlflow", {"track.mlflow": server.address, "track.project": "eeg"})
    for step in range(1, 6):
        run.log(step, loss=float(step))
    run.wait_for("mlflow", 5)
    number = run.kept("mlflow")["tracker"]["run_id"]

    server.kill()
    run.event("fault", code="F005", sentence="cuda:0 stopped answering", step=6)
    for step in range(6, 11):
        run.log(step, loss=float(step))
    assert wait_until(lambda: "rows wait" in run.said())
    run.kill("mlflow")  # with rows that it never delivered
    server.start()
    run.wait_for("mlflow", 11)

    # The server has these rows, the run folder does not know it: as if a process was killed between the two.
    (run.folder.path / "trackers" / "mlflow.json").unlink()
    run.kill("mlflow")
    run.event("moved", step=10, before="cuda:0", after="cpu")
    run.event("undone", from_step=10, to_step=9)
    run.log(10, loss=100.0)
    run.wait_for("mlflow", 14)
    (run.folder.path / "best.safetensors").write_bytes(b"weights")
    run.end("STOPPED")
    run.wait()
    run.resume(10)
    run.log(11, loss=11.0)
    run.end("FINISHED")
    run.wait()

    client = mlflow.tracking.MlflowClient(tracking_uri=server.address)
    experiment = client.get_experiment_by_name("eeg")
    found = client.search_runs([experiment.experiment_id])
    assert [each.info.run_id for each in found] == [number], run.said()
    expected = [(step, float(step)) for step in range(1, 11)] + [(10, 100.0), (11, 11.0)]
    assert history(client, number, "loss") == expected, run.said()
    (one,) = found
    assert one.info.status == "FINISHED" and one.info.run_name == run.folder.name
    assert one.data.params["lr"] == "0.1"
    assert one.data.tags["holdfast.undone"] == "10-10" and one.data.tags["holdfast.faults"] == "1"
    events = [value for key, value in sorted(one.data.tags.items()) if key.startswith("holdfast.event.")]
    assert events[0] == "step 6: F005 cuda:0 stopped answering"
    assert "step 10: moved from cuda:0 to cpu" in events and "step 10: resumed at step 10 on cpu" in events
    assert {each.path for each in client.list_artifacts(number)} == {"report.html", "best.safetensors"}
    kept = mlflow.artifacts.download_artifacts(run_id=number, artifact_path="report.html", tracking_uri=server.address)
    assert "cuda:0 stopped answering" in Path(kept).read_text()


def test_a_run_that_is_named_by_a_foreign_folder_is_not_written_to(server: Server, tmp_path: Path) -> None:
    client = mlflow.tracking.MlflowClient(tracking_uri=server.address)
    other = client.create_run("0").info.run_id
    run = TrackedRun(tmp_path, "mlflow", {"track.mlflow": server.address})
    (run.folder.path / "trackers" / "mlflow.json").write_text(f'{{"rows": 0, "tracker": {{"run_id": "{other}"}}}}')
    run.log(1, loss=1.0)
    run.end()
    run.wait()
    assert run.kept("mlflow")["tracker"]["run_id"] != other
    assert not client.get_run(other).data.metrics
