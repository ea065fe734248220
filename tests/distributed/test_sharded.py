"""Ranks that share the state out among themselves (FSDP2): each commits its part, and no part is lost.

The scenarios are real processes with real signals, forked by driving.py, with the script sharded_job.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from holdfast.injection import away
from holdfast.run.folder import list_runs
from holdfast.state import layout, shards
from tests.distributed.driving import SHARDED
from tests.distributed.launched import ROOT
from tests.distributed.test_ranks import Found

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked by these tests"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    found = Found(tmp_path_factory.mktemp("parts"))
    yield found
    found.close()


def _close(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest distance between two weights of two runs."""
    assert one["weights"].keys() == other["weights"].keys()
    pairs = ((one["weights"][name], other["weights"][name]) for name in one["weights"])
    return max(float((torch.tensor(a) - torch.tensor(b)).abs().max()) for a, b in pairs)


@pytest.mark.all
def test_two_ranks_with_parts_learn_what_one_process_does(found: Found) -> None:
    assert found["parts two"]["codes"] == [[0], [0]]
    assert _close(found["parts two"], found["parts one"]) < 1e-6


@pytest.mark.all
@pytest.mark.parametrize(
    "phase", ["backward", *(pytest.param(each, marks=pytest.mark.long) for each in ("forward", "optimizer"))]
)
def test_a_rank_killed_in_any_phase_costs_no_bit(found: Found, phase: str) -> None:
    killed, two = found[f"parts {phase}"], found["parts two"]
    assert killed["sha256"] == two["sha256"] is not None
    assert killed["receipt"]["recoveries"] == 1
    assert sorted(map(len, killed["pids"])) == [1, 2], "the other rank keeps its process"


@pytest.mark.all
def test_a_batch_too_large_for_one_rank_is_computed_in_pieces_by_all(found: Found) -> None:
    full, two = found["parts full"], found["parts two"]
    assert _close(full, two) < 1e-9
    assert [fault["kind"] for fault in full["faults"]] == ["out_of_memory"]
    assert full["faults"][0]["device"] == "rank 1"
    assert all(len(pids) == 1 for pids in full["pids"])


@pytest.mark.all
def test_memory_that_is_short_twice_makes_four_pieces(found: Found) -> None:
    assert [fault["kind"] for fault in found["parts often"]["faults"]] == ["out_of_memory"] * 2
    assert _close(found["parts often"], found["parts two"]) < 1e-9


@pytest.mark.all
def test_a_rank_killed_while_it_writes_its_part_of_the_last_snapshot(found: Found) -> None:
    """Rank 0 must not call the run finished without that part."""
    torn, two = found["parts torn"], found["parts two"]
    assert torn["sha256"] == two["sha256"] is not None
    assert "killed" in [fault["kind"] for fault in torn["faults"]]


@pytest.mark.all
def test_parts_of_a_batch_that_are_not_equal_are_cut_into_equally_many_pieces(found: Found) -> None:
    """FSDP2 exchanges in every piece: ranks with other numbers of them would wait for each other."""
    assert found["parts uneven"]["codes"] == [[0], [0]]
    assert _close(found["parts uneven"], found["parts uneven-alone"]) < 1e-6


@pytest.mark.all
def test_a_weight_that_two_layers_share_goes_on_with_another_number_of_ranks(found: Found) -> None:
    assert len(found["parts tied"]["checkpoints"]) == 1
    assert _close(found["parts tied then"], found["parts tied-alone"]) < 1e-6


@pytest.mark.long
def test_a_rank_killed_beside_a_replica_costs_no_bit(found: Found) -> None:
    """A rank that exchanges nothing with the lost one waits for one that has left: its connection has to end too."""
    assert found["parts replica"]["sha256"] == found["parts replicas"]["sha256"] is not None
    assert [fault["kind"] for fault in found["parts replica"]["faults"]] == ["killed"]


@pytest.mark.long
def test_a_death_after_an_evaluation_that_left_parameters_whole(found: Found) -> None:
    assert found["parts looking"]["sha256"] == found["parts clipped"]["sha256"] is not None


@pytest.mark.all
@pytest.mark.parametrize("ranks", [3, pytest.param(1, marks=pytest.mark.long)])
def test_a_checkpoint_goes_on_with_another_number_of_ranks(found: Found, ranks: int) -> None:
    assert len(found[f"parts stopped {ranks}"]["checkpoints"]) == 1
    assert found[f"parts then {ranks}"]["receipt"]["steps"] == 10
    assert _close(found[f"parts then {ranks}"], found["parts one"]) < 1e-6


@pytest.mark.long
def test_below_torchrun_all_ranks_start_again_with_their_parts(found: Found) -> None:
    assert found["parts torchrun"]["sha256"] == found["parts two"]["sha256"] is not None


