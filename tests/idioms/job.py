"""One idiom as a run of holdfast: `holdfast train job.py idiom=NAME plan="{'kill': [2, 5]}"`."""

from __future__ import annotations

import json

import torch

import holdfast
from tests.idioms.kit_list import idioms
from tests.idioms.pieces import Forward


def train(session: holdfast.Session, *, idiom: str = "", plan: str = "{}") -> None:
    path = session.run.folder / "plan.json"
    if not path.exists():
        path.write_text(plan.replace("'", '"'))
    Forward.folder, Forward.plan = session.run.folder, json.loads(path.read_text())
    torch.manual_seed(0)
    idioms()[idiom].ported(session)
