"""The registry of findings: codes that do not move, sentences that are made of evidence, pages that are new."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.devices.findings import Cure, Explanation, Finding, explained, explanations, finding, worst
from holdfast.faults.terms import Level

ROOT = Path(__file__).resolve().parents[2]

CODES = """
D001 device-does-not-start
D002 probe-crashed
D003 probe-hung
D004 probe-raised
D005 probe-cannot-be-killed
D006 froze-the-machine
D007 probe-skipped
D008 masquerade
D009 no-kernels-for-this-card
D010 masquerade-of-a-sibling
D011 torch-without-gpu-support
D012 torch-for-other-cards
D013 no-driver
D014 driver-too-old
D015 driver-mismatch
D016 no-device-file
D017 no-access-to-device
D018 hidden-by-environment
D019 integrated-gpu
D020 wrong-forward
D021 wrong-under-load
D022 wrong-backward
D023 wrong-training
D024 wrong-in-low-precision
D025 wrong-at-some-batch-sizes
D026 wrong-in-channels-last
D027 not-finite-in-double-backward
D028 wrong-after-a-change-of-shape
D029 wrong-when-compiled
D030 not-deterministic
D031 tf32-in-use
D032 wrong-copies
D033 wrong-random-numbers
D034 device-reset-near-full-memory
D035 less-memory-than-reported
D036 no-recovery-after-out-of-memory
D037 slow-first-launch
D038 fails-under-load
D039 fails-with-a-second-process
D040 throttles
D041 errors-were-counted
D042 slower-than-the-cpu
D043 low-precision-is-slower
D044 attention-kernel-fails
D045 operation-missing
D046 cannot-compile
D047 no-float64
D049 trains-with-a-remedy
D050 known-bug
D051 not-supported-by-its-maker
D052 faults-in-runs
D053 no-checks-in-kernels
D054 wsl-without-gpu
D055 rocm-on-windows
D056 shows-the-screen
D057 kernels-write-nothing
D060 torch-does-not-import
D061 cpu-without-avx2
D062 little-memory
D063 small-shared-memory
D064 disk-nearly-full
D065 slow-disk
D066 disk-cannot-be-written
D067 few-cpus
D068 tool-gives-no-answer
D069 wsl-runtime-sees-no-card
D070 own-step-is-wrong
D071 own-step-fails
D072 own-script-fails-everywhere
D080 no-usable-gpu
D081 nothing-to-train-on
D090 workers-are-started-afresh
D091 snapshots-are-files
D092 kernel-log-is-not-read
D093 memory-kills-are-not-told
D094 processes-end-at-once
"""


def test_codes_are_public_and_do_not_move() -> None:
    """If this fails you renumbered a code: verdicts, logs and dashboards of users depend on it."""
    assert [f"{row.code} {row.slug}" for row in explanations()] == CODES.split("\n")[1:-1]


@pytest.mark.parametrize("row", explanations(), ids=lambda row: row.code)
def test_every_finding_is_explained(row: Explanation) -> None:
    assert row.level in tuple(Level)
    assert row.title[0].isupper() or row.title.startswith(("torch", "fp32"))
    assert not row.title.endswith(".")
    assert not row.line.endswith(".")
    for text in (row.seen, row.means, row.does, row.you_can):
        assert text.endswith("."), (row.code, text)
        assert "\n" not in text, row.code


@pytest.mark.parametrize("row", explanations(), ids=lambda row: row.code)
def test_a_line_is_filled_in_and_falls_back_to_its_title(row: Explanation) -> None:
    evidence = dict.fromkeys(row.needs, 12.5)
    sentence = finding(row.slug, "cuda:0", evidence).sentence()
    assert "{" not in sentence
    assert sentence != row.title
    assert finding(row.code, "cuda:0").sentence() == row.title
    spoilt = finding(row.code, "cuda:0", {name: {"not": ["a", "number"]} for name in row.needs}).sentence()
    assert "{" not in spoilt.replace("{'not'", "")


@pytest.mark.parametrize("row", [row for row in explanations() if row.measured_by], ids=lambda row: row.code)
def test_what_measures_it_exists(row: Explanation) -> None:
    assert row.measured_by is not None
    path, _, name = row.measured_by.partition("::")
    text = (ROOT / "src" / path).read_text(encoding="utf-8")
    assert not name or f"def {name}(" in text or f"class {name}" in text


def test_every_finding_can_be_found() -> None:
    """A code that nothing looks for would be a promise in the docs that nobody keeps."""
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert [row.slug for row in explanations() if f'"{row.slug}"' not in code] == []


def test_sentences() -> None:
    crash = finding("probe-crashed", "cuda:0", {"probe": "conv2d forward", "how": "SIGSEGV", "seconds": 4.2})
    assert crash.sentence() == "conv2d forward killed its process (SIGSEGV after 4.2 s)"
    memory = finding("D034", "cuda:0", {"failed_bytes": 21.4e9, "reported_bytes": 24e9})
    assert memory.sentence() == "it fails once memory passes 21.4 GB of 24.0 GB"
    wrong = finding("wrong-forward", "mps", {"probe": "matmul", "error": 0.0312, "bound": 4e-5})
    assert wrong.sentence() == "matmul is off by 0.031 (limit 4e-05)"
    endless = finding("wrong-forward", "mps", {"probe": "matmul", "error": "more than any number", "bound": 4e-5})
    assert endless.sentence() == "matmul is off by more than any number (limit 4e-05)"
    build = finding("D009", "cuda:0", {"arch": "gfx1010", "torch": "2.5.1+rocm6.2", "archs": ["gfx900", "gfx1030"]})
    assert build.sentence() == "gfx1010 has no kernels in torch 2.5.1+rocm6.2"
    closed = finding("D017", "cuda:0", {"files": ["/dev/kfd", "/dev/dri/renderD128"]})
    assert closed.sentence() == "/dev/kfd, /dev/dri/renderD128 may not be opened by this user"


def test_json_is_what_others_rely_on() -> None:
    cure = Cure("train in fp32", ("export MIOPEN_FIND_MODE=FAST",))
    found = finding("wrong-under-load", "cuda:0", {"error": 0.031, "bound": 0.004, "after_s": 660}, cure)
    assert found.to_json() == {
        "code": "D021",
        "slug": "wrong-under-load",
        "level": "error",
        "title": "Results drift under load",
        "text": "Results drift under load",
        "evidence": {"error": 0.031, "bound": 0.004, "after_s": 660},
        "remedy": {"text": "train in fp32", "commands": ["export MIOPEN_FIND_MODE=FAST"]},
        "url": "docs/findings/D021.md",
    }
    assert Finding.from_json("cuda:0", json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    "data",
    [None, 7, [], "D001", {}, {"code": "D999"}, {"code": ["D001"]}, {"code": None}],
    ids=str,
)
def test_what_is_no_finding_is_none(data: object) -> None:
    assert Finding.from_json("cuda:0", data) is None


def test_a_spoilt_cache_gives_a_poorer_finding_and_no_traceback() -> None:
    data = {"code": "D020", "evidence": ["?"], "remedy": {"text": "x", "commands": [1, "y", None]}}
    assert Finding.from_json("mps", data) == finding("D020", "mps", {}, Cure("x", ("y",)))
    data = {"code": "D020", "evidence": {"probe": [], "error": {}, "bound": []}, "remedy": {"text": 5}}
    found = Finding.from_json("mps", data)
    assert found is not None
    assert found.remedy is None
    assert found.sentence() == explained("D020").title


def test_a_template_cannot_reach_into_objects() -> None:
    row = explained("D020")
    assert all(name.isidentifier() for each in explanations() for name in each.needs), row


def test_the_worst_of_several() -> None:
    note, warning, error = (finding(code, "cpu") for code in ("D007", "D024", "D002"))
    assert worst([]) is None
    assert worst([note]) == "note"
    assert worst([note, error, warning]) == "error"


def test_an_unknown_name_is_a_slip_in_the_program() -> None:
    with pytest.raises(KeyError):
        finding("no-such-thing", "cpu")


@pytest.mark.parametrize("name", ["make_finding_docs.py", "make_tester_docs.py"])
def test_the_page_in_the_docs_is_up_to_date(name: str) -> None:
    script = ROOT / "scripts" / name
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, f"run scripts/{name}"


def test_importing_takes_no_torch_and_reads_no_table() -> None:
    code = (
        "import sys, holdfast.devices.findings as f\n"
        "heavy = {'torch', 'numpy', 'json', 'tomllib', 'tomli', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert f.explanations.cache_info().currsize == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
