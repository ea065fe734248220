"""`holdfast launch`: one run of several processes, of several machines, or in a cloud.

    holdfast launch --nproc 2 my_script.py                            two processes here
    holdfast launch --nodes 2 --node-rank 0 --master 10.0.0.1 my_script.py    one of two machines
    holdfast launch --nproc 4 --min-ranks 2 my_script.py              go on with fewer while one cannot be replaced
    holdfast launch --devices cuda:0,cpu my_script.py                 a card, and the CPU if that makes steps faster
    holdfast launch --resume calm-heron --nproc 4                     go on with another number of them

The script is the one `holdfast train` takes. An agent of ours (distributed/agent.py) starts the ranks and replaces
them; on several machines each has one (distributed/machines.py). torch's elastic agent (torchrun) does where forking is
not possible.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from holdfast import __version__
from holdfast.base.errors import ExitCode, GaveUp, HoldfastError, UserError, from_json
from holdfast.base.units import parse_duration
from holdfast.cli import begun_run, cloud, face_choice, faces, notify, track
from holdfast.cli.run_settings import settings_of
from holdfast.console.order import Order, add_device, add_words, create, read_order, root_of, threads_for
from holdfast.console.output import Output, add_flags
from holdfast.console.usage import Parser, UsageError
from holdfast.distributed import agent as agents
from holdfast.distributed import interfaces, machines, rank_devices, torchrun
from holdfast.distributed import launch as launching
from holdfast.distributed.agent import Agent, RankAgent
from holdfast.distributed.job import Job
from holdfast.distributed.leader import seats_of
from holdfast.distributed.place import CORES, OWN_AGENT
from holdfast.distributed.rank_ladder import RankLadder
from holdfast.distributed.rank_nursery import Forker
from holdfast.distributed.share_keeper import Policy, begin_beside
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder, find_run
from holdfast.run.settings import Settings
from holdfast.run.states import RunState

FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "launch",
        description="""\
Train one model with several processes, on several machines, or on a rented GPU.

examples:
  holdfast launch --nproc 2 my_script.py              two processes on this machine
  holdfast launch --nproc 4 --min-ranks 2 my_script.py
                                                      continue with fewer while one cannot be replaced
  holdfast launch --devices cuda:0,cpu my_script.py   a card, and the CPU if that makes the steps faster
  holdfast launch --resume calm-heron --nproc 4       continue a run with four processes
  holdfast launch --continue my_script.py run.folder=runs/job-17
                                                      continue the run in that folder, or start it there
  holdfast launch --nodes 2 --node-rank 0 --master 10.0.0.1 my_script.py
                                                      the first of two machines
  holdfast launch --cloud --gpu L4 --spot --bucket my-runs my_script.py
                                                      rent a GPU with SkyPilot; asks before it spends
  holdfast launch --cloud --gpu L4 --dryrun my_script.py
                                                      only write the task file; needs no account

