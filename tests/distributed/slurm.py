"""A small Slurm cluster for tests: real slurmctld, slurmd and munged on the machines of machines.py.

    with Cluster(machines, tmp_path) as cluster:
        job = cluster.submit("job.sbatch", "--time=5")
        cluster.call("scancel", job)
        cluster.state(job)                    # "RUNNING", "COMPLETED", …

Each machine is a node with its name (m0, m1, …) and one slurmd; slurmctld is on the first. Nothing is installed or
configured outside of the folder that is given. Slurm waits for as long as a credential is valid (here 6 s, usually
120 s) before it starts a requeued job again. `missing()` says why there can be no cluster here, for a skip.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.distributed import machines as made
from tests.distributed.machines import Machines
from tests.waiting import wait_until

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "scancel")
CONFIG = """
ClusterName=test
SlurmctldHost=m0
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=6
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=1
ReturnToService=2
KillWait=30
SlurmdTimeout=10
OverTimeLimit=0
SchedulerParameters=requeue_setup_env_fail,batch_sched_delay=1,sched_interval=1,bf_interval=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName={nodes} CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 Gres=gpu:8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """What prevents a cluster here, empty if nothing does."""
    lost = [name for name in PROGRAMS if _found(name) is None]
    reasons = [made.missing(), f"not installed: {', '.join(lost)} (Debian: slurm-wlm)" if lost else ""]
    return "; ".join(filter(None, reasons))


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")


class Cluster:
    """The daemons of one cluster. Use it in a `with`, inside of that of its machines."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        self.machines = machines
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> Cluster:
        names = [self.machines.name(k) for k in range(self.machines.count)]
        (self.folder / "state").mkdir(parents=True)
        for name in names:
            (self.folder / f"spool-{name}").mkdir()
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # not used, but slurmd asks for one
        for number in range(8):  # Slurm counts files of any kind as cards
            (self.folder / f"card{number}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/card[0-7]\n")
        (self.folder / "slurm.conf").write_text(CONFIG.format(folder=self.folder, nodes=",".join(names)))
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)
        munge = [
            "--foreground",
            "--force",
            f"--socket={self.folder}/munge.socket",
            f"--key-file={self.folder}/munge.key",
        ]
        munge += [f"--{word}-file={self.folder}/munge.{word}" for word in ("pid", "seed", "log")]
        self._start(0, "munged", *munge)
        assert wait_until((self.folder / "munge.socket").exists), self.said("munged")
        self._start(0, "slurmctld", "-D")
        for k in range(len(names)):
            self.start_node(k)
        assert wait_until(lambda: self.nodes().count("idle") == len(names)), self.said("slurmctld")
        return self

    def __exit__(self, *_: object) -> None:
        for k in range(self.machines.count):
            self.machines.kill(k)

    def _start(self, machine: int, name: str, *words: str) -> None:
        path = _found(name)
        assert path is not None
        with open(self.folder / f"{name}-{machine}.out", "ab") as out:
            more: dict[str, Any] = {"stdout": out, "stderr": out, "stdin": subprocess.DEVNULL, "env": self.env}
            self.machines.popen(machine, [path, *words], start_new_session=True, **more)

    def start_node(self, machine: int) -> None:
        """Its slurmd, at the beginning and after the machine was without power."""
        self._start(machine, "slurmd", "-D", "-N", self.machines.name(machine))

    def said(self, name: str) -> str:
        """What a daemon has printed and logged, for the message of an assertion."""
        files = sorted(self.folder.glob(f"{name}*.out")) + sorted(self.folder.glob(f"{name}*.log"))
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in files)

    def call(self, *words: str, **more: Any) -> str:
        """A command of Slurm, on the first machine."""
        return self.machines.run(0, list(words), env=self.env, **more)

    def nodes(self) -> list[str]:
        with contextlib.suppress(RuntimeError):  # slurmctld does not answer yet
            return self.call("sinfo", "--noheader", "--Node", "--format=%T").split()
        return []

    def submit(self, *words: str, **more: Any) -> str:
        return self.call("sbatch", "--parsable", *words, **more).strip()

    def fields(self, job: str) -> dict[str, str]:
        said = self.call("scontrol", "--oneliner", "show", "job", job)
        return dict(re.findall(r"(\w+)=(\S*)", said))

    def state(self, job: str) -> str:
        return self.fields(job)["JobState"]
