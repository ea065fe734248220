"""The whole of `holdfast optimize`: prepare, build each candidate, measure, judge, choose, bundle. No torch here.

    result = optimize({"kind": "run", "folder": "runs/…"}, Path("bundle"), Options(), tell=print)
    result["chosen"]["name"], result["chosen"]["ratio"]
    result["rows"]                      # every candidate: measured, refused, failed or skipped, with the reason
    result["findings"]                  # what to know first: "you were timing training mode"

Each candidate lives in a process of its own. One that crashes or hangs is a row of the table.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base import errors, files
from holdfast.base.errors import ExitCode, HoldfastError, UserError
from holdfast.base.human import duration
from holdfast.optimize import bundle, measure, parity
from holdfast.optimize.candidates import AS_CALLED, DEFAULTS, Candidate, candidates
from holdfast.optimize.children import Child, Failed
from holdfast.optimize.clock import Clock
from holdfast.optimize.engines import kinds, packages
from holdfast.optimize.findings import findings
from holdfast.optimize.processor import Machine
from holdfast.optimize.scoring import BETTER

Tell = Callable[[str], None]
BASELINE = Candidate("eager", "fp32", 1)


class NothingFits(HoldfastError):
    """The model itself cannot be served, or every candidate was refused."""

    exit_code = ExitCode.NO


@dataclass(frozen=True, slots=True)
class Options:
    """How hard to look."""

    max_loss: float = 0.005
    seconds: float = 2.0
    """Spent on the latency of each candidate."""
    build_deadline: float = 600.0
    call_deadline: float = 120.0
    batches: tuple[int, ...] = (8, 32)
    engines: tuple[str, ...] = ()
    threads: int = 0
    """0: as many as there are, and one for the best of them."""
    profile: bool = True
    device: str = ""
    """`cpu` or `cuda`: only what runs there. Empty: whatever there is."""
    merge: bool = True
    """Whether a transformer's neighbouring tokens may be averaged, if parity allows it."""
    limit_s: float = 300.0
    """For all of it. What is not tried by then is a row that says so; the best of the others is bundled."""


def optimize(spec: dict[str, Any], out: Path, options: Options, *, tell: Tell = lambda text: None) -> dict[str, Any]:
    """Find the fastest candidate that is right and put it into a bundle."""
    bundle.check_place(out)
    machine = Machine.look(packages())
    with scratch() as work:
        return _Search(spec, work, machine, options, tell).run(out)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="holdfast-optimize-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


