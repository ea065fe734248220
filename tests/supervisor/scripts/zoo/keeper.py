"""Many `holdfast run` at once, each a process of its own: what they import is imported once, before they are forked.

python keeper.py jobs.json           # [{"folder": …, "words": ["run", …], "env": {…}}, …]; each leaves a file `code`

A job's stdin is a pipe that stays open until a file `typed` appears in its folder, which is then passed on.
"""

import json
import os
import signal
import sys
import time

from holdfast.cli import main
from holdfast.console import output  # noqa: F401
from holdfast.supervisor.scripts import script_supervisor  # noqa: F401


def begin(job):
    reads, writes = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reads)
        os.set_inheritable(writes, False)
        return pid, writes
    code = 1
    try:
        os.setsid()
        os.chdir(job["folder"])
        os.environ.update(job["env"])
        for number, name, how in ((1, "out", os.O_WRONLY | os.O_CREAT), (2, "err", os.O_WRONLY | os.O_CREAT)):
            os.dup2(os.open(name, how, 0o600), number)
        os.dup2(reads, 0)
        os.closerange(3, 4096)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        code = main.main(job["words"])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def conduct(jobs):
    running = {}
    for job in jobs:
        pid, writes = begin(job)
        running[pid] = (job["folder"], writes)
    while running:
        for pid in list(running):
            folder, writes = running[pid]
            if os.path.exists(os.path.join(folder, "typed")):
                with open(os.path.join(folder, "typed"), "rb") as file:
                    os.write(writes, file.read())
                os.unlink(os.path.join(folder, "typed"))
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                os.close(running.pop(pid)[1])
                with open(os.path.join(folder, "code.part"), "w") as file:
                    file.write(str(os.waitstatus_to_exitcode(status)))
                os.rename(os.path.join(folder, "code.part"), os.path.join(folder, "code"))
        time.sleep(0.1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with open(sys.argv[1]) as jobs_file:
        conduct(json.load(jobs_file))
