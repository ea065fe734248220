"""The files of examples/clusters: shown in the docs as they are, right for their schema, and run by a real Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.run.folder import list_runs
from tests.distributed import machines as made
from tests.distributed import slurm
from tests.distributed.cluster_job import SAMPLES, STEPS
from tests.distributed.machines import Machines
from tests.distributed.slurm import Cluster
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "clusters"
SCRIPT = Path(__file__).with_name("cluster_job.py")
SHOWN = {
    "slurm.sbatch": "more-than-one-machine.md",
    "kubernetes.yaml": "more-than-one-machine.md",
    "slurm-one-process.sbatch": "containers.md",
}
PATIENCE = 300.0


@pytest.mark.parametrize("name", SHOWN)
def test_the_docs_show_the_file_as_it_is(name: str) -> None:
    page = (ROOT / "docs" / SHOWN[name]).read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:text|yaml)\n(.*?)```", page, flags=re.DOTALL)
    assert (FILES / name).read_text(encoding="utf-8") in blocks
    assert f"examples/clusters/{name}" in page


def test_every_file_is_shown() -> None:
    assert {path.name for path in FILES.iterdir()} == set(SHOWN)


# Kubernetes ---------------------------------------------------------------------------------------------------


def _resources() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((FILES / "kubernetes.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_the_file_for_kubernetes_keeps_to_the_schema(version: str) -> None:
    schema = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed (PyPI, 22 MB)")
    for resource in _resources():
        schema.validate(resource, version, strict=True)
    wrong = _resources()[1]
    wrong["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["value"] = [1]
    with pytest.raises(schema.ValidationError):
        schema.validate(wrong, version, strict=True)


def test_the_resources_of_the_file_for_kubernetes_name_each_other() -> None:
    service, job = _resources()
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (command,) = container["args"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert f"--master {job['metadata']['name']}-0.{service['metadata']['name']} " in command
    assert f"--nodes {job['spec']['completions']} " in command
    assert job["spec"]["parallelism"] == job["spec"]["completions"]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    named = [rule["onExitCodes"]["containerName"] for rule in job["spec"]["podFailurePolicy"]["rules"][:2]]
    assert named == [container["name"]] * 2


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the weights that two ranks have at the end, on one machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    words = [sys.executable, "-m", "holdfast", "launch", "--nproc", "2", str(SCRIPT), f"seen={folder}"]
    env = {**_env(), "SLURM_RESTART_COUNT": "1"}
    subprocess.run([*words, f"run.folder={folder / 'runs'}", "-q"], cwd=folder, env=env, check=True, timeout=PATIENCE)
    return _receipt(folder / "runs")["weights_sha256"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(made.missing()), reason=made.missing())
def test_pods_that_are_stopped_save_and_go_on_when_they_are_started_again(tmp_path: Path, undisturbed: str) -> None:
    """The command of the container on two machines, as the Job starts it; one pod is told to end, as by a drain."""
    command = _resources()[1]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    with Machines(2, share=[tmp_path]) as machines:
        command = command.replace("train-0.train", machines.name(0)).replace("/runs/", f"{tmp_path}/runs/")
        command = _with_script(command, tmp_path)
        pods = _start_pods(machines, command, tmp_path, restarts=0)
        assert wait_until(lambda: _rows(tmp_path, 1)[20:], PATIENCE), _said(tmp_path)
        pods[1].send_signal(signal.SIGTERM)
        assert [pod.wait(PATIENCE) for pod in pods] == [75, 75], _said(tmp_path)
        pods = _start_pods(machines, command, tmp_path, restarts=1)
        assert [pod.wait(PATIENCE) for pod in pods] == [0, 0], _said(tmp_path)
        _check(tmp_path, tmp_path / "runs" / "train", undisturbed)
        pods = _start_pods(machines, command, tmp_path, restarts=2)  # finished: nothing is left to do
        assert [pod.wait(PATIENCE) for pod in pods] == [0, 0], _said(tmp_path)
    assert len(list_runs(tmp_path / "runs" / "train")) == 1


def _start_pods(machines: Machines, command: str, folder: Path, *, restarts: int) -> list[subprocess.Popen[Any]]:
    found = []
    for index in range(machines.count):
        env = {**_env(), "JOB_COMPLETION_INDEX": str(index), "SLURM_RESTART_COUNT": str(restarts)}
        with open(folder / f"pod-{index}.out", "ab") as out:
            found.append(machines.popen(index, ["bash", "-c", command], env=env, cwd=folder, stdout=out, stderr=out))
    return found


# Slurm --------------------------------------------------------------------------------------------------------

needs_slurm = pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Machines(2, share=[tmp_path]) as machines, Cluster(machines, tmp_path / "slurm") as made_here:
        made_here.env.update(_env())
        yield made_here


@needs_slurm
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_job_of_two_nodes_goes_on_after_it_was_requeued(cluster: Cluster, tmp_path: Path, undisturbed: str) -> None:
    job = _submit(cluster, "slurm.sbatch", tmp_path)
    assert wait_until(lambda: _rows(tmp_path, 1)[20:], PATIENCE), _said(tmp_path)
    cluster.call("scancel", "--signal=TERM", job)  # what `--signal=TERM@120` sends before the time limit
    assert wait_until(lambda: cluster.fields(job)["Restarts"] == "1", PATIENCE), _said(tmp_path)
    _wait_for_end(cluster, job, tmp_path)
    assert cluster.state(job) == "COMPLETED", _said(tmp_path)
    _check(tmp_path, tmp_path / "runs" / job, undisturbed)
    assert _nothing_left(cluster)


@needs_slurm
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_signal_before_the_time_limit_is_early_enough(cluster: Cluster, tmp_path: Path, undisturbed: str) -> None:
    job = _submit(cluster, "slurm.sbatch", tmp_path, "--time=2", "--signal=TERM@30")
    assert wait_until(lambda: cluster.fields(job)["Restarts"] == "1", PATIENCE), _said(tmp_path)
    _wait_for_end(cluster, job, tmp_path)
    assert cluster.state(job) == "COMPLETED", _said(tmp_path)
    _check(tmp_path, tmp_path / "runs" / job, undisturbed)


@needs_slurm
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_job_whose_node_has_failed_goes_on_when_there_are_two_again(
    cluster: Cluster, tmp_path: Path, undisturbed: str
) -> None:
    """Slurm notices that the node is gone and queues the job again; the first machine saves when Slurm ends it."""
    job = _submit(cluster, "slurm.sbatch", tmp_path)
    assert wait_until(lambda: _rows(tmp_path, 1)[20:], PATIENCE), _said(tmp_path)
    cluster.machines.power_off(1)
    assert wait_until(lambda: cluster.fields(job)["Restarts"] == "1", PATIENCE), _said(tmp_path)
    cluster.machines.mend(1)
    cluster.start_node(1)
    _wait_for_end(cluster, job, tmp_path)
    assert cluster.state(job) == "COMPLETED", _said(tmp_path)
    receipt = _receipt(tmp_path / "runs" / job)
    assert (receipt["weights_sha256"], receipt["steps"], receipt["steps_lost"]) == (undisturbed, STEPS, 0)
    rows = _rows(tmp_path, 0) + _rows(tmp_path, 1)
    assert any(row["restarts"] == 1 and row["first"] > 0 for row in rows), "the second start went on"
    _each_sample_once(rows)


@needs_slurm
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_cancelled_job_saves_and_is_not_queued_again(cluster: Cluster, tmp_path: Path) -> None:
    job = _submit(cluster, "slurm.sbatch", tmp_path)
    assert wait_until(lambda: _rows(tmp_path, 1)[20:], PATIENCE), _said(tmp_path)
    cluster.call("scancel", job)
    _wait_for_end(cluster, job, tmp_path)
    assert wait_until(lambda: _nothing_left(cluster), PATIENCE)
    assert cluster.state(job) == "CANCELLED" and cluster.fields(job)["Restarts"] == "0"
    (run,) = list_runs(tmp_path / "runs" / job)
    assert list((run.path / "checkpoints").glob("[0-9]*")), _said(tmp_path)


@needs_slurm
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_job_of_one_process_goes_on_after_it_was_requeued(cluster: Cluster, tmp_path: Path) -> None:
    job = _submit(cluster, "slurm-one-process.sbatch", tmp_path)
    assert wait_until(lambda: _rows(tmp_path, 0)[20:], PATIENCE), _said(tmp_path)
    cluster.call("scancel", "--signal=TERM", job)
    assert wait_until(lambda: cluster.fields(job)["Restarts"] == "1", PATIENCE), _said(tmp_path)
    _wait_for_end(cluster, job, tmp_path)
    assert cluster.state(job) == "COMPLETED", _said(tmp_path)
    receipt = _receipt(tmp_path / "runs" / job)
    assert (receipt["steps"], receipt["steps_lost"]) == (STEPS, 0)
    rows = _rows(tmp_path, 0)
    assert any(row["restarts"] == 1 and row["first"] > 0 for row in rows), "the second start went on"
    _each_sample_once(rows)


def _submit(cluster: Cluster, name: str, folder: Path, *words: str) -> str:
    (folder / name).write_text(_with_script((FILES / name).read_text(), folder))
    return cluster.submit(*words, name, cwd=folder)


def _wait_for_end(cluster: Cluster, job: str, folder: Path) -> None:
    active = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED")
    assert wait_until(lambda: cluster.state(job) not in active, PATIENCE), _said(folder)


def _nothing_left(cluster: Cluster) -> bool:
    """Whether no process of a job is left on any machine."""
    for k in range(cluster.machines.count):
        for pid in cluster.machines.pids(k):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            if b"holdfast" in words or b"slurmstepd" in words:
                return False
    return True


# Both ---------------------------------------------------------------------------------------------------------


def _env() -> dict[str, str]:
    """The environment of somebody who has holdfast on the path."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    bin_folder = str(Path(sys.executable).parent)
    assert shutil.which("holdfast", path=bin_folder), "`pip install -e .` makes the command"
    return {**os.environ, "PYTHONPATH": path, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}


