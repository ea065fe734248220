"""What a data set would do to others, named before it does; and the words of the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.workloads.eeg import check

from .sets import TASK, make_set, recording_of, signals_of, spoil, stem, write_channels, write_events, write_recording

STIMULUS = [(2.0, "n/a", "contrastTrial_start"), (4.0, "n/a", "left_target"), (5.0, "n/a", "left_buttonPress")]
LONG = [(2.0, 1.0, "contrastTrial_start"), (4.0, 2.0, "left_target"), (5.0, 0.1, "left_buttonPress")]


def found(root: Path) -> dict[str, dict[str, str]]:
    return {each.code: each.recordings for each in check.check(root, workers=1).findings}


def clean_set(root: Path) -> Path:
    """Nothing is wrong with it: 250 Hz, durations, labels, responses, every table."""
    made = make_set(root, subjects=3, rate=250, events=LONG)
    for number in (1, 2, 3):
        write_channels(made, f"sub-0{number}")
    return made


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    assert found(clean_set(tmp_path / "data")) == {}


def without_durations(root: Path) -> None:
    write_events(root, "sub-02", STIMULUS)


def empty_durations(root: Path) -> None:
    write_events(root, "sub-02", [(each[0], "", each[2]) for each in LONG])


def mixed_durations(root: Path) -> None:
    write_events(
        root,
        "sub-02",
        [*LONG, (9.0, 1.0, "contrastTrial_start"), (10.0, 0, "left_target"), (11.0, 1, "left_buttonPress")],
    )


def no_onset(root: Path) -> None:
    write_events(root, "sub-02", [*LONG, ("n/a", 1.0, "left_target")])


def late_stimulus(root: Path) -> None:
    write_events(
        root,
        "sub-02",
        [*LONG, (15.0, 1.0, "contrastTrial_start"), (18.0, 1.0, "left_target"), (19.0, 1.0, "left_buttonPress")],
    )


def short_file(root: Path) -> None:
    write_recording(root, "sub-02", signals_of(2, seconds=3, rate=250), rate=250)
    write_events(root, "sub-02", [])


def six_channels(root: Path) -> None:
    write_recording(root, "sub-02", signals_of(2, rate=250, channels=2), rate=250, channels=("E1", "Cz"))


def another_rate(root: Path) -> None:
    write_recording(root, "sub-02", signals_of(2, rate=500), rate=500)


def low_rate(root: Path) -> None:
    write_recording(root, "sub-02", signals_of(2, rate=100), rate=100)


def no_labels(root: Path) -> None:
    path = root / "participants.tsv"
    path.write_text(
        path.read_text().replace("sub-02\tR2\tF\t10.5\t0.1\t0.2\t0.3\t0.4", "sub-02\tR2\tF\t10.5\tn/a\tn/a\t\t")
    )


def no_press(root: Path) -> None:
    write_events(root, "sub-02", LONG[:2])


def gone(root: Path) -> None:
    Path(f"{stem(root, 'sub-02')}_events.tsv").unlink()


@pytest.mark.parametrize(
    ("damage", "code", "detail"),
    [
        (without_durations, "zero-durations", "3 of 3 events: n/a"),
        (empty_durations, "empty-durations", "3 events"),
        (mixed_durations, "mixed-durations", "2 stimuli"),
        (no_onset, "no-onset", "left_target at 'n/a'"),
        (late_stimulus, "past-the-end", "a stimulus at 18 s of 20 s"),
        (short_file, "too-short", "3.0 s"),
        (lambda root: spoil(root, "sub-02", cut=0.4), "unreadable", "truncated: the header promises 20 records"),
        (six_channels, "channels", "2 channels, most have 4"),
        (another_rate, "rates", "500 Hz, most are at 250 Hz"),
        (low_rate, "low-rate", "100 Hz"),
        (no_labels, "no-label", "sub-02"),
        (no_press, "no-response", "1 of 1 trials"),
        (gone, "no-stimuli", "no events"),
    ],
)
def test_each_fault_is_named_with_its_recording(tmp_path: Path, damage: Any, code: str, detail: str) -> None:
    root = clean_set(tmp_path / "data")
    damage(root)
    findings = found(root)
    assert list(findings[code]) == [f"sub-02_task-{TASK}"]
    assert detail in findings[code][f"sub-02_task-{TASK}"]


def test_the_same_recording_in_two_sets(tmp_path: Path) -> None:
    for name in ("R5", "R5_mini"):
        write_channels(make_set(tmp_path / "all" / name, subjects=1, rate=250, events=LONG), "sub-01")
    assert list(found(tmp_path / "all")) == ["twice"]


def test_every_finding_has_its_words() -> None:
    for code, (level, *words) in check.KINDS.items():
        assert level in (check.BREAKS, check.CHANGES, check.LEAVES_OUT), code
        assert len(words) == 3 and all(words), code


@pytest.mark.timeout(500)  # importing braindecode alone takes twelve seconds of a processor, and this one may be busy
@pytest.mark.long
def test_braindecode_says_it_itself(tmp_path: Path) -> None:
    """The user's `arange: cannot compute length`: raised by the real call, on the recording that the check names."""
    pytest.importorskip("braindecode")
    root = clean_set(tmp_path / "data")
    without_durations(root)
    write_events(root, "sub-03", [*LONG, (15.0, 1.0, "contrastTrial_start"), (18.0, 1.0, "left_target")])
    checked = check.check(root, workers=1)
    check.prove(checked)
    proofs = {each.code: each.proof for each in checked.findings if each.proof}
    assert proofs["zero-durations"] == {
        "recording": recording_of(root, "sub-02").name,
        "call": "create_windows_from_events(dataset, mapping=…)",
        "said": "ValueError: arange: cannot compute length",
    }
    assert '"trial_stop_offset_samples" too large' in proofs["past-the-end"]["said"]


