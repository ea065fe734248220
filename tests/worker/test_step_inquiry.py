"""The inquiry computes a step on the CPU and names the sample, the tensor and who is to blame."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.faults.blame import Blame, Cpu, judge
from holdfast.faults.classification import Fault, Kind
from holdfast.injection.pretend import DEVICE
from holdfast.worker.replay import Replay
from holdfast.worker.step import Work
from holdfast.worker.step_inquiry import Inquiry, first_bad_tensor
from tests.worker.replay_jobs import Clock, Job


def _inquire(job: Job, kind: Kind = Kind.DEVICE_LOST, **more: Any) -> Any:
    return Inquiry(job.replay, job.work, budget_s=60.0, **more).into(kind)


def test_a_step_the_cpu_computes_is_fine(job: Job) -> None:
    assert _inquire(job).cpu is Cpu.FINE


def test_a_label_out_of_range_names_its_sample(job: Job) -> None:
    job.batch[1][7] = 99
    finding = _inquire(job, describe=lambda row: {"index": 100 + row, "source": f"file-{row}"})
    assert finding.cpu is Cpu.RAISED
    assert finding.samples == ({"index": 107, "source": "file-7"},)
    assert "IndexError" in str(finding.error)
    verdict = judge(Fault(Kind.DEVICE_LOST, step=3, phase="forward"), finding, None)
    assert verdict.blame is Blame.DATA
    assert verdict.sentence().startswith("the data are at fault: sample 107 (file-7): the CPU raises IndexError")


def test_an_error_for_every_sample_is_the_scripts(job: Job) -> None:
    job.work.fn = lambda b: job.model(b[0])[:, 17].mean()
    finding = _inquire(job)
    assert finding.cpu is Cpu.RAISED and finding.every_sample and not finding.samples
    assert judge(Fault(Kind.HANG, step=3, phase="forward"), finding, None).blame is Blame.UNKNOWN, "it may be for CUDA"
    assert judge(Fault(Kind.HANG, step=3, phase="forward"), finding, "failed").blame is Blame.CODE


def test_the_budget_ends_the_replay(job: Job) -> None:
    clock = Clock()

    def beat() -> None:
        clock.now += 1.0

    finding = Inquiry(job.replay, job.work, budget_s=0.5, beat=beat, clock=clock).into(Kind.CRASH)
    assert finding.cpu is Cpu.UNKNOWN and "in time" in finding.why


def test_a_nan_in_the_batch_is_the_datas(job: Job) -> None:
    job.batch[0][4, 1, 2] = float("nan")
    finding = _inquire(job, Kind.NON_FINITE)
    assert [sample["index"] for sample in finding.samples] == [4]
    assert finding.tensor == "tensor 0 of the batch"
    assert judge(Fault(Kind.NON_FINITE), finding, None).blame is Blame.DATA


def test_a_sample_that_overflows_by_itself_is_the_datas(job: Job) -> None:
    job.batch[0][9] = 3e38
    finding = _inquire(job, Kind.NON_FINITE)
    assert [sample["index"] for sample in finding.samples] == [9]
    assert judge(Fault(Kind.NON_FINITE), finding, None).blame is Blame.DATA


def test_a_logarithm_of_zero_is_the_codes_and_named(job: Job) -> None:
    job.work.fn = lambda b: torch.log(0.0 * job.model(b[0])).mean()
    finding = _inquire(job, Kind.NON_FINITE)
    assert finding.every_sample and finding.tensor == "the loss"
    assert judge(Fault(Kind.NON_FINITE), finding, None).blame is Blame.CODE


def test_weights_that_are_lost_already_are_named(job: Job) -> None:
    with torch.no_grad():
        job.model.head.weight[0, 0] = float("inf")
    finding = _inquire(job, Kind.NON_FINITE)
    assert finding.tensor == "model.head.weight"
    assert judge(Fault(Kind.NON_FINITE), finding, None).blame is Blame.CODE


def test_the_first_layer_that_overflows_is_named(job: Job) -> None:
    with torch.no_grad():
        job.model.first.weight.fill_(3e38)
    assert first_bad_tensor(job.replay, job.loss, job.batch) == "the output of model.first"


def test_half_precision_that_overflows_is_the_precisions(job: Job) -> None:
    wide = nn.Linear(64, 64, bias=False)
    with torch.no_grad():
        wide.weight.fill_(100.0)
    replay = Replay({"model": wide}, home=DEVICE)

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            return wide(x).float().mean() / 1e4

    work = Work(step, torch.full((4, 64), 20.0), [torch.optim.SGD(wide.parameters(), lr=0.1)], None, None, 1, None)
    finding = Inquiry(replay, work, budget_s=60.0).into(Kind.NON_FINITE)
    assert (finding.cpu, finding.device_finite, finding.plain_finite) == (Cpu.FINE, False, True)
    verdict = judge(Fault(Kind.NON_FINITE), finding, None)
    assert verdict.blame is Blame.PRECISION and verdict.tensor == "the output of model"


def test_a_device_that_makes_nan_is_the_devices(job: Job, wrong: Any) -> None:
    wrong("head.weight", lambda grad: grad * float("nan"))
    finding = _inquire(job, Kind.NON_FINITE)
    assert (finding.cpu, finding.device_finite, finding.plain_finite) == (Cpu.FINE, False, False)
    assert finding.tensor == "the gradient of model.head.weight"
    assert judge(Fault(Kind.NON_FINITE), finding, None).blame is Blame.DEVICE