def _with_script(text: str, folder: Path) -> str:
    return text.replace("my_script.py", f"{SCRIPT} seen={folder} --device cpu")


def _receipt(runs: Path) -> dict[str, Any]:
    (run,) = list_runs(runs)
    return run.receipt() or {}


def _rows(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What the script noted after each step of a rank."""
    lines = [line for path in sorted(folder.glob(f"rank{rank}-*.jsonl")) for line in path.read_text().splitlines(True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _check(folder: Path, runs: Path, undisturbed: str) -> None:
    """The second start went on where the first one stopped, and the weights are those of an undisturbed run."""
    receipt = _receipt(runs)
    assert receipt["weights_sha256"] == undisturbed
    assert (receipt["steps"], receipt["steps_lost"], receipt["samples_skipped"]) == (STEPS, 0, 0)
    for rank in (0, 1):
        rows = _rows(folder, rank)
        before = [row["step"] for row in rows if row["restarts"] == 0]
        after = [row["step"] for row in rows if row["restarts"] == 1]
        assert before == list(range(1, len(before) + 1)) and len(before) > 20
        assert after == list(range(len(before) + 1, STEPS + 1)), "no step is lost, none is computed again"
    _each_sample_once(_rows(folder, 0) + _rows(folder, 1))


def _each_sample_once(rows: list[dict[str, Any]]) -> None:
    """In every epoch; of a step that was computed again the last time counts."""
    last = {(row["rank"], row["step"]): row["samples"] for row in rows}
    for epoch in range(2):
        steps = range(epoch * STEPS // 2 + 1, (epoch + 1) * STEPS // 2 + 1)
        counted = Counter(sample for (_, step), samples in last.items() if step in steps for sample in samples)
        assert counted == Counter(range(SAMPLES))


def _said(folder: Path) -> str:
    """What the jobs have printed, for the message of an assertion."""
    files = [*folder.glob("slurm-*.out"), *folder.glob("pod-*.out")]
    return textwrap.indent("\n".join(path.read_text(errors="replace")[-5000:] for path in files), "  ")
