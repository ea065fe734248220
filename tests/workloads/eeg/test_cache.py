"""A cache comes from anywhere: what is right is read fast, what is wrong is an error with words."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import cache


def make(folder: Path, *, windows: int = 10, channels: int = 3, samples: int = 50) -> Path:
    folder.mkdir(parents=True)
    signals = np.arange(windows * channels * samples, dtype="<f4").reshape(windows, channels, samples)
    signals.tofile(folder / cache.SIGNALS)
    meta = {
        "kind": "challenge1",
        "rate": 100,
        "channels": [f"E{i}" for i in range(channels)],
        "samples": samples,
        "simulated": True,
        "key": "0" * 64,
    }
    columns = {"onset": list(range(windows)), "response_time": [None] * windows}
    cache.finish(folder, meta, cache.columns([(windows, {"subject": "sub-01", "age": 9.5}, columns)]))
    return folder


def test_what_was_written_is_read(tmp_path: Path) -> None:
    windows = cache.open(make(tmp_path / "c"))
    assert windows.words() == "SIMULATED EEG: 10 challenge1 windows of 0.5 s x 3 channels at 100 Hz, 1 subject"
    assert windows.signals.shape == (10, 3, 50)
    signal, row = windows[4]
    np.testing.assert_array_equal(signal, windows.signals[4])
    assert (row["onset"], row["subject"], row["age"], row["task"]) == (4.0, "sub-01", 9.5, "")
    assert np.isnan(row["response_time"])
    assert windows[-1][1]["onset"] == 9.0
    with pytest.raises(IndexError):
        windows[10]
    with pytest.raises(ValueError, match="read-only"):
        windows.signals[0, 0, 0] = 1


@pytest.mark.parametrize("indices", [[], [3], [0, 1, 2, 3], [9, 0, 5, 5, 4], [-1, -10], list(range(10))])
def test_batches(tmp_path: Path, indices: list[int]) -> None:
    windows = cache.open(make(tmp_path / "c"))
    np.testing.assert_array_equal(windows.batch(indices), windows.signals[indices])
    out = np.empty((len(indices), 3, 50), np.float32)
    assert windows.batch(np.array(indices, dtype=np.int64), out=out) is out


@pytest.mark.parametrize("indices", [[], [3], [0, 1, 2, 3], [9, 0, 5, 5, 4], [-1, -10]])
def test_batches_where_nothing_can_be_mapped(tmp_path: Path, indices: list[int]) -> None:
    windows = cache.open(make(tmp_path / "c"))
    vars(windows)["_mapped"] = None
    np.testing.assert_array_equal(windows.batch(indices), windows.signals[indices])


def test_an_epoch_in_memory_that_is_used_again(tmp_path: Path) -> None:
    windows = cache.open(make(tmp_path / "c"))
    order = np.random.default_rng(0).permutation(10)
    drawn: list[Any] = []
    for number, batch in enumerate(windows.batches(order, 4)):
        drawn.append(batch)
        for back in range(min(number, 2) + 1):  # this one and the two before it are still good
            at = (number - back) * 4
            np.testing.assert_array_equal(drawn[number - back], windows.signals[order[at : at + 4]])
    assert [len(each) for each in drawn] == [4, 4, 2]


@pytest.mark.parametrize("indices", [[10], [-11], [[1, 2]]])
def test_batches_that_cannot_be(tmp_path: Path, indices: Any) -> None:
    with pytest.raises(IndexError):
        cache.open(make(tmp_path / "c")).batch(indices)


def test_a_place_for_the_batch_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is needed"):
        cache.open(make(tmp_path / "c")).batch([1, 2], out=np.empty((1, 3, 50), np.float32))


def test_it_travels_to_a_loader_process(tmp_path: Path) -> None:
    windows = cache.open(make(tmp_path / "c"))
    windows.batch([1])
    packed = pickle.dumps(windows)
    assert len(packed) < 500
    np.testing.assert_array_equal(pickle.loads(packed).batch([2]), windows.batch([2]))


def test_an_empty_cache(tmp_path: Path) -> None:
    windows = cache.open(make(tmp_path / "c", windows=0))
    assert len(windows) == 0
    assert windows.signals.shape == windows.batch([]).shape == (0, 3, 50)


def rewritten(**facts: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        meta = json.loads((folder / cache.META).read_text())
        (folder / cache.META).write_text(json.dumps({**meta, **facts}))

    return change


def shortened(folder: Path) -> None:
    os.truncate(folder / cache.SIGNALS, 100)


def linked(folder: Path) -> None:
    (folder / cache.SIGNALS).rename(folder / "other")
    (folder / cache.SIGNALS).symlink_to(folder / "other")


def pickled(folder: Path) -> None:
    np.savez(folder / cache.TABLE, **{name: np.array([{}] * 10, dtype=object) for name in cache.COLUMNS})


def without_a_column(folder: Path) -> None:
    np.savez(folder / cache.TABLE, onset=np.zeros(10))


def texts_for_numbers(folder: Path) -> None:
    np.savez(folder / cache.TABLE, **{name: np.array(["x"] * 10) for name in cache.COLUMNS})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("damage", "message", "cause"),
    [
        (rewritten(format=7), "is of another version", "its format is 7, this holdfast reads 1"),
        (rewritten(kind="songs"), "is damaged", "unknown kind 'songs'"),
        (rewritten(channels=[]), "is damaged", "no channels"),
        (rewritten(channels=[1, 2, 3]), "is damaged", "no channels"),
        (rewritten(rate="fast"), "is damaged", "no sampling rate"),
        (rewritten(windows=-1), "is damaged", "no sizes"),
        (rewritten(windows=11), "is damaged", "signals.f32 has 6000 bytes, 6600 were written"),
        (rewritten(windows=10**15), "is damaged", "were written"),
        (rewritten(key=None), "is damaged", "no key"),
        (shortened, "is damaged", "signals.f32 has 100 bytes, 6000 were written"),
        (linked, "is damaged", "a link, not a file"),
        (pickled, "is damaged", "Object arrays cannot be loaded"),
        (without_a_column, "is damaged", "table.npz"),
        (texts_for_numbers, "is damaged", "column onset of table.npz is <U1 (10,)"),
        (lambda folder: (folder / cache.TABLE).write_bytes(b"PK\x03\x04 no"), "is damaged", "table.npz"),
        (lambda folder: (folder / cache.META).write_text("[" * 100_000), "is damaged", "cannot be read"),
        (lambda folder: (folder / cache.META).unlink(), "there is no finished cache", "it has no windows.json"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, damage: Callable[[Path], Any], message: str, cause: str) -> None:
    folder = make(tmp_path / "c")
    damage(folder)
    with pytest.raises(UserError) as caught:
        cache.open(folder)
    assert message in caught.value.message
    assert cause in str(caught.value.cause)


def test_no_cache_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no cache in"):
        cache.open(tmp_path / "nowhere")


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    windows = cache.open(make(tmp_path / "c"))
    windows.batch([1])
    shortened(tmp_path / "c")
    with pytest.raises(UserError, match="is damaged"):
        windows.batch([9])
    vars(windows)["_mapped"] = None
    with pytest.raises(UserError, match="is damaged"):
        windows.batch([9])


BOUNDED = """
import resource, sys
import numpy as np
from holdfast.workloads.eeg import cache
windows = cache.open(sys.argv[1])
limit = 768 << 20                                    # of address space, numpy and its libraries included
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
rng = np.random.default_rng(0)
total = 0.0
for _ in range(40):
    total += float(windows.batch(rng.integers(0, len(windows), 64)).sum())
