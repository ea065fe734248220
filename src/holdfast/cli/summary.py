"""How a run ended, in words: the closing lines of `train` and `resume`, and the top of `show`.

for line in closing(Look(run)): output.print(line)
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from holdfast.cli.run_facts import Look, number, whole
from holdfast.console.output import count, counted, duration, metric, percent, sparkline, table
from holdfast.monitor.bottleneck import judge
from holdfast.monitor.logs import clean
from holdfast.monitor.planned import dollars, planned
from holdfast.record.receipt import cadence_words
from holdfast.run import machine
from holdfast.run.reference import handle, shown
from holdfast.run.states import UNFINISHED_STATES, RunKind, RunState

_SIGNS: dict[str, str] = {RunState.FINISHED: "✓", RunState.FAILED: "✗", RunState.GAVE_UP: "✗", RunState.CRASHED: "✗"}
_MOST_METRICS = 6

_WORDS = {
    "out_of_memory": ("out-of-memory fault", "out-of-memory faults"),
    "host_memory": ("shortage of host memory", "shortages of host memory"),
    "transient": ("transient device error", "transient device errors"),
    "device_lost": ("lost device", "lost devices"),
    "crash": ("crash", "crashes"),
    "killed": ("killed worker", "killed workers"),
    "exit": ("unexpected exit", "unexpected exits"),
    "hang": ("hang", "hangs"),
    "loader_died": ("dead loader process", "dead loader processes"),
    "loader_stuck": ("stuck loader process", "stuck loader processes"),
    "nursery_died": ("dead nursery", "dead nurseries"),
    "keeper_died": ("dead keeper", "dead keepers"),
    "supervisor_died": ("dead supervisor", "dead supervisors"),
    "unsupported": ("operation without a kernel", "operations without a kernel"),
    "driver": ("driver fault", "driver faults"),
    "user_error": ("error in the script", "errors in the script"),
    "bad_data": ("error in the data", "errors in the data"),
}


def closing(look: Look, width: int = 100, *, failed: bool = False) -> list[str]:
    """A headline, sparklines, faults, receipt; then files and what to do next, unless an error says that."""
    parts = [headline(look, width), curves(look), accounts(look, width)]
    parts += [] if failed else [files(look), next_commands(look)]
    lines: list[str] = []
    for part in parts:
        lines += ["", *part] if lines and part else part
    return lines


def headline(look: Look, width: int = 100) -> list[str]:
    """✓ finished 60 epochs in 3h 18m on cuda:0 · best valid_bacc 0.8841 at epoch 52"""
    devices = list(dict.fromkeys(str(entry.get("device")) for entry in look.device_timeline))
    words = [_SIGNS.get(look.state, "•"), _done(look)]
    if look.lasted_s is not None:
        words.append(f"in {duration(look.lasted_s)}")
    if devices:
        words.append(f"on {', then '.join(devices)}")
    text, best = " ".join(words), _best(look)
    if not best:
        return [text]
    return [f"{text} · {best}"] if len(text) + len(best) + 3 <= width else [text, f"  {best}"]


def _best(look: Look) -> str:
    best = look.best
    if best is None:
        return ""
    where = f"epoch {best['epoch']}" if best["epoch"] else f"step {count(best['step'])}"
    return f"best {best['name']} {metric(best['value'])} at {where}"


def _done(look: Look) -> str:
    epochs = look.epochs_done
    steps = counted(look.step or 0, "step")
    if look.state == RunState.FINISHED and _foreign(look) and not look.step:
        return "finished"  # a program that makes no steps
    if look.state == RunState.FINISHED:
        return f"finished {counted(epochs, 'epoch')}, {steps}," if epochs else f"finished {steps}"
    step = look.step or 0 if look.state in UNFINISHED_STATES else look.step
    return f"{look.state.lower().replace('_', ' ')} at step {count(step)}"


def _foreign(look: Look) -> bool:
    """Of `holdfast run`, and nothing of its state was handed to us."""
    return look.info.get("kind") == RunKind.SCRIPT and (look.receipt or {}).get("exact") is not True


def curves(look: Look) -> list[str]:
    """One line a metric: its course, where it began and where it is now."""
    rows = []
    for name in look.names[:_MOST_METRICS]:
        values = look.series(name)
        known = [value for value in values if value is not None]
        if known:
            about = f"  ({look.about(name)})" if look.about(name) else ""
            rows.append((f"  {name}", sparkline(values), f" {metric(known[0])} → {metric(values[-1])}{about}"))
    more = len(look.names) - _MOST_METRICS
    return table(rows) + ([f"  and {counted(more, 'more metric')} in metrics.jsonl"] if more > 0 else [])


def accounts(look: Look, width: int = 100) -> list[str]:
    """What happened to it, and what that cost."""
    receipt = look.receipt
    if receipt is None:
        faults = fault_words(look.accounts.get("faults") or {})
        return _labelled("faults", faults, width) if faults else []
    lines = _labelled("faults", _faults(look), width)
    if not _foreign(look):
        lines += _labelled("receipt", receipt_words(receipt), width)
    elif look.step:  # nobody has counted its samples
        steps = counted(whole(receipt.get("steps")) or 0, "step")
        lines += _labelled("receipt", f"{steps}: {count(whole(receipt.get('steps_repeated')) or 0)} repeated", width)
    commits = clean(cadence_words(receipt))
    for label, text in (("commits", commits), ("cost", cost_words(look)), ("bound", bound_words(look))):
        lines += _labelled(label, text, width) if text else []
    sha256 = receipt.get("weights_sha256")
    return lines + _labelled("weights", f"sha256 {sha256[:16]}…", width) if isinstance(sha256, str) else lines


def cost_words(look: Look) -> str:
    """0.42 kWh (cuda:0 0.38, cpu 0.04), $0.07; the plan said 3h 10m ±20m and $0.06, it took 3h 18m"""
    plan = look.info.get("plan")
    price = number(plan.get("usd_per_kwh")) if isinstance(plan, dict) else None
    said = planned(plan)
    words = "" if said is None else said.beside(look.lasted_s) if look.state == RunState.FINISHED else said.words
    parts = [_energy(look.beat.get("energy_wh"), price), clean(words)]
    return "; ".join(part for part in parts if part)


def _energy(spent: object, price: float | None) -> str:
    """What the devices drew, as far as they can be measured."""
    known = {str(name): wh for name, value in spent.items() if (wh := number(value))} if isinstance(spent, dict) else {}
    total = sum(known.values())
    if not known or total < 0.05:
        return ""
    unit, scale = ("kWh", 1000) if total >= 100 else ("Wh", 1)
    each = ", ".join(f"{name} {wh / scale:.3g}" for name, wh in known.items())
    money = "" if price is None else f", {dollars(total / 1000 * price)}"
    return f"{total / scale:.3g} {unit} ({each}){money}"


def bound_words(look: Look, *, of_all: bool = True) -> str:
    """What bound the run, or binds it now, and the one setting most worth changing."""
    found = judge(look.beat, threads=whole(look.info.get("threads")), cpus=machine.usable_cpus(), whole=of_all)
    return "" if found is None else found.line.removeprefix("bound ")


def _labelled(label: str, text: str, width: int = 10_000) -> list[str]:
    """A label and its text, which goes on under itself."""
    first = f"  {label:<9}"
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False
    ) or [first.rstrip()]


def _faults(look: Look) -> str:
    receipt = look.receipt or {}
    words = fault_words(receipt.get("faults") or {})
    if not words:
        return "none"
    parts = [words]
    recovered = look.seen.faults_recovered
    if receipt.get("survived") or recovered:
        parts.append("all recovered" if receipt.get("survived") else f"{count(recovered)} recovered")
    lost = number(receipt.get("seconds_lost"))
    lasted = look.lasted_s
    if lost:
        share = f" ({percent(lost / lasted)})" if lasted and lost <= lasted else ""
        parts.append(f"{duration(lost)} lost{share}")
    return "; ".join(parts)


def fault_words(faults: object) -> str:
    """{"hang": 2, "crash": 1} as "2 hangs, 1 crash"."""
    if not isinstance(faults, dict):
        return ""
    return ", ".join(counted(times, *_words(kind)) for kind, times in faults.items() if isinstance(times, int))


def _words(kind: str) -> tuple[str, str]:
    plain = kind.replace("_", " ")
    return _WORDS.get(kind, (f"{plain} fault", f"{plain} faults"))


def receipt_words(receipt: dict[str, object]) -> str:
    def of(key: str) -> str:
        return count(whole(receipt.get(key)))

    steps = counted(whole(receipt.get("steps")) or 0, "step")
    return (
        f"{steps}: {of('steps_repeated')} repeated, {of('steps_lost')} lost; "
        f"samples: {of('samples_skipped')} skipped, {of('samples_repeated')} seen twice"
        + (f", {of('samples_quarantined')} left out" if receipt.get("samples_quarantined") else "")
    )


def files(look: Look) -> list[str]:
    """Where the weights are."""
    lines = [line for name, path in look.weights.items() for line in _labelled(name, shown(path))]
    if look.state == RunState.FINISHED or look.live:
        return lines
    if not look.checkpoints:
        return [*lines, *_labelled("saved", "nothing yet")]
    step, path, _ = look.checkpoints[0]
    return lines + _labelled("saved", f"step {count(step)} in {shown(path)}")


def next_commands(look: Look) -> list[str]:
    rows: list[tuple[str, str]] = []
    if look.state in UNFINISHED_STATES:
        what = "continue from what was saved" if look.checkpoints else "start it again"
        rows.append((f"  holdfast resume {handle(look.run)}", what))
    rows.append((f"  holdfast show {handle(look.run)}", "everything about this run"))
    if look.state == RunState.FINISHED:
        rows.append((f"  holdfast report {handle(look.run)}", "the same as one page, to keep or to send"))
    return table(rows, gap=6)


def indented(lines: Iterable[str], by: int = 2) -> list[str]:
    return [" " * by + line if line else "" for line in lines]
