"""Secrets on the command line: nothing that is written about a run holds them, and the run goes on all the same."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from holdfast.base.secret_words import redact
from holdfast.run import kept_arguments
from holdfast.run.folder import RunFolder
from tests.cli.driving import holdfast, run_folder

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4fw"

HIDDEN = [
    (["sk-abc123def456ghi789"], ["***"]),
    (["sk-ant-api03-AbCdEf123456_7890-xyz"], ["***"]),
    (["--model", "x", "sk-proj-Abcdefgh12345678"], ["--model", "x", "***"]),
    (["ghp_0123456789abcdefghijABCDEFGHIJ012345"], ["***"]),
    (["hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789"], ["***"]),
    (["AKIAIOSFODNN7EXAMPLE"], ["***"]),
    (["xoxb-123456789012-abcdefABCDEF"], ["***"]),
    ([JWT], ["***"]),
    (["-H", "Authorization: Bearer abc.def"], ["-H", "Authorization: ***"]),
    (["-H", "X-Api-Key: 12345"], ["-H", "X-Api-Key: ***"]),
    (["Bearer", "abcdef"], ["Bearer", "***"]),
    (["postgres://ann:hunter2@db.example/x"], ["postgres://***@db.example/x"]),
    (["--db=mysql://root:pw@h/d"], ["--db=mysql://***@h/d"]),
    (["https://tok123@github.com/a/b"], ["https://***@github.com/a/b"]),
    (["https://x.org/a?token=abc&size=3"], ["https://x.org/a?token=***&size=3"]),
    (["host=h user=u password=hunter2 dbname=d"], ["host=h user=u password=*** dbname=d"]),
    (['{"password": "hunter2", "n": 3}'], ['{"password": "***", "n": 3}']),
    (["--pwd", "hunter2"], ["--pwd", "***"]),
    (["--pwd=hunter2"], ["--pwd=***"]),
    (["--password", "123456"], ["--password", "***"]),
    (["--key", "hunter2"], ["--key", "***"]),
    (["--key=hunter2"], ["--key=***"]),
    (["-p", "hunter2"], ["-p", "***"]),
    (["-u", "ann:hunter2"], ["-u", "***"]),
    (["--db_pass", "hunter2"], ["--db_pass", "***"]),
    (["--hf-token", "abc"], ["--hf-token", "***"]),
    (["--authToken", "abc"], ["--authToken", "***"]),
    (["--wandb-key", "abc"], ["--wandb-key", "***"]),
    (["logger.api_key=abc"], ["logger.api_key=***"]),
    (["env", "WANDB_API_KEY=abc", "python"], ["env", "WANDB_API_KEY=***", "python"]),
    (["--webhook", "https://hooks.example/T0/B0/x"], ["--webhook", "***"]),
    (["-----BEGIN RSA PRIVATE KEY-----\nMIIE"], ["***"]),
]

KEPT = [
    ["--key-frames", "3"],
    ["-p", "8080"],
    ["-p", "0.5"],
    ["--token-count", "512"],
    ["--max-tokens=4096"],
    ["--tokenizer", "bpe-32k"],
    ["--pad-token", "[PAD]"],
    ["--eos_token", "</s>"],
    ["--token-embedding-dim", "64"],
    ["--sort-key", "loss"],
    ["data.image_key=jpg"],
    ["--key_padding_mask", "causal"],
    ["--password-file", "/run/secrets/db"],
    ["--secret-name", "db"],
    ["--use-auth-token", "--epochs", "3"],
    ["--num-pass", "2"],
    ["--pass-through", "x"],
    ["--passes", "two"],
    ["-u", "1000:1000"],
    ["-u", "train.py"],
    ["--compass", "north"],
    ["--monkey", "george"],
    ["--author", "ann"],
    ["--key", "7"],
    ["sk-learn-baseline"],
    ["--data", "s3://bucket/a@b.parquet"],
    ["git@github.com:a/b.git"],
    ["--lr", "3e-4", "--seed=7", "model.depth=12", "x=y=z", "a b", ""],
    ["--checkpoint", "runs/eyJoint/last.ckpt"],
    ["--revision", "8c2f41aa03aa11eebe560242ac1200028c2f41aa"],
]


@pytest.mark.parametrize(("words", "shown"), HIDDEN, ids=lambda each: " ".join(each)[:40])
def test_what_is_hidden(words: list[str], shown: list[str]) -> None:
    assert redact(words) == shown
    assert redact(shown) == shown, "hiding twice is hiding once"


@pytest.mark.parametrize("words", KEPT, ids=lambda each: " ".join(each)[:40])
def test_what_stays_readable(words: list[str]) -> None:
    assert redact(words) == words


SECRETS = ["sk-abc123def456ghi789", "hunter2", "pa55phrase"]
WORDS = ["--api", SECRETS[0], f"postgres://ann:{SECRETS[1]}@db/x", "--pwd", SECRETS[2], "--lr", "0.125", "-p", "8080"]
SCRIPT = """\
import os, sys, time
assert sys.argv[1:] == os.environ["EXPECTED"].split("|"), sys.argv
time.sleep(600 if "WAIT" in os.environ else 0)
raise SystemExit(int(os.environ.get("CODE", "0")))
"""


def everywhere(*folders: Path) -> str:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert files
    return "\n".join(path.read_bytes().decode("latin-1") for path in files)


@pytest.mark.all
def test_a_run_of_a_script_keeps_no_secret_and_still_goes_on(tmp_path: Path) -> None:
    state = Path(os.environ["HOLDFAST_STATE"])
    (tmp_path / "job.py").write_text(SCRIPT)
    env = {"EXPECTED": "|".join(WORDS), "HOLDFAST_NOTIFY_WEBHOOK": "https://hooks.example/T0/hush"}
    failed = holdfast("run", "--", "python", "job.py", *WORDS, cwd=tmp_path, CODE="3", **env)
    assert failed.code != 0
    run = RunFolder(run_folder(tmp_path))
    assert "--lr 0.125 -p 8080" in " ".join(run.info["command"]), "what is no secret stays"
    holdfast("report", "latest", cwd=tmp_path)
    for command in ("show", "status", "fsck"):
        done = holdfast(command, "latest", "-v", cwd=tmp_path)
        assert not any(secret in done.out + done.err for secret in SECRETS)
    text = everywhere(tmp_path / "runs")
    assert [secret for secret in [*SECRETS, "hush"] if secret in text] == []
    assert any(path.suffix == ".html" for path in tmp_path.rglob("*"))
    kept = list((state / "arguments").iterdir())
    assert len(kept) == 1 and stat.S_IMODE(kept[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(kept[0].parent.stat().st_mode) == 0o700
    copy = tmp_path / "elsewhere" / run.path.name
    shutil.copytree(run.path, copy)
    again = holdfast("resume", "latest", cwd=tmp_path, **env)
    assert again.code == 0, again.err
    assert not any(secret in everywhere(run.path) for secret in SECRETS)
    other = holdfast("resume", str(copy), cwd=tmp_path, **env)
    assert other.code == 2 and "secrets are not stored" in other.err, "a copy does not have them"
    given = holdfast("resume", str(copy), "--", "python", "job.py", *WORDS, cwd=tmp_path, **env)
    assert given.code == 0, given.err


def test_words_of_another_command_are_not_handed_out(tmp_path: Path) -> None:
    """Whoever changes run.json gets no secret for another program."""
    info = {"created": "2026-11-15T09:12:04Z"}
    kept_arguments.keep(tmp_path, info, command=["curl", "--pwd", "hunter2", "https://mine.example"])
    shown = ["curl", "--pwd", "***", "https://mine.example"]
    assert kept_arguments.find(tmp_path, info, "command", shown) == ["curl", "--pwd", "hunter2", "https://mine.example"]
    assert kept_arguments.find(tmp_path, info, "command", [*shown[:3], "https://evil.example"]) is None
    assert kept_arguments.find(tmp_path, info, "argv", shown) is None
    assert kept_arguments.find(tmp_path, {"created": "later"}, "command", shown) is None
    (tmp_path / "copy").mkdir()
    assert kept_arguments.find(tmp_path / "copy", info, "command", shown) is None


def test_nothing_is_kept_where_nothing_is_secret(tmp_path: Path) -> None:
    kept_arguments.keep(tmp_path, {"created": "x"}, command=["python", "train.py", "--lr", "0.1"])
    assert not (Path(os.environ["HOLDFAST_STATE"]) / "arguments").exists()


@pytest.mark.long
def test_arguments_of_train_are_hidden_and_found_again(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import sys, holdfast\ndef train(session, api_key=''):\n    assert (api_key, sys.argv[1:]) == "
        "('hunter2', ['--pwd', 'pa55phrase']), sys.argv\n    open('went', 'a').write('x')\n"
        "    assert len(open('went').read()) > 1, 'the first time it fails'\n"
    )
    words = ["train", "job.py", "api_key=hunter2", "--device", "cpu", "--", "--pwd", "pa55phrase"]
    assert holdfast(*words, cwd=tmp_path).code != 0
    run = RunFolder(run_folder(tmp_path))
    assert (run.info["arguments"], run.info["argv"]) == ({"api_key": "***"}, ["--pwd", "***"])
    assert not any(secret in everywhere(run.path) for secret in ("hunter2", "pa55phrase"))
    done = holdfast("resume", "latest", cwd=tmp_path)
    assert done.code == 0 and (tmp_path / "went").read_text() == "xx", done.out + done.err
    assert json.loads((run.path / "run.json").read_text())["argv"] == ["--pwd", "***"]
