"""`holdfast resume`: go on with a run after anything.

    holdfast resume calm-heron                     from the newest checkpoint that verifies
    holdfast resume calm-heron --device cpu        on another device
    holdfast resume latest checkpoint.every=10s    with another setting
    holdfast resume --at-boot calm-heron           by itself, after every reboot, until it is finished

The run keeps its name, folder, seed and threads. A keeper that outlived a killed supervisor may still be saving
the last snapshot: resume waits for it, so that not even `kill -9` costs a committed step.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

from holdfast.base import planted, processes
from holdfast.base.errors import ExitCode, UserError
from holdfast.base.files import remove
from holdfast.base.folders import open_growing
from holdfast.base.secret_words import HIDDEN
from holdfast.cli import at_boot, resume_script, stages
from holdfast.cli.resume_trust import Request, changed, check_own
from holdfast.cli.run_facts import Look
from holdfast.cli.run_settings import settings_of
from holdfast.cli.runs import supervisor_pid
from holdfast.console.order import add_device, root_of, threads_for
from holdfast.console.output import Output, add_flags, add_folder, add_run, count
from holdfast.console.text import without_control
from holdfast.console.usage import Parser, UsageError
from holdfast.record.receipt import Accounts
from holdfast.run import kept_arguments, script
from holdfast.run.folder import LAST_WORD, RunFolder, find_run, read_json, whole
from holdfast.run.reference import handle
from holdfast.run.seal import FIELDS
from holdfast.run.settings import Settings, parse_overrides
from holdfast.run.states import LIVE_STATES, RunState
from holdfast.state import checkpoint

KEEPER_PATIENCE = 60.0


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "resume",
        description="""\
Continue a run that stopped, crashed, failed or gave up.

examples:
  holdfast resume calm-heron                   by name, by folder, or `latest`
  holdfast resume calm-heron --device cpu      on another device
  holdfast resume latest checkpoint.every=10s  with another setting
  holdfast resume --at-boot calm-heron         continue automatically after every reboot

