"""A search keeps its time: what is slow comes last, what is not tried says so, and the best of the rest is bundled."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.optimize.candidates import candidates
from holdfast.optimize.clock import MOST_KEPT, Clock
from holdfast.optimize.engines import kinds, packages
from holdfast.optimize.pipeline import NothingFits, Options, _Search
from holdfast.optimize.processor import Machine

NETS = Path(__file__).with_name("nets.py")

ENGINE = '''
"""An engine whose build never ends."""
from holdfast.injection import endless
from holdfast.optimize.engines.running import Predict

FILE = "model.endless"
PRECISIONS = ("fp32",)
PREDICT = Predict("nothing", "", "def predict(*inputs): return {post}(inputs)")


def build(work, about, target):
    endless.in_python()


def load(path, about):
    raise RuntimeError("never")
'''


def test_a_clock_gives_no_more_than_is_left() -> None:
    now = [100.0]
    clock = Clock(60.0, now=lambda: now[0])
    assert clock.within(600.0) == 54.0 and clock.within(5.0) == 5.0 and not clock.over
    now[0] += 50.0
    assert clock.within(600.0) == pytest.approx(4.0) and clock.words() == "4 s left"
    now[0] += 5.0
    assert clock.over and clock.within(600.0) == 1.0 and clock.at_the_end(600.0) == pytest.approx(5.0)
    now[0] += 5.0
    assert clock.left == 0.0
    assert Clock(math.inf).within(600.0) == 600.0 and not Clock(math.inf).over


def test_what_takes_long_comes_last() -> None:
    machine = Machine(frozenset({"avx2", "avx512_bf16"}), 2, packages=frozenset({"onnx", "onnxscript", "onnxruntime"}))
    slow = {each.name for each in candidates(machine) if each.slow}
    assert {"compile fp32", "aot fp32", "onnxruntime int8-static"} <= slow
    assert not slow & {"onnxruntime fp32", "export fp32", "onnxruntime int8-dynamic"}


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An engine `zzz` whose build never ends."""
    (tmp_path / "add/engines").mkdir(parents=True)
    (tmp_path / "add/engines/zzz.py").write_text(ENGINE)
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOLDFAST_ADD", str(tmp_path / "add"))
    kinds.cache_clear()
    yield
    kinds.cache_clear()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("slow", "what"), [("zzz", "a candidate"), ("loading", "the model")])
def test_time_that_is_over_before_anything_was_measured_is_an_error_that_says_so(
    tmp_path: Path, endless: None, slow: str, what: str
) -> None:
    """Not that the model cannot be loaded: more time would help."""
    nets = NETS
    if slow == "loading":
        nets = tmp_path / "stuck.py"
        nets.write_text("from holdfast.injection import endless\n\n\ndef small():\n    endless.in_python()\n")

    def tell(text: str) -> None:
        if text.startswith(slow):
            clock.limit_s = clock.now() - clock.began + MOST_KEPT + 2.0

    spec = {"kind": "module", "factory": f"{nets}:small", "shapes": [[1, 6]]}
    options = Options(seconds=0.1, engines=("zzz",), threads=1, profile=False, limit_s=1e4)
    search = _Search(spec, tmp_path / "work", Machine.look(packages()), options, tell)
    clock = search.clock
    with pytest.raises(NothingFits) as told:
        search.run(tmp_path / "bundle")
    assert told.value.message == f"the time was over before {what} was measured"
    assert "`--limit` gives more" in str(told.value.cause) and told.value.hints == (
        "`--engines onnxruntime` tries less",
    )
    assert not (tmp_path / "bundle").exists()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_engine_that_never_ends_does_not_take_the_time_of_the_whole(tmp_path: Path, endless: None) -> None:
    """The limit comes two seconds after its build has begun; what was tried before is bundled all the same."""
    pytest.importorskip("onnxruntime", reason="the extra `optimize` is missing")
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if text.startswith("zzz"):
            clock.limit_s = clock.now() - clock.began + 2.0 + MOST_KEPT

    wanted = ("onnxruntime fp32", "zzz", "compile")
    options = Options(seconds=0.1, engines=wanted, threads=1, profile=False, limit_s=1e4)
    spec = {"kind": "module", "factory": f"{NETS}:small", "shapes": [[1, 6]]}
    search = _Search(spec, tmp_path / "work", Machine.look(packages()), options, tell)
    clock = search.clock
    search.run(tmp_path / "bundle")
    rows = {row["name"]: row for row in search.rows}
    assert rows["onnxruntime fp32"]["chosen"] and (tmp_path / "bundle/predict.py").is_file()
    for name in ("zzz fp32", "compile fp32"):
        assert rows[name]["state"] == "skipped" and "the time was over" in rows[name]["reason"], rows[name]
    assert not any(text.startswith("compile") for text in told)
    assert any(" left, 2 more to try)" in text for text in told), told
