"""With the integration, a script that meets a fault ends with the weights of one that met none, bit by bit."""

from __future__ import annotations

import importlib.util
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.supervisor.scripts.driving import (
    SCRIPTS,
    Ran,
    all_by_themselves,
    by_itself,
    same_weights,
    under_run,
    weights,
)

ATTACHED = Path(__file__).parent / "scripts"
CAREFUL = ATTACHED / "careful_loop.py"
EPOCHS, BATCHES = 2, 12


def references(tmp_path_factory: pytest.TempPathFactory, script: str) -> Path:
    folder = tmp_path_factory.mktemp(script)
    ran = by_itself(folder, SCRIPTS / script, EPOCHS, BATCHES)
    assert ran.code == 0, ran.story()
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Undisturbed runs: the plain loop without a word of holdfast, and scripts that are attached."""
    folder = tmp_path_factory.mktemp("alone")
    words = {"plain": SCRIPTS / "loop_script.py", "attached": ATTACHED / "loop_script.py", "careful": CAREFUL}
    ran = all_by_themselves(*((folder / name, [script, EPOCHS, BATCHES]) for name, script in words.items()))
    for each in ran:
        assert each.code == 0, each.story()
    return dict(zip(words, ran, strict=True))


@pytest.fixture(scope="module")
def reference(alone: dict[str, Ran]) -> Path:
    return alone["plain"].folder


@pytest.mark.long  # make test-all: a kill in an epoch below; make test: hangs in tests/supervisor/scripts
@pytest.mark.parametrize("fault", ["kill", "segfault", "hang_gil"])
def test_a_plain_loop_at_a_random_moment(tmp_path: Path, reference: Path, fault: str) -> None:
    at = random.randrange(2, EPOCHS * BATCHES)
    soon = ("watchdog.loop=5s", "watchdog.evaluate=5s") if fault == "hang_gil" else ()
    soon = (*soon, "snapshot.every=1")
    ran = under_run(tmp_path, ATTACHED / "loop_script.py", EPOCHS, BATCHES, settings=soon, fault=f"{fault}@{at}")
    assert ran.code == 0, (at, ran.story())
    assert len(ran.faults) == 1, ran.faults
    assert same_weights(reference, tmp_path), at
    assert ran.receipt["steps"] == EPOCHS * BATCHES
    assert ran.receipt["steps_repeated"] <= 1 and ran.receipt["exact"]
    assert ran.receipt["weights_sha256"]


@pytest.mark.long
def test_with_a_commit_now_and_then_more_steps_are_repeated_and_the_weights_are_the_same(
    tmp_path: Path, reference: Path
) -> None:
    """`snapshot.every` is auto: the steps since the last commit are done again."""
    ran = under_run(tmp_path, ATTACHED / "loop_script.py", EPOCHS, BATCHES, fault="kill@9")
    assert ran.code == 0 and ran.faults == ["killed"], ran.story()
    assert same_weights(reference, tmp_path)
    assert ran.receipt["steps"] == EPOCHS * BATCHES and ran.receipt["exact"]
    assert ran.receipt["steps_repeated"] <= 9


@pytest.mark.all
def test_alone_it_trains_as_before(alone: dict[str, Ran]) -> None:
    assert alone["attached"].err == b""
    assert alone["attached"].out == alone["plain"].out
    assert same_weights(alone["plain"].folder, alone["attached"].folder)


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "script"), [("lightning", "lightning_script.py"), ("transformers", "trainer_script.py")]
)
def test_a_framework_in_the_middle_of_an_epoch(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, module: str, script: str
) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    alone = references(tmp_path_factory, script)
    ran = under_run(tmp_path, ATTACHED / script, EPOCHS, BATCHES, settings=("snapshot.every=1",), fault="kill@17")
    assert ran.code == 0, ran.story()
    assert ran.faults == ["killed"] and ran.receipt["steps_repeated"] <= 1, ran.said
    assert same_weights(alone, tmp_path)


@pytest.mark.parametrize("script", sorted(path.name for path in ATTACHED.glob("*_script.py")))
def test_no_integration_changes_more_than_three_lines(script: str) -> None:
    before, after = (SCRIPTS / script).read_text().splitlines(), (ATTACHED / script).read_text().splitlines()
    import difflib

    changes = [line for line in difflib.ndiff(before, after) if line.startswith("+ ") and line[2:].strip()]
    assert 0 < len(changes) <= 3, changes


@pytest.mark.all
def test_importing_an_integration_is_the_users_choice() -> None:
    """`import holdfast` and `holdfast.attach` by name import no framework; ultralytics never is."""
    code = "import sys, holdfast; holdfast.attach; import holdfast.integrations.ultralytics; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not re.search(r"'(lightning|transformers|ultralytics|accelerate)[.']", done.stdout)
    text = (Path(importlib.util.find_spec("holdfast.integrations.ultralytics").origin)).read_text()  # type: ignore
    assert not re.search(r"^\s*(from|import) ultralytics", text, re.M)


@pytest.mark.all
@pytest.mark.timeout(600)
def test_a_kill_in_a_window_of_gradients_in_the_second_epoch(tmp_path: Path, alone: dict[str, Ran]) -> None:
    """Gradients over three batches, generators of the loader and of its dataset, and what the epoch began with go on.

    A scheduler at the head of the epoch is not stepped twice; a running mean and a count are as they were.
    """
    ran = under_run(tmp_path, CAREFUL, EPOCHS, BATCHES, fault=f"kill@{BATCHES // 3 + 2}", patience=400.0)
    assert ran.code == 0 and ran.faults == ["killed"], ran.story()
    assert same_weights(alone["careful"].folder, tmp_path)
    assert [line for line in ran.out.splitlines() if line.startswith(b"epoch")] == alone["careful"].out.splitlines()
    assert ran.receipt["steps"] == EPOCHS * BATCHES and ran.receipt["exact"] and ran.receipt["weights_sha256"]


@pytest.mark.all
def test_a_loop_without_epochs_is_committed_to_its_last_step(tmp_path: Path) -> None:
    """`snapshot.every` is auto: the last second of the training is not one that a commit is due in."""
    steps = 30
    ran = under_run(tmp_path, ATTACHED / "one_pass.py", steps, patience=400.0)
    assert ran.code == 0 and ran.run is not None, ran.story()
    assert ran.receipt["steps"] == steps and ran.receipt["steps_repeated"] == 0
    ended = load_file(ran.run.path / "final.safetensors")
    assert all(torch.equal(ended[name], value) for name, value in weights(tmp_path).items())


def test_a_loader_that_hides_its_class_is_followed() -> None:
    """As those of accelerate, which say that they are the loader inside of them."""
    import torch
    from torch.utils.data import DataLoader

    from holdfast.integrations.data import follow

    class Prepared(DataLoader):  # type: ignore[type-arg]
        @property
        def __class__(self) -> type:
            return DataLoader

    loader = Prepared(torch.arange(6), batch_size=2)  # type: ignore[arg-type]
    followed = follow(loader)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert (followed.given, followed.passes) == (3, 1)


class Noisy(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(())


class Prefetching:
    """As that of timm: it has the DataLoader inside."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader


@pytest.mark.parametrize("around", [lambda loader: loader, Prefetching], ids=["itself", "inside"])
def test_loader_processes_that_would_live_on_are_new_in_each_epoch(around: Callable[[Any], Any]) -> None:
    """The random numbers of the second epoch are found again in its middle, by a process that had no first one."""
    from holdfast.integrations.data import NEW_PROCESSES, follow

    def made() -> tuple[Any, Any]:
        torch.manual_seed(0)
        loader = around(torch.utils.data.DataLoader(Noisy(), batch_size=2, num_workers=1, persistent_workers=True))
        return loader, follow(loader)

    notes: list[str] = []
    loader, followed = made()
    followed.on_note = notes.append
    first, second = [batch.tolist() for batch in loader], []
    for batch in loader:
        second.append(batch.tolist())
        followed.used = followed.given
        if followed.used == 1:
            state = followed.state_dict()
    assert notes == [NEW_PROCESSES] and first != second
    loader, again = made()
    again.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == second[1:]
