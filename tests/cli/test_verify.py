"""`holdfast verify`: the doctor, a training and real faults on this processor, and one file that can be sent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main as cli
from holdfast.cli import verify
from holdfast.testing import KINDS
from holdfast.verification import card_check


def test_what_is_done_to_a_card_is_what_is_safe_there() -> None:
    assert card_check.faults_for("cpu", "cpu") == (["sigkill", "segfault", "oom_in_step", "hang"], {})
    done, left_out = card_check.faults_for("nvidia", "cuda:0")
    assert done[-2:] == ["cuda_oom", "cuda_assert"] and set(left_out) == {"cuda_illegal", "endless_kernel"}
    done, left_out = card_check.faults_for("amd", "cuda:0")
    assert "cuda_assert" not in done and "desktop" in left_out["cuda_assert"]
    done, left_out = card_check.faults_for("apple", "mps")
    assert not set(done) & set(card_check.REAL) and set(left_out) == set(card_check.REAL)
    for kind in ("cpu", "nvidia", "amd", "intel", "apple"):
        done, left_out = card_check.faults_for(kind, kind)
        assert set(done) | set(left_out) <= set(KINDS) and not set(done) & set(left_out)


def receipt(**more: Any) -> dict[str, Any]:
    good = {"survived": True, "steps_lost": 0, "weights_equal": True, "faults_injected": 4, "faults_planned": 4}
    return {"receipt": {**good, **more}}


@pytest.mark.parametrize(
    ("about", "trained", "good"),
    [
        ({"verdict": "trusted"}, receipt(), True),
        ({"verdict": "use_with_care"}, receipt(weights_equal=None), True),  # not deterministic by itself
        ({"verdict": "refused"}, None, False),
        ({"verdict": "trusted"}, receipt(survived=False), False),
        ({"verdict": "trusted"}, receipt(steps_lost=1), False),
        ({"verdict": "trusted"}, receipt(weights_equal=False), False),
        ({"verdict": "trusted"}, receipt(faults_injected=3), False),
        ({"verdict": "trusted"}, {"error": {"message": "no"}}, False),
        ({}, receipt(), False),
    ],
)
def test_the_answer(about: dict[str, Any], trained: dict[str, Any] | None, good: bool) -> None:
    assert card_check.good(about, trained) is good


def test_a_report_with_something_private_in_it_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What scrubbing misses must not get out: here a report is made that was never scrubbed."""
    monkeypatch.setenv("USER", "annabel")
    spoiled = {"device": "cpu", "answer": "yes", "summary": [], "text": "annabel"}
    monkeypatch.setattr(card_check, "conduct", lambda *args, **more: spoiled)
    path = tmp_path / "report.json"
    assert cli.main(["verify", "--device", "cpu", "-o", str(path)]) == 2
    assert not path.exists() and "was not written" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--steps", "3"], ["-o", "."], ["--device", "gpu9"]])
def test_what_cannot_be_is_refused_at_once(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", *words]) == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(400)
def test_this_machine_is_proven_and_the_report_names_nobody(tmp_path: Path) -> None:
    home = tmp_path / "clara-schumann"
    home.mkdir()
    secrets = {
        "HOME": str(home), "USER": "clara-schumann", "LOGNAME": "clara-schumann", "HF_TOKEN": "hf_abcdefghijklmnop",
        "LD_LIBRARY_PATH": f"{home}/lib:/srv/clinic/lib",
    }  # fmt: skip
    words = ["verify", "--device", "cpu", "--steps", "12", "--minutes", "30", "-o", "proof.json"]
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        cwd=home, env={**os.environ, **secrets}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as run:  # fmt: skip
        try:
            out, err = run.communicate(timeout=380)
        finally:  # what it started goes with it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 0, out + err[-3000:]
    lines = out.splitlines()
    assert lines[0] == "✓ cpu passed"
    assert "  weights   the weights are those of the undisturbed runs, bit for bit" in lines
    assert any(line.startswith("  faults    4 of 4 came (sigkill, segfault, oom_in_step, hang); ") for line in lines)
    text = (home / "proof.json").read_text(encoding="utf-8")
    for private in (str(tmp_path), "clara", "schumann", "hf_abc", "/srv/clinic", "holdfast-verify-"):
        assert private not in text, private
    report = json.loads(text)
    assert report["schema"] == 1 and report["answer"] == "yes" and report["device"] == "cpu"
    assert report["training"]["receipt"]["faults"] == {"crash": 1, "hang": 1, "killed": 1, "out_of_memory": 1}
    assert report["doctor"]["usable"] == ["cpu"]
    assert list(home.glob("holdfast-*")) == [] and verify._name("cuda:0").endswith("-cuda0.json")
