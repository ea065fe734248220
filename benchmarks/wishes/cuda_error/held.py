"""The same input in a training that `holdfast.train` starts: another process has the device. A script, and a cell."""

import torch
from shared import HERE

import holdfast


def train(session: holdfast.Session, shift: float = 0.0) -> None:
    """One trial of a search: at -2 the loss stops the device with an assertion, at 0.5 it is a number."""
    model = torch.nn.Linear(10, 10).to(session.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    session.protect(model, optimizer)

    def loss(batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy(batch[0] + 0 * model(batch[0]), batch[1])

    while session.step_count < 20:
        session.step(loss, [torch.zeros(4, 10) + shift, torch.ones(4, 10)])


if __name__ == "__main__":
    try:
        holdfast.train(train, shift=-2.0, device="cuda:0")
    except (holdfast.ScriptFailed, holdfast.GaveUp) as error:
        (HERE / "error").write_text(f"{type(error).__name__}: {error}".partition("\n")[0])
    found = (torch.zeros(10).cuda() + torch.ones(10).cuda()).sum().item()
    (HERE / "after").write_text(str(found))
    run = holdfast.train(train, shift=0.5, device="cuda:0")
    (HERE / "next").write_text(f"{run.state} {run.receipt['steps']}")
