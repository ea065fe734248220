"""`holdfast verify` in time, and with nothing but torch: real processes that ignore, crash, and do without numpy."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.devices import recorded
from holdfast.testing import bounded
from holdfast.verification import card_check, plain_training

CASES = Path(__file__).resolve().parents[1] / "devices" / "cases"
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); sys.stdin.read()"


def test_a_command_that_will_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "GRACE_S", 0.5)
    began = time.monotonic()
    with pytest.raises(bounded.OutOfTime, match="not done in"):
        bounded.run([sys.executable, "-c", f"import os; os.dup2(os.pipe()[0], 0); {DEAF}"], limit_s=2.0)
    assert time.monotonic() - began < 100
    with pytest.raises(bounded.OutOfTime, match="is over"):
        bounded.run([sys.executable, "-c", "raise SystemExit(7)"], limit_s=-1.0)
    done = bounded.run([sys.executable, "-c", "import sys; print('x'); sys.exit(7)"], limit_s=100.0)
    assert (done.code, done.out, done.errors) == (7, "x\n", "")


@pytest.mark.all
@pytest.mark.timeout(300)
def test_time_is_over_for_all_of_it() -> None:
    """Neither the doctor nor the training after it goes on; the report says that they were not done with."""
    began = time.monotonic()
    report = card_check.conduct("cpu", say=lambda text: None, limit_s=12.0)
    assert (report["answer"], report["limit_s"]) == ("unfinished", 12.0)
    assert time.monotonic() - began < 120


@pytest.mark.long
@pytest.mark.timeout(400)
def test_plain_torch_trains_to_the_same_bits_after_a_process_was_killed() -> None:
    said: list[str] = []
    trained = plain_training.train("cpu", ["sigkill", "hang"], steps=10, say=said.append, left_s=lambda: 300.0)
    receipt = trained["receipt"]
    assert (trained["state"], trained["faults_asked"]) == ("FINISHED", ["sigkill"])
    assert (receipt["weights_equal"], receipt["faults_injected"], receipt["survived"]) == (True, 1, True)
    assert "numpy" in trained["without"] and said[-1] == "run after the faults"
    assert card_check.good({"verdict": "trusted"}, trained)


@pytest.mark.long
def test_a_crash_and_no_memory_are_what_they_are_called() -> None:
    """A training that crashes has no weights; one that asks for too much goes on."""
    command = [sys.executable, "-m", "holdfast.verification.plain_training", "cpu", "4"]
    crashed = subprocess.run([*command, "segfault"], capture_output=True, text=True, timeout=120, check=False)
    assert crashed.returncode != 0 and "weights" not in crashed.stdout
    greedy = subprocess.run([*command, "cuda_oom"], capture_output=True, text=True, timeout=120, check=False)
    assert greedy.returncode == 0 and "weights" in greedy.stdout


@pytest.mark.parametrize(
    ("whole", "late", "said"),
    [
        (["a", "a", "a"], False, True),
        (["a", "a", "b"], False, False),
        (["a", "b", "a"], False, None),
        (["a", "a", None], False, False),
        (["a"], True, None),
        ([], True, None),
    ],
)
def test_what_three_trainings_show(whole: list[str | None], late: bool, said: bool | None) -> None:
    assert plain_training._compare(whole, late=late)[0] is said


def test_without_numpy_the_faults_that_need_our_loop_are_left_out_with_the_reason() -> None:
    done, left_out = card_check.faults_for("amd", "cuda:0", plain=True)
    assert done == ["sigkill", "segfault", "cuda_oom"]
    assert "numpy" in left_out["hang"] and "desktop" in left_out["cuda_assert"]
    assert card_check.faults_for("cpu", "cpu", plain=True)[0] == ["sigkill", "segfault"]


@pytest.mark.long
def test_probes_and_the_plain_training_do_without_numpy() -> None:
    """In a Python that has none: what a probe's process imports first, and all that `verify` does itself."""
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "import importlib\n"
        "from holdfast.probes import child\n"
        "for name in (*child.ProbeNursery.first, 'holdfast.verification.proof', 'holdfast.verification.card_check'):\n"
        "    importlib.import_module(name)\n"
        "from holdfast.verification import plain_training\n"
        "sys.exit(plain_training.main(['cpu', '4']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert '"weights"' in done.stdout.splitlines()[-1]


def test_where_nobody_can_tell_which_card_shows_the_screen_a_person_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    there = recorded.load(CASES / "gtx1660-amp-nan.json").inventory()
    asked = {}
    for os in ("linux", "windows", "macos"):
        here = replace(there, system=replace(there.system, os=os))
        monkeypatch.setattr("holdfast.devices.survey.take", lambda here=here: here)
        asked[os] = any("may show the screen" in each for each in card_check.dangers("cuda:0"))
    assert asked == {"linux": False, "windows": True, "macos": True}
