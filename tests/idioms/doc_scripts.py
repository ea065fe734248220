"""The scripts of docs/changing-on-the-way.md, as they are printed there.

They call nothing of the kit. So the process is killed, or the run is asked to stop, after an update of an optimizer,
and nothing comes back, or no memory is left, in the forward of the first layer after an update. Only that one counts:
when memory runs out twice in one step, the batch is split, and a sum over halves has other bits.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from holdfast.worker.session import Session
from tests.idioms.pieces import idiom, in_forward, moment

PAGE = Path(__file__).parents[2] / "docs" / "changing-on-the-way.md"
SECTION = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENOUGH = {"LBFGS": 8}
"""Epochs of those that would be over before the last kill."""


def _add(title: str, script: str) -> None:
    @idiom(f"docs: {title}")
    def printed(session: Session) -> None:
        names: dict[str, Any] = {"__name__": "printed"}
        exec(compile(script, PAGE.name, "exec"), names)
        new_update = True

        def updated(*_: Any) -> None:
            nonlocal new_update
            new_update = True
            moment(session)

        def forward(*_: Any) -> None:
            nonlocal new_update
            first, new_update = new_update, False
            if first:
                in_forward()

        hooks = [register_optimizer_step_post_hook(updated), register_module_forward_hook(forward)]
        try:
            names["train"](session, **({"epochs": ENOUGH[title]} if title in ENOUGH else {}))
        finally:
            for hook in hooks:
                hook.remove()


for _title, _script in SECTION.findall(PAGE.read_text("utf-8")):
    _add(_title, _script)
