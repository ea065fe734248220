"""Where it happened: versions, hardware, and the variables that change how training behaves. Secrets are left out.

    look({**os.environ, **rung.env}, run.info)

The names of variables are an allow-list, so a new secret is not kept by accident; values and arguments that look
like one are left out even so. No torch and no driver is asked: see `holdfast.run.machine`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.base.human import shorten
from holdfast.run import machine
from holdfast.run.folder import redact

_MORE = re.compile(r"PATH|TORCH\w*|HOLDFAST_\w+")
"""Beside those of `holdfast env`: too long or too private for what people paste, useful beside a fault."""
_OF_RUN = ("run", "workload", "script", "argv", "arguments", "seed", "threads", "holdfast")
LEFT_OUT = "(left out)"


def look(
    environment: Mapping[str, str] | None = None, info: Mapping[str, Any] | None = None, root: Path = machine.ROOT
) -> dict[str, Any]:
    """All of it, as JSON; `info` is that of the run."""
    variables = os.environ if environment is None else environment
    facts = machine.look(root, variables)
    facts["environment"] = {**facts["environment"], **_more(variables)}
    facts["run"] = {name: _clean(info[name]) for name in _OF_RUN if info and name in info}
    return facts


def _more(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: LEFT_OUT if machine.secret(name, value) else shorten(value)
        for name, value in sorted(variables.items())
        if _MORE.fullmatch(name)
    }


def _clean(value: Any) -> Any:
    """Words and settings of the user's own, without what looks like a secret."""
    if isinstance(value, str):
        return LEFT_OUT if machine.secret("", value) else shorten(value)
    if isinstance(value, list):
        return [_clean(word) for word in redact([str(word) for word in value])]
    if isinstance(value, dict):
        return {str(name): _clean(redact([f"{name}={each}"])[0].partition("=")[2]) for name, each in value.items()}
    return value
