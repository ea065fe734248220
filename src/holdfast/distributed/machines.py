"""The agent of one of several machines, ready to be watched (launch.py). No torch.

    agent = agent_for(wanted, job, folder, order, words, env, log, say=note, preload=[...])

The first machine has the leader (leader.py), each of the others an agent that does what the leader says
(machine_agent.py). They connect at the address of --master. With HOLDFAST_TOKEN in the environment of all of them,
nobody else can join.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast import __version__
from holdfast.base.errors import UserError
from holdfast.console.order import Order, create
from holdfast.distributed import interfaces
from holdfast.distributed.agent import Agent
from holdfast.distributed.job import Job
from holdfast.distributed.leader import LeaderAgent
from holdfast.distributed.machine_agent import MachineAgent
from holdfast.distributed.machine_link import Hello
from holdfast.distributed.place import MACHINE
from holdfast.distributed.rank_ladder import RankLadder
from holdfast.distributed.rescue import rescue
from holdfast.distributed.torchrun import PORT, Wanted
from holdfast.run.folder import RunFolder

TOKEN = "HOLDFAST_TOKEN"
OF_ONE_MACHINE = (
    "run.folder", "run.threads", "run.device", "run.stacks", "run.tensorboard", "snapshot.memory", "snapshot.where",
    "limits.", "notify.", "track.", "external.", "plan.",
)  # fmt: skip
"""Settings, by how their names begin, that may differ from machine to machine: no rank on another one is affected."""
_MOST_NAMES, _LONGEST_NAME = 64, 40
"""A greeting is short (machine_link.py). What is beyond this is compared, too, but not named if it differs."""


def agent_for(
    wanted: Wanted,
    job: Job,
    folder: RunFolder | None,
    order: Order,
    words: Sequence[str],
    env: dict[str, str],
    log: Path,
    *,
    say: Callable[[str], None],
    preload: Sequence[str],
    ladder: RankLadder | None,
) -> Agent:
    """`ladder`: of the ranks of this machine; None if all of them are on the CPU."""
    host, port = interfaces.split(wanted.master, PORT)
    env = {**env, **environment(wanted, host)}
    hello, token = _hello(wanted, order), os.environ.get(TOKEN, "")
    floor, patience = order.settings.watchdog.floor, wanted.patience
    if folder is not None:
        try:
            server = interfaces.listen(host, port)
        except OSError as error:
            raise UserError(
                f"cannot listen at {host}:{port}",
                cause=str(error.strerror or error),
                hints=["another launch may use this port: `--master HOST:PORT` takes another one, on all machines"],
            ) from None
        return LeaderAgent(
            job, wanted, words, env, log,
            server=server, own=hello, token=token, run=folder, floor=floor, patience=patience, say=say,
            preload=preload, ladder=ladder,
        )  # fmt: skip

    def save() -> tuple[str, str] | None:
        return _save(job, order, wanted)

    return MachineAgent(
        job, (host, port), hello, words, env, log,
        token=token, floor=floor, patience=patience, say=say, rescue=save, preload=preload,
        ladder=ladder, may_shrink=wanted.may_shrink,
    )  # fmt: skip


def environment(wanted: Wanted, host: str) -> dict[str, str]:
    """What ranks need besides: where rank 0 serves the store, and the interface for gloo."""
    made = {MACHINE: str(wanted.node_rank), "MASTER_ADDR": host if wanted.node_rank else "localhost"}
    interface = interfaces.interface_to(host)
    if interface is not None and not os.environ.get("GLOO_SOCKET_IFNAME"):
        made["GLOO_SOCKET_IFNAME"] = interface
    return made


def _hello(wanted: Wanted, order: Order) -> Hello:
    torch = "none"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        torch = importlib.metadata.version("torch")
    script = hashlib.sha256(order.facts.path.read_bytes()).hexdigest()
    compared = compared_words(order)
    named = {name: _digest(value) for name, value in compared.items() if name.isascii() and len(name) <= _LONGEST_NAME}
    return Hello(
        nonce="",
        proof="",
        machine=wanted.node_rank,
        agent=secrets.token_hex(8),
        launch="",
        host=socket.gethostname(),
        holdfast=__version__,
        torch=torch,
        script=script,
        nodes=wanted.nodes,
        nproc=wanted.nproc,
        order=_digest(json.dumps(sorted(compared.items()))),
        parts=dict(list(named.items())[:_MOST_NAMES]),
    )


def compared_words(order: Order) -> dict[str, str]:
    """What all machines have to be given alike: arguments, sys.argv, and settings that are not of one machine alone."""
    settings = order.settings
    changed = [key for key in settings.changed() if not key.startswith(OF_ONE_MACHINE)]
    argv = {"sys.argv": json.dumps(order.argv)} if order.argv else {}
    return {**order.arguments, **argv, **{key: repr(settings.get(key)) for key in changed}}


def _digest(text: str) -> str:
    """Not the value itself: it may be secret, and the other end has not shown the token yet."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _save(job: Job, order: Order, wanted: Wanted) -> tuple[str, str] | None:
    """What this machine has in memory, as a run folder of its own: a sentence, and how to go on from it."""
    try:
        found = rescue(job, lambda: create(order, ranks=wanted.nproc * wanted.nodes), of="the run")
    except OSError as error:
        return f"nothing: {error.strerror or error}", "free disk space before the next run"
    if found is None:
        return None
    run, step = found
    return (
        f"step {step} in {run.path}",
        "if the first machine is lost for good, go on from here with "
        f"`holdfast launch --resume {run.name}`; else from the run folder over there",
    )