# The commands -----------------------------------------------------------------------------------------------


def test_check_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = clean_set(tmp_path / "data")
    without_durations(root)
    assert main(["eeg", "check", str(root), "--workers", "1"]) == 1
    assert (
        capsys.readouterr().out
        == f"""\
small · 3 subjects, 3 recordings

[✗] events without a duration (n/a, 0) · 1 recording
      sub-02_task-{TASK}: 3 of 3 events: n/a
    others    create_windows_from_events without a window size raises `arange: cannot compute
              length`: it takes the size from the first event, which is 0
    holdfast  never looks at durations; sizes are always given

These are faults of the data, not of a device: `holdfast eeg prepare` works around each of them.
"""
    )


def test_check_of_a_good_set_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = clean_set(tmp_path / "data")
    assert main(["eeg", "check", str(root), "--workers", "1"]) == 0
    assert capsys.readouterr().out.endswith("\n[✓] nothing was found that would break anything\n")
    no_press(root)
    assert main(["--json", "eeg", "check", str(root), "--workers", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["breaks"], [each["code"] for each in told["findings"]]) == (1, False, ["no-response"])


def test_simulate_check_prepare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, windows = str(tmp_path / "data"), str(tmp_path / "cache")
    small = ["--subjects", "1", "--runs", "1", "--trials", "3", "--rest", "9", "--workers", "1"]
    assert main(["eeg", "simulate", data, *small, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["simulated"] is True
    assert main(["eeg", "prepare", data, windows, "--workers", "1", "--as-served"]) == 0
    out = capsys.readouterr().out
    assert "✓ SIMULATED · challenge1 · " in out and "✓ SIMULATED · challenge2 · 3 windows of 4 s x 129 channels" in out
    assert "  done       as recorded, 100 Hz\n" in out
    assert main(["eeg", "prepare", data, windows, "--workers", "1", "--as-served", "--kind", "pretrain", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["caches"]
    assert [(each["kind"], each["reused"], each["simulated"]) for each in told] == [("pretrain", True, True)]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["eeg"], 0, ""),
        (["eeg", "--help"], 0, ""),
        (["eeg", "chek", "x"], 2, "`holdfast eeg` has no `chek`"),
        (["eeg", "check", "nowhere"], 2, "there is no folder nowhere"),
        (["eeg", "simulate", "data", "--subjects", "0"], 2, "--subjects 0 is less than 1"),
        (["eeg", "prepare", "data", "cache", "--band", "wide"], 2, "--band wide is not a band"),
        (["eeg", "prepare", "data", "cache", "--notch", "x"], 2, "--notch x is not a frequency"),
        (["eeg", "prepare", "data"], 2, "CACHE is missing"),
        (["eeg", "prepare", "data", "cache", "--rat", "5"], 2, "unexpected argument `--rat`"),
    ],
)
def test_command_lines(
    words: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == code
    assert message in capsys.readouterr().err


def test_a_cache_is_checked_byte_by_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, folder = make_set(tmp_path / "data", subjects=3), tmp_path / "cache"
    assert main(["eeg", "prepare", str(root), str(folder), "--workers", "1", "--kind", "challenge1"]) == 0
    assert main(["eeg", "check", str(folder)]) == 0
    with (folder / "challenge1-100hz" / "signals.f32").open("r+b") as file:
        file.seek(2 * 4 * 200 * 4 + 13)  # in the windows of the second recording
        file.write(b"\x55")
    capsys.readouterr()
    assert main(["eeg", "check", str(folder)]) == 1
    place = folder / "challenge1-100hz"
    assert capsys.readouterr().out == (
        f"[✗] {place}: EEG: 6 challenge1 windows of 2 s x 4 channels at 100 Hz, 3 subjects\n"
        f"      damaged: sub-02_task-{TASK}\n"
    )


def test_impossible_filters_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_set(tmp_path / "data")
    assert main(["eeg", "prepare", str(root), str(tmp_path / "cache"), "--notch", "60", "--kind", "challenge1"]) == 2
    assert (
        capsys.readouterr().err
        == """\
error: a notch at 60 Hz is impossible in data at 100 Hz
  cause: such data hold nothing above 50 Hz, so there is nothing to take out

hint: leave it out with `--notch none`
hint: filter the original recordings, before resampling
"""
    )


def test_a_set_without_the_task_still_has_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_set(tmp_path / "data", task="RestingState")
    assert main(["eeg", "prepare", str(root), str(tmp_path / "cache"), "--workers", "1"]) == 0
    done = capsys.readouterr()
    assert "✓ challenge2" in done.out and "✓ pretrain" in done.out
    assert "• challenge1: " in done.err
