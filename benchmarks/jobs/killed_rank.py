"""One job for `holdfast launch` and three other tools: a model in DistributedDataParallel, of which a rank is killed.

    holdfast launch --nproc 2 killed_rank.py folder=FOLDER epochs=3
    torchrun --nproc-per-node 2 --max-restarts 3 killed_rank.py torchrun FOLDER 3
    torchrun --nproc-per-node 1 --max-restarts 3 killed_rank.py torchft FOLDER 3      # one for each replica
    python killed_rank.py ray FOLDER 3

The second way is that of torch's tutorial on elastic training: rank 0 saves at the end of each epoch, and all ranks
load that after a restart. The third one is torchft's example: two replicas, and one that was lost gets its state from
the other. The fourth one is that of Ray Train's guide: rank 0 reports a checkpoint at the end of each epoch, and all
workers load the newest one after a failure. Nothing is drawn at random in the steps, so a repeated step can be the
same. Every rank writes its process, step and time after each step to `steps-RANK.log`.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

STEPS = 100
"""Of an epoch."""
BATCH = 32
PAUSE = 0.02
RANKS = 2


def _network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 2))
    return network, torch.optim.AdamW(network.parameters(), lr=1e-3)


def _samples() -> torch.utils.data.TensorDataset:
    x = torch.randn(BATCH * STEPS, 32, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())


def _part(samples: torch.utils.data.TensorDataset, step: int, rank: int) -> tuple[Tensor, Tensor]:
    """What this rank has of the batch of a step: the order of an epoch is known, so it begins where it was."""
    epoch, number = divmod(step, STEPS)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(epoch))
    mine = order[number * BATCH : (number + 1) * BATCH][rank::RANKS]
    x, y = samples.tensors
    return x[mine], y[mine]


def _write(folder: str, rank: int, step: int) -> None:
    with open(Path(folder, f"steps-{rank}.log"), "a") as log:
        log.write(f"{os.getpid()} {step} {time.time()}\n")
    time.sleep(PAUSE)


def train(session: Any, folder: str, epochs: int = 3) -> None:
    import holdfast

    network, optimizer = _network()
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(network)
    data = holdfast.Loader(_samples(), batch_size=BATCH, shuffle=True)
    session.protect(model=model, optimizer=optimizer, data=data)
    for _ in session.epochs(epochs):
        for batch in session.batches(data):
            session.step(lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), batch)
            _write(folder, session.rank, session.step_count)
    if session.rank == 0:
        torch.save(network.state_dict(), Path(folder, "weights.pt"))


def _below_torchrun(folder: str, epochs: int) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    network, optimizer = _network()
    samples, saved, first = _samples(), Path(folder, "last.pt"), 0
    if saved.exists():
        state = torch.load(saved)
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    model = nn.parallel.DistributedDataParallel(network)
    for step in range(first * STEPS, epochs * STEPS):
        x, y = _part(samples, step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        _write(folder, rank, step + 1)
        if rank == 0 and (step + 1) % STEPS == 0:
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": (step + 1) // STEPS}, saved)
    if rank == 0:
        torch.save(network.state_dict(), Path(folder, "weights.pt"))


def _with_torchft(folder: str, epochs: int) -> None:
    import torchft

    rank = int(os.environ["REPLICA"])
    network, plain = _network()
    samples = _samples()

    def load(state: dict[str, Any]) -> None:
        network.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": network.state_dict(), "optimizer": plain.state_dict()},
        min_replica_size=1,
        replica_id=f"replica_{rank}",
        timeout=timedelta(seconds=10),
    )
    model = torchft.DistributedDataParallel(manager, network)
    optimizer = torchft.Optimizer(manager, plain)
    while (step := manager.current_step()) < epochs * STEPS:
        optimizer.zero_grad()
        x, y = _part(samples, step, rank)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if manager.current_step() > step:
            _write(folder, rank, manager.current_step())
    if rank == 0:
        torch.save(network.state_dict(), Path(folder, "weights.pt"))
    manager.shutdown(wait=False)


def _with_ray(folder: str, epochs: int) -> None:
    import shutil
    import tempfile

    import ray
    from ray import train
    from ray.train.torch import TorchTrainer

    place = tempfile.mkdtemp(prefix="ray-")  # short: it has sockets
    try:
        ray.init(num_cpus=RANKS, object_store_memory=200 << 20, _temp_dir=place)
        trainer = TorchTrainer(
            _worker_of_ray,
            train_loop_config={"folder": folder, "epochs": epochs},
            scaling_config=train.ScalingConfig(num_workers=RANKS),
            run_config=train.RunConfig(
                name="job", storage_path=folder, failure_config=train.FailureConfig(max_failures=3)
            ),
        )
        trainer.fit()
    finally:
        ray.shutdown()
        shutil.rmtree(place, ignore_errors=True)


def _worker_of_ray(config: dict[str, Any]) -> None:
    import tempfile

    from ray import train
    from ray.train.torch import prepare_model

    torch.set_num_threads(1)
    folder, epochs, rank = config["folder"], config["epochs"], train.get_context().get_world_rank()
    network, optimizer = _network()
    samples, first, saved = _samples(), 0, train.get_checkpoint()
    if saved is not None:
        with saved.as_directory() as place:
            state = torch.load(Path(place, "last.pt"))
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    model = prepare_model(network)
    for step in range(first * STEPS, epochs * STEPS):
        x, y = _part(samples, step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        _write(folder, rank, step + 1)
        if (step + 1) % STEPS == 0:
            with tempfile.TemporaryDirectory() as place:
                epoch, checkpoint = (step + 1) // STEPS, None
                if rank == 0:
                    state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**state, "epoch": epoch}, Path(place, "last.pt"))
                    checkpoint = train.Checkpoint.from_directory(place)
                train.report({"epoch": epoch}, checkpoint=checkpoint)
    if rank == 0:
        torch.save(network.state_dict(), Path(folder, "weights.pt"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"torchrun": _below_torchrun, "torchft": _with_torchft, "ray": _with_ray}[sys.argv[1]](
        sys.argv[2], int(sys.argv[3])
    )