try:
    windows.signals
except OSError:
    print("batches fit, the whole does not")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on address space is a thing of Linux")
def test_memory_is_that_of_the_batch(tmp_path: Path) -> None:
    """A set larger than the memory that the process may have; it is sparse, so that the disk is not asked for it."""
    folder = make(tmp_path / "c")
    count, channels, samples = 20_000, 129, 200
    os.truncate(folder / cache.SIGNALS, count * channels * samples * 4)
    meta = json.loads((folder / cache.META).read_text())
    meta.update(channels=[f"E{i}" for i in range(channels)], samples=samples)
    cache.finish(folder, meta, cache.columns([(count, {"subject": "sub-01"}, {})]))
    assert (folder / cache.SIGNALS).stat().st_size > 2_000_000_000
    done = subprocess.run([sys.executable, "-c", BOUNDED, str(folder)], capture_output=True, text=True, timeout=100)
    assert done.stdout == "batches fit, the whole does not\n", done.stderr[-2000:]


def test_opening_imports_neither_torch_nor_mne(tmp_path: Path) -> None:
    code = (
        "import sys; from holdfast.workloads.eeg import cache, prepare, simulate, check; cache.open(sys.argv[1]);"
        "print(sorted({'torch', 'mne', 'scipy', 'braindecode', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(make(tmp_path / "c"))], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
