"""Notifications: what is told of a run, when, and by which way; against a real server on this machine."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import UserError
from holdfast.monitor import reader
from holdfast.monitor.notify import News
from holdfast.monitor.notify_ways import Message, Ways, body_of, form_of, send
from holdfast.run.folder import RunFolder, write_json
from holdfast.run.settings import Settings

MESSAGE = Message(
    "result", "calm-heron (eeg) finished after 3h 18m", "no faults", "calm-heron", "eeg", "FINISHED", "/x"
)


class Postbox:
    """A webhook: keeps what is posted, answers what it is told to."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.answers: list[int] = []
        box = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                box.got.append(json.loads(body))
                self.send_response(box.answers.pop(0) if box.answers else 200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/services/T0/SECRET"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait(self, count: int, seconds: float = 30.0) -> list[dict[str, Any]]:
        deadline = time.monotonic() + seconds
        while len(self.got) < count:
            assert time.monotonic() < deadline, self.got
            time.sleep(0.05)
        return self.got


@pytest.fixture
def postbox() -> Iterator[Postbox]:
    box = Postbox()
    yield box
    box.server.shutdown()
    box.server.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


# The ways -------------------------------------------------------------------------------------------------


def test_a_webhook_gets_the_whole_message_as_json(postbox: Postbox) -> None:
    assert list(send(MESSAGE, Ways(webhook=postbox.address))) == ["result by webhook: sent"]
    assert postbox.got == [MESSAGE.to_json()]


@pytest.mark.parametrize("form", ["slack", "discord"])
def test_slack_and_discord_get_their_forms_and_nothing_a_run_wrote_is_markup(postbox: Postbox, form: str) -> None:
    hostile = Message("alert", "x <!channel> & @everyone failed", "<script>", "x", "y", "FAILED", "/x")
    assert list(send(hostile, Ways(webhook=postbox.address, format=form))) == ["alert by webhook: sent"]
    got = postbox.got[0]
    if form == "slack":
        assert got == {"text": "! x &lt;!channel&gt; &amp; @everyone failed\n&lt;script&gt;"}
    else:
        assert got == {"content": "! x <!channel> & @everyone failed\n<script>", "allowed_mentions": {"parse": []}}


def test_the_form_goes_by_the_host() -> None:
    assert form_of(Ways(webhook="https://hooks.slack.com/services/T/B/x")) == "slack"
    assert form_of(Ways(webhook="https://discord.com/api/webhooks/1/x")) == "discord"
    assert form_of(Ways(webhook="https://example.org/hooks.slack.com")) == "json"
    assert form_of(Ways(webhook="https://example.org/x", format="slack")) == "slack"
    assert len(body_of(Message("note", "t" * 5000, "", "", "", "", ""), "discord")["content"]) <= 2000


def test_a_busy_webhook_is_tried_again_and_a_wrong_one_is_not(postbox: Postbox) -> None:
    naps: list[float] = []
    postbox.answers = [503, 429, 200]
    assert list(send(MESSAGE, Ways(webhook=postbox.address), sleep=naps.append)) == ["result by webhook: sent"]
    assert (len(postbox.got), naps) == (3, [1.0, 5.0])
    postbox.answers = [404]
    said = list(send(MESSAGE, Ways(webhook=postbox.address), sleep=naps.append))
    assert said == ["result by webhook: 127.0.0.1 answered 404"], "the address itself is a secret"
    assert len(postbox.got) == 4
    nobody = "http://127.0.0.1:1/SECRET"
    assert list(send(MESSAGE, Ways(webhook=nobody), sleep=naps.append)) == [
        "result by webhook: 127.0.0.1 did not answer: ConnectionRefusedError"
    ]


def test_a_command_gets_the_message_and_its_failure_is_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = f"import os, sys; open({str(out)!r}, 'w').write(sys.stdin.read() + os.environ['HOLDFAST_MESSAGE_LEVEL'])"
    tell = tmp_path / "tell.py"
    tell.write_text(script)
    assert list(send(MESSAGE, Ways(command=f'"{sys.executable}" "{tell}"'))) == ["result by command: sent"]
    assert out.read_text() == f"{MESSAGE.whole}\nresult"
    tell.write_text("raise SystemExit('no such room')")
    assert list(send(MESSAGE, Ways(command=f'"{sys.executable}" "{tell}"'))) == [
        "result by command: it ended with 1: no such room"
    ]
    missing = list(send(MESSAGE, Ways(command="/no/such/program")))
    assert missing == ["result by command: it could not be started: No such file or directory"]
    assert not list(send(MESSAGE, Ways(level="alert", command="/no/such/program"))), "a result is less than an alert"


# What is told ---------------------------------------------------------------------------------------------


class Told:
    """A run folder that the test writes, and the titles of what is told about it."""

    def __init__(self, root: Path, digest_s: float = 3600.0) -> None:
        self.folder = RunFolder.create(root, "eeg", {"created": "2026-11-15T09:00:00Z", "state": "RUNNING"})
        self.folder.lock()
        self.run = reader.open(self.folder.path, cached=False)
        self.news = News(digest_s)
        self.now = 0.0

    def event(self, kind: str, second: int, /, **data: Any) -> None:
        record = {"time": f"2026-11-15T09:{second // 60:02d}:{second % 60:02d}Z", "event": kind, **data}
        with open(self.folder.path / "journal.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def fault(self, second: int) -> None:
        self.event("fault", second, code="F005", kind="hang", step=second, sentence="it hung", action="replace")
        self.event("recovered", second + 1, step=second, seconds=1.0, lost_s=2.0)

    def look(self, after: float = 2.0) -> list[str]:
        self.now += after
        self.run.refresh()
        return [f"{message.level}: {message.title}" for message in self.news.look(self.run, self.now)]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path)
    made.event("start", 0, device="cpu")
    yield made
    made.folder.close()


def test_faults_that_were_mended_are_told_as_one_digest(told: Told) -> None:
    name = told.folder.name
    assert told.look() == []
    told.fault(100)
    told.fault(200)
    assert told.look() == [], "not every hiccup"
    assert told.look(3000) == []
    assert told.look(700) == [f"note: {name} (eeg): 2 faults, both recovered, 4 s lost"]
    assert told.look(9000) == []


def test_a_run_that_is_finished_is_told_once_with_its_faults(told: Told) -> None:
    told.fault(100)
    told.look()
    told.event("end", 600, state="FINISHED", step=900)
    told.folder.update_info(state="FINISHED", best={"name": "valid_bacc", "value": 0.88, "step": 900, "epoch": 3})
    told.folder.close()
    assert told.look() == [], "one look is not sure"
    told.now += 2
    told.run.refresh()
    [message] = told.news.look(told.run, told.now)
    assert (message.level, message.title) == ("result", f"{told.folder.name} (eeg) finished after 10m 00s")
    assert message.text == "step 900/900\nbest valid_bacc 0.8800\n1 fault, recovered, 2 s lost"
    assert told.news.over and told.look() == []


def test_what_needs_somebody_is_an_alert_with_the_reason_and_the_way_on(told: Told) -> None:
    told.folder.update_info(state="PAUSED")
    told.event("limit", 50, action="pause", text="paused: the CPU is at 95 °C, limits.cpu_c is 80 °C")
    assert told.look() == [f"alert: {told.folder.name} (eeg) is paused"]
    told.folder.update_info(state="RUNNING")
    assert told.look() == [f"result: {told.folder.name} (eeg) goes on"]
    told.event("not_saved", 60, text="No space left on device", memory_only=True)
    assert told.look() == [f"alert: {told.folder.name} (eeg) cannot be saved; it goes on in memory"]
    told.event("saved_again", 70)
    assert told.look() == [f"result: {told.folder.name} (eeg) is saved again"]
    error = {"message": "gave up: cpu stopped answering, 3 times", "cause": "F005; nothing is left"}
    told.event("end", 80, state="GAVE_UP", step=900, error=error)
    (told.folder.path / "checkpoints/000900").mkdir()
    told.folder.update_info(state="GAVE_UP")
    told.look()
    told.run.refresh()
    [message] = told.news.look(told.run, told.now)
    assert message.title == f"{told.folder.name} (eeg) gave up after 1m 20s"
    assert message.text.splitlines()[:2] == ["gave up: cpu stopped answering, 3 times", "F005; nothing is left"]
    assert message.text.endswith(f"saved at step 900: `holdfast resume {told.folder.name}` goes on")


@pytest.mark.all
def test_a_supervisor_that_is_killed_is_told_by_the_process_that_watched_it(tmp_path: Path, postbox: Postbox) -> None:
    folder = RunFolder.create(tmp_path, "eeg", {"created": "2026-11-15T09:00:00Z", "state": "RUNNING"})
    hold = "import sys, time; from pathlib import Path; from holdfast.run.folder import RunFolder\n"
    hold += "RunFolder(Path(sys.argv[1])).lock(); print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", hold, str(folder.path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    words = [sys.executable, "-m", "holdfast.monitor.notify", str(folder.path)]
    teller = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert teller.stdin is not None
        teller.stdin.write(json.dumps(Ways(webhook=postbox.address).to_json()))
        teller.stdin.close()
        time.sleep(1.0)
        assert postbox.got == []
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        [message] = postbox.wait(1)
        assert (message["level"], message["state"], message["run"]) == ("alert", "CRASHED", folder.name)
        assert teller.wait(100) == 0
        assert teller.stdout is not None
        said = teller.stdout.read()
        assert said == "alert by webhook: sent\n" and "SECRET" not in said
    finally:
        for process in (holder, teller):
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stdin):
                if stream is not None:
                    stream.close()


def test_the_command_tries_the_ways_and_says_what_came_of_it(
    tmp_path: Path, postbox: Postbox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["notify", "--test"]) == 2
    assert "cause: neither notify.command nor notify.webhook is set" in capsys.readouterr().err
    assert main(["notify", "--test", f"notify.webhook={postbox.address}"]) == 0
    assert capsys.readouterr().out == "alert by webhook: sent\n"
    assert postbox.got[0]["title"] == "a test message from holdfast"
    postbox.answers = [404]
    assert main(["notify", "--test", f"notify.webhook={postbox.address}"]) == 1
    assert capsys.readouterr().out == "alert by webhook: 127.0.0.1 answered 404\n"


# Secrets --------------------------------------------------------------------------------------------------


def test_the_address_is_never_written_into_a_run_folder() -> None:
    settings = Settings.load({"notify.webhook": "https://example.org/SECRET", "notify.command": "x SECRET"}, env={})
    assert "SECRET" not in json.dumps(settings.recorded())
    assert Settings.from_json(settings.recorded()).notify == Settings().notify


def test_a_foreign_run_folder_cannot_name_a_command(tmp_path: Path) -> None:
    from holdfast.cli.run_settings import settings_of

    folder = RunFolder.create(tmp_path, "eeg", {})
    write_json(folder.path / "run.json", {**folder.info, "settings": {"notify": {"command": "touch /tmp/x"}}})
    assert settings_of(folder, {}).notify.command is None


@pytest.mark.parametrize("text", ["mail me | tee log", "echo hi > /tmp/x", "a && b", "a; b", "echo 'no end"])
def test_a_command_is_no_shell_and_says_so(text: str) -> None:
    with pytest.raises(UserError) as error:
        Settings.load({"notify.command": text}, env={})
    assert "no shell reads them, `sh -c '…'` starts one" in " ".join(error.value.hints)


@pytest.mark.parametrize(
    "text", ["mail me", "sh -c 'cat > /dev/null && true'", "notify-send 'a; b|c' #1", 'say "a > b"']
)
def test_what_is_quoted_is_an_argument(text: str) -> None:
    assert Settings.load({"notify.command": text}, env={}).notify.command == text


def test_what_it_logs_is_its_owners(tmp_path: Path) -> None:
    from holdfast.cli import notify

    folder = RunFolder.create(tmp_path, "eeg", {"state": "FINISHED"})
    settings = Settings.load({"notify.command": f'"{sys.executable}" -c pass'}, env={})
    notify.start(folder, settings)
    log = folder.path / "messages.log"
    deadline = time.monotonic() + 30
    while b"sent" not in log.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert log.read_text() == "result by command: sent\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
