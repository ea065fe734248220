"""Downloads from a bucket that drops, refuses, truncates, corrupts and lies; with real sockets and real processes."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base.errors import UserError
from holdfast.workloads.eeg import download
from holdfast.workloads.eeg.download import Plan, Result, Selection, planning
from holdfast.workloads.eeg.download.fetching import leftovers
from holdfast.workloads.eeg.download.journal import entries
from tests.waiting import wait_until

from .bucket import Bucket, Corrupt, Drop, Harm, Lie, NoRanges, Refuse, Slow, Truncate

RECORDING = "sub-NDAR1/eeg/sub-NDAR1_task-RestingState_eeg.bdf"
PATHS = {
    "dataset_description.json": 40,
    "participants.tsv": 900,
    RECORDING: 700_000,
    "sub-NDAR1/eeg/sub-NDAR1_task-RestingState_events.tsv": 300,
    "sub-NDAR1/eeg/sub-NDAR1_task-contrastChangeDetection_run-1_eeg.bdf": 90_000,
    "sub-NDAR2/eeg/sub-NDAR2_task-RestingState_eeg.bdf": 50_000,
    "sub-NDAR2/eeg/sub-NDAR2_task-RestingState_eeg.json": 0,
}
COPY, OPENNEURO, INDI = "NeurIPS25/R5_mini_L100_bdf", "ds005509", "data/Projects/HBN/BIDS_EEG/cmi_bids_R5"
MINI = Selection(releases=("R5",), mini=True)
ORIGINAL = Selection(releases=("R5",), source="original")


def contents() -> dict[str, bytes]:
    rng = random.Random(5)
    return {path: rng.randbytes(size) for path, size in PATHS.items()}


def bucket_of(*prefixes: str, page: int = 3) -> Bucket:
    return Bucket({f"{prefix}/{path}": body for prefix in prefixes for path, body in contents().items()}, page=page)


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with bucket_of(COPY, OPENNEURO) as bucket:
        yield bucket


def bases(bucket: Bucket, indi: Bucket | None = None) -> dict[str, str]:
    return {"competition": bucket.base, "openneuro": bucket.base, "fcp-indi": (indi or bucket).base}


def planned(bucket: Bucket, folder: Path, selection: Selection = MINI, indi: Bucket | None = None) -> Plan:
    return download.plan(folder, selection, bases=bases(bucket, indi))


def fetched(bucket: Bucket, folder: Path, selection: Selection = MINI, indi: Bucket | None = None) -> Result:
    return download.fetch(planned(bucket, folder, selection, indi), pause=0.01)


def assert_whole(folder: Path, *, without: tuple[str, ...] = ()) -> None:
    for path, body in contents().items():
        if path not in without:
            assert (folder / "R5" / path).read_bytes() == body, path
    assert not list((folder / ".holdfast" / "parts").iterdir()) or without


def manifest(folder: Path, *, release: str = "R5", wrong: str = "") -> str:
    lines = ["release\tdataset\tpath\tsize\tsha256"]
    for path, body in contents().items():
        digest = hashlib.sha256(body).hexdigest() if path != wrong else "0" * 64
        lines.append(f"{release}\tds005509\t{path}\t{len(body)}\t{digest}")
    path = folder / "manifest.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return str(path)


# All of it, once --------------------------------------------------------------------------------------------


def test_everything_comes_and_a_second_run_asks_for_nothing(bucket: Bucket, tmp_path: Path) -> None:
    result = fetched(bucket, tmp_path)
    assert (result.got, result.verified, result.failed, result.retries) == (len(PATHS), 0, {}, 0)
    assert result.bytes == sum(PATHS.values())
    assert_whole(tmp_path)
    before = len(bucket.requests)
    again = fetched(bucket, tmp_path)
    assert (again.got, again.verified, again.bytes) == (0, len(PATHS), 0)
    assert {key for key, _ in bucket.requests[before:]} == {"list"}


def test_the_list_comes_in_pages(bucket: Bucket, tmp_path: Path) -> None:
    assert len(planned(bucket, tmp_path).files) == len(PATHS)
    assert bucket.gets("list") == 3


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (Selection(("R5",), mini=True, tasks=("RestingState",)), 6),
        (Selection(("R5",), mini=True, tasks=("contrast*",)), 3),
        (Selection(("R5",), mini=True, subjects=("NDAR2",)), 4),
        (Selection(("R5",), mini=True, subjects=("sub-NDAR1",), tasks=("RestingState",)), 4),
    ],
)
def test_a_selection(bucket: Bucket, tmp_path: Path, selection: Selection, count: int) -> None:
    assert len(planned(bucket, tmp_path, selection).files) == count


def test_nothing_fits(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing there fits"):
        planned(bucket, tmp_path, Selection(("R6",), mini=True))


@pytest.mark.parametrize("source", ["elsewhere", "original"])
def test_a_source_that_does_not_exist_or_has_no_mini(source: str, bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        planned(bucket, tmp_path, Selection(("R5",), source=source, mini=True))


def test_a_dry_run_tells_bytes_and_fetches_nothing(bucket: Bucket, tmp_path: Path) -> None:
    plan = planned(bucket, tmp_path / "data")
    assert plan.bytes_total == plan.bytes_to_get == sum(PATHS.values())
    assert not (tmp_path / "data").exists()
    assert plan.lines()[-1] == "7 files, 841 kB; here already: 0; to get: 841 kB"


# What buckets do --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("harm", "times"),
    [
        (Drop(after=300_000), 1),
        (Drop(after=0), 5),
        (Truncate(after=123_456), 2),
        (Refuse(503, "SlowDown"), 3),
        (Refuse(503, "ServiceUnavailable", retry_after=0), 2),
        (Refuse(500, "InternalError"), 2),
        (Refuse(429, "TooManyRequests"), 1),
        (Corrupt(at=400_000), 1),
        (Lie(by=-1), 0),
    ],
    ids=str,
)
def test_trouble_that_passes(bucket: Bucket, tmp_path: Path, harm: Harm, times: int) -> None:
    bucket.harm(f"{COPY}/{RECORDING}", harm, times)
    result = fetched(bucket, tmp_path)
    assert result.failed == {}
    assert_whole(tmp_path)
    assert result.retries + result.quarantined >= times


def test_a_body_that_breaks_off_is_gone_on_with(bucket: Bucket, tmp_path: Path) -> None:
    """Not one byte is fetched twice."""
    for after in (100_000, 200_000):
        bucket.harm(f"{COPY}/{RECORDING}", Truncate(after=after))
    result = fetched(bucket, tmp_path)
    asked = [part for key, part in bucket.requests if key.endswith(RECORDING)]
    assert asked == ["", "bytes=100000-", "bytes=300000-"]
    assert result.bytes == sum(PATHS.values())
    assert_whole(tmp_path)


def test_a_server_without_ranges_begins_anew(bucket: Bucket, tmp_path: Path) -> None:
    bucket.harm(f"{COPY}/{RECORDING}", Truncate(after=100_000))
    bucket.harm(f"{COPY}/{RECORDING}", NoRanges())
    assert fetched(bucket, tmp_path).failed == {}
    assert_whole(tmp_path)


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (Refuse(404, "NoSuchKey"), "HTTP 404 NoSuchKey"),
        (Refuse(403, "AccessDenied"), "HTTP 403 AccessDenied"),
        (Refuse(503, "SlowDown"), "HTTP 503 SlowDown, 8 times"),
        (Lie(by=-1000), "the server has 699000 bytes, 700000 were announced"),
        (Lie(by=1000), "the server has 701000 bytes, 700000 were announced"),
        (Corrupt(at=7), "its md5 is not the one that the bucket tells"),
        (Drop(after=0), "8 times"),
    ],
    ids=str,
)
def test_trouble_that_stays_costs_one_file_and_no_other(bucket: Bucket, tmp_path: Path, harm: Harm, why: str) -> None:
    bucket.harm(f"{COPY}/{RECORDING}", harm, times=20)
    result = fetched(bucket, tmp_path)
    assert list(result.failed) == [f"R5/{RECORDING}"]
    assert why in result.failed[f"R5/{RECORDING}"]
    assert not (tmp_path / "R5" / RECORDING).exists()
    assert_whole(tmp_path, without=(RECORDING,))


def test_what_failed_comes_with_the_next_run_and_nothing_else_does(bucket: Bucket, tmp_path: Path) -> None:
    bucket.harm(f"{COPY}/{RECORDING}", Refuse(403, "AccessDenied"))
    assert fetched(bucket, tmp_path).failed
    before = len(bucket.requests)
    result = fetched(bucket, tmp_path)
    assert (result.got, result.failed) == (1, {})
    assert {key for key, _ in bucket.requests[before:]} == {"list", f"{COPY}/{RECORDING}"}


def test_a_list_that_lies_about_a_size(bucket: Bucket, tmp_path: Path) -> None:
    bucket.listed_sizes[f"{COPY}/{RECORDING}"] = 650_000
    result = fetched(bucket, tmp_path)
    assert "the server has 700000 bytes, 650000 were announced" in result.failed[f"R5/{RECORDING}"]


@pytest.mark.parametrize("harm", [Refuse(503, "SlowDown"), Drop(after=10), Truncate(after=200)], ids=str)
def test_a_list_in_trouble_is_asked_again(bucket: Bucket, tmp_path: Path, harm: Harm) -> None:
    bucket.harm("list", harm, times=2)
    assert len(planned(bucket, tmp_path).files) == len(PATHS)


# Mirrors, manifest, quarantine ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "harm", [Refuse(404, "NoSuchKey"), Refuse(403, "AccessDenied"), Corrupt(at=1), Lie(by=5)], ids=str
)
def test_the_next_mirror_has_it(bucket: Bucket, tmp_path: Path, harm: Harm) -> None:
    bucket.harm(f"{OPENNEURO}/{RECORDING}", harm, times=20)
    with bucket_of(INDI) as indi:
        selection = Selection(("R5",), source="original", manifest=manifest(tmp_path))
        result = fetched(bucket, tmp_path / "data", selection, indi)
        assert result.failed == {}
        assert [key for key, _ in indi.requests] == [f"{INDI}/{RECORDING}"]
    assert_whole(tmp_path / "data")


def test_the_first_bucket_cannot_be_listed(tmp_path: Path) -> None:
    with bucket_of() as empty, bucket_of(INDI) as indi:
        empty.harm("list", Refuse(403, "AccessDenied"), times=9)
        plan = planned(empty, tmp_path, ORIGINAL, indi)
        assert len(plan.files) == len(PATHS)
        assert plan.notes == ["openneuro cannot be listed: HTTP 403 AccessDenied"]
        assert download.fetch(plan, pause=0.01).failed == {}
    assert_whole(tmp_path)


def test_a_manifest_is_enough_where_no_bucket_can_be_listed(bucket: Bucket, tmp_path: Path) -> None:
    bucket.harm("list", Refuse(403, "AccessDenied"), times=9)
    with pytest.raises(UserError, match="no bucket says what R5 holds"):
        planned(bucket, tmp_path)
    selection = Selection(("R5",), mini=True, manifest=manifest(tmp_path))
    assert fetched(bucket, tmp_path / "data", selection).failed == {}
    assert_whole(tmp_path / "data")


def test_what_is_not_in_the_manifest_as_it_is_goes_to_quarantine(bucket: Bucket, tmp_path: Path) -> None:
    selection = Selection(("R5",), mini=True, manifest=manifest(tmp_path, wrong=RECORDING))
    result = fetched(bucket, tmp_path / "data", selection)
    assert "sha256 is not that of the manifest" in result.failed[f"R5/{RECORDING}"]
    name = f"R5/{RECORDING}".replace("/", "__")
    assert leftovers(tmp_path / "data") == [f"{name}.1", f"{name}.2"]
    kept = tmp_path / "data" / ".holdfast" / "quarantine" / f"{name}.1"
    assert kept.read_bytes() == contents()[RECORDING]


def test_a_multipart_object_has_no_md5_and_is_taken_by_its_size(bucket: Bucket, tmp_path: Path) -> None:
    bucket.multipart.add(f"{COPY}/{RECORDING}")
    plan = planned(bucket, tmp_path)
    assert [each.path for each in plan.files if not each.md5] == [f"R5/{RECORDING}"]
    assert download.fetch(plan).failed == {}


@pytest.mark.parametrize("text", ["", "a\tb\n", "release\tpath\tsize\n"])
def test_a_manifest_that_is_none(bucket: Bucket, tmp_path: Path, text: str) -> None:
    (tmp_path / "m.tsv").write_text(text)
    with pytest.raises(UserError, match="is not understood"):
        planned(bucket, tmp_path, Selection(("R5",), mini=True, manifest=str(tmp_path / "m.tsv")))


def test_names_that_lead_out_of_the_folder_are_left_out(tmp_path: Path) -> None:
    bad = {f"{COPY}/{name}": b"x" for name in ("../../etc", "a/../../b", "README", "sub-1/.hidden", "sub-2/a b")}
    with Bucket(bad) as bucket:
        plan = planned(bucket, tmp_path)
    assert [each.path for each in plan.files] == ["R5/README"]


# What is here -----------------------------------------------------------------------------------------------


def test_a_file_that_changed_is_fetched_again_and_the_old_one_kept(bucket: Bucket, tmp_path: Path) -> None:
    fetched(bucket, tmp_path)
    path = tmp_path / "R5" / RECORDING
    path.write_bytes(b"not this")
    result = fetched(bucket, tmp_path)
    assert (result.got, result.quarantined) == (1, 1)
    assert_whole(tmp_path)


def test_verify_finds_damage_that_left_size_and_time_alone(bucket: Bucket, tmp_path: Path) -> None:
    fetched(bucket, tmp_path)
    path = tmp_path / "R5" / RECORDING
    status = path.stat()
    raw = bytearray(path.read_bytes())
    raw[1000] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fetched(bucket, tmp_path).got == 0
    plan = planned(bucket, tmp_path)
    plan.here = set()
    assert download.fetch(plan, pause=0.01).got == 1
    assert_whole(tmp_path)


def test_right_files_of_another_tool_are_taken_over(bucket: Bucket, tmp_path: Path) -> None:
    for path, body in contents().items():
        (tmp_path / "R5" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "R5" / path).write_bytes(body)
    result = fetched(bucket, tmp_path)
    assert (result.got, result.verified, result.bytes) == (0, len(PATHS), 0)


def test_a_link_is_never_written_through(bucket: Bucket, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    link = tmp_path / "data" / "R5" / "participants.tsv"
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    result = fetched(bucket, tmp_path / "data")
    assert result.failed == {"R5/participants.tsv": "a link stands where the file should be"}
    assert elsewhere.read_bytes() == b"mine"


def test_no_space(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=900_000))
    with pytest.raises(UserError, match="841 kB are to be fetched, 900 kB are free"):
        fetched(bucket, tmp_path)
    assert not any(key.startswith(COPY) for key, _ in bucket.requests)


def test_the_journal_tells_the_story(bucket: Bucket, tmp_path: Path) -> None:
    bucket.harm(f"{COPY}/{RECORDING}", Refuse(503, "SlowDown"))
    bucket.harm(f"{COPY}/{RECORDING}", Corrupt(at=3))
    fetched(bucket, tmp_path)
    story = [(each["event"], each.get("why")) for each in entries(tmp_path) if each["path"] == f"R5/{RECORDING}"]
    assert story == [
        ("retry", "HTTP 503 SlowDown"),
        ("quarantined", "its md5 is not the one that the bucket tells"),
        ("verified", None),
    ]


def test_a_journal_with_nonsense_in_it(bucket: Bucket, tmp_path: Path) -> None:
    fetched(bucket, tmp_path)
    with (tmp_path / ".holdfast" / "journal.jsonl").open("a") as file:
        file.write('{"event": "verified"\n[]\n\x00\xff\n{"event": "verified", "path": 5, "size": "x"}\n')
    assert fetched(bucket, tmp_path).verified == len(PATHS)


# Whole processes --------------------------------------------------------------------------------------------


def command(bucket: Bucket, folder: Path, *more: str) -> list[str]:
    address = f"competition={bucket.base}"
    return [
        sys.executable,
        "-m",
        "holdfast",
        "eeg",
        "download",
        "R5",
        "--mini",
        "--to",
        str(folder),
        "--base",
        address,
        *more,
    ]


@pytest.mark.sample(3)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_a_process_that_is_ended_in_the_middle(bucket: Bucket, tmp_path: Path, number: signal.Signals) -> None:
    """kill -9, Ctrl-C, SIGTERM while a body comes in: the next run fetches only what is missing."""
    bucket.harm(f"{COPY}/{RECORDING}", Slow(after=262_144 * 2))
    parts = tmp_path / "data" / ".holdfast" / "parts"
    child = subprocess.Popen(
        command(bucket, tmp_path / "data"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert wait_until(lambda: parts.is_dir() and any(_size(each) >= 262_144 for each in parts.iterdir()))
        child.send_signal(number)
        bucket.go_on.set() if number == signal.SIGINT else None
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    if number == signal.SIGINT:
        assert child.returncode == 130
        assert "the same command goes on where it was" in err
    bucket.go_on.set()
    result = fetched(bucket, tmp_path / "data")
    assert result.failed == {}
    assert result.bytes < sum(PATHS.values()) - 250_000
    assert_whole(tmp_path / "data")


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def test_two_processes_share_the_work(bucket: Bucket, tmp_path: Path) -> None:
    bucket.harm(f"{COPY}/{RECORDING}", Slow(after=1000))
    children = [
        subprocess.Popen(command(bucket, tmp_path, "--json", "--parallel", "2"), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        assert wait_until(lambda: bucket.gets(f"{COPY}/{RECORDING}") == 1 and len(list(entries(tmp_path))) >= 4)
        bucket.go_on.set()
        told = [json.loads(child.communicate(timeout=60)[0]) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert [each["exit_code"] for each in told] == [0, 0]
    assert sum(each["bytes"] for each in told) == sum(PATHS.values())
    assert bucket.gets(f"{COPY}/{RECORDING}") == 1
    assert_whole(tmp_path)


def test_the_words_of_the_command(bucket: Bucket, tmp_path: Path) -> None:
    bucket.harm(f"{COPY}/{RECORDING}", Refuse(404, "NoSuchKey"))
    done = subprocess.run(
        command(bucket, tmp_path / "data", "--no-progress"), capture_output=True, text=True, timeout=60
    )
    host = bucket.base.removeprefix("http://")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("✗ 6 files fetched (141 kB in ")
    assert lines[1:] == [f"  ✗ R5/{RECORDING}: {host}: HTTP 404 NoSuchKey"]
    assert done.stderr == "hint: run the same command again; it asks only for what is missing\n"
    dry = subprocess.run(
        command(bucket, tmp_path / "data", "--dry-run", "--json"), capture_output=True, text=True, timeout=60
    )
    assert json.loads(dry.stdout)["bytes_to_get"] == PATHS[RECORDING]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no release was named"),
        (["R99"], "there is no release `R99`"),
        (["R5", "--parallel", "0"], "--parallel 0 is not between 1 and 64"),
        (["R5", "--base", "nowhere"], "--base nowhere is not understood"),
        (["R5", "--source", "tape"], "there is no source `tape`"),
    ],
)
def test_command_lines_that_are_wrong(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.cli.main import main

    assert main(["eeg", "download", *words]) == 2
    assert message in capsys.readouterr().err


def test_no_server_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.workloads.eeg.download import listing

    monkeypatch.setattr(listing, "_TRIES", 2)
    with bucket_of() as gone:
        address = gone.base
    with pytest.raises(UserError, match="no bucket says what R5 holds") as caught:
        download.plan(tmp_path, MINI, bases={"competition": address})
    assert "no connection" in str(caught.value.cause)


def test_the_index_is_the_journal(bucket: Bucket, tmp_path: Path) -> None:
    fetched(bucket, tmp_path)
    index = planning.read_index(tmp_path)
    assert index[f"R5/{RECORDING}"][2] == hashlib.sha256(contents()[RECORDING]).hexdigest()
