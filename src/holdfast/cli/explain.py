"""`holdfast explain`: what a code means, what holdfast does about it, what you can do.

    holdfast explain                      every code, one line each
    holdfast explain F010                 one code: F… is a fault of a run, D… a finding of the doctor
    holdfast explain hang                 one fault by its word
    holdfast explain "CUDA error: device-side assert triggered"       a message, as torch printed it
    holdfast explain 75                   an exit code of holdfast
    holdfast explain XID79                an error of NVIDIA's driver; a line of the kernel log, too

Whoever has codes adds a function to `SOURCES`; this command only finds and prints. A row needs the fields of
`Topic`, and may have a `measured_by` and a `kind`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.base.errors import ExitCode, UserError
from holdfast.console import exit_codes
from holdfast.console.output import Output, add_flags, table
from holdfast.console.usage import Parser
from holdfast.devices import findings
from holdfast.faults import classification

if TYPE_CHECKING:
    import argparse

    from holdfast.faults.kernel_messages import Message

_WIDTH = 80


class Topic(Protocol):
    """What can be explained."""

    @property
    def code(self) -> str: ...
    @property
    def slug(self) -> str: ...
    @property
    def level(self) -> str:
        """note, warning or error."""

    @property
    def title(self) -> str: ...
    @property
    def seen(self) -> str: ...
    @property
    def means(self) -> str: ...
    @property
    def does(self) -> str: ...
    @property
    def you_can(self) -> str: ...


SOURCES: list[Callable[[], Iterable[Topic]]] = [classification.explanations, findings.explanations]
"""Each gives its topics in the order in which they are listed."""


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "explain",
        description="""\
Explain a fault, a finding, an exit code or an error message, and what you can do about it.

examples:
  holdfast explain F010              a fault or a finding by its code
  holdfast explain hang              a fault by its name
  holdfast explain 75                an exit code of holdfast
  holdfast explain "CUDA error: device-side assert triggered"
                                     a message that torch printed
  holdfast explain XID79             an error of NVIDIA's driver by its number
  holdfast explain "amdgpu: ring gfx_0.0.0 timeout"
                                     a line of the kernel log
  holdfast explain                   list every code
""",
    )
    parser.add_argument(
        "code", nargs="?", metavar="CODE", help="a code, the name of a fault, an exit code, or an error message"
    )
    add_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print what was asked for; UserError for what nobody knows."""
    output = Output.from_args(args)
    found = topics()
    if args.code is None:
        _list(found, output)
        return ExitCode.OK
    code = re.fullmatch(r"(exit(?: code)? )?(\d+)", args.code.strip())
    if code and (code[1] or int(code[2]) in set(ExitCode)):  # any other number may be one of NVIDIA's Xid errors
        _exit_code(int(code[2]), output)
        return ExitCode.OK
    topic, known = _find(args.code.strip(), found)
    if output.as_json:
        message = None if known is None else _signature_as_json(known)
        output.json({**_as_json(topic), "message": message})
    else:
        for line in page(topic, known):
            output.print(line)
    return ExitCode.OK


def topics() -> list[Topic]:
    """Everything that has a code, in the order in which it is listed."""
    return [topic for source in SOURCES for topic in source()]


def _exit_code(number: int, output: Output) -> None:
    """What a command said by ending with `number`."""
    known = {int(code): code for code in ExitCode}
    if number not in known:
        listed = ", ".join(str(code) for code in known)
        cause = "`holdfast run` passes on the exit code of the command; holdfast itself has no such code"
        raise UserError(f"unknown exit code {number}", cause=cause, hints=[f"the exit codes of holdfast are {listed}"])
    name, means = known[number].name, exit_codes.GENERAL[known[number]]
    if output.as_json:
        output.json({"exit_code": number, "name": name, "means": means})
        return
    output.print(f"exit code {number} · {name}")
    for line in _section("What it means", _sentence(means)):
        output.print(line)


def page(topic: Topic | None, known: classification.Signature | None = None) -> list[str]:
    """A topic as lines of text; with the message that led here, what that message means comes first."""
    if topic is None:
        return ["No fault", *_message(known)]
    head = f"{topic.code} · {topic.slug}"
    lines = [f"{head}{topic.level:>{max(_WIDTH - len(head), len(topic.level) + 2)}}"]
    lines += _message(known)
    lines += _section("What was seen", topic.seen)
    lines += _section("What it means for you", _sentence(topic.means))
    lines += _section("What holdfast does", topic.does)
    lines += _section("What you can do", topic.you_can)
    lines += _in_the_kernel_log(topic)
    measured_by = getattr(topic, "measured_by", None)
    if measured_by:
        lines += ["", f"Measured by  {measured_by}"]
    return lines