Each process trains on its part of every batch. A process (rank) that dies or hangs is replaced, and the run continues
from the newest snapshot that all ranks have.
""",
    )
    parser.for_script()
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="a Python file with `def train(session)`")
    add_words(parser)
    ranks = parser.add_argument_group("how many")
    ranks.add_argument("--nproc", metavar="N", help="number of processes on this machine (default: one per GPU, or 1)")
    ranks.add_argument(
        "--min-ranks",
        type=int,
        metavar="N",
        help="continue with this many processes while a lost one cannot be replaced (default: wait for all)",
    )
    ranks.add_argument(
        "--spares", type=int, default=0, metavar="N", help="processes that wait to replace a lost one (default: 0)"
    )
    ranks.add_argument(
        "--devices", metavar="LIST", help="a process on each of these devices, such as cuda:0,cpu, instead of --nproc"
    )
    ranks.add_argument(
        "--shares",
        metavar="HOW",
        help="parts of each batch: equal, measured, or a number for each process such as 3:1"
        " (default: equal, and measured where devices differ or one process is slow)",
    )
    ranks.add_argument("--nodes", type=int, default=1, metavar="N", help="number of machines (default: 1)")
    ranks.add_argument("--node-rank", type=int, default=0, metavar="K", help="number of this machine, counted from 0")
    ranks.add_argument("--master", metavar="HOST", help="address of the first machine: HOST or HOST:PORT")
    ranks.add_argument(
        "--wait-for-machines",
        default="10m",
        metavar="TIME",
        help="how long machines try to reach each other, at the start and after a loss (default: 10m)",
    )
    ranks.add_argument("--resume", metavar="RUN", help="continue this run, with any number of processes")
    ranks.add_argument(
        "--continue",
        dest="again",
        action="store_true",
        help="continue the run of this command in run.folder; start it if there is no run, nothing if it is finished",
    )
    ranks.add_argument(
        "--script", dest="moved", metavar="PATH", help="with --resume: the path of its script on this machine"
    )
    ranks.add_argument("--folder", metavar="PATH", help="with --resume: the folder of the runs")
    cloud.add_flags(parser)
    add_device(parser)
    parser.add_argument("--seed", type=int, metavar="N", help="random seed, the same as run.seed=N (default: 0)")
    add_flags(parser, plain=True, progress=True)
    parser.set_defaults(run=run, script_argv=[])
    return parser


def run(args: argparse.Namespace) -> int:
    """Check, make or find the run folder, start the agent, watch, tell how it ended."""
    output = Output.from_args(args)
    if args.again and (args.resume or args.cloud):
        raise UsageError(
            f"--continue and {'--resume' if args.resume else '--cloud'} cannot be combined",
            command="launch",
            cause="--resume names the run" if args.resume else "a task in a cloud continues its run by itself",
        )
    if args.cloud:
        if args.devices or args.shares:
            raise UsageError("--devices and --shares do not go with --cloud", command="launch")
        return cloud.run(args, output)
    wanted = _wanted(args)
    folder, order = _resumed(args, output) if args.resume else (None, _new(args))
    _check_parts(order.settings, wanted)
    if args.again:
        folder = begun_run.take(order, output, first=wanted.node_rank == 0, ranks=wanted.nproc * wanted.nodes)
        if folder is not None and folder.info.get("state") == RunState.FINISHED:
            from holdfast.cli.resume import _tell_finished

            return _tell_finished(folder, output)
    if wanted.node_rank > 0:
        folder = None  # the first machine keeps the run folder
    elif folder is None:
        folder = create(order, ranks=wanted.nproc * wanted.nodes)
    if folder is not None:
        if not args.again:
            folder.lock()
        if folder.without_locks:
            output.note(f"! {folder.without_locks}")
        folder.update_info(
            settings=order.settings.recorded(),  # run.json belongs to the process that has the lock
            pid=os.getpid(),
            state=RunState.STARTING,
            exit_code=None,
            ranks=wanted.nproc * wanted.nodes,
        )
    return _conduct(folder, order, wanted, output)


def _wanted(args: argparse.Namespace) -> torchrun.Wanted:
    args.devices = _devices(args)
    nproc = len(args.devices.split(",")) if args.devices else _nproc(args.nproc)
    if args.nodes < 1 or not 0 <= args.node_rank < args.nodes:
        raise UsageError(
            f"--node-rank {args.node_rank} does not fit --nodes {args.nodes}",
            command="launch",
            cause="machines are counted from 0",
        )
    if args.nodes > 1 and not args.master:
        raise UsageError(
            "--nodes needs --master",
            command="launch",
            cause="the machines need an address to connect to",
            tips=["give the address of the first machine on all of them: `--master 10.0.0.1`"],
        )
    least = _least(args, nproc * args.nodes)
    return torchrun.Wanted(
        nproc, args.nodes, args.node_rank, _master(args), least=least, spares=args.spares, patience=_patience(args)
    )


def _master(args: argparse.Namespace) -> str:
    master = args.master or ""
    try:
        interfaces.split(master, torchrun.PORT)
    except ValueError as error:
        raise UsageError(f"--master {master}: {error}", command="launch") from None
    return master


def _patience(args: argparse.Namespace) -> float:
    try:
        return parse_duration(args.wait_for_machines)
    except ValueError as error:
        raise UsageError(f"--wait-for-machines {args.wait_for_machines}: {error}", command="launch") from None


def _devices(args: argparse.Namespace) -> str | None:
    """The devices that were named, in full and accelerators first: rank 0 is on one of them."""
    if not args.devices:
        return None
    from holdfast.devices import inventory

    named = [inventory.check(each.strip()) for each in args.devices.split(",")]
    for each in named:
        inventory.check_here(each)
    if args.nproc is not None or args.device is not None or args.nodes > 1 or args.spares:
        raise UsageError(
            "--devices goes without --nproc, --device, --nodes and --spares",
            command="launch",
            cause="it names the device of every process of this machine",
        )
    in_given_order = ":" in (args.shares or "")
    return ",".join(named if in_given_order else sorted(named, key=lambda each: each == "cpu"))


def _check_parts(settings: Settings, wanted: torchrun.Wanted) -> None:
    """Settings that have a value for each rank."""
    ranks = wanted.nproc * wanted.nodes
    if settings.run.devices and wanted.nodes > 1:
        raise UsageError(
            f"run.devices={settings.run.devices} goes without --nodes",
            command="launch",
            cause="it names the device of every process of one machine",
        )
    for key, value, sign in (("devices", settings.run.devices, ","), ("shares", settings.run.shares, ":")):
        if value and (sign == "," or sign in value) and len(value.split(sign)) != ranks:
            raise UsageError(
                f"--{key} {value} does not fit {'1 process' if ranks == 1 else f'{ranks} processes'}",
                command="launch",
                cause="it needs one value for each process",
            )


def _least(args: argparse.Namespace, ranks: int) -> int | None:
    least: int | None = args.min_ranks
    if args.spares < 0:
        raise UsageError(f"--spares is {args.spares}, but it has to be 0 or more", command="launch")
    if least is None and not args.spares:
        return None
    if least is not None and not 1 <= least <= ranks:
        machines = "" if args.nodes == 1 else f" on {args.nodes} machines"
        raise UsageError(
            f"--min-ranks {least} does not fit --nproc {ranks // args.nodes}{machines}",
            command="launch",
            cause=f"it has to be a number from 1 to {ranks}",
        )
    if not Forker.possible():
        raise UsageError(
            f"{'--spares' if least is None else '--min-ranks'} does not work on this system",
            command="launch",
            cause="torchrun starts the processes here, and all of them start again when one is lost",
        )
    return least


def _nproc(asked: str | None) -> int:
    if asked is None:
        from holdfast.devices import inventory

        return max(1, sum(name.startswith("cuda") for name in inventory.candidates()))
    try:
        number = int(asked)
    except ValueError:
        number = 0
    if number < 1:
        raise UsageError(f"--nproc is {asked}, but it has to be a whole number of 1 or more", command="launch")
    return number


def _new(args: argparse.Namespace) -> Order:
    if not args.script:
        raise UsageError(
            "which script?", command="launch", tips=["`holdfast launch --nproc 2 my_script.py`, or `--resume RUN`"]
        )
    words = [*args.words, *_said(args)]
    return read_order(args.script, words, device=args.device, seed=args.seed, argv=args.script_argv, command="launch")


def _said(args: argparse.Namespace) -> list[str]:
    """The settings that are options of this command."""
    given = {"run.devices": args.devices, "run.shares": args.shares}
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def _resumed(args: argparse.Namespace, output: Output) -> tuple[RunFolder, Order]:
    """The run with the script, arguments and settings it has; words with a dot change a setting."""
    from holdfast.cli import resume

    if args.script and "=" in args.script:  # the place of the script, where there is none
        args.words, args.script = [args.script, *args.words], None
    if args.script:
        raise UsageError("--resume takes no script", command="launch", cause="the run has one already")
    args.words = [*args.words, *(_said(args) if args.devices else [*_said(args), "run.devices=off"])]
    overrides = resume._overrides(args)
    folder = find_run(root_of(args), args.resume)
    if folder.info.get("state") == RunState.FINISHED:
        raise UserError(f"{folder.name} is finished", hints=[f"`holdfast show {folder.name}` shows it"])
    settings = settings_of(folder, {**overrides, "run.seed": str(folder.info.get("seed", 0))})
    first = args.node_rank == 0  # the first machine keeps the run folder
    facts, argv, arguments = resume._script(folder, args.script_argv, args.moved, output, keep=first)
    folder = RunFolder(folder.path.absolute())
    resume._newest(folder, output)
    return folder, Order(facts, argv, arguments, settings, threads_for(settings.run.threads))


def _conduct(folder: RunFolder | None, order: Order, wanted: torchrun.Wanted, output: Output) -> int:
    from holdfast.distributed import rank

    job = Job.create()
    threads = rank.threads_for(order, wanted.nproc)
    face = (
        faces.Careful(faces.QuietFace())
        if folder is None
        else face_choice.choose(output, _header(folder, order, wanted))
    )
    words = ["train", str(order.facts.path), *_words(order)]
    if order.argv:
        words += ["--", *order.argv]
    env = torchrun.environment_for(wanted, job, folder, threads)
    policy = Policy.of(order.settings)
    if policy.mixed and not rank.threads_asked(order):
        env[CORES] = str(order.threads)
    if folder is not None:
        start = Event.now("start", run=folder.name, ranks=wanted.nproc * wanted.nodes, seed=order.settings.run.seed)
        folder.append(start)
        face.event(start)
        notify.start(folder, order.settings)
        for problem in track.start(folder, order.settings):
            note = Event.now("note", text=problem)
            folder.append(note)
            face.event(note)

    def say(text: str) -> None:
        if folder is None:
            output.note(f"! {text}")
        else:
            folder.append(Event.now("note", text=text))  # the launch shows what comes into the journal

    try:
        agent = _agent(wanted, job, folder, words, env, order, say)
    except HoldfastError as error:
        face.close()
        job.remove()
        return _tell(folder, {"state": RunState.FAILED, "error": error.to_json()}, None, output)
    watched = launching.Launch(job, folder, agent, order.settings, face)
    try:
        outcome = watched.to_the_end()
    except OSError as error:
        if error.errno not in FULL:
            raise
        with contextlib.suppress(OSError):
            agent.close()
        full = GaveUp(
            f"{job.path.parent} is full",
            cause="the notes and snapshots of the ranks are there",
            hints=["free memory there, then run it again"],
        )
        outcome = {"state": RunState.GAVE_UP, "error": full.to_json()}
    finally:
        face.close()
        job.remove()
    return _tell(folder, outcome, watched.stop_signal, output)


def _agent(
    wanted: torchrun.Wanted,
    job: Job,
    folder: RunFolder | None,
    words: list[str],
    env: dict[str, str],
    order: Order,
    say: Callable[[str], None],
) -> Agent:
    """Ours, so that ranks stay when one is lost; torchrun where forking is not possible."""
    from holdfast.cli.supervise import preload_for

    preload = preload_for(order.facts)
    logs = job.path if folder is None else folder.path
    if Forker.possible():
        env, log = {**env, **OWN_AGENT}, logs / agents.LOG
        if wanted.nodes > 1:
            ladder = _ladder(wanted, job, folder, order)
            return machines.agent_for(
                wanted, job, folder, order, words, env, log, say=say, preload=preload, ladder=ladder
            )
        policy, least = Policy.of(order.settings), wanted.least
        begin_beside(job, policy)
        if policy.beside:
            least = min(least or wanted.nproc, wanted.nproc - len(policy.beside))
        return RankAgent(
            job,
            wanted.nproc,
            words,
            env,
            log,
            preload=preload,
            least=least,
            spares=wanted.spares,
            ladder=_ladder(wanted, job, folder, order),
            beside=bool(policy.beside),
            may_shrink=wanted.may_shrink,
        )
    run_id = "holdfast" if folder is None or wanted.nodes > 1 else folder.name
    host, port = interfaces.split(wanted.master, torchrun.PORT)
    command = torchrun.command_for(replace(wanted, master=f"{host}:{port}"), words, run_id)
    return torchrun.TorchrunAgent(job, command, env, logs / torchrun.AGENT_LOG, preload=preload)


def _ladder(wanted: torchrun.Wanted, job: Job, folder: RunFolder | None, order: Order) -> RankLadder | None:
    """For the seats of this machine. None where all of its ranks are on the CPU: there is no other device to go to."""
    cards = rank_devices.cards()
    seats = [each.seat for each in seats_of(wanted) if each.machine == wanted.node_rank]
    named = list(Policy.of(order.settings).devices)
    devices = named or rank_devices.planned(order.settings.run.device, len(seats), wanted.nproc, cards)
    if all(device == "cpu" for device in devices):
        return None
    return RankLadder(job, folder, order.settings, devices=devices, cards=cards, seats=seats)


def _words(order: Order) -> list[str]:
    """Arguments and settings again, for every rank. What may be secret is in the environment of nobody else."""
    changed = [
        f"{key}={order.settings.shown(key)}"
        for key in order.settings.changed()
        if not key.startswith(("notify.", "track."))
    ]
    return [*(f"{key}={value}" for key, value in order.arguments.items()), *changed]


def _header(folder: RunFolder, order: Order, wanted: torchrun.Wanted) -> faces.Header:
    from holdfast.run.reference import handle, shown

    devices = order.settings.run.devices
    where = f"{wanted.nproc}-ranks" if wanted.nodes == 1 else f"{wanted.nodes}x{wanted.nproc}-ranks"
    where = devices.replace(",", "+") if devices else where
    return faces.Header(
        version=__version__,
        run=folder.name,
        handle=handle(folder),
        workload=str(folder.info.get("workload")),
        folder=shown(folder.path),
        device=where,
        seed=order.settings.run.seed,
        differs=[f"{key}={value}" for key, value in order.arguments.items()],
        bell=order.settings.notify.bell,
    )


def _tell(folder: RunFolder | None, outcome: dict[str, Any], stopped_by: int | None, output: Output) -> int:
    import signal

    from holdfast.cli import supervise
    from holdfast.cli.run_facts import Look
    from holdfast.distributed import rank_end
    from holdfast.supervisor.run_context import Outcome

    code = rank_end.exit_code(outcome)
    if outcome["state"] == RunState.STOPPED and stopped_by == signal.SIGINT:
        code = int(ExitCode.INTERRUPTED)
    found = outcome.get("error")
    error: HoldfastError | None = from_json(found) if isinstance(found, dict) else None
    if folder is None:
        if error is not None:
            raise error
        if output.as_json:
            output.json({"state": outcome["state"], "exit_code": code})
        else:
            output.print(
                "the processes of this machine have ended; the run folder and the result are on the first machine"
            )
        return code
    rank_end.settle(folder, {**outcome, "code": code})
    folder.append(Event.now("end", state=outcome["state"], exit_code=code, error=found))
    folder.close()
    with contextlib.suppress(OSError, ValueError):  # nobody is there to read it; the code still counts
        supervise._tell(Look(folder), Outcome(outcome["state"], code, error), output)
    return code
