"""benchmarks/wishes: real scripts with real faults; what the driver says of them is what the docs say."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "benchmarks" / "wishes"


@pytest.fixture
def wishes(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    before = set(sys.modules)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.syspath_prepend(str(PLACE))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("wishes")
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_every_wish_has_both_scripts_and_a_row(wishes: ModuleType) -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "wishes-cpu.json").read_text())["wishes"]
    assert kept and list(kept) == [name for name in wishes.WISHES if name in kept], "what was measured, in order"
    for name, (thread, wish, _) in wishes.WISHES.items():
        assert (PLACE / name / "peer.py").is_file() and (PLACE / name / "held.py").is_file()
        assert name not in kept or (kept[name]["thread"], kept[name]["wish"]) == (thread, wish)
    assert {path.parent.name for path in PLACE.glob("*/peer.py")} == set(wishes.WISHES)
    assert set(wishes.WISHES) - set(kept) <= {"cuda_error"}, "what needs a CUDA device may be missing"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["lightning_mid_epoch", "accelerate_order", "hung_loader"])
def test_a_wish_is_what_the_table_says(wishes: ModuleType, tmp_path: Path, name: str) -> None:
    theirs, ours = wishes.WISHES[name][2](tmp_path, 3)
    assert not theirs["fulfilled"], theirs
    assert ours["fulfilled"], ours
