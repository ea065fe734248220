"""Any column of any BIDS set, learned from the EEG and tested on people that were held out.

    holdfast train eeg-classify data=./set target=trial_type
    holdfast train eeg-classify data=./set target=value classes=stim_1,stim_2 tasks=P300 size=0.9
    holdfast train eeg-classify data=./set target=age                    a column of participants.tsv; an amount
    holdfast train eeg-classify data=./set target=sex folds=5            five folds by subject
    holdfast train eeg-classify data=./set target=value model=EEGNetv4   a model of braindecode
    holdfast train eeg-classify data=./set target=value parent=calm-heron   from the weights of an eeg-pretrain run

Every subject is tested once, by a net that never saw it: one net for each fold, all of them trained in this run for the
same number of epochs. Nothing is chosen on who is tested. What is printed is of those tests alone, beside guessing
and linear models on the same folds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import holdfast
from holdfast.workloads.eeg import class_scores, classify_data, linear, models, reporting, scores
from holdfast.workloads.eeg.challenge1 import backbone_for
from holdfast.workloads.eeg.heads import Ensemble, LabelHead, Net
from holdfast.workloads.eeg.inputs import say
from holdfast.workloads.eeg.training import Plan, Samples, fit, inherit, predict


def train(
    session: holdfast.Session,
    *,
    data: str,
    target: str,
    parent: str = "",
    tasks: str = "",
    classes: str = "",
    predicts: str = "auto",
    folds: str = "auto",
    shift: float = 0.0,
    size: float = 0.0,
    rate: float = 100.0,
    band: str = "0.5-45",
    channels: str = "",
    model: str = "tempo",
    epochs: int = 20,
    batch: int = 64,
    lr: float = 2e-3,
    weight_decay: float = 0.05,
    width: int = 0,
    dropout: float = 0.2,
    augment: float = 1.0,
    tune: bool = True,
    precision: str = "",
) -> None:
    """One run: windows, folds, a net for each, scores of those that were held out."""
    asked = classify_data.Asked(data, target, tasks, classes, predicts, folds, shift, size, rate, band, channels, model)
    windows, wanted = classify_data.windows(asked, session.progress)
    say(session, f"{windows.words()}, in {windows.folder}")
    task = classify_data.task(windows, wanted, asked)
    say(session, task.words())
    net = build_net(windows, task, model=model, width=width, dropout=dropout)
    for number, member in enumerate(net.members if parent else []):
        taken = inherit(member.backbone, parent, session)
        if number == 0:
            say(session, taken)
    say(session, f"{model}: {models.parameters(net):,} parameters in {len(net.members)} nets, one for each fold")
    samples = Samples(windows, task.rows, task.targets, augment=augment, fold=task.folds.fold)

    def loss_of(net: Any, batch: Any) -> torch.Tensor:
        x, targets, _, held_out = batch
        loss: torch.Tensor = net.loss(x, targets, held_out)
        return loss

    # There is nobody to stop early on: whoever is not trained on is tested.
    fixed = (("precision", precision),) if precision else ()
    plan = Plan(epochs, batch, lr, weight_decay, tune=tune, fixed=fixed, last=True)
    fit(session, net, samples, loss_of, dict, plan)
    with session.evaluating():
        told = held_out(net, windows, task, session.device)
        report(session, windows, task, told, model)


def build_net(windows: Any, task: Any, *, model: str, width: int = 0, dropout: float = 0.2) -> Ensemble:
    """A net for each fold, with the channel scales and labels of those that it trains on."""
    nets: list[nn.Module] = []
    for number in range(task.folds.count):
        mine = np.flatnonzero(task.folds.fold != number)
        backbone = backbone_for(windows, model, windows.samples, width, dropout)
        some = np.sort(np.random.default_rng(0).permutation(task.rows[mine])[:256])
        backbone.norm.fit(torch.from_numpy(windows.batch(some)))
        targets = torch.from_numpy(task.targets[mine])
        head = LabelHead(backbone, len(task.names))
        head.fit(targets)
        net = Net(backbone, head)
        shown = torch.eye(len(task.names))[targets[:, 0].long()] if task.names else targets
        net.learn_range(shown)
        nets.append(net)
    return Ensemble(nets)


def held_out(net: Ensemble, windows: Any, task: Any, device: torch.device) -> Any:
    """What each net says of the fold that it did not see."""
    said = np.zeros((len(task.rows), max(1, len(task.names))))
    for number, member in enumerate(net.members):
        mine = np.flatnonzero(task.folds.fold == number)
        said[mine] = predict(member, windows, task.rows[mine], device)
    return said


def beside(windows: Any, task: Any) -> dict[str, Any]:
    """Ridge regressions on the same folds: on the course of the channels, and on the power of their rhythms."""
    signals = windows.batch(task.rows)
    wanted = np.eye(len(task.names))[task.targets[:, 0].astype(int)] if task.names else task.targets
    found = {}
    for name, features in (("time", linear.time_samples), ("power", linear.band_power)):
        x, said = features(signals, windows.rate), np.zeros(wanted.shape)
        for number in range(task.folds.count):
            out = task.folds.fold == number
            said[out] = linear.ridge(x[~out], wanted[~out], x[out], task.folds.groups[~out])
            if task.names:  # classes count alike, as they do for the net
                said[out] -= wanted[~out].mean(axis=0)
        found[name] = said
    return found


def report(session: holdfast.Session, windows: Any, task: Any, said: Any, model: str) -> None:
    """Printed, and kept in scores.json."""
    truth, guess, groups = task.judged(said)
    others = {name: task.judged(each)[1] for name, each in beside(windows, task).items()}
    result: dict[str, Any] = {
        "target": task.wanted.target,
        "of": task.wanted.of,
        "model": model,
        "folds": task.folds.how,
        "subjects": len(set(windows.table["subject"][task.rows].tolist())),
        "simulated": bool(windows.simulated),
        "cache": windows.key,
    }
    if task.names:
        labels = truth[:, 0].astype(np.int64)
        result |= class_scores.measured(labels, guess, groups, task.names, by_subject=task.folds.by_subject)
        result["baselines"] = {
            f"ridge_{name}": scores.rounded(class_scores.balanced_accuracy(labels, each.argmax(axis=1)))
            for name, each in others.items()
        }
        told = class_scores.lines(result)
    else:
        result |= classify_data.amounts(truth[:, 0], guess[:, 0], groups)
        rows = {f"ridge_{name}": each[:, 0] for name, each in others.items()}
        result["baselines"] = scores.baseline_rows(truth[:, 0], groups, **rows)
        told = classify_data.amount_lines(result)
    metric = "balanced accuracy" if task.names else "nrmse"
    linear_words = ", ".join(f"{name.replace('_', ' on ')} {value}" for name, value in result["baselines"].items())
    told.insert(1, f"    beside it, {metric} of {linear_words}")
    simulated = "SIMULATED EEG" if windows.simulated else "EEG"
    head = f"`{task.wanted.target}` from {simulated}, {model}, {task.folds.how}, {len(truth)} answers"
    reporting.keep_result(session, result, [head, *told])
