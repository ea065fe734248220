"""The child process: does one thing at a time for the parent, in JSON lines over its standard streams.

    {"do": "prepare", "spec": {...}}                    the subject as files, and what fp32 eager says
    {"do": "export"}                                    the ONNX file that several candidates start from
    {"do": "build", "about": {...}, "folder": "…"}      the file of one candidate
    {"do": "load", "about": {...}, "folder": "…"}       load it; from then on:
    {"do": "time", "batch": 1, "count": 20}             seconds of each call
    {"do": "score", "to": "outputs.npz"}                run the validation set, score it
    {"do": "profile"}                                   where the time goes

What a library prints goes to stderr. The parent kills this process whenever it takes too long.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.base.control_characters import without_control
from holdfast.base.errors import HoldfastError

_BEGAN = time.perf_counter()


class Worker:
    """Holds what was loaded."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.engine: Any = None
        self.about: dict[str, Any] = {}
        self.subject: dict[str, Any] = {}
        self.inputs: list[Any] = []
        self._at = 0

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self, f"_{command['do']}")(command)
        return found

    def _read(self) -> None:
        from holdfast.base import files

        self.subject = files.read_json(self.work / "subject.json") or {}

    def _prepare(self, command: dict[str, Any]) -> dict[str, Any]:
        from holdfast.optimize import subject as subjects
        from holdfast.optimize.engines import of_module
        from holdfast.optimize.rewrite import factors

        found = subjects.load(command["spec"])
        was = found.model.training
        engine = of_module(found.model.eval(), {"threads": command.get("threads", 1), "precision": "fp32"})
        try:
            outputs = engine.run([each[:2] for each in found.inputs])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            from holdfast.base.errors import UserError

            shapes = ", ".join(str(tuple(each.shape)) for each in found.inputs)
            raise UserError(
                "the model does not take these inputs", cause=f"inputs {shapes}: {str(error)[:300]}"
            ) from None
        found.model.train(was)
        about = subjects.write(found, self.work, command["spec"], outputs)
        import torch

        return {"subject": about, "merge": factors(found.model, [torch.from_numpy(each[:1]) for each in found.inputs])}

    def _export(self, command: dict[str, Any]) -> dict[str, Any]:
        from holdfast.optimize import build, subject

        self._read()
        names = [[each["name"] for each in self.subject[key]] for key in ("inputs", "outputs")]
        model = subject.load_model(self.subject["spec"])
        began = time.perf_counter()
        try:
            way = build.export_onnx(self.work, model, self.work / build.ONNX, *names)
        except build.CannotExport as error:
            (self.work / build.ONNX).unlink(missing_ok=True)
            return {"ok": False, "why": str(error)}
        return {"ok": True, "way": way, "seconds": time.perf_counter() - began}

    def _build(self, command: dict[str, Any]) -> dict[str, Any]:
        from holdfast.optimize import engines

        self._read()
        began = time.perf_counter()
        engines.build(self.work, {**command["about"], **_ports(self.subject)}, Path(command["folder"]))
        return {"seconds": time.perf_counter() - began}

    def _load(self, command: dict[str, Any]) -> dict[str, Any]:
        from holdfast.optimize import engines

        self._read()
        self.about = {**command["about"], **_ports(self.subject)}
        if self.about["engine"] in engines.kinds():
            self.engine = engines.load(Path(command["folder"]), self.about)
        else:
            self.engine = self._of_torch()
        import numpy as np

        with np.load(self.work / "inputs.npz", allow_pickle=False) as kept:
            self.inputs = [kept[name] for name in kept.files]
        self._call(1)
        return {"cold_s": time.perf_counter() - _BEGAN, "rss": _rss()}

    def _of_torch(self) -> Any:
        import torch

        from holdfast.optimize.build import model_of
        from holdfast.optimize.engines import of_module
        from holdfast.optimize.subject import load_model

        if self.about["engine"] == "as called":
            return of_module(load_model(self.subject["spec"]), self.about, gradients=True)
        model = model_of(self.work, self.about).to(self.about.get("device", "cpu"))
        if self.about["engine"] == "compile":
            mode = "reduce-overhead" if self.about.get("device") == "cuda" else "default"  # with CUDA graphs
            model = torch.compile(model, mode=mode)
        return of_module(model, self.about)

    def _call(self, batch: int) -> float:
        """One call on the next inputs; everything a caller waits for is in it."""
        import numpy as np

        from holdfast.optimize.post import apply

        count = len(self.inputs[0])
        rows = (self._at + np.arange(batch)) % count
        self._at += batch
        given = [np.ascontiguousarray(each[rows]) for each in self.inputs]
        began = time.perf_counter()
        apply(self.subject.get("post"), self.engine.run(given))
        return time.perf_counter() - began

    def _time(self, command: dict[str, Any]) -> dict[str, Any]:
        until = time.perf_counter() + float(command.get("seconds", 1e9))
        times: list[float] = []
        while len(times) < command["count"] and (not times or time.perf_counter() < until):
            times.append(self._call(command["batch"]))
        return {"times": times}

    def _score(self, command: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        from holdfast.optimize.scoring import score

        scores, outputs = score(self.work, self.subject, self.engine)
        np.savez(self.work / command["to"], **{f"o{number}": each for number, each in enumerate(outputs)})  # type: ignore[arg-type]
        return {"scores": scores, "rss": _rss()}

    def _profile(self, command: dict[str, Any]) -> dict[str, Any]:
        from holdfast.optimize.profile import profile

        folder = Path(command.get("folder") or self.work)
        return {"rows": profile(folder, {**command["about"], **_ports(self.subject)}, self.subject, self.inputs)}


def _ports(subject: dict[str, Any]) -> dict[str, Any]:
    return {key: subject[key] for key in ("inputs", "outputs", "spec") if key in subject}


def _rss() -> int | None:
    seen = processes.inspect(os.getpid())
    return None if seen is None else seen.rss_bytes


def main(argv: list[str], kind: Any = Worker) -> int:
    processes.die_with_parent(int(argv[1]))
    # Answers leave by a descriptor of their own: whatever a library prints, from Python or from C, goes to stderr.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        worker = kind(Path(argv[0]))
        for line in sys.stdin:
            try:
                answer = worker.do(json.loads(line))
            except HoldfastError as error:
                answer = {"error": error.message, "told": error.to_json()}
            except Exception as error:  # the edge of the process: a library's failure is a candidate's result
                import traceback

                print(without_control(traceback.format_exc()), file=sys.stderr, flush=True)
                answer = {"error": f"{type(error).__name__}: {_first(str(error))}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    return 0


def _first(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