@pytest.mark.long
@pytest.mark.parametrize("die", ["2:6:backward", "2:7:snapshot"])
def test_a_rank_with_a_part_goes_away_and_comes_back(found: Found, tmp_path: Path, die: str) -> None:
    """Four ranks, then three, then four: the part of the one that is away is shared out among the others.

    A rank that is killed while it commits leaves a snapshot of which a part is missing: the one before it counts.
    """
    words = {"epochs": 8, "die": die, "back": 16, "pause": 0.1, "seen": tmp_path, "snapshot.every": 1}
    settings = {"run.folder": tmp_path, "run.threads": 1}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "holdfast", "launch", "--nproc", "4", "--min-ranks", "2", str(SHARDED), "-q"]
    done = subprocess.run(
        [*command, *(f"{key}={value}" for key, value in {**words, **settings}.items())],
        env={**os.environ, "PYTHONPATH": path, away.VARIABLE: f"2={tmp_path / 'away'}"},
        cwd=tmp_path,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0
    (run,) = list_runs(tmp_path)
    notes = [event.data for event in run.events() if event.kind == "note"]
    assert [note["away"] for note in notes if "away" in note] == [2]
    assert [note["back"] for note in notes if "back" in note] == [2]
    alone = found["parts alone for long"]["weights"]
    for name, values in load_file(run.path / "final.safetensors").items():
        assert float((values.flatten() - torch.tensor(alone[name], dtype=values.dtype)).abs().max()) < 1e-6


@pytest.mark.all
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"full": "1:4:100", "batch": 4}, "rank 1 ran out of memory, and its batch cannot be split further"),
        ({"turn": True}, "session.transaction with FSDP2 needs equal parts of each batch"),
    ],
)
def test_what_does_not_go_with_unequal_parts_ends_at_once(tmp_path: Path, words: dict[str, Any], told: str) -> None:
    """Rank 1 has one sample of four: its pieces cannot be smaller. FSDP2 averages as if parts were equal."""
    given = {**words, "seen": tmp_path, "run.folder": tmp_path, "run.threads": 1}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "holdfast", "launch", "--nproc", "2", "--shares", "3:1", str(SHARDED), "--json"]
    done = subprocess.run(
        [*command, "-q", *(f"{key}={value}" for key, value in given.items())],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        timeout=500,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode != 0 and told in done.stdout
    assert len(list(tmp_path.glob("full-*"))) == ("full" in words), "one try, then the sentence"


# Bytes ------------------------------------------------------------------------------------------------------


def _whole(rows: list[int], names: list[str]) -> bytes:
    specs: list[layout.Spec] = [(f"model.{at}", "F32", (count, 3)) for at, count in enumerate(rows)]
    plan = layout.plan([*specs, ("model.scale", "F32", (2,))])
    payload = bytearray(plan.header + bytes(plan.data_bytes))
    for number, entry in enumerate(plan.entries):
        span = plan.span(entry.name)
        payload[span] = bytes((number * 31 + at) % 251 for at in range(span.stop - span.start))
    meta = {"parts": {"model": "module"}, shards.SHARED_OUT: {"index": 0, "count": 1, "names": names}}
    payload[plan.span(layout.META)] = plan.pack_meta(meta)
    return bytes(payload)


@given(rows=st.lists(st.integers(0, 9), min_size=1, max_size=4), count=st.integers(1, 6))
def test_parts_that_are_cut_and_put_together_are_the_whole(rows: list[int], count: int) -> None:
    names = [f"model.{at}" for at in range(len(rows))]
    whole = _whole(rows, names)
    parts = [shards.cut(whole, index=index, count=count, names=names) for index in range(count)]
    assert [shards.parts_of(part)["index"] for part in parts] == list(range(count))
    assert layout.weights_sha256(shards.put_together(parts)) == layout.weights_sha256(whole)
    for rank, part in enumerate(parts):
        for name, entry in {entry.name: entry for entry in layout.parse_header(part)[0]}.items():
            if name in names:
                expected = torch.zeros(rows[names.index(name)]).chunk(count)
                assert entry.shape[0] == (len(expected[rank]) if rank < len(expected) else 0), "as torch cuts it"


def test_a_part_that_lacks_a_tensor_is_refused() -> None:
    names = ["model.0"]
    parts = [shards.cut(_whole([4], names), index=index, count=2, names=names) for index in (0, 1)]
    other = shards.cut(_whole([4, 4], names), index=1, count=2, names=names)
    assert shards.put_together([parts[0], parts[1]])
    with pytest.raises(shards.PartsDiffer):
        shards.put_together([shards.cut(_whole([4, 4], ["model.0", "model.1"]), index=0, count=2,
                                        names=["model.0", "model.1"]), parts[1]])  # fmt: skip
    assert shards.put_together([parts[0], other]), "what only another part has beside is not asked for"


def test_the_weights_of_a_run_as_a_folder_of_dcp(tmp_path: Path) -> None:
    """The lines of docs/more-than-one-machine.md."""
    weights = {"0.weight": torch.arange(6.0).reshape(2, 3), "0.bias": torch.ones(2)}
    save_file(weights, tmp_path / "final.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that one process saves
        dcp.save(load_file(tmp_path / "final.safetensors"), checkpoint_id=tmp_path / "for-dcp")
        found = {name: torch.zeros_like(value) for name, value in weights.items()}
        dcp.load(found, checkpoint_id=tmp_path / "for-dcp")
    assert all(torch.equal(found[name], value) for name, value in weights.items())
