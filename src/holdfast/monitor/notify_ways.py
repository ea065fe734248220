"""The ways a message goes: a command, a webhook as JSON, Slack or Discord.

    ways = Ways.of(settings.notify)
    for line in send(message, ways): print(line)        # one line a way: sent, or why not; never an address

An address of a webhook is a secret: whoever has it can post. It is not in messages, logs or arguments.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from holdfast.base import dataclass_json
from holdfast.base.control_characters import without_control

LEVELS = ("note", "result", "alert")
_SIGNS = {"note": "•", "result": "✓", "alert": "!"}
PATIENCE = 10.0
"""Seconds a webhook has to answer."""
COMMAND_PATIENCE = 60.0
AGAIN = (1.0, 5.0, 30.0)
"""Seconds before each new try at a webhook that did not answer or was busy."""
_MOST_DISCORD = 1900


@dataclass(frozen=True, slots=True)
class Message:
    """One message, the same for every way."""

    level: str
    """note, result, or alert: an alert needs somebody."""
    title: str
    text: str
    run: str
    workload: str
    state: str
    folder: str

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, **dataclass_json.write(self)}

    @property
    def whole(self) -> str:
        return f"{_SIGNS[self.level]} {self.title}" + (f"\n{self.text}" if self.text else "")


class Wanted(Protocol):
    """What the settings say (holdfast.run.settings.NotifySettings)."""

    @property
    def level(self) -> str: ...
    @property
    def command(self) -> str | None: ...
    @property
    def webhook(self) -> str | None: ...
    @property
    def format(self) -> str: ...
    @property
    def digest(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Ways:
    """Where to, and how much."""

    level: str = "result"
    command: str | None = None
    webhook: str | None = None
    format: str = "auto"
    digest: float = 3600.0

    @classmethod
    def of(cls, wanted: Wanted) -> Ways:
        return cls(wanted.level, wanted.command, wanted.webhook, wanted.format, wanted.digest)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ways:
        return dataclass_json.read(cls, data) or cls()

    def to_json(self) -> dict[str, Any]:
        return dataclass_json.write(self)

    def __bool__(self) -> bool:
        return bool(self.command or self.webhook)


def send(message: Message, ways: Ways, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """By every way, if the level is high enough; one line a way says what came of it."""
    if LEVELS.index(message.level) < LEVELS.index(ways.level):
        return
    message = Message(**{name: without_control(value) for name, value in asdict(message).items()})
    if ways.command:
        yield f"{message.level} by command: {_run(ways.command, message)}"
    if ways.webhook:
        yield f"{message.level} by webhook: {_post(ways.webhook, body_of(message, form_of(ways)), sleep)}"


def form_of(ways: Ways) -> str:
    """json, slack or discord, by the host where the settings leave it open."""
    if ways.format != "auto" or not ways.webhook:
        return "json" if ways.format == "auto" else ways.format
    parts = urlsplit(ways.webhook)
    host = (parts.hostname or "").lower()
    if host == "hooks.slack.com":
        return "slack"
    return "discord" if host in ("discord.com", "discordapp.com") and "/webhooks/" in parts.path else "json"


def body_of(message: Message, form: str) -> dict[str, Any]:
    """What is posted."""
    if form == "slack":
        escaped = message.whole.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return {"text": escaped}
    if form == "discord":  # nobody is mentioned because a run has their name in it
        return {"content": message.whole[:_MOST_DISCORD], "allowed_mentions": {"parse": []}}
    return message.to_json()


def _run(command: str, message: Message) -> str:
    words = {
        "HOLDFAST_MESSAGE": message.whole,
        "HOLDFAST_MESSAGE_LEVEL": message.level,
        "HOLDFAST_MESSAGE_RUN": message.run,
    }
    try:
        done = subprocess.run(
            shlex.split(command, posix=os.name != "nt"),
            input=message.whole + "\n",
            env={**os.environ, **words},
            text=True,
            encoding="utf-8",
            capture_output=True,
            timeout=COMMAND_PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {COMMAND_PATIENCE:.0f} s"
    except (OSError, ValueError) as error:
        return f"it could not be started: {getattr(error, 'strerror', None) or error}"
    return "sent" if done.returncode == 0 else f"it ended with {done.returncode}: {_first_line(done.stderr)}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message goes to the address that was given. Elsewhere it would arrive without its text, or at somebody else."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _post(address: str, body: dict[str, Any], sleep: Callable[[float], None]) -> str:
    host = urlsplit(address).hostname or "the webhook"
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "holdfast"}
    said = ""
    for wait in (*AGAIN, None):
        try:
            request = urllib.request.Request(address, data=data, headers=headers, method="POST")
            with _OPENER.open(request, timeout=PATIENCE) as answer:
                answer.read(1024)
                return "sent" if 200 <= answer.status < 300 else f"{host} answered {answer.status}"
        except urllib.error.HTTPError as error:
            said = f"{host} answered {error.code}"
            error.close()
            if error.code < 500 and error.code != 429:  # it will say the same again
                return said
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            said = f"{host} did not answer: {type(reason).__name__}"
        if wait is not None:
            sleep(wait)
    return said


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"
