"""What is wrong with the kernels of a pretend device, for the probes of the doctor. No torch here.

    path = write(folder / "pretend.json", [
        Symptom("wrong", kernel="convolution", part="backward"),            # forward right, gradients wrong
        Symptom("wrong", precision="fp16", batch=7, how="nan"),             # only in fp16, only from batch 7 on
        Symptom("hang", kernel="scaled_dot", cure="sdpa-math"),             # cured by a remedy
        Symptom("memory", limit=24 << 20),                                  # has less than it says
    ])
    os.environ["HOLDFAST_PRETEND"] = str(path)

Unlike an ailment (ailments.py), which shows at a step of a run, a symptom shows wherever such a kernel is computed,
each time. The same file may hold both.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import UserError
from holdfast.injection.ailments import VARIABLE, WRONG
from holdfast.run.folder import read_json

KINDS = ("crash", "abort", "hang", "error", "wrong", "memory", "slow", "greedy")
"""A read of address zero; abort() as ROCm does it; an endless wait; a device error; wrong numbers; less memory than
reported; a first launch that takes `seconds`; memory of the machine without end."""
PARTS = ("", "forward", "backward", "double backward", "update")
PLANT = "HOLDFAST_PLANT"
"""Names a file whose symptoms any device is to have: a wrong kernel on a real one, to see that it is found."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """One thing that is wrong, and when it shows."""

    kind: str
    kernel: str = ""
    """Part of an operator's name as torch has it (`convolution`, `mm`, `native_batch_norm`); none: any."""
    part: str = ""
    """Of a step; none: any."""
    precision: str = ""
    """Only for tensors of fp16, bf16 or fp32; none: any."""
    batch: int = 0
    """From this batch size on."""
    channels_last: bool = False
    seconds: float = 0.0
    """Only once a process has computed for so long; for `slow`, how long the first launch takes."""
    company: bool = False
    """Only while another process uses the device."""
    how: str = "scale"
    """For wrong numbers: which."""
    limit: int = 0
    """For memory: bytes that there really are; it says that there are `reported`."""
    reported: int = 64 << 20
    cure: str = ""
    """A flag of HOLDFAST_REMEDIES or NAME=VALUE of the environment that makes it go away."""
    device: str = "pretend:0"

    def __post_init__(self) -> None:
        for value, known in ((self.kind, KINDS), (self.part, PARTS), (self.how, WRONG)):
            if value not in known:
                close = difflib.get_close_matches(str(value), known, n=1)
                hints = [f"did you mean `{close[0]}`?"] if close else []
                raise UserError(f"no device has the symptom `{value}`", hints=[*hints, f"known: {', '.join(known)}"])

    def cured(self, env: Mapping[str, str]) -> bool:
        name, sign, value = self.cure.partition("=")
        if sign:
            return env.get(name) == value
        return bool(name) and name in [word.strip() for word in env.get("HOLDFAST_REMEDIES", "").split(",")]


EXAMPLES: dict[str, Symptom] = {
    "a crash": Symptom("crash", kernel="convolution", part="backward"),
    "an abort": Symptom("abort", kernel="convolution", part="forward"),
    "a hang": Symptom("hang", part="backward"),
    "a device error": Symptom("error", part="forward"),
    "a wrong forward pass": Symptom("wrong", kernel="addmm", part="forward"),
    "wrong gradients only": Symptom("wrong", kernel="backward", part="backward"),
    "wrong only in fp16": Symptom("wrong", kernel="convolution", precision="fp16"),
    "NaN only in fp16 from batch 7 on": Symptom("wrong", kernel="conv", precision="fp16", batch=7, how="nan"),
    "wrong only in channels_last": Symptom("wrong", kernel="batch_norm_backward", channels_last=True),
    "NaN in the gradient of a gradient": Symptom("wrong", kernel="conv", part="double backward", how="nan"),
    "less memory than it says": Symptom("memory", limit=24 << 20),
    "a slow first launch": Symptom("slow", seconds=75.0),
    "wrong only under sustained load": Symptom("wrong", kernel="mm", seconds=4.0),
    "wrong only beside a second process": Symptom("wrong", part="backward", company=True),
}
"""The bad behaviours of real devices, as people have reported them: a tester is good for as many as it notices."""


def write(path: Path, symptoms: Iterable[Symptom]) -> Path:
    """Where HOLDFAST_PRETEND points to; ailments that are there already stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = (read_json(path) if path.exists() else None) or {}
    data = {"ailments": before.get("ailments", []), "symptoms": [asdict(each) for each in symptoms]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def read(path: Path) -> list[Symptom]:
    data: dict[str, Any] = read_json(path) or {}
    listed = data.get("symptoms", [])
    try:
        return [Symptom(**each) for each in listed]
    except TypeError as error:
        raise UserError(f"{path} cannot be understood", cause=str(error)) from None


def of(device: str, variable: str = VARIABLE, env: Mapping[str, str] | None = None) -> list[Symptom]:
    """What a device suffers from now: what a remedy in the environment has cured is left out."""
    env = os.environ if env is None else env
    named = env.get(variable)
    found = read(Path(named)) if named else []
    return [each for each in found if (each.device == device or variable == PLANT) and not each.cured(env)]
