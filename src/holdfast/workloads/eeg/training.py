"""What the three stages share: samples with augmentation, the best weights so far, prediction, the loop itself.

    samples = Samples(windows, rows, targets, augment=1.0)
    fit(session, net, samples, measure_valid, plan)           # returns with the best weights in `net`
    predict(net, windows, rows, session.device)               # (rows, outputs), in order

Everything here uses the session like any script would: what must survive is protected, the rest can be made again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

import holdfast
from holdfast.base.errors import UserError
from holdfast.planning import measure
from holdfast.workloads.eeg.heads import coral
from holdfast.workloads.eeg.splits import Rows
from holdfast.workloads.losses import Losses

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how fast to train."""

    epochs: int
    batch: int
    lr: float
    weight_decay: float = 0.02
    patience: int = 8
    """Epochs without a better validation score before it ends."""
    tune: bool = True
    """Measure precision, threads and the rest before the first step."""
    fixed: tuple[tuple[str, Any], ...] = ()
    """Knobs that are not measured but given."""
    last: bool = False
    """The last weights count, whatever was measured: for trainings that have nobody to stop early on."""


def _unused() -> int:
    """What getrefcount says, in a loop over a list, of something that only the list has. Pythons differ."""
    for each in [np.empty(0)]:
        return sys.getrefcount(each)
    raise AssertionError


_UNUSED = _unused()


class Places:
    """Memory for batches, used again when nobody has the batch any more: new pages cost more than reading into them."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._made: list[Floats] = []

    def take(self, shape: tuple[int, ...]) -> Floats:
        for place in self._made:
            if place.shape == shape and sys.getrefcount(place) == _UNUSED:  # tensors and views of it count
                return place
        place = np.empty(shape, np.float32)
        self._made = [*self._made[-self._most + 1 :], place]
        return place

    def __reduce__(self) -> tuple[type[Places], tuple[int]]:
        return Places, (self._most,)  # a loader child has its own


class Samples(Dataset[tuple[torch.Tensor, ...]]):
    """Windows with their targets. Random numbers are those of numpy, which the Loader seeds for each sample."""

    def __init__(
        self,
        windows: Any,
        rows: Rows,
        targets: Floats,
        *,
        length: int = 0,
        augment: float = 0.0,
        shift_s: float = 0.0,
        domain: NDArray[np.int64] | None = None,
        fold: NDArray[np.int64] | None = None,
    ) -> None:
        self.windows, self.rows, self.augment = windows, rows, augment
        self.targets = torch.from_numpy(np.ascontiguousarray(targets, dtype=np.float32))
        self.length = length or windows.samples
        self.shift = round(shift_s * windows.rate)
        """Samples that a window may be moved by; its first target, a time, moves along."""
        self.domain = np.zeros(len(rows), np.int64) if domain is None else domain
        self.fold = np.full(len(rows), -1, np.int64) if fold is None else fold
        self._places = Places()

    def __len__(self) -> int:
        return len(self.rows)

    def source(self, index: int) -> str:
        """For messages about a window that cannot be read."""
        return str(self.windows.table["recording"][self.rows[index]])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        signal = np.array(self.windows.signals[self.rows[index]])
        target = self.targets[index]
        spare = signal.shape[1] - self.length
        if spare > 0:
            start = int(np.random.randint(spare + 1)) if self.augment else spare // 2
            signal = signal[:, start : start + self.length]
        if self.augment:
            signal, moved = self._varied(signal)
            if moved:
                target = target.clone()
                target[0] += moved / self.windows.rate
        return (
            torch.from_numpy(np.ascontiguousarray(signal)),
            target,
            torch.tensor(self.domain[index]),
            torch.tensor(self.fold[index]),
        )

    def batch_of(self, indices: list[int]) -> tuple[torch.Tensor, ...] | None:
        """A whole batch with a single copy, the same bits as one by one; None where each window is varied."""
        if self.augment or self.length != self.windows.samples:
            return None
        signals = self._places.take((len(indices), len(self.windows.channels), self.length))
        chosen = np.asarray(indices)
        self.windows.batch(self.rows[chosen], out=signals)
        beside = (torch.from_numpy(self.domain[chosen]), torch.from_numpy(self.fold[chosen]))
        return torch.from_numpy(signals), self.targets[torch.from_numpy(chosen)], *beside

    def _varied(self, signal: Floats) -> tuple[Floats, int]:
        """A little louder or softer, some channels missing, a little earlier or later."""
        gain = np.float32(np.exp(np.random.normal(0.0, 0.1 * self.augment)))
        heard = (np.random.random(len(signal)) >= 0.05 * self.augment).astype(np.float32)
        signal = signal * (gain * heard)[:, None]
        moved = int(np.random.randint(-self.shift, self.shift + 1)) if self.shift else 0
        if moved > 0:
            signal = np.concatenate([np.repeat(signal[:, :1], moved, axis=1), signal[:, :-moved]], axis=1)
        elif moved < 0:
            signal = np.concatenate([signal[:, -moved:], np.repeat(signal[:, -1:], -moved, axis=1)], axis=1)
        return signal, moved


class Best:
    """The best weights on the validation subjects so far, and how long ago that was. Protected like a model."""

    def __init__(self, model: nn.Module, patience: int) -> None:
        self.model, self.patience = model, patience
        self.value, self.waited = math.inf, 0
        self.weights = self._copy()

    def _copy(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}

    @property
    def over(self) -> bool:
        return self.waited >= self.patience

    def seen(self, value: float) -> None:
        """The score of this epoch; smaller is better. NaN, which says nothing, keeps the newest weights."""
        if math.isnan(value):
            if math.isinf(self.value):
                self.weights = self._copy()
        elif value < self.value:
            self.value, self.waited, self.weights = value, 0, self._copy()
        else:
            self.waited += 1

    def take(self) -> None:
        """Put the best weights back into the model."""
        self.model.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "waited": self.waited, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.waited, self.weights = float(state["value"]), int(state["waited"]), dict(state["weights"])


def fit(
    session: holdfast.Session,
    net: nn.Module,
    samples: Samples,
    loss_of: Callable[[Any, Any], torch.Tensor],
    valid: Callable[[], dict[str, float]],
    plan: Plan,
) -> measure.Choice:
    """Train until the validation score stops getting better; the first number of `valid` decides."""
    size = min(plan.batch, len(samples))
    steps = plan.epochs * (len(samples) // size)
    choice = measure.for_session(
        session,
        measure.Training(net, loss_of, samples, batch=size, lr=plan.lr, steps=steps),
        tuned=plan.tune,
        fixed=dict(plan.fixed),
    )
    choice.arrange(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=plan.lr, weight_decay=plan.weight_decay)
    data = holdfast.Loader(samples, batch_size=size, shuffle=True, drop_last=True, num_workers=choice.workers)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _pace(step, steps))
    best, losses = Best(net, plan.patience), Losses(20)
    session.protect(model=net, optimizer=optimizer, schedule=schedule, best=best, losses=losses, data=data)
    compute = choice.loss(lambda batch: loss_of(net, batch), session.device)

    for epoch in session.epochs(plan.epochs):
        if best.over:
            break
        losses.begin(epoch)
        for batch in session.batches(data):
            losses.add(session.step(compute, batch, clip=1.0, accumulate=choice.pieces))
            schedule.step()
        with session.evaluating():
            numbers = valid()
        session.log(train_loss=losses.mean(), **{name: each for name, each in numbers.items() if not math.isnan(each)})
        if not plan.last:
            best.seen(next(iter(numbers.values())))
    if not plan.last:
        best.take()
    return choice


def _pace(step: int, steps: int) -> float:
    """Up over the first twentieth, then down along a cosine."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - warm) / max(1, steps - warm))))


