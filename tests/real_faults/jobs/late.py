"""A step that is not finite, and an error in the next one, which the script raises before anybody knew of the first.

With `bug`, the error comes again in every worker; else both happen once.
"""

from __future__ import annotations

import torch

import holdfast


def train(session: holdfast.Session, *, bug: bool = False) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = holdfast.Loader(torch.utils.data.TensorDataset(torch.randn(48, 4)), batch_size=4)
    session.protect(model=model, optimizer=optimizer, data=data)
    marks = session.run.folder / "nan", session.run.folder / "raised"

    def fn(batch: list[torch.Tensor]) -> torch.Tensor:
        step = session.step_count + 1
        if step == 6 and not session.replaying and (bug or not marks[1].exists()):
            marks[1].touch()
            raise KeyError("no such label")
        factor = 1.0
        if step == 5 and not session.replaying and not marks[0].exists():
            marks[0].touch()
            factor = float("nan")
        return model(batch[0]).square().mean() * factor

    for _ in session.epochs(1):
        for batch in session.batches(data):
            session.step(fn, batch)


if __name__ == "__main__":
    holdfast.main(train)
