"""A device whose copies arrive late, as CUDA's do: what a CPU knows at once is known during the next step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import holdfast
from holdfast.base.errors import ScriptFailed
from holdfast.injection import late
from holdfast.worker.local_run import run_local
from holdfast.worker.session import Session
from tests.worker.local_runs import Raise, equal, fingerprint, new_folder, oom, run, settings_of, survive

LATE = f"{late.NAME}:0"
BAD = 3
"""The step whose numbers are not finite."""


class Bug(ValueError):
    """An error of the script's own."""


def trained(
    root: Path, fail: Any = None, *, device: str = LATE, norm: bool = True, deaths: Sequence[str] = (), **options: Any
) -> dict[str, Any]:
    """The state after two epochs of four steps; `fail(step)` is called inside of each."""
    results: list[dict[str, Any]] = []

    def train(session: Session) -> None:
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6) if norm else nn.Tanh(), nn.Linear(6, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(1)
        data = holdfast.Loader(TensorDataset(torch.randn(32, 4, generator=generator)), 8)
        session.protect(model=model, optimizer=optimizer, data=data)

        def fn(batch: Any) -> Tensor:
            factor = fail(session.step_count + 1) if fail is not None else None
            loss = mse_loss(model(batch[0]), batch[0].sum(dim=1, keepdim=True))
            return loss if factor is None else loss * factor

        for _ in session.epochs(2):
            for batch in session.batches(data):
                try:
                    session.step(fn, batch)
                except Bug:
                    session.step(fn, batch)
        results.append(fingerprint(model=model, optimizer=optimizer))

    if deaths:
        survive(root, train, deaths, device=device, **options)
    else:
        run(root, train, device=device, **options)
    return results[-1]


def test_copies_arrive_late(tmp_path: Path) -> None:
    """Else the other tests here would show nothing."""
    ahead: list[int] = []

    def train(session: Session) -> None:
        model = nn.Linear(2, 1)
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        while session.step_count < 6:
            session.step(lambda b: model(b).square().mean(), torch.ones(1, 2))
            ahead.append(session.step_count - session._board.read().step)

    run(tmp_path, train, device=LATE)
    assert set(ahead[2:]) == {2}, "one step on its way, and one whose body is not over"


def test_the_same_numbers(tmp_path: Path) -> None:
    equal(trained(tmp_path), trained(tmp_path, device="cpu"))


def test_a_run_that_dies_goes_on_from_what_has_arrived(tmp_path: Path) -> None:
    deaths = ["forward 3", "optimizer 4", "snapshot 5"]
    equal(trained(tmp_path / "one", deaths=deaths), trained(tmp_path / "two", device="cpu"))


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_a_step_that_fails_begins_again_from_a_copy_that_was_under_way(tmp_path: Path, phase: str) -> None:
    equal(trained(tmp_path, hooks=[Raise(oom, phase, 3)]), trained(tmp_path))
    equal(trained(tmp_path, hooks=[Raise(Bug, phase, 3)]), trained(tmp_path))


def once_after(make: Any) -> Any:
    """Step 3 gives no number, and step 4 fails, once."""
    failed: list[int] = []

    def fail(step: int) -> float | None:
        if step == BAD:
            return float("nan")
        if step == BAD + 1 and not failed:
            failed.append(step)
            raise make()
        return None

    return fail


@pytest.mark.parametrize("make", [oom, Bug, lambda: AssertionError("is it finite?")])
@pytest.mark.parametrize("norm", [True, False])
def test_an_error_in_the_step_after_one_that_is_not_finite(tmp_path: Path, make: Any, norm: bool) -> None:
    """The state the failed step began with was refused: what is said is that, and not that holdfast failed."""
    with pytest.raises(ScriptFailed, match="finite") as caught:
        trained(tmp_path, once_after(make), norm=norm)
    assert f"{BAD}" in str(caught.value), caught.value


def test_a_comparison_with_the_cpu_after_a_step_that_is_not_finite(tmp_path: Path) -> None:
    """What computes off the record rolls back as well."""
    run_folder = new_folder(tmp_path)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))

    def train(session: Session) -> None:
        session.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        checks: Any = session._attempts.checks

        def before_step(*_: Any) -> None:
            torch.manual_seed(session.step_count)
            session._named["optimizer"].param_groups[0]["lr"] *= 2  # the function changes more than its gradients
            checks.computed = True

        checks.before_step = before_step
        for step in range(1, 6):
            factor = float("nan") if step == BAD else 1.0
            session.step(lambda b, f=factor: model(b).square().mean() * f, torch.randn(8, 4))

    with pytest.raises(ScriptFailed, match="finite"):
        run_local(train, run_folder, settings_of({}), device=LATE)
    run_folder.close()


@pytest.mark.parametrize("device", ["cpu", LATE])
def test_what_is_not_finite_is_said_the_same_wherever_it_is_noticed(tmp_path: Path, device: str) -> None:
    with pytest.raises(ScriptFailed, match="finite") as caught:
        trained(tmp_path, lambda step: float("nan") if step == BAD else None, device=device)
    assert f"step {BAD}" in caught.value.message, caught.value.message
