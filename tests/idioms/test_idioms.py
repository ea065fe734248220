"""Ordinary idioms under real kills: equal weights, equal logged numbers, or a clear error; never another silently."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.supervisor.process_start import NurseryLauncher
from tests.idioms import table
from tests.idioms.kit import Kit
from tests.idioms.kit_list import idioms
from tests.real_faults.conftest import nursery  # noqa: F401

OFTEN = (
    "gradient accumulation by hand",
    "k folds with early stopping",
    "a dataset that grows, not protected",
    "a second Loader by iter() and next()",
    "early stopping by a counter in session.state",
)
"""Those of each run of the suite; the others are for `make test-long` and for the table in docs/idioms.md."""
CASES = [pytest.param(name, marks=() if name in OFTEN else (pytest.mark.long,)) for name in idioms()]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory, nursery: NurseryLauncher) -> Iterator[Kit]:  # noqa: F811
    yield Kit(tmp_path_factory.mktemp("idioms"), nursery)


def test_the_page_says_what_was_measured_and_nothing_differs() -> None:
    kept = table.read(table.RESULT)
    assert table.page(kept) == table.PAGE.read_text("utf-8"), "python -m tests.idioms.table --page"
    assert set(kept) <= set(idioms()) | {name for name in kept if "torchdata" in name or "Hugging Face" in name}
    assert not [(name, way) for name, row in kept.items() for way, cell in row.items() if "DIFFERS" in cell[0]]
    assert len(kept) >= 40
    assert not [(name, way) for name, row in kept.items() for way in table.WAYS if way not in row]


@pytest.mark.parametrize("name", CASES)
def test_killed(kit: Kit, name: str) -> None:
    idiom = idioms()[name]
    plain, killed = kit.cell(idiom, "plain"), kit.cell(idiom, "killed")
    assert "DIFFERS" not in f"{plain} {killed}", (plain, killed)
    if idiom.refused:
        assert killed != "equal"


@pytest.mark.long
@pytest.mark.parametrize("name", idioms())
def test_stopped_and_resumed(kit: Kit, name: str) -> None:
    cell = kit.cell(idioms()[name], "stopped and resumed")
    assert "DIFFERS" not in cell, cell