The run continues from its newest checkpoint that is intact.
""",
    )
    add_run(parser)
    parser.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a setting of holdfast (see `holdfast config`)",
    )
    add_device(parser, default="where the run was")
    add_folder(parser)
    parser.add_argument("--script", metavar="PATH", help="path of the script, for a run from another machine")
    parser.add_argument("--detach", action="store_true", help="start the run in the background and return")
    parser.add_argument("--background", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--booted", action="store_true", help=argparse.SUPPRESS)
    boot = parser.add_argument_group("after a reboot")
    boot.add_argument("--at-boot", action="store_true", help="continue the run automatically after every reboot")
    boot.add_argument(
        "--print", dest="print_only", action="store_true", help="with --at-boot: only show what it would install"
    )
    boot.add_argument("--remove", action="store_true", help="with --at-boot: undo it")
    add_flags(parser, plain=True, progress=True)
    parser.set_defaults(run=run, script_argv=[])
    return parser


def run(args: argparse.Namespace) -> int:
    """Find it, take it, find what was saved, go on."""
    output = Output.from_args(args)
    at_boot.check_flags(args)
    overrides = _overrides(args)
    folder = find_run(root_of(args), args.name)
    if args.at_boot and args.remove:
        return at_boot.run(folder, args, output)
    planted.check(folder.path)
    more = stages.rest(folder) is not None
    if args.booted and at_boot.left_alone(folder, output, more=more):
        return ExitCode.OK
    if folder.info.get("state") == RunState.FINISHED:
        if not more:
            return _tell_finished(folder, output)
        check_own(folder, Path(str(folder.info.get("script"))))
        _agree(folder, stages.request(folder), output)
        return stages.after_the_end(folder, args, output, resume=run)
    if resume_script.is_one(folder):
        return _go_on_with_command(folder, settings_of(folder, overrides), args, output)
    settings = settings_of(folder, overrides)
    facts, argv, arguments = _script(folder, args.script_argv, args.script, output)
    if args.at_boot:
        return at_boot.run(folder, args, output)
    if args.detach:
        return _detach(folder, args, output)
    if args.background:
        from holdfast.cli import detach

        detach.survive_hangup()
    _take(folder, output)
    code = _go_on(folder, facts, argv, arguments, settings, args, output)
    return stages.follow(folder, args, output, resume=run, said=True) if code == ExitCode.OK else code


def _go_on_with_command(folder: RunFolder, settings: Settings, args: argparse.Namespace, output: Output) -> int:
    """A run of `holdfast run`: its command again."""
    command, cwd = resume_script.read_command(folder, args.script_argv)
    adding = [] if args.script_argv else [f"resume_with={words}" for words in [folder.info.get("resume_with")] if words]
    request = Request(command, cwd, [*changed(settings), *adding], way="-- COMMAND")
    given = resume_script.given(command, cwd, folder) if args.script_argv else None
    _agree(folder, request, output, given=given)
    if args.at_boot:
        return at_boot.run(folder, args, output)
    if args.detach:
        return _detach(folder, args, output)
    folder = RunFolder(folder.path.absolute())
    _take(folder, output)
    return resume_script.go_on(folder, command, cwd, settings, args, output, account=_account, newest=_newest)


def _overrides(args: argparse.Namespace) -> dict[str, str]:
    for word in args.words:
        if "." not in word.partition("=")[0]:
            raise UsageError(
                f"`{word}` is not a setting",
                command="resume",
                cause="a run keeps the arguments of its script; a setting is written as section.key=value",
                tips=["start a new run to train with other arguments"],
            )
    overrides = dict(parse_overrides(args.words))
    return {**overrides, "run.device": args.device} if args.device else overrides


def _tell_finished(folder: RunFolder, output: Output) -> int:
    """Nothing is left to do; that is an answer, not an error."""
    look = Look(folder)
    if output.as_json:
        output.json(look.result())
    else:
        output.print(f"✓ {look.name} is finished: {count(look.step)} steps")
        output.print(f"  holdfast show {handle(folder)}      everything about this run")
    return ExitCode.OK


def _script(
    folder: RunFolder, given: list[str], moved: str | None, output: Output, *, keep: bool = True
) -> tuple[script.Facts, list[str], dict[str, str]]:
    """The script as it is now, with the words it was started with. `moved`: where it is on this machine.

    `keep`: run.json is this process's to write.
    """
    info = folder.info
    if moved is not None:
        info = {**info, "script": str(Path(moved).expanduser().absolute())}
    if not isinstance(info.get("script"), str):
        raise UserError(f"{folder.path} does not name its script", cause="its run.json has no `script`")
    check_own(folder, Path(info["script"]))
    saved_argv = info.get("argv")
    shown = [str(word) for word in saved_argv] if isinstance(saved_argv, list) else []
    argv = given or kept_arguments.find(folder.path, folder.info, "argv", shown) or shown
    saved = info.get("arguments")
    pairs = [f"{key}={value}" for key, value in saved.items()] if isinstance(saved, dict) else []
    pairs = kept_arguments.find(folder.path, folder.info, "arguments", pairs) or pairs
    arguments = dict(pair.split("=", 1) for pair in pairs)
    if any(HIDDEN in word for word in (*argv, *arguments.values())):
        raise UserError(
            "this run was started with a secret, and secrets are not stored",
            cause="run.json holds *** in its place",
            hints=[f"give the script's arguments again: `holdfast resume {folder.name} -- …`"],
        )
    if moved is not None:  # before anything is written
        script.check_arguments(script.read(Path(moved).expanduser()), arguments)
    words = [info["script"], *(f"{key}={value}" for key, value in arguments.items()), *(["--", *argv] if argv else [])]
    then = stages.request(folder).command if stages.rest(folder) else ()
    request = Request(["holdfast", "train", *words], Path.cwd(), changed(settings_of(folder, {})), then)
    _agree(folder, request, output, given=None if moved is None else {"script": info["script"]}, keep=keep)
    facts = script.read(Path(info["script"]))
    script.check_arguments(facts, arguments)
    return facts, argv, arguments


def _agree(
    folder: RunFolder, request: Request, output: Output, *, given: dict[str, Any] | None = None, keep: bool = True
) -> None:
    """UserError unless this user started it here, or agrees to it now. `given`: what run.json is to say from now on."""
    shown = folder.info
    if not folder.vouched and folder.in_use() and supervisor_pid(folder) is not None:
        folder.lock()  # says who has it
    new = request.agree(folder, output, given=given is not None)
    changes = {key: value for key, value in (given or {}).items() if shown.get(key) != value}
    if not keep or not (new or changes):
        return
    held = RunFolder(folder.path)
    _take(held, output)
    try:
        if new:
            held.vouch(_untracked({**held.info, **{key: shown.get(key) for key in FIELDS}, **changes}))
        else:
            held.update_info(**changes)
    finally:
        held.close()


def _untracked(info: dict[str, Any]) -> dict[str, Any]:
    """run.json without the trackers that it named before this user agreed to it."""
    settings = info.get("settings")
    kept = {key: value for key, value in settings.items() if key != "track"} if isinstance(settings, dict) else settings
    return {**info, "settings": kept}


def _detach(folder: RunFolder, args: argparse.Namespace, output: Output) -> int:
    from holdfast.cli import detach

    if folder.in_use() and supervisor_pid(folder) is not None:
        folder.lock()  # says who has it
    words = ["resume", str(folder.path.absolute()), *args.words, "--background"]
    words += ["--device", args.device] if args.device else []
    words += ["--", *args.script_argv] if args.script_argv else []
    return detach.start(folder, words, output)


def _take(folder: RunFolder, output: Output) -> None:
    """The lock: at once, or when the keeper of a dead supervisor has saved what it holds."""
    if folder.in_use() and supervisor_pid(folder) is None:
        output.note(f"{folder.name} is still being saved; waiting")
        folder.lock(wait=KEEPER_PATIENCE)
    else:
        folder.lock()


def _go_on(
    folder: RunFolder,
    facts: script.Facts,
    argv: list[str],
    arguments: dict[str, str],
    settings: Settings,
    args: argparse.Namespace,
    output: Output,
) -> int:
    from holdfast.cli.supervise import conduct, preload_for, rungs_for
    from holdfast.supervisor.supervisor import Plan

    info = folder.info
    rungs = rungs_for(settings.run.device, output.note)
    good = _newest(folder, output)
    _note_changes(facts, info, output)
    crashed_ns = _account(folder, good)
    here = [number for number, rung in enumerate(rungs) if rung.label == info.get("rung")]
    here += [number for number, rung in enumerate(rungs) if rung.device == info.get("device")]
    threads = whole(info.get("threads")) or None
    asked_threads = "run.threads" in {word.partition("=")[0] for word in args.words}
    plan = Plan(
        script=facts.path,
        argv=argv,
        arguments=arguments,
        rungs=rungs,
        rung=here[0] if here and not args.device else 0,  # where the ladder had brought it
        seed=whole(info.get("seed")),
        threads=threads if isinstance(threads, int) and not asked_threads else threads_for(settings.run.threads),
        resume=good,
        crashed_ns=crashed_ns,
        preload=preload_for(facts),
    )
    folder.update_info(settings=settings.recorded(), threads=plan.threads)
    return conduct(folder, plan, settings, output)


def _newest(folder: RunFolder, output: Output) -> checkpoint.Checkpoint | None:
    good, rejected = checkpoint.newest_good(folder.path / "checkpoints")
    gone = checkpoint.lost(folder.path)
    if gone is not None:
        output.note(f"! checkpoint {gone.name} is missing: the journal names it, but the file is gone")
    for path, reason in rejected:
        output.note(without_control(f"! checkpoint {path.name} is skipped: {reason}"))
    if good is None:
        some = f"no checkpoint of {folder.name} can be used" if rejected or gone else None
        output.note(f"• {some or f'nothing was saved of {folder.name} yet'}: starting from the beginning")
    elif rejected or gone:
        output.note(f"• continuing from checkpoint {good.path.name}, the newest intact one")
    return good


def _note_changes(facts: script.Facts, info: dict[str, Any], output: Output) -> None:
    before = info.get("script_sha256")
    now = hashlib.sha256(facts.path.read_bytes()).hexdigest()
    if isinstance(before, str) and before != now:
        output.note(f"! {facts.path.name} has changed since the run began: the run continues with the new version")


# The books ------------------------------------------------------------------------------------------------


def _account(folder: RunFolder, good: checkpoint.Checkpoint | None) -> int | None:
    """What the last supervisor could not write down itself, and where the count goes on.

    Returns when its last worker last committed, if it died: time has been lost since.
    """
    info = folder.info
    accounts = Accounts.from_json(info.get("accounts") or {})
    step = good.step if good else 0
    crashed = str(info.get("state")) in {*LIVE_STATES, RunState.CRASHED}
    for name in ("journal.jsonl", "metrics.jsonl"):
        end_line(folder.path / name)
    last = last_word(folder) if crashed else {}
    if crashed:
        accounts = with_last_word(accounts, last, step)
    accounts.restored(accounts.steps, step)
    accounts.steps = step
    if crashed:
        _record_death(folder, accounts, last)
    folder.update_info(accounts=accounts.to_json(), exit_code=None)
    remove(folder.path / LAST_WORD)
    return whole(last.get("commit_ns")) or None


def last_word(folder: RunFolder) -> dict[str, Any]:
    """How far the last worker was: what the keeper read from its board, or the beat, a second old at most."""
    beat = read_json(folder.path / "beat.json") or {}
    before = Accounts.from_json(folder.info.get("accounts")).attempts
    attempts = beat.get("attempts")
    from_beat = {
        "attempts": attempts - before if isinstance(attempts, int) else None,
        "step": beat.get("step"),
        "attempt": None,
        "phase": beat.get("phase"),
    }
    return read_json(folder.path / LAST_WORD) or from_beat


def with_last_word(accounts: Accounts, last: dict[str, Any], saved: int) -> Accounts:
    """The accounts of a supervisor that died, with the steps of its last worker.

    The keeper may have saved steps that were committed after a beat; each of them was begun as well.
    """
    attempts, step = last.get("attempts"), last.get("step")
    if not isinstance(attempts, int) or not isinstance(step, int):
        return accounts
    later = max(0, saved - step)
    return dataclasses.replace(
        accounts,
        attempts=accounts.attempts + max(0, attempts) + later,
        steps=max(accounts.steps, step + later),
    )


def _record_death(folder: RunFolder, accounts: Accounts, last: dict[str, Any]) -> None:
    from holdfast.faults.classification import Fault, Kind
    from holdfast.faults.ladder import Move
    from holdfast.faults.terms import Action
    from holdfast.record import evidence
    from holdfast.run.events import Event

    beat = read_json(folder.path / "beat.json") or {}
    boots = {"boot": folder.info.get("boot_id"), "boot_now": processes.boot_id()}
    rebooted = None not in boots.values() and boots["boot"] != boots["boot_now"]
    fault = Fault(
        Kind.MACHINE_DOWN if rebooted else Kind.SUPERVISOR_DIED,
        message="the supervisor ended without an error message",
        evidence={"pid": folder.info.get("pid"), "last_beat": beat.get("time"), "phase": beat.get("phase"), **boots},
    )
    move = Move(Action.REPLACE, 0, reason="resumed", new_worker=True)
    kept = evidence.collect(folder, fault, move, None, "", {}, "")
    evidence.gather(kept, fault, folder)
    accounts.fault(fault.kind.value)
    folder.append(
        Event.now(
            "fault",
            code=fault.code,
            kind=fault.kind.value,
            device=folder.info.get("device"),
            step=last.get("attempt") or last.get("step"),
            phase=last.get("phase"),
            sentence=fault.sentence(),
            action=move.action.value,
            reason=move.reason,
            folder=str(kept),
        )
    )


def end_line(path: Path) -> None:
    """Give a file that was cut off in the middle of a line its end, or the next line would be lost with it."""
    try:
        with open(open_growing(path, make=False), "rb+") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
    except OSError:
        return
