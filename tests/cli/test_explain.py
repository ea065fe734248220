"""What `holdfast explain` prints, as text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from holdfast.base.errors import ExitCode, UserError
from holdfast.cli import explain
from holdfast.console.usage import One
from holdfast.devices import findings
from holdfast.faults.classification import CODES, explanations, signatures
from holdfast.faults.kernel_messages import Message, messages, seen_with


def _run(*words: str) -> int:
    """The command as the command line would run it."""
    args = explain.add_parser(One()).parse(list(words))
    code = args.run(args)
    assert isinstance(code, int)
    return code


F010 = """\
F010 · device-needs-reset                                                  error

What was seen
  The device gave an uncorrectable memory error, its link failed, it is gone
  from the driver's list, or the driver is in a state that no new process can
  leave.

What it means for you
  No process can use this device until something outside is done about it.

What holdfast does
  Leaves the device, with every rung on it, and moves to the next device at
  once; gives up with the state saved if there is none.

What you can do
  Reset the card (`nvidia-smi --gpu-reset`, or reload the driver) or reboot,
  then `holdfast resume` the run. If a memory or link error comes back, check
  power, seating and heat, and have the card replaced.

In the kernel log
  Xid 37, 38, 46, 48, 54, 61, 62, 63, 64, 66, 67, 74, 78, 79, 92, 93, 94, 95,
  106, 107, 110, 119, 120, 121, 136, 140, 141, 143, 144, 145, 146, 147, 148,
  149, 150, 151, 152, 153, 154, 155, 156, 157, 158, 159, 160, 161, 162, 163,
  164, 165, 166, 167, 168, 169, 170, 171, 172; nvidia-off-the-bus,
  nvidia-reset-required, nvidia-start, amdgpu-reset-failed, xe-wedged,
  xe-reset-failed, i915-wedged, drm-wedged, pcie-link-down, pcie-uncorrected,
  pcie-corrected, nvidia-gsp. See `holdfast explain XID37`, and so on.
"""

XID79 = """\
XID79 · kernel-log                                                         error

What was seen
  `NVRM: Xid (PCI:…): 79` in the kernel log (`journalctl -k`, or `sudo
  dmesg`).

What it means for you
  The GPU has fallen off the bus.

What holdfast does
  Keeps the line with the evidence of the fault, in the run's `faults` folder,
  where the log may be read. What follows depends on the fault (F010, F003,
  F005): `holdfast explain F010`.

What you can do
  Reboot; then check power, heat and how the card sits in its slot, and try a
  lower power limit. NVIDIA's catalogue says: reboot the machine (RESTART_BM).
"""

LIST = """\
F001  warning  The device ran out of memory
F002  warning  The worker crashed
F003  warning  The device was lost
F004  note     The device reported an error
F005  warning  The device stopped answering
F006  warning  The machine ran out of memory
F007  note     The worker was killed from outside
F008  warning  The worker ended without an error message
F009  error    The installed torch cannot use this device
F010  error    The device needs a reset, a reboot or a repair
F011  warning  A loader process ended
F012  warning  A loader process is stuck
F013  note     The nursery ended
F014  note     The keeper ended
F015  warning  The supervisor ended
F016  error    The script raised an error
F017  error    The loss or a gradient is not finite
F018  error    The device computes wrong numbers
F019  error    Some samples cannot be used
F020  warning  The machine went down during the run
F021  warning  A disk is full
"""
LIST += "".join(f"{row.code}  {row.level:<7}  {row.title}\n" for row in findings.explanations())
LIST += """
  holdfast explain F001      what it means and what you can do
"""

ASSERT = """\
F003 · device-lost                                                       warning

This message
  A check inside a kernel failed; most often a label or an index is out of
  range. Check labels and indices on the CPU, where the message names the
  line.

