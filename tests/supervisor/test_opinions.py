"""What an opinion holds of the run's memory, where none comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.faults.classification import Fault, Kind
from holdfast.run.events import utc_now
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings
from holdfast.run.worker_config import WorkerConfig
from holdfast.state.slot_memory import Memory
from holdfast.supervisor.opinions import Opinion
from holdfast.supervisor.process_start import NurseryDied, SpawnLauncher


class DeadNursery:
    def start(self, config: dict[str, Any], arenas: list[Any]) -> None:
        raise NurseryDied


CONFIG = WorkerConfig(
    generation=0,
    name="test",
    folder="",
    scratch="",
    script="",
    argv=(),
    arguments={},
    settings={},
    rungs=(),
    rung=0,
    seed=0,
    threads=None,
    checkpoint=None,
)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    """With a snapshot of step 4."""
    run = RunFolder.create(tmp_path, "test", {"created": utc_now(), "seed": 0})
    memory = Memory(run, Settings.load(cwd="/", env={}), portable=False, say=lambda _: None)
    slot = memory.grow(1 << 12).slots[0]
    slot.begin(1)
    slot.commit(sequence=1, step=4, generation=0, size=64)
    yield memory
    memory.close()
    run.close()


def workers(memory: Memory, launcher: Any) -> Any:
    context = SimpleNamespace(memory=memory, portable=False)
    return SimpleNamespace(context=context, launcher=launcher, config=lambda move: CONFIG)


@pytest.mark.parametrize("nursery", ["died", "spawned instead"])
def test_where_no_process_can_be_forked_no_snapshot_stays_held(memory: Memory, nursery: str, tmp_path: Path) -> None:
    """A slot that nobody lets go is one that no commit can use until the run ends."""
    launcher: Any = DeadNursery() if nursery == "died" else SpawnLauncher({}, tmp_path / "slots")
    fault = Fault(Kind.CRASH, "cuda:0", 5, "forward")
    assert Opinion.begin(workers(memory, launcher), fault, setup_s=0.0) is None
    assert not memory.evidence and not any(slot.held for arena in memory.arenas for slot in arena.slots)
    if nursery != "died":
        launcher.close()