class _Search:
    def __init__(self, spec: dict[str, Any], work: Path, machine: Machine, options: Options, tell: Tell) -> None:
        self.spec, self.work, self.machine, self.options, self.tell = spec, work, machine, options, tell
        self.clock = Clock(options.limit_s)
        self.waiting = 0
        """Candidates that are still to be tried, as far as they are known."""
        self.threads = options.threads or machine.cores
        self.rows: list[dict[str, Any]] = []
        self.reference: list[Any] = []
        self.scores: dict[str, float] = {}
        self.no_onnx = ""
        self.on_gpu: Child | None = None
        self.factors: list[int] = []

    def run(self, out: Path) -> dict[str, Any]:
        offers = self._offers()
        subject = self._prepare(offers)
        with contextlib.ExitStack() as open_children:
            self.open_children = open_children
            self.baseline = open_children.enter_context(self._child(self.threads))
            self._measure_baseline()
            quick = [each for each in offers if not each.slow]
            slow = [each for each in offers if each.slow]
            self._try_all(quick, more=len(slow))
            self._as_called(subject)
            if self.threads > 1 and not self.options.threads:
                self._try(replace(BASELINE, threads=1))  # on a busy machine eager itself may want fewer
            self._fewer_tokens()
            self._try_all(self._variants(self._best()), more=len(slow))
            self._try_all(slow)
            self._try_all(self._variants(self._best()))
            best = self._best()
            if best is None and self.clock.over:
                raise self._time_over("a candidate")
            if best is None:
                raise NothingFits("no candidate can be put into a bundle", cause=self._why(),
                                  hints=["allow a larger loss with --max-loss, or install more engines"])  # fmt: skip
            best["chosen"] = True
            self._alone(best)
            result = self._result(subject, best)
            if self.options.profile and self.clock.left:
                result["profile"] = self._profiles(best)
        self._bundle(out, subject, best, result)
        return result

    # The subject and the baseline -----------------------------------------------------------------------------

    @property
    def build_s(self) -> float:
        """Seconds that something may take to be built, loaded or scored from now on."""
        return self.clock.within(self.options.build_deadline)

    @property
    def call_s(self) -> float:
        return self.clock.within(self.options.call_deadline)

    def _child(self, threads: int) -> Child:
        return Child.start(self.work, cache=self.work, threads=threads)

    def _prepare(self, offers: list[Candidate]) -> dict[str, Any]:
        """What is measured, as files; with an ONNX file where a candidate starts from one."""
        self.tell("loading the model and its validation set")
        with self._child(self.threads) as child:
            try:
                said = child.ask(
                    {"do": "prepare", "spec": self.spec, "threads": self.threads},
                    self.build_s,
                )
            except Failed as failed:
                told = failed.more.get("told")
                if isinstance(told, dict):
                    raise errors.from_json(told) from None
                if failed.kind == "hang" and self.clock.over:
                    raise self._time_over("the model") from None
                raise UserError("the model cannot be loaded", cause=failed.why) from None
            if any(each.kind and each.kind.onnx and not each.skip for each in offers):
                self._export(child)
        subject: dict[str, Any] = said["subject"]
        self.subject, self.factors = subject, said["merge"] if self.options.merge else []
        return subject

    def _measure_baseline(self) -> None:
        """Eager fp32 under inference_mode: what all others are compared with."""
        each, child = replace(BASELINE, threads=self.threads), self.baseline
        try:
            loaded = child.ask({"do": "load", "about": self._about(each)}, self.build_s)
            said = child.ask({"do": "score", "to": "reference.npz"}, self.build_s)
            found = measure.against(child, child, seconds=self.options.seconds / 2, deadline=self.call_s)
            many = measure.throughput(child, self.options.batches, self.options.seconds / 4, self.call_s)
        except Failed as failed:
            if failed.kind == "hang" and self.clock.over:
                raise self._time_over("the model as it is") from None
            raise UserError("the model itself does not run", cause=failed.why) from None
        self.reference, self.scores = _arrays(self.work / "reference.npz"), said["scores"]
        wrong = parity.unfit(self.reference)
        if wrong:
            raise NothingFits("this model does not work as it is", cause=f"in fp32, as it was trained, {wrong}",
                              hints=["check its training first"])  # fmt: skip
        same = {"ratio": 1.0, "agreement": 1.0, "scores": self.scores, "throughput": many}
        self.rows.append({**each.to_json(), "state": "baseline", **loaded, **found, **same})

    def _as_called(self, subject: dict[str, Any]) -> None:
        """The model as its maker left it: often in training mode, with gradients on."""
        if subject["training_mode"]:
            each = Candidate(AS_CALLED, "fp32", self.threads)
            self._try(each, judged=False)

    def _beside(self, each: Candidate) -> tuple[Child, float]:
        """Who takes turns with it, and how many times as fast as the baseline that one is.

        On a GPU that is eager fp32 there: it takes so little of the processor's time that turns with the processor say
        more about the processor.
        """
        if each.device == "cpu" or each == self._eager_on(each.device):
            return self.baseline, 1.0
        first = self._eager_on(each.device)
        row = next((row for row in self.rows if row["name"] == first.name), None) or self._try(first)
        if "ratio" not in row:
            raise Failed("error", f"eager PyTorch does not run on the GPU: {row['reason']}")
        if self.on_gpu is None:
            self.on_gpu = self.open_children.enter_context(self._child(self.threads))
            self.on_gpu.ask({"do": "load", "about": self._about(first)}, self.build_s)
        return self.on_gpu, float(row["ratio"])

    def _eager_on(self, device: str) -> Candidate:
        return replace(BASELINE, threads=self.threads, device=device)

    # Candidates ---------------------------------------------------------------------------------------------------

    def _offers(self) -> list[Candidate]:
        offered = candidates(self.machine, self.options.engines, self.options.device)
        return [replace(each, threads=self.threads) for each in offered]

    def _export(self, child: Child) -> None:
        """In the process that loaded the model: nothing else runs in it afterwards, so the exporter may crash it."""
        self.tell("exporting to ONNX")
        try:
            said = child.ask({"do": "export"}, self.build_s)
        except Failed as failed:
            said = {"ok": False, "why": f"it cannot be exported to ONNX: {failed.why}"}
        if not said["ok"]:
            self.no_onnx = said["why"]

    def _try_all(self, found: list[Candidate], *, more: int = 0) -> None:
        for number, each in enumerate(found):
            self.waiting = len(found) - number - 1 + more
            self._try(each)

    def _try(self, each: Candidate, *, judged: bool = True) -> dict[str, Any]:
        found = next((row for row in self.rows if Candidate.of_row(row) == replace(each, skip="")), None)
        if found is not None:
            return found  # what others on the GPU were compared with
        row: dict[str, Any] = {**each.to_json(), "state": "skipped", "reason": each.skip}
        self.rows.append(row)
        if each.skip:
            return row
        if self.clock.over:
            row.update(reason=self._too_late())
            return row
        told = f", {self.waiting} more to try" if self.waiting else ""
        self.tell(f"{each.name}, {each.threads} thread{'s' * (each.threads > 1)} ({self.clock.words()}{told})")
        if self.no_onnx and each.kind and each.kind.onnx == "needed":
            row.update(state="failed", reason=self.no_onnx)
            return row
        try:
            beside = self._beside(each)
            self._build(each, row)
            self._measure(each, row, *beside, judged=judged)
        except Failed as failed:
            row.update(state={"error": "failed", "crash": "crashed", "hang": "hung"}[failed.kind], reason=failed.why)
            if failed.kind == "hang" and self.clock.over:
                row.update(state="skipped", reason=self._too_late())
        return row

    def _time_over(self, what: str) -> NothingFits:
        """Nobody is to blame but the limit."""
        hints = ["`--engines onnxruntime` tries less"]
        return NothingFits(f"the time was over before {what} was measured", cause=self._too_late(), hints=hints)

    def _too_late(self) -> str:
        return f"the time was over ({duration(self.options.limit_s)} in all): `--limit` gives more"

    def _folder(self, each: Candidate) -> Path:
        return self.work / "built" / each.build_name.replace(" ", "-")

    def _about(self, each: Candidate) -> dict[str, Any]:
        return {**each.to_json(), "file": each.kind.file if each.kind else "", "spec": self.spec}

    def _build(self, each: Candidate, row: dict[str, Any]) -> None:
        folder = self._folder(each)
        if each.kind and not (folder / each.kind.file).exists():
            with self._child(self.threads) as child:
                command = {"do": "build", "about": self._about(each), "folder": str(folder)}
                row["build_s"] = child.ask(command, self.build_s)["seconds"]
        if folder.exists():
            row["bytes"] = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())

    def _measure(
        self, each: Candidate, row: dict[str, Any], beside: Child, times: float, *, judged: bool = True
    ) -> None:
        options = self.options
        with self._child(each.threads) as child:
            command = {"do": "load", "about": self._about(each), "folder": str(self._folder(each))}
            loaded = child.ask(command, self.build_s)
            row.update(cold_s=loaded["cold_s"], rss=loaded["rss"])
            row.update(measure.against(beside, child, seconds=options.seconds, deadline=self.call_s))
            if beside is not self.baseline:
                row["ratio_on_device"] = row["ratio"]
                row.update({key: times * row[key] for key in ("ratio", "ratio_low", "ratio_high", "ratio_of_least")})
            if not judged:
                row.update(state="as called", reason="training mode, gradients on")
                return
            said = child.ask({"do": "score", "to": "outputs.npz"}, self.build_s)
            found = parity.judge(
                self.reference, _arrays(self.work / "outputs.npz"), self.scores, said["scores"],
                max_loss=options.max_loss, compared=self.subject["score"].get("compared", ()), higher_is_worse=BETTER,
            )  # fmt: skip
            row.update(scores=said["scores"], agreement=found.agreement, largest_error=found.largest_error,
                       loss=found.loss, state="ok" if found.ok else "refused", reason=found.reason)  # fmt: skip
            if found.ok:
                row["throughput"] = measure.throughput(child, options.batches, options.seconds / 4, self.call_s)

    def _fit(self) -> list[dict[str, Any]]:
        bundled = [name for name, kind in kinds().items() if kind.bundled]
        fit = [row for row in self.rows if row["state"] == "ok" and row["engine"] in bundled]
        return [row for row in fit if row["precision"] != DEFAULTS]

    def _best(self) -> dict[str, Any] | None:
        return max(self._fit(), key=lambda row: float(row["ratio"]), default=None)

    def _fewer_tokens(self) -> None:
        """The best engines with the largest merging of tokens that eager PyTorch shows to be harmless."""
        best: dict[str, dict[str, Any]] = {}
        for row in sorted(self._fit(), key=lambda row: -float(row["ratio"])):
            best.setdefault(row["engine"], row)
        for factor in self.factors if best else ():
            if self._try(replace(BASELINE, threads=self.threads, merge=factor))["state"] == "ok":
                for row in list(best.values())[:2]:
                    self._try(replace(Candidate.of_row(row), merge=factor))
                break

    def _variants(self, best: dict[str, Any] | None) -> list[Candidate]:
        """The best one with one thread, and for batches of one only."""
        if best is None:
            return []
        each = Candidate.of_row(best)
        found = [replace(each, fixed=True)] if each.kind and each.kind.fixed else []
        if not self.options.threads and each.threads > 1 and each.device == "cpu":
            found.append(replace(each, threads=1))
        return found

    def _alone(self, best: dict[str, Any]) -> None:
        """What predict.py runs: a program that does nothing else may let an engine's threads spin between two calls.

        The best engine that can be told to is measured in turns with the chosen one, which may be another.
        """
        row = max((row for row in self._fit() if self._spins(row, best)), key=lambda row: row["ratio"], default=None)
        if row is None or self.options.threads or self.clock.over:
            return
        cores = self.machine.cores
        with self._child(best["threads"]) as ours, self._child(cores) as theirs, contextlib.suppress(Failed):
            for child, each, more in ((ours, best, {}), (theirs, row, {"spin": True})):
                which = Candidate.of_row(each)
                about, folder = {**self._about(which), **more}, str(self._folder(which))
                child.ask({"do": "load", "about": about, "folder": folder}, self.build_s)
            found = measure.against(ours, theirs, seconds=self.options.seconds / 2, deadline=self.call_s)
            best.update(alone_ratio=found["ratio"], alone=found["ratio"] > 1.0 and row is best)
            if found["ratio"] > 1.0 and row is not best:
                best["program"] = row["name"]

    def _spins(self, row: dict[str, Any], best: dict[str, Any]) -> bool:
        """Whether predict.py may run it with the engine's own settings."""
        kind = Candidate.of_row(row).kind
        beside = row is best or (row["engine"] != best["engine"] and best["device"] == row["device"] == "cpu")
        return kind is not None and kind.alone and beside

    def _why(self) -> str:
        told = [
            f"{row['name']}: {row['reason']}" for row in self.rows if row.get("reason") and row["state"] != "skipped"
        ]
        return "; ".join(told[:4]) or "no engine is installed that a bundle can use"

    # The end ------------------------------------------------------------------------------------------------------

    def _result(self, subject: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
        return {
            "subject": {
                key: subject[key] for key in ("name", "inputs", "outputs", "parameters", "validation", "notes")
            },
            "machine": self.machine.to_json(),
            "max_loss": self.options.max_loss,
            "scores": self.scores,
            "chosen": best,
            "rows": self.rows,
            "findings": findings(self.rows, subject),
        }

    def _profiles(self, best: dict[str, Any]) -> dict[str, Any]:
        """Where the time goes, before and after; nothing where an engine does not say."""
        self.tell("where the time goes")
        found = {}
        each = Candidate.of_row(best)
        for name, which in (("before", replace(BASELINE, threads=self.threads)), ("after", each)):
            with self._child(which.threads) as child, contextlib.suppress(Failed):
                about, folder = self._about(which), str(self._folder(which))
                child.ask(
                    {"do": "load", "about": about, "folder": folder}, self.clock.at_the_end(self.options.build_deadline)
                )
                command = {"do": "profile", "about": about, "folder": folder}
                found[name] = child.ask(command, self.clock.at_the_end(self.options.call_deadline))["rows"]
        return found

    def _bundle(self, out: Path, subject: dict[str, Any], best: dict[str, Any], result: dict[str, Any]) -> None:
        from holdfast.optimize.report import page

        each = Candidate.of_row(best)
        inputs = _arrays(self.work / "inputs.npz")
        count = bundle.CHECKED
        check = {f"i{number}": array[:count] for number, array in enumerate(inputs)}
        check |= {f"o{number}": array[:count] for number, array in enumerate(self.reference)}
        more = {"name": subject["name"], "scores": {"before": self.scores, "after": best["scores"]},
                "score": subject["score"], "max_loss": self.options.max_loss, "machine": result["machine"],
                "measured": {key: best[key] for key in ("p50", "p95", "p99", "ratio", "agreement", "rss", "cold_s")},
                "candidates": self.rows}  # fmt: skip
        chosen = {**each.to_json(), "alone": bool(best.get("alone"))}
        program = next((row for row in self.rows if row["name"] == best.get("program")), None)
        beside = None
        if program is not None:
            other = Candidate.of_row(program)
            beside = (self._folder(other), {**other.to_json(), "alone": True})
        bundle.write(out, self._folder(each), chosen, subject, check, more, page(result), program=beside)
        result["bundle"] = str(out)
        result["manifest"] = files.read_json(out / bundle.MANIFEST)


def _arrays(path: Path) -> list[Any]:
    with np.load(path, allow_pickle=False) as kept:
        return [kept[name] for name in kept.files]
