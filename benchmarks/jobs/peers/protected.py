"""The same job with holdfast.

holdfast train protected.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from shared import BATCH, EPOCHS, Data, done, finish, network, optimizer_of
from torch.nn.functional import cross_entropy

import holdfast


def train(session: holdfast.Session) -> None:
    model = network()
    optimizer = optimizer_of(model)
    data = holdfast.Loader(Data(), batch_size=BATCH, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(EPOCHS):
        for batch in session.batches(data):
            session.step(lambda b: cross_entropy(model(b[0]), b[1]), batch)
            done(session.step_count)
    finish(model)
