"""Challenge 1: when will the button be pressed? The response time of each trial, from the two seconds around it.

    holdfast train eeg-challenge1                              on simulated EEG
    holdfast train eeg-challenge1 data=cache                   on windows made by `holdfast eeg prepare`
    holdfast train eeg-challenge1 head=scalar                  plain regression, for comparison
    holdfast train eeg-challenge1 model=transformer            the baseline; or any model of braindecode: model=EEGNeX
    holdfast train eeg-challenge1 against=ShallowFBCSPNet      a net of braindecode beside it, as much processor time
    holdfast train eeg-challenge1 parent=calm-heron            from pretrained weights
    holdfast train eeg-challenge1 members=4 folds=true         an ensemble over releases, scored out of fold as well
    holdfast train eeg-challenge1 model=unet members=3 cross=true lr=0.016     the best here, for three times the work

The press is found in time (heads.TimeHead) rather than regressed. What is printed at the end is on subjects that
were neither trained on nor used to decide when to stop, with its interval and beside what guessing would get.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import holdfast
from holdfast.base.errors import UserError
from holdfast.workloads.eeg import baselines, foreign, linear, models, reporting, response_windows, scores
from holdfast.workloads.eeg.heads import Ensemble, Net, ScalarHead, TimeHead
from holdfast.workloads.eeg.inputs import say, windows_for
from holdfast.workloads.eeg.ready import response_times, start_of
from holdfast.workloads.eeg.rival import Rival
from holdfast.workloads.eeg.splits import Rows, split
from holdfast.workloads.eeg.splits import folds as fold_of
from holdfast.workloads.eeg.training import Plan, Samples, fit, inherit, misaligned, predict


def train(
    session: holdfast.Session,
    *,
    data: str = "",
    parent: str = "",
    model: str = "tempo",
    head: str = "time",
    members: int = 1,
    folds: bool = False,
    cross: bool = False,
    valid: str = "",
    test: str = "",
    epochs: int = 12,
    batch: int = 64,
    lr: float = 4e-3,
    weight_decay: float = 0.02,
    width: int = 0,
    dropout: float = 0.1,
    augment: float = 1.0,
    align: float = 0.0,
    patience: int = 6,
    tune: bool = True,
    precision: str = "",
    against: str = "",
) -> None:
    """One run: windows, split, net, training, scores."""
    windows = windows_for(session, "challenge1", data)
    table = windows.table
    times = response_times(windows)
    warning = response_windows.judge(times, start_of(windows), windows.samples / windows.rate)
    if warning:
        say(session, f"warning: {warning}")
    parts = split(table, valid=valid, test=test, keep=np.isfinite(times))
    say(session, f"split {parts.how}")
    rows = np.sort(np.concatenate([parts.train, parts.valid])) if cross else parts.train
    if against and against not in models.OWN:
        foreign.check(against)
    if cross and (members < 2 or head != "time"):
        raise UserError("cross=true needs several members and head=time", hints=["`members=3 cross=true`"])

    net = build_net(windows, rows, model=model, head=head, members=members, width=width, dropout=dropout)
    net.pooled = cross
    for member in net.members:
        if parent:
            say(session, inherit(member.backbone, parent, session))
    say(session, f"{model} with {head} head: {models.parameters(net):,} parameters")
    options = backbone_options(model, width, dropout)
    reporting.keep_net(session, windows, net, challenge=1, model=model, head=head, options=options,
                       start=start_of(windows), names=["response_time"], column=0, samples=windows.samples,
                       valid=valid, test=test,
                       pooled=cross)  # fmt: skip
    fold = fold_of(table, rows, members, mixed=cross) if (folds or cross) and members > 1 else None
    _, domain = np.unique(table["release"][rows], return_inverse=True)
    samples = Samples(windows, rows, times[rows, None], augment=augment, shift_s=0.08 if augment else 0.0,
                      domain=domain.astype(np.int64), fold=fold)  # fmt: skip

    def loss_of(net: Any, batch: Any) -> torch.Tensor:
        x, targets, release, held_out = batch
        without = held_out if fold is not None else None
        loss: torch.Tensor = net.loss(x, targets, without)
        if align:
            loss = loss + align * misaligned(net, x, release, without)
        return loss

    def check() -> dict[str, float]:
        if cross:  # nobody is left to validate on
            return {}
        guess = predict(net, windows, parts.valid, session.device)[:, 0]
        truth = times[parts.valid]
        return {"valid_nrmse": scores.shrunk_nrmse(truth, guess), "valid_r": scores.pearson(truth, guess)}

    fixed = (("precision", precision),) if precision else ()
    plan = Plan(epochs, batch, lr, weight_decay, patience, tune, fixed, last=cross)
    rival = Rival(against)
    with rival.timing():
        fit(session, net, samples, loss_of, check, plan)
    judged = parts.test if len(parts.test) else parts.valid
    with session.evaluating():  # it takes long on a busy machine, and silence after a step would be a hang
        if not cross:
            calibrate(net, windows, parts.valid, times, float(times[parts.train].mean()), session.device)
        beside: dict[str, Any] = {}
        if against:
            other = build_net(windows, rows, model=against, head="scalar", dropout=dropout)
            said = rival.answers(session, other, windows, rows, times, judged, batch)
            beside = {"name": against, "nrmse": scores.rounded(scores.nrmse(times[judged], said)),
                      "cpu_s": round(rival.cpu_s, 1), "steps": rival.steps}  # fmt: skip
        report(session, net, windows, rows, judged, fold, model, head, beside)


def build_net(
    windows: Any, rows: Rows, *, model: str, head: str, members: int = 1, width: int = 0, dropout: float = 0.1
) -> Ensemble:
    """As many nets as asked for, with the channel scales of the training windows."""
    if head not in ("time", "scalar"):
        raise UserError(f"head is {head!r}", cause="there are: time, scalar")
    mean = float(np.nanmean(windows.table["response_time"][rows]))
    some = torch.from_numpy(windows.batch(np.sort(np.random.default_rng(0).permutation(rows)[:256])))
    nets: list[nn.Module] = []
    for _ in range(max(1, members)):
        backbone = backbone_for(windows, model, windows.samples, width, dropout)
        backbone.norm.fit(some)
        seconds = windows.samples / windows.rate
        net = Net(backbone, TimeHead(backbone, start=start_of(windows), seconds=seconds) if head == "time"
                  else ScalarHead(backbone, mean))  # fmt: skip
        net.learn_range(torch.from_numpy(windows.table["response_time"][rows, None]))
        nets.append(net)
    return Ensemble(nets)


def backbone_for(windows: Any, model: str, samples: int, width: int = 0, dropout: float = 0.1) -> Any:
    """The backbone of this name for these windows; an unknown name is an error that says what there is."""
    if model not in models.OWN:
        foreign.check(model)
    options = backbone_options(model, width, dropout)
    try:
        return models.build(model, channels=len(windows.channels), samples=samples, rate=windows.rate, **options)
    except (TypeError, ValueError, AssertionError) as error:
        if model in models.OWN:
            raise
        raise UserError(
            f"{model} cannot be made for {len(windows.channels)} channels x {samples} samples", cause=str(error)
        ) from error


def backbone_options(model: str, width: int, dropout: float) -> dict[str, Any]:
    """What `models.build` is given besides the sizes of the windows."""
    return ({"width": width} if width else {}) | ({"dropout": dropout} if model in models.OWN else {})


def calibrate(
    net: Ensemble, windows: Any, rows: Rows, truth: Any, centre: float, device: torch.device, length: int = 0
) -> None:
    """Shrink towards the mean as much as the validation subjects ask for; part of the weights from then on."""
    columns = truth[rows] if truth.ndim == 2 else truth[rows, None]
    centres = np.broadcast_to(np.asarray(centre, dtype=np.float64), columns.shape[1:])
    for member in net.members:
        guess = predict(member, windows, rows, device, length=length)
        for column in range(columns.shape[1]):
            gain, bias = scores.calibrate(columns[:, column], guess[:, column], float(centres[column]))
            member.gain[column], member.bias[column] = gain, bias


def report(
    session: holdfast.Session, net: Ensemble, windows: Any, train: Rows, test: Rows, fold: Any, model: str, head: str,
    rival: dict[str, Any],
) -> None:  # fmt: skip
    """The scores on held-out subjects, printed and kept in scores.json."""
    table = windows.table
    times, subjects = table["response_time"], table["subject"]
    guess = predict(net, windows, test, session.device)[:, 0].astype(np.float64)
    truth = times[test]
    people = reporting.people(table)
    constant = baselines.constant(times[train])
    rows = scores.baseline_rows(
        truth, subjects[test], constant=constant,
        age_and_sex=baselines.age_and_sex(people[train], times[train], people[test]),
        oracle=baselines.subject_mean(truth, subjects[test]),
        **linear.baselines(windows, train, times[train], test),
    )  # fmt: skip
    result = {
        "challenge": 1,
        "model": model,
        "head": head,
        **reporting.described(windows, test),
        **scores.measured(truth, guess, subjects[test], constant, auroc_too=True),
        "baselines": {**rows, **({"rival": rival} if rival else {})},
    }
    if fold is not None:
        result["out_of_fold"] = reporting.out_of_fold(net, windows, train, times, fold, session.device)
    reporting.tell(session, result)
