"""From a plan to its outcome: what `train`, `resume` and their detached children share.

rungs = rungs_for("auto")                          # [Rung("cuda:0"), Rung("cpu")]
code = conduct(run, plan, settings, output)        # shows the run, prints how it ended
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

from holdfast import __version__
from holdfast.base import compile_cache
from holdfast.cli import face_choice, faces, notify, planned, summary, track
from holdfast.cli.run_facts import Look
from holdfast.console.order import Order
from holdfast.console.output import Output, print_error
from holdfast.console.text import without_control
from holdfast.devices import guards, inventory
from holdfast.devices.saved_verdicts import Verdicts
from holdfast.devices.verdict import Verdict
from holdfast.faults.ladder import Rung
from holdfast.run import workload_registry
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder
from holdfast.run.reference import handle, shown
from holdfast.run.script import Facts
from holdfast.run.settings import Settings
from holdfast.run.states import RunState
from holdfast.supervisor.supervisor import Outcome, Plan, Supervisor

_ALWAYS_READY = frozenset({"torch", "numpy", "holdfast", "__future__"})


def rungs_for(device: str, tell: Callable[[str], None] = lambda text: None) -> list[Rung]:
    """The ways to run a step, best first; the CPU is always the last.

    What the doctor refused is left out unless it was asked for by name; `tell` is told either.
    """
    names = inventory.candidates() if device == "auto" else list(dict.fromkeys([inventory.check(device), "cpu"]))
    kept = Verdicts()
    rungs: list[Rung] = []
    for name in names:
        verdict = kept.get(name).verdict
        if verdict is not None and not verdict.trainable:
            said = f"holdfast doctor: {verdict.words}" + (f", {verdict.why}" if verdict.why else "")
            if device == "auto" and name != "cpu":
                tell(without_control(f"• {name} is left out ({said})"))
                continue
            tell(without_control(f"! {name} is used although it should not be ({said})"))
        held = guards.guards_of(name)
        for guard in held:
            tell(without_control(f"• {guard.says}"))
        rungs += rungs_of(name, verdict, dict(pair for guard in held for pair in guard.env))
    return rungs


def rungs_of(device: str, verdict: Verdict | None = None, guard: Mapping[str, str] | None = None) -> list[Rung]:
    """As the script computes; and in fp32, for where its precision turns out to be too small. Both with the remedies
    of the verdict and those that guard such a card; in fp32 alone where nothing else is right."""
    env = tuple({**(guard or {}), **(verdict.policy.env if verdict is not None else {})}.items())
    plain = [Rung(device, "fp32", env)]
    only_fp32 = verdict is not None and verdict.policy.dtype == "float32"
    return plain if only_fp32 else [Rung(device, env=env), *plain]


def preload_for(facts: Facts) -> list[str]:
    """What the nursery may import ahead: installed modules, never files beside the script, which may change."""
    folder = facts.path.parent
    ready = []
    for name in facts.imports:
        top = name.partition(".")[0]
        if top in _ALWAYS_READY or (folder / top).is_dir() or (folder / f"{top}.py").exists():
            continue
        with contextlib.suppress(ImportError, ValueError):
            if importlib.util.find_spec(top) is not None:
                ready.append(name)
    return ready


def carry_out(run_folder: RunFolder, order: Order, rungs: list[Rung], output: Output) -> int:
    """One run to its end, as it was ordered."""
    run_folder.lock()
    plan = Plan(
        script=order.facts.path,
        argv=order.argv,
        arguments=order.arguments,
        rungs=rungs,
        seed=order.settings.run.seed,
        threads=order.threads,
        preload=preload_for(order.facts),
    )
    return conduct(run_folder, plan, order.settings, output)


def conduct(run: RunFolder, plan: Plan, settings: Settings, output: Output) -> int:
    """Supervise the run to its end, with a face; the run is locked by the caller."""
    plan.chaos = _chaos()
    for name, value in workload_registry.environment_of(plan.script).items():
        os.environ.setdefault(name, value)
    _, unsafe = compile_cache.place()
    if unsafe:
        output.note(f"! compiled kernels are kept for this run only: {unsafe}")
    face = face_choice.choose(output, _header(run, plan, settings))
    start = Event.now(
        "start",
        run=run.name,
        device=plan.rungs[plan.rung].label,
        seed=plan.seed,
        threads=plan.threads,
        holdfast=__version__,
        step=plan.resume.step if plan.resume else 0,
    )
    run.append(start)
    face.event(start)
    if run.without_locks:
        note = Event.now("note", text=run.without_locks)
        run.append(note)
        face.event(note)
    notify.start(run, settings)
    for problem in track.start(run, settings):
        note = Event.now("note", text=problem)
        run.append(note)
        face.event(note)
    try:
        outcome = Supervisor(run, plan, settings, face).run()
    finally:
        face.close()
        run.close()
    if plan.resume is None:
        planned.remember(Look(run), planned.job_of(plan.script))
    with contextlib.suppress(OSError, ValueError):  # nobody is there to read it; the code still counts
        _tell(Look(run), outcome, output)
        if output.verbose and face.why:
            output.note(face.why)
    return int(outcome.exit_code)


def _chaos() -> dict[str, Any] | None:
    """Faults to inject, where `holdfast chaos` started this process."""
    if not os.environ.get("HOLDFAST_CHAOS"):
        return None
    from holdfast.injection.chaos import from_environment

    return from_environment()


def _tell(look: Look, outcome: Outcome, output: Output) -> None:
    """How it ended: JSON, or words that fit the face. An error comes last, where it is looked for."""
    error = None if outcome.state == RunState.STOPPED else outcome.error
    if output.as_json:
        output.json({**look.result(), "error": outcome.error.to_json() if outcome.error else None})
    elif output.quiet:
        output.print(shown(look.run.path))
    elif output.plain or not output.out.tty:
        _plain(look, output)
    elif error is None or look.step:
        output.print()
        for line in summary.closing(look, output.out.width, failed=error is not None):
            output.print(line)
    if error is not None:
        output.note()
        print_error(error, output.err)


def _plain(look: Look, output: Output) -> None:
    """The same facts as one line each, in the form of the lines before it."""
    long = ("schema", "recovery_s", "quarantined")
    receipt = {key: value for key, value in (look.receipt or {}).items() if key not in long}
    faults = summary.fault_words(receipt.pop("faults", None)) or "none"
    plan = receipt.pop("plan", None)
    pairs = {**receipt, "faults": faults}
    stamp = Event.now("").time
    _line(output, stamp, "receipt", pairs)
    if isinstance(plan, dict):
        _line(output, stamp, "plan", plan)
    kept: dict[str, Any] = {name: shown(path) for name, path in look.weights.items()}
    if look.checkpoints:
        kept["checkpoint"] = shown(look.checkpoints[0][1])
    _line(output, stamp, "files", {**kept, "folder": shown(look.run.path)})


def _line(output: Output, stamp: str, word: str, values: dict[str, Any]) -> None:
    pairs = [f"{key}={faces.plain_value(value)}" for key, value in values.items() if value is not None]
    output.print(" ".join([faces.to_the_second(stamp), word, *pairs]))


def _header(run: RunFolder, plan: Plan, settings: Settings) -> faces.Header:
    differs = [f"{key}={value}" for key, value in plan.arguments.items()]
    differs += [
        f"{key} {settings.shown(key)}{_from(settings.source(key))}" for key in settings.changed() if _worth_showing(key)
    ]
    return faces.Header(
        version=__version__,
        run=run.name,
        handle=handle(run),
        workload=str(run.info.get("workload")),
        folder=shown(run.path),
        device=plan.rungs[plan.rung].label,
        seed=plan.seed,
        differs=differs,
        resumed_from=plan.resume.step if plan.resume else None,
        threads=plan.threads,
        bell=settings.notify.bell,
    )


def _worth_showing(key: str) -> bool:
    """Where it stands in the header already, or may be secret, it is not shown again."""
    return key not in ("run.folder", "run.seed", "run.device") and not key.startswith("notify.")


def _from(source: str) -> str:
    return "" if source == "command line" else f" ({source})"
