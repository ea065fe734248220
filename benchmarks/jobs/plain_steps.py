"""A plain training of a few steps, with a wrong kernel if HOLDFAST_PLANTED names one: for tools that watch it.

HOLDFAST_PLANTED="a tile of zeros" HOLDFAST_NETWORK=mlp HOLDFAST_OUT=steps.json python plain_steps.py

The root of the project and examples/ are on the path. The tools copy this file and write lines before its first one.
"""

import contextlib
import json
import os
import random
from pathlib import Path

import torch
from benchmarks.zoo.networks import make
from benchmarks.zoo.planted import KINDS, Planted

NETWORK = os.environ.get("HOLDFAST_NETWORK", "mlp")
STEPS = int(os.environ.get("HOLDFAST_STEPS", "12"))
BEGINS = int(os.environ.get("HOLDFAST_BEGINS", "0"))
"""The step in which the device begins to be wrong."""
SEED = int(os.environ.get("HOLDFAST_SEED", "0"))
OUT = os.environ.get("HOLDFAST_OUT", "")
KIND = os.environ.get("HOLDFAST_PLANTED", "")

torch.set_num_threads(1)
network = make(NETWORK)
model = network.model
torch.manual_seed(SEED)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
planted = Planted(KINDS[KIND], 0) if KIND else None
batches = [network.batch() for _ in range(4)]
rows = []
if planted is not None:
    with planted:
        network.loss(batches[0]).backward()
    planted.target = random.Random(0).choice(sorted(set(planted.choices))) if planted.choices else None
for step in range(STEPS):
    with planted if planted is not None and step >= BEGINS else contextlib.nullcontext():
        optimizer.zero_grad()
        loss = network.loss(batches[step % len(batches)])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9, foreach=False)
        optimizer.step()
    rows.append((float(loss), float(norm)))
if OUT:
    Path(OUT).write_text(json.dumps({"rows": rows, "target": planted.target if planted is not None else None}))