What was seen
"""


@pytest.mark.parametrize("asked", ["F010", "f010", " F010 ", "driver", "DRIVER", "device-needs-reset"])
def test_one_code_by_any_of_its_names(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(asked) == ExitCode.OK
    assert capsys.readouterr() == (F010, "")


@pytest.mark.parametrize("asked", ["out_of_memory", "out-of-memory", "Out_Of_Memory"])
def test_a_word_may_be_written_with_either_line(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(asked) == ExitCode.OK
    assert capsys.readouterr().out.startswith("F001 · device-out-of-memory  ")


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run() == ExitCode.OK
    assert capsys.readouterr() == (LIST, "")


@pytest.mark.parametrize(
    "asked", ["torch.AcceleratorError: CUDA error: device-side assert triggered\n", "device-assert"]
)
def test_a_message_leads_to_its_fault(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(asked) == ExitCode.OK
    assert capsys.readouterr().out.startswith(ASSERT)


def test_a_message_that_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("MIOpen(HIP): Warning [SQLiteBase] Missing system database file: gfx1030.kdb") == ExitCode.OK
    assert capsys.readouterr().out == (
        "No fault\n\nThis message\n  No tuned kernels are stored for this GPU. Expect a slow first epoch.\n"
    )


@pytest.mark.parametrize("code", sorted(CODES.values()))
def test_every_page_fits_a_small_terminal(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(code) == ExitCode.OK
    text = capsys.readouterr().out
    assert text.startswith(f"{code} · ")
    assert max(len(line) for line in text.splitlines()) <= 80
    kind = next(kind for kind, its_code in CODES.items() if its_code == code)
    assert text.count("\n\n") == (5 if seen_with(kind) else 4)


D009 = """\
D009 · no-kernels-for-this-card                                            error

What was seen
  The architecture of the card is not among those that the installed torch
  carries code for.

What it means for you
  The first real operation fails with "no kernel image" or "invalid device
  function", or kills the process. On AMD cards torch itself does not check
  this and says that the device is available.

What holdfast does
  Probes it all the same where torch can see it. Without code nothing passes,
  and the device is refused with this build.

What you can do
  Install a build that has the card's architecture: the remedy names it where
  one is known. A virtual environment of its own keeps the one you have.