def _message(known: classification.Signature | None) -> list[str]:
    if known is None:
        return []
    return _section("This message", " ".join(_sentence(text) for text in (known.means, known.action)))


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text[0].upper()}{text[1:]}."


def _in_the_kernel_log(topic: Topic) -> list[str]:
    """The lines a fault is seen with, by their names: each of them has a page of its own."""
    rows = _kernel_rows(topic)
    if not rows:
        return []
    numbers = ", ".join(str(number) for number in sorted(row.xid for row in rows if row.xid))
    names = ", ".join(row.code for row in rows if not row.xid)
    listed = "; ".join(part for part in (f"Xid {numbers}" if numbers else "", names) if part)
    return _section("In the kernel log", f"{listed}. See `holdfast explain {rows[0].code}`, and so on.")


def _kernel_rows(topic: Topic | None) -> list[Message]:
    from holdfast.faults.kernel_messages import seen_with

    kind = getattr(topic, "kind", None)
    return [row for row in seen_with(kind) if row.xid != 0] if kind is not None else []


def _section(heading: str, text: str) -> list[str]:
    # Long words stay whole: a variable or a command that is broken in two cannot be copied.
    body = textwrap.wrap(
        text,
        _WIDTH - 2,
        break_long_words=False,
        break_on_hyphens=False,
        initial_indent="  ",
        subsequent_indent="  ",
    )
    return ["", heading, *body]


def _list(topics: Sequence[Topic], output: Output) -> None:
    if output.as_json:
        output.json({"codes": [_as_json(topic) for topic in topics]})
        return
    for line in table([(topic.code, topic.level, topic.title) for topic in topics]):
        output.print(line)
    output.print()
    output.print("  holdfast explain F001      what it means and what you can do")


def _find(asked: str, topics: Sequence[Topic]) -> tuple[Topic | None, classification.Signature | None]:
    """The topic by its code, slug or word, else by a message that is known; some messages are no fault."""
    word = asked.lower().replace("_", "-")
    for topic in topics:
        if word in _names(topic):
            return topic, None
    known = classification.signature(word) or classification.match_text(asked)
    if known is None:
        said = _by_kernel_log(asked)
        if said is not None:
            return said, None
        raise _unknown(asked, word, topics)
    code = classification.CODES[known.kind] if known.kind else None
    return next((topic for topic in topics if topic.code == code), None), known


def _by_kernel_log(asked: str) -> Message | None:
    from holdfast.faults.kernel_messages import explained

    return explained(asked)


def _names(topic: Topic) -> set[str]:
    kind = getattr(topic, "kind", None)
    return {topic.code.lower(), topic.slug} | ({str(kind).replace("_", "-")} if kind else set())


def _unknown(asked: str, word: str, topics: Sequence[Topic]) -> UserError:
    import difflib

    names = {name: topic for topic in topics for name in _names(topic)}
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hints = []
    if close:
        topic = names[close[0]]
        shown = topic.code if close[0] == topic.code.lower() else close[0]
        hints.append(f"a similar one exists: `{shown}` ({topic.title[0].lower()}{topic.title[1:]})")
    hints.append("`holdfast explain` lists all codes")
    what = "code" if len(asked.split()) == 1 else "message"
    return UserError(f"unknown {what} `{asked}`", hints=hints)


_FIELDS = ("code", "kind", "slug", "level", "title", "seen", "means", "does", "you_can", "measured_by")


def _as_json(topic: Topic | None) -> dict[str, object]:
    """All fields, null where a topic has none: a message that is no fault has no topic at all."""
    data: dict[str, object] = {name: getattr(topic, name, None) for name in _FIELDS}
    kind = data["kind"]
    known = [row for row in classification.signatures() if kind is not None and row.kind is kind]
    kernel = [
        {"id": row.id, "xid": row.xid, "regex": row.regex, "health": row.health.value, "means": row.means}
        for row in _kernel_rows(topic)
    ]
    return {**data, "messages": [_signature_as_json(row) for row in known], "kernel_log": kernel}


def _signature_as_json(known: classification.Signature) -> dict[str, object]:
    return {
        "id": known.id,
        "text": list(known.text),
        "regex": known.regex,
        "observed": known.observed,
        "backends": list(known.backends),
        "health": known.health.value,
        "means": known.means,
        "action": known.action,
    }
