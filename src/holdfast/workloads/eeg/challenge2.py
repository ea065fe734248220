"""Challenge 2: the factors of psychopathology, from a few seconds of EEG.

    holdfast train eeg-challenge2                              all four factors, on simulated EEG
    holdfast train eeg-challenge2 head=externalizing           the official target alone
    holdfast train eeg-challenge2 data=cache parent=calm-heron on windows made by `holdfast eeg prepare`, pretrained

Almost nothing of these factors is in the EEG, so most entries to the competition were worse than the mean. What helps:
age and sex, which are in the EEG and know something about the factors, are learned on the side, and the result is
shrunk towards the mean as far as the validation subjects ask for. A score inside the noise of the constant says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import holdfast
from holdfast.base.errors import UserError
from holdfast.workloads.eeg import baselines, linear, models, ready, reporting, scores
from holdfast.workloads.eeg.challenge1 import backbone_for, backbone_options, calibrate
from holdfast.workloads.eeg.heads import Ensemble, FactorsHead, Net
from holdfast.workloads.eeg.inputs import say, windows_for
from holdfast.workloads.eeg.splits import Rows, split
from holdfast.workloads.eeg.splits import folds as fold_of
from holdfast.workloads.eeg.training import Plan, Samples, fit, inherit, misaligned, predict

HEADS = {
    "externalizing": ("externalizing",),
    "four": ("p_factor", "attention", "internalizing", "externalizing"),
}
SERVED_S = 2.0
"""Seconds that the competition hands to a model; training windows are longer and cut at random."""


def train(
    session: holdfast.Session,
    *,
    data: str = "",
    parent: str = "",
    model: str = "tempo",
    head: str = "four",
    members: int = 1,
    folds: bool = False,
    valid: str = "",
    test: str = "",
    epochs: int = 15,
    batch: int = 64,
    lr: float = 3e-3,
    weight_decay: float = 0.05,
    width: int = 0,
    dropout: float = 0.1,
    augment: float = 1.0,
    align: float = 0.0,
    beside: float = 0.5,
    patience: int = 6,
    tune: bool = True,
    precision: str = "",
) -> None:
    """One run: windows, split, net, training, scores. `beside` weighs age and sex."""
    if head not in HEADS:
        raise UserError(f"head is {head!r}", cause=f"there are: {', '.join(HEADS)}")
    windows = windows_for(session, "challenge2", data)
    table, names = windows.table, HEADS[head]
    factors = np.stack([table[name] for name in names], axis=1)
    labelled = ready.factors(windows, names)
    parts = split(table, valid=valid, test=test, keep=labelled)
    say(session, f"split {parts.how}")

    length = min(windows.samples, round(SERVED_S * windows.rate))
    targets = np.concatenate([factors, reporting.people(table)], axis=1).astype(np.float32)
    net = build_net(windows, parts.train, targets, names, length, model=model, members=members, width=width,
                    dropout=dropout, beside=beside)  # fmt: skip
    for member in net.members:
        if parent:
            say(session, inherit(member.backbone, parent, session))
    say(session, f"{model} with {head} head: {models.parameters(net):,} parameters")
    options = backbone_options(model, width, dropout)
    reporting.keep_net(session, windows, net, challenge=2, model=model, head=head, options=options, samples=length,
                       names=list(names), column=names.index("externalizing"), valid=valid, test=test)  # fmt: skip
    fold = fold_of(table, parts.train, members) if folds and members > 1 else None
    _, domain = np.unique(table["release"][parts.train], return_inverse=True)
    samples = Samples(windows, parts.train, targets[parts.train], length=length, augment=augment,
                      domain=domain.astype(np.int64), fold=fold)  # fmt: skip

    def loss_of(net: Any, batch: Any) -> torch.Tensor:
        x, wanted, release, held_out = batch
        without = held_out if fold is not None else None
        loss: torch.Tensor = net.loss(x, wanted, without)
        if align:
            loss = loss + align * misaligned(net, x, release, without)
        return loss

    def check() -> dict[str, float]:
        guess = predict(net, windows, parts.valid, session.device, length=length)
        truth, said, _ = by_subject(table, parts.valid, factors, guess)
        pairs = [(truth[:, column], said[:, column]) for column in range(len(names))]
        return {
            "valid_nrmse": scores.mean_known(scores.shrunk_nrmse(*known(*pair)) for pair in pairs),
            "valid_r": scores.mean_known(scores.pearson(*known(*pair)) for pair in pairs),
        }

    plan = Plan(epochs, batch, lr, weight_decay, patience, tune, fixed=(("precision", precision),) if precision else ())
    fit(session, net, samples, loss_of, check, plan)
    judged = parts.test if len(parts.test) else parts.valid
    centre = np.nanmean(factors[parts.train], axis=0)
    with session.evaluating():  # it takes long on a busy machine, and silence after a step would be a hang
        calibrate(net, windows, parts.valid, factors, centre, session.device, length)
        report(session, net, windows, parts.train, judged, names, model, length, fold)


def build_net(
    windows: Any,
    rows: Rows,
    targets: Any,
    names: tuple[str, ...],
    length: int,
    *,
    model: str,
    members: int = 1,
    width: int = 0,
    dropout: float = 0.1,
    beside: float = 0.5,
) -> Ensemble:
    """As many nets as asked for, with the channel scales and label scales of the training windows."""
    some = torch.from_numpy(windows.batch(np.sort(np.random.default_rng(0).permutation(rows)[:256])))
    nets: list[nn.Module] = []
    for _ in range(max(1, members)):
        backbone = backbone_for(windows, model, length, width, dropout)
        backbone.norm.fit(some)
        head = FactorsHead(backbone, names, beside=beside)
        head.fit(torch.from_numpy(targets[rows]))
        net = Net(backbone, head)
        net.learn_range(torch.from_numpy(targets[rows]))
        nets.append(net)
    return Ensemble(nets)


def known(truth: Any, guess: Any) -> tuple[Any, Any]:
    """The pairs whose label is there."""
    there = np.isfinite(truth)
    return truth[there], guess[there]


def by_subject(table: dict[str, Any], rows: Rows, factors: Any, guess: Any) -> tuple[Any, Any, Any]:
    """Labels, mean guesses and names of the subjects: all windows of a person speak together."""
    names, number = np.unique(table["subject"][rows], return_inverse=True)
    counts = np.bincount(number)[:, None]
    said = np.stack([np.bincount(number, weights=column) for column in guess.T], axis=1) / counts
    first = np.array([np.flatnonzero(number == each)[0] for each in range(len(names))], dtype=np.intp)
    return factors[rows][first], said, names


def report(
    session: holdfast.Session,
    net: Ensemble,
    windows: Any,
    train: Rows,
    test: Rows,
    names: tuple[str, ...],
    model: str,
    length: int,
    fold: Any,
) -> None:
    """Per window as the competition scores it, and per subject as a person would ask; printed and kept."""
    table = windows.table
    factors = np.stack([table[name] for name in names], axis=1)
    people = reporting.people(table)
    guess = predict(net, windows, test, session.device, length=length).astype(np.float64)
    truth, said, subjects = by_subject(table, test, factors, guess)
    person, _, _ = by_subject(table, test, people, guess)
    complete = train[np.isfinite(factors[train]).all(axis=1)]
    ridges = linear.baselines(windows, complete, factors[complete], test) if len(complete) else {}
    ridges = {name: by_subject(table, test, factors, each)[1] for name, each in ridges.items()}
    rows = []
    for column, name in enumerate(names):
        there = np.isfinite(truth[:, column])
        label, mine, who = truth[there, column], said[there, column], subjects[there]
        constant = baselines.constant(factors[train, column])
        aged = baselines.age_and_sex(people[train], factors[train, column], person[there])
        window = np.isfinite(factors[test, column])
        rows.append({
            "factor": name,
            **scores.measured(label, mine, who, constant),
            "nrmse_per_window": scores.rounded(scores.nrmse(factors[test, column][window], guess[window, column])),
            "baselines": scores.baseline_rows(label, who, constant=constant, age_and_sex=aged,
                                              **{key: each[there, column] for key, each in ridges.items()}),
        })  # fmt: skip
    # A factor shrunk to its mean has no correlation and counts as 0; one whose labels do not vary does not count.
    found = [row["r"] or 0.0 for row in rows if "no_nrmse" not in row]
    spread = mean_r_interval(truth, said, subjects)
    official = next(row for row in rows if row["factor"] == "externalizing")
    result = {
        "challenge": 2,
        "model": model,
        "head": "four" if len(names) > 1 else names[0],
        **reporting.described(windows, test),
        "nrmse": official["nrmse_per_window"],
        **({"no_nrmse": official["no_nrmse"]} if "no_nrmse" in official else {}),
        "mean_r": scores.rounded(scores.mean_known(found)),
        "mean_r_low": scores.rounded(spread[0]),
        "mean_r_high": scores.rounded(spread[1]),
        "factors": rows,
    }
    if fold is not None:
        column = names.index("externalizing")
        truth = factors[:, column]
        result["out_of_fold"] = reporting.out_of_fold(
            net, windows, train, truth, fold, session.device, length=length, column=column
        )
    reporting.tell(session, result)


def mean_r_interval(truth: Any, said: Any, subjects: Any) -> tuple[float, float]:
    """The mean correlation over the factors, when subjects are drawn with replacement."""
    values = []
    for rows in scores.draws(subjects, 500, 0):
        each = [scores.pearson(*known(truth[rows, column], said[rows, column])) for column in range(truth.shape[1])]
        values.append(np.mean(np.nan_to_num(each)))
    kept = np.array(values)[np.isfinite(values)]
    if len(kept) < 20:
        return float("nan"), float("nan")
    low, high = np.percentile(kept, [2.5, 97.5])
    return float(low), float(high)