def misaligned(net: Any, x: torch.Tensor, release: torch.Tensor, fold: torch.Tensor | None) -> torch.Tensor:
    """How far apart the releases are in the features of each net (CORAL); what a net leaves out, it leaves out here."""
    found = []
    for number, member in enumerate(net.members):
        mine = torch.ones_like(release, dtype=torch.bool) if fold is None else fold != number
        if int(mine.sum()) >= 8:  # fewer have no covariance to speak of
            found.append(coral(member.backbone.summary(x[mine]), release[mine]))
    return torch.stack(found).mean() if found else x.new_zeros(())


def predict(
    net: nn.Module, windows: Any, rows: Rows, device: torch.device, *, length: int = 0, batch: int = 256
) -> Floats:
    """What the net says about these windows, in order, without gradients; longer windows are cut in the middle."""
    was = net.training
    net.eval()
    found = []
    spare = windows.samples - (length or windows.samples)
    with torch.inference_mode():
        for start in range(0, len(rows), batch):
            x = torch.from_numpy(windows.batch(rows[start : start + batch]))
            x = x[:, :, spare // 2 : spare // 2 + length] if spare > 0 else x
            found.append(net(x.to(device)).float().cpu().numpy())
    net.train(was)
    return np.concatenate(found) if found else np.empty((0, 1), np.float32)


def inherit(backbone: nn.Module, parent: str, session: holdfast.Session) -> str:
    """Load the backbone that a pretraining run left behind; says in words what was taken."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = parent_folder(parent, session.run.folder)
    for name in ("final.safetensors", "best.safetensors"):
        path = folder / name
        if path.is_file():
            break
    else:
        raise UserError(
            f"{parent} has no weights to start from",
            cause=f"no final.safetensors in {folder}",
            hints=["let it finish first"],
        )
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"the weights of {parent} cannot be read", cause=f"{path}: {error}") from None
    mine = backbone.state_dict()
    kept = {key.removeprefix("backbone."): value for key, value in weights.items() if key.startswith("backbone.")}
    fitting = {key: value for key, value in kept.items() if key in mine and mine[key].shape == value.shape}
    if len(fitting) < len(mine):
        odd = next(key for key in mine if key not in fitting)
        there = tuple(kept[odd].shape) if odd in kept else "missing"
        raise UserError(
            f"the weights of {parent} do not fit this model",
            cause=f"`{odd}` is {there} there, {tuple(mine[odd].shape)} here",
            hints=["use the same model, channels and sampling rate as in pretraining, or leave `parent` out"],
        )
    backbone.load_state_dict(fitting)
    return f"backbone from {folder.name} ({len(fitting)} tensors)"


def parent_folder(parent: str, here: Path) -> Path:
    """A run by its folder, or by the name of one beside this one."""
    if Path(parent).is_dir():
        return Path(parent)
    beside = sorted(path for path in here.parent.glob("*") if path.name == parent or path.name.endswith(f"-{parent}"))
    if not beside:
        raise UserError(f"no run `{parent}` beside {here.name}", hints=["`holdfast list` shows the runs there are"])
    return beside[-1]
