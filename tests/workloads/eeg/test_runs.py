"""The stages as supervised runs: interrupted, resumed to the end, linked, scored, packed and tried."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import UserError
from holdfast.base.human import shorten
from holdfast.run.folder import RunFolder, list_runs
from holdfast.workloads.eeg import challenge1, challenge2, closing, submission
from tests.worker.local_runs import run

from . import small

PATIENCE = 500.0
pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Chain:
    """What `holdfast train eeg` left behind."""

    cwd: Path
    first: int
    """How the first command ended, which was told to stop."""
    second: subprocess.CompletedProcess[str]

    def run(self, workload: str) -> Path:
        return next(each.path for each in list_runs(self.cwd / "runs") if each.info["workload"] == workload)

    def info(self, workload: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run(workload) / "run.json").read_text())
        return found


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", *words]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """All stages on small windows: stopped in the first, resumed, and then to the end by itself."""
    cwd = tmp_path_factory.mktemp("chain")
    small.challenge1(cwd / "cache" / "challenge1")
    small.challenge2(cwd / "cache" / "challenge2")
    words = [
        "train",
        "eeg-pretrained",
        "data=cache",
        "epochs=6",
        "pretrain_epochs=60",
        "tune=false",
        "run.threads=1",
        "batch=32",
    ]
    with subprocess.Popen(command(*words), cwd=cwd, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as going:
        _await_step(cwd / "runs", going)
        going.send_signal(signal.SIGTERM)
        first = going.wait(PATIENCE)
    second = subprocess.run(
        command("resume", "latest"), cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    yield Chain(cwd, first, second)


def _await_step(runs: Path, run: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert run.poll() is None, "it ended before it could be stopped"
        if any(_steps(each) >= 2 for each in runs.glob("*/beat.json")):
            return
        time.sleep(0.02)
    raise AssertionError("no step was taken")


def _steps(beat: Path) -> int:
    try:
        return int(json.loads(beat.read_text())["step"])
    except (OSError, ValueError, KeyError):
        return 0


@pytest.mark.long
def test_stopping_one_stage_and_resuming_it_finishes_all(chain: Chain) -> None:
    assert chain.first == 75
    assert chain.second.returncode == 0, chain.second.stderr
    states = {each.info["workload"]: each.info["state"] for each in list_runs(chain.cwd / "runs")}
    assert states == dict.fromkeys(("eeg-pretrain", "eeg-challenge1", "eeg-challenge2"), "FINISHED")
    assert "• eeg-pretrained, stage 2 of 3: eeg-challenge1" in chain.second.stderr


@pytest.mark.long
def test_a_finished_stage_is_gone_on_from_and_a_stage_that_was_begun_is_finished(chain: Chain, tmp_path: Path) -> None:
    """The last stage is missing: resuming the first starts it; stopped in its middle, the same command finishes it."""
    for workload in ("eeg-pretrain", "eeg-challenge1"):
        shutil.copytree(chain.run(workload), tmp_path / "runs" / chain.run(workload).name)
        info = json.loads((tmp_path / "runs" / chain.run(workload).name / "run.json").read_text())
        info["stages"]["words"] += ["epochs=60", "patience=60"]  # long enough to be stopped in its middle
        RunFolder(tmp_path / "runs" / chain.run(workload).name).vouch(info)
    (tmp_path / "cache").symlink_to(chain.cwd / "cache")
    first = chain.run("eeg-pretrain").name
    before = (tmp_path / "runs" / chain.run("eeg-challenge1").name / "run.json").read_bytes()

    def resume(*words: str) -> subprocess.CompletedProcess[str]:
        asked = command("resume", first, *words)
        return subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)

    begun = resume("--detach")
    assert begun.returncode == 0, begun.stderr
    assert (
        begun.stderr.splitlines()[0]
        == f"• {RunFolder(tmp_path / 'runs' / first).name} is finished, but its later stages are not"
    )
    runs = {each.info["workload"]: each for each in list_runs(tmp_path / "runs")}
    assert set(runs) == {"eeg-pretrain", "eeg-challenge1", "eeg-challenge2"}
    last = runs["eeg-challenge2"]
    assert last.info["parent"] == first and f"{last.name} is " in begun.stdout and "in the background" in begun.stdout
    words = command("stop", last.name)
    stopped = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert stopped.returncode == 0 and last.info["state"] == "STOPPED", stopped.stderr

    ended = resume("--json")
    assert ended.returncode == 0, ended.stderr
    assert f"• eeg-pretrained goes on with {last.name} (eeg-challenge2)" in ended.stderr
    told = json.loads(ended.stdout)
    assert (told["run"], told["state"], told["receipt"]["steps_lost"]) == (last.name, "FINISHED", 0)
    assert len(list_runs(tmp_path / "runs")) == 3
    assert (tmp_path / "runs" / chain.run("eeg-challenge1").name / "run.json").read_bytes() == before
    assert resume().stdout.startswith("✓ ")  # nothing is left now


@pytest.mark.long
def test_what_is_said_of_the_run_is_said_once(chain: Chain) -> None:
    """The first stage had two workers: before it was stopped, and after it was resumed."""
    said = (chain.run("eeg-pretrain") / "output.log").read_text().splitlines()
    place = chain.cwd / "cache" / "challenge2"
    wanted = "SIMULATED EEG: 192 challenge2 windows of 4 s x 8 channels at 100 Hz, 24 subjects, in "
    assert [line for line in said if "SIMULATED" in line] == [f"{wanted}{shorten(str(place))}"]
    assert len([line for line in said if line.startswith(("split ", "tempo: "))]) == 2


@pytest.mark.long
def test_each_stage_knows_its_parent_and_starts_from_its_weights(chain: Chain) -> None:
    parent = chain.run("eeg-pretrain").name
    assert chain.info("eeg-pretrain")["parent"] is None
    for workload in ("eeg-challenge1", "eeg-challenge2"):
        assert chain.info(workload)["parent"] == parent
        assert chain.info(workload)["arguments"]["parent"] == parent
        assert f"backbone from {parent}" in (chain.run(workload) / "output.log").read_text()
    assert chain.info("eeg-challenge2")["stages"] == {
        "of": "eeg-pretrained",
        "left": [],
        "words": chain.info("eeg-pretrain")["stages"]["words"],
    }


@pytest.mark.long
def test_the_press_is_found_and_everything_says_simulated(chain: Chain) -> None:
    scores = json.loads((chain.run("eeg-challenge1") / "scores.json").read_text())
    assert scores["simulated"] is True and scores["subjects"] == 4
    assert scores["r"] > 0.8
    assert scores["nrmse"] < scores["baselines"]["oracle"] < scores["baselines"]["constant"]
    assert scores["r_low"] is scores["r_high"] is None  # four subjects say nothing about the next ones
    text = (chain.run("eeg-challenge1") / "output.log").read_text()
    assert "Challenge 1 on SIMULATED EEG, 4 held-out subjects, 64 windows" in text
    assert "beside it, nrmse of the constant" in text


@pytest.mark.long
def test_the_end_says_the_number_of_the_leaderboard(chain: Chain) -> None:
    one, two = (json.loads((chain.run(f"eeg-challenge{n}") / "scores.json").read_text()) for n in (1, 2))
    number = 0.3 * one["nrmse"] + 0.7 * two["nrmse"]
    assert f"overall {number:.4f} = 0.3 x" in chain.second.stdout
    assert "on SIMULATED EEG" in chain.second.stdout
    assert len(two["factors"]) == 4 and {"nrmse_per_window", "baselines", "inside_noise"} <= set(two["factors"][0])
    assert closing.overall([one, two]) == pytest.approx(number, abs=1e-4)


@pytest.mark.long
def test_score_tells_what_was_kept(chain: Chain) -> None:
    done = subprocess.run(command("eeg", "score", "--json"), cwd=chain.cwd, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert [each["challenge"] for each in told["scores"]] == [1, 2]
    assert told["overall"] == closing.overall(told["scores"])


# A submission ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(chain: Chain) -> Path:
    return submission.build(chain.run("eeg-challenge1"), chain.run("eeg-challenge2"), chain.cwd / "submission.zip")


@pytest.mark.long
def test_the_zip_is_flat_and_the_same_every_time(chain: Chain, packed: Path) -> None:
    assert sorted(submission.check(packed)) == [
        "challenge_1.json",
        "challenge_1.safetensors",
        "challenge_2.json",
        "challenge_2.safetensors",
        "holdfast_heads.py",
        "holdfast_models.py",
        "submission.py",
    ]
    again = submission.build(chain.run("eeg-challenge1"), chain.run("eeg-challenge2"), chain.cwd / "again.zip")
    assert again.read_bytes() == packed.read_bytes()


@pytest.mark.long
def test_it_answers_elsewhere_what_the_run_scored(chain: Chain) -> None:
    """In another process, isolated, from another folder; the score is that of the run to the last digit kept."""
    words = ["eeg", "submit", "--here", "--json", "--out", "tried.zip"]
    done = subprocess.run(command(*words), cwd=chain.cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    one, two = (json.loads((chain.run(f"eeg-challenge{n}") / "scores.json").read_text()) for n in (1, 2))
    assert told["tried"]["challenge1"]["nrmse"] == pytest.approx(one["nrmse"], abs=1e-4)
    assert told["tried"]["challenge2"]["nrmse"] == pytest.approx(two["nrmse"], abs=1e-4)
    assert told["tried"]["overall"] == pytest.approx(0.3 * one["nrmse"] + 0.7 * two["nrmse"], abs=2e-4)
    assert told["tried"]["challenge1"]["parity"]["answers_largest_difference"] < 1e-4
    assert told["not_official"] == "as asked, with --here"
    assert told["tried"]["memory_bytes"] > 1 << 20


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"inside/submission.py": "x"}, "has folders in it"),
        ({"model.py": "x"}, "has no submission.py"),
    ],
)
def test_a_zip_that_would_be_refused_is_refused_here(tmp_path: Path, members: dict[str, str], said: str) -> None:
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    with pytest.raises(UserError, match=said):
        submission.check(path)


@pytest.mark.all
def test_a_damaged_zip_and_a_submission_that_raises(tmp_path: Path) -> None:
    path = tmp_path / "broken.zip"
    path.write_bytes(b"PK\x03\x04 no")
    with pytest.raises(UserError, match="is not a zip that can be read"):
        submission.check(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("submission.py", "raise ImportError('no timm here')")
    windows = {1: (np.zeros((1, 8, 200), np.float32), [(0, 1)])}
    with pytest.raises(UserError) as refused:
        submission.attempt(path, sys.executable, windows)
    assert refused.value.message == "the submission failed when it was run as the competition does"
    assert "no timm here" in (refused.value.cause or "")


@pytest.mark.long
def test_runs_that_cannot_be_packed(chain: Chain, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a run of Challenge 2, not 1"):
        submission.build(chain.run("eeg-challenge2"), chain.run("eeg-challenge1"), tmp_path / "x.zip")
    with pytest.raises(UserError, match="is not a finished run of a challenge"):
        submission.build(chain.run("eeg-pretrain"), chain.run("eeg-challenge2"), tmp_path / "x.zip")


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        {"model": "os.system"},
        {"model": "__class__"},
        {"options": {"width": "rm -rf"}},
        {"options": {"foreign": 1}},
        {"members": 0},
        {"column": 9},
        {"names": None},
        {"rate": True},
    ],
)
def test_a_description_that_is_none_is_refused(chain: Chain, tmp_path: Path, change: dict[str, Any]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    about = json.loads((chain.run("eeg-challenge1") / submission.NET).read_text())
    (folder / submission.NET).write_text(json.dumps({**about, **change}))
    (folder / "final.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="does not describe a net"):
        submission.described(folder)


# Bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_killed_run_with_the_tuner_on_ends_with_the_same_bits(chain: Chain) -> None:
    """Chaos runs it twice undisturbed and once with kills. The runs are too short to tune more than their share."""
    words = ["chaos", "eeg-challenge1", "data=cache", "epochs=4", "batch=16", "members=2", "folds=true", "augment=1.0"]
    done = subprocess.run(
        command(*words, "--faults", "sigkill@3:backward,sigkill@9:snapshot", "--json"),
        cwd=chain.cwd, capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={**os.environ, "HOLDFAST_STATE": str(chain.cwd / "state")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    receipt = json.loads(done.stdout)["receipt"]
    assert receipt["weights_equal"] is True and receipt["exact"] is True
    assert receipt["steps_lost"] == 0 and receipt["faults_injected"] == 2


# Bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "words", "said"),
    [
        (challenge1, {"data": "nowhere"}, "there is no cache in nowhere"),
        (challenge1, {"model": "EEGNext"}, "unknown model `EEGNext`"),
        (challenge1, {"head": "both"}, "head is 'both'"),
        (challenge2, {"head": "all"}, "head is 'all'"),
        (challenge1, {"parent": "nobody"}, "no run `nobody` beside"),
        (challenge1, {"valid": "R9"}, "no window is of release R9"),
    ],
)
def test_what_cannot_be_trained_is_said_in_words(
    chain: Chain, tmp_path: Path, stage: Any, words: dict[str, Any], said: str
) -> None:
    if "EEGNext" in words.values():
        pytest.importorskip("braindecode")
    given = {"data": str(chain.cwd / "cache"), "tune": False, **words}
    with pytest.raises(UserError, match=re.escape(said)):
        run(tmp_path, lambda session: stage.train(session, **given))


@pytest.mark.long
def test_a_word_that_no_stage_takes(chain: Chain) -> None:
    done = subprocess.run(
        command("train", "eeg", "epoch=3"), cwd=chain.cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown setting `epoch`\n  cause: the stages of `eeg` take: data, parent, ")
    assert "tip: a similar setting exists: `epochs`" in done.stderr


@pytest.mark.long
def test_weights_of_another_shape(chain: Chain, tmp_path: Path) -> None:
    given = {"data": str(chain.cwd / "cache"), "tune": False, "width": 16, "parent": str(chain.run("eeg-pretrain"))}
    with pytest.raises(UserError, match="do not fit this model"):
        run(tmp_path, lambda session: challenge1.train(session, **given))


@pytest.mark.long
def test_labels_that_nobody_has(chain: Chain, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has a response time"):
        run(
            tmp_path,
            lambda session: challenge1.train(session, data=str(chain.cwd / "cache" / "challenge2"), tune=False),
        )
    with pytest.raises(UserError, match="has a label"):
        run(
            tmp_path,
            lambda session: challenge2.train(session, data=str(chain.cwd / "cache" / "challenge1"), tune=False),
        )
