"""A policy of a finished run as something to make fast: its network, what animals saw, and how it fares. Needs torch.

    model(folder, {"species": "prey"})        # one of the two policies
    subject(folder, {"species": "prey"})      # a Subject with what the animals saw
    score(work, about, engine, outputs)       # the same action how often, and what it catches against dice

What a run folder holds is untrusted: it is read by the workload's own readers, which check it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast.base import files
from holdfast.base.errors import UserError
from holdfast.optimize.engines import Arrays, Engine
from holdfast.optimize.subject import MOST_VALIDATION, Subject, load_weights
from holdfast.workloads.ecosystem.evaluate import duel
from holdfast.workloads.ecosystem.policy import Policy, size_of
from holdfast.workloads.ecosystem.rollout import Driver, collect
from holdfast.workloads.ecosystem.rules import PREDATOR, PREY, Rules
from holdfast.workloads.ecosystem.world import World


def _about(folder: Path) -> tuple[dict[str, Any], Any]:
    about = files.read_json(folder / "ecosystem.json") or {}
    return about, Rules.from_json(about.get("rules"))


def model(folder: Path, spec: dict[str, Any]) -> nn.Module:
    about, _ = _about(folder)
    net = Policy(size_of(str(about.get("preset"))))
    load_weights(net, folder / "final.safetensors", f"{spec.get('species', 'predators')}.")
    return net.eval()


def subject(folder: Path, spec: dict[str, Any]) -> Subject:
    species = str(spec.get("species", "predators"))
    if species not in ("predators", "prey"):
        raise UserError(f"species is {species!r}", cause="there are predators and prey")
    net = model(folder, spec)
    _, rules = _about(folder)
    mine, other = (PREDATOR, PREY) if species == "predators" else (PREY, PREDATOR)
    torch.manual_seed(0)
    tracks = []
    for seed in (11, 12):
        gathered = collect(World(rules, seed), {mine: Driver(net), other: Driver(None)}, 12, torch.device("cpu"))
        tracks.append(gathered.tracks[mine])
    given = [
        [torch.cat(getattr(track, name)).numpy()[:MOST_VALIDATION] for name in ("own", "others")] for track in tracks
    ]
    return Subject(
        f"{folder.name} {species}", net, given[0], ["own", "others"], outputs=["logits", "value"],
        calibration=given[1],
        score={"kind": "policy", "species": species, "rules": rules.to_json(), "worlds": 8, "steps": 40},
        contract={"given": "what each animal sees: its own features and those of its neighbours, one row an animal",
                  "gives": "logits of the actions, and the value"},
    )  # fmt: skip


def score(work: Path, about: dict[str, Any], engine: Engine, outputs: Arrays) -> dict[str, float]:
    """How often it would do what the original does, and what it catches against dice in the same worlds."""
    told = about["score"]

    def act(own: torch.Tensor, others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, value = engine.run([own.numpy(), others.numpy()])
        return torch.from_numpy(np.array(logits)), torch.from_numpy(np.array(value)).reshape(-1)

    torch.manual_seed(0)
    mine, other = (PREDATOR, PREY) if told["species"] == "predators" else (PREY, PREDATOR)
    found = duel(Rules.from_json(told["rules"]), {mine: act, other: None}, worlds=told["worlds"], steps=told["steps"])
    name, values = ("catches", found.catches) if mine == PREDATOR else ("survival", found.survival)
    numbers = {name: float(values.mean()), f"{name}_spread": float(values.std() / np.sqrt(len(values)))}
    reference = work / "reference.npz"
    if reference.exists():
        with np.load(reference, allow_pickle=False) as kept:
            numbers["same_action"] = float((kept["o0"].argmax(-1) == outputs[0].argmax(-1)).mean())
    else:
        numbers["same_action"] = 1.0
    return numbers