Measured by  holdfast/devices/inventory_findings.py::of_inventory
"""


@pytest.mark.parametrize("asked", ["D009", "d009", "no-kernels-for-this-card", "no_kernels_for_this_card"])
def test_a_finding_of_the_doctor(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(asked) == ExitCode.OK
    assert capsys.readouterr() == (D009, "")


@pytest.mark.parametrize("row", findings.explanations(), ids=lambda row: row.code)
def test_every_finding_fits_a_small_terminal(row: findings.Explanation, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(row.code) == ExitCode.OK
    text = capsys.readouterr().out
    assert text.startswith(f"{row.code} · {row.slug}")
    assert max(len(line) for line in text.splitlines()) <= 80


def test_no_name_means_two_things() -> None:
    words = {name for row in explanations() for name in (row.slug, str(row.kind).replace("_", "-"))}
    assert not words & {row.slug for row in findings.explanations()}


@pytest.mark.parametrize(
    "asked",
    [
        "XID79",
        "xid 79",
        "79",
        "[ 1843.3] NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ],
)
def test_an_error_of_a_driver_by_number_or_line(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(asked) == ExitCode.OK
    assert capsys.readouterr() == (XID79, "")


def test_a_line_of_the_kernel_log(capsys: pytest.CaptureFixture[str]) -> None:
    line = "amdgpu 0000:03:00.0: amdgpu: ring comp_1.3.0 timeout, signaled seq=6970, emitted seq=6971"
    assert _run(line) == ExitCode.OK
    assert "\nWhat it means for you\n  A queue of the GPU hung.\n" in capsys.readouterr().out
    assert _run(line, "--json") == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["code"], data["level"]) == (1, "amdgpu-ring-timeout", "warning")


@pytest.mark.parametrize("row", [row for row in messages() if row.xid != 0], ids=lambda row: row.id)
def test_every_line_that_is_named_can_be_asked_for(row: Message, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(row.code) == ExitCode.OK
    text = capsys.readouterr().out
    assert text.startswith(f"{row.code} · kernel-log")
    long = [line for line in text.splitlines() if len(line) > 80]
    assert not long or row.regex is not None  # a pattern is not broken


def test_a_terminal_without_unicode(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("F010", "--ascii") == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[0].startswith("F010 - device-needs-reset ")


@pytest.mark.parametrize(
    ("asked", "message", "hint"),
    [
        (
            "F0010",
            "unknown code `F0010`",
            "a similar one exists: `F010` (the device needs a reset, a reboot or a repair)",
        ),
        ("hagn", "unknown code `hagn`", "a similar one exists: `hang` (the device stopped answering)"),
        (
            "loader-dead",
            "unknown code `loader-dead`",
            "a similar one exists: `loader-died` (a loader process ended)",
        ),
    ],
)
def test_a_slip_of_the_hand_gets_a_suggestion(asked: str, message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        _run(asked)
    assert caught.value.message == message
    assert caught.value.hints == (hint, "`holdfast explain` lists all codes")
    assert caught.value.exit_code == ExitCode.USAGE


def test_what_resembles_nothing_gets_no_suggestion() -> None:
    with pytest.raises(UserError) as caught:
        _run("the loss went up in the third epoch")
    assert caught.value.message == "unknown message `the loss went up in the third epoch`"
    assert caught.value.hints == ("`holdfast explain` lists all codes",)


def test_json_of_one_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("F005", "--json") == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == 1
    assert (data["code"], data["kind"], data["slug"], data["level"]) == ("F005", "hang", "hang", "warning")
    assert data["message"] is None
    assert {row["id"] for row in data["messages"]} == {"kernel-hang", "rocm-lost-interrupt", "rocm-map-hang"}
    assert all(data[name] for name in ("title", "seen", "means", "does", "you_can"))


def test_json_of_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("CUDA error: an illegal memory access was encountered", "--json") == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert (data["code"], data["message"]["id"], data["message"]["health"]) == (
        "F003",
        "illegal-address",
        "dead",
    )


def test_json_of_a_message_that_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("mps-cpu-fallback", "--json") == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["code"], data["message"]["id"]) == (1, None, "mps-cpu-fallback")


def test_json_of_all_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--json") == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert [row["code"] for row in data["codes"]] == [
        *sorted(CODES.values()),
        *(row.code for row in findings.explanations()),
    ]
    listed = sum(len(row["messages"]) for row in data["codes"])
    assert listed == sum(known.kind is not None for known in signatures())


def test_help_shows_examples_before_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _run("--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "  holdfast explain F010              a fault or a finding by its code\n" in text
    assert text.index("examples:") < text.index("options:")


@dataclass(frozen=True)
class Finding:
    """As another part of the program may have it: no kind, but a probe."""

    code: str = "X034"
    slug: str = "other-program-near-full-memory"
    level: str = "warning"
    title: str = "The device resets when its memory is nearly full"
    seen: str = "The device stopped answering each time."
    means: str = "A run that fits on paper can still kill the card."
    does: str = "Keeps 3 GB free."
    you_can: str = "Close other programs that use the card."
    measured_by: str = "holdfast/probes/memory.py::fill_until_fault"


def test_another_source_of_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def others() -> Iterable[explain.Topic]:
        return [Finding()]

    monkeypatch.setattr(explain, "SOURCES", [*explain.SOURCES, others])
    assert _run("X034") == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "X034 · other-program-near-full-memory                                    warning"
    assert lines[-2:] == ["", "Measured by  holdfast/probes/memory.py::fill_until_fault"]
    assert _run("--json") == ExitCode.OK
    codes = json.loads(capsys.readouterr().out)["codes"]
    assert [row["code"] for row in codes] == [
        *(row.code for row in (*explanations(), *findings.explanations())),
        "X034",
    ]
    with pytest.raises(UserError) as caught:
        _run("X035")
    assert "`X034`" in caught.value.hints[0]
