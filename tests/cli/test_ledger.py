"""`holdfast ledger`: text in, text out, exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast.devices.identity import DeviceId
from holdfast.devices.last_boot import Readers
from holdfast.devices.ledger import Ledger
from holdfast.devices.shutdown_cause import Ended

from .driving import said

CARD = DeviceId("cuda:0", "pci 0000:03:00.0 1002:744c", "Radeon RX 7900 XTX", "0000:03:00.0")
OTHER = DeviceId("cuda:0", "pci 0000:0a:00.0 1002:744c", "Radeon RX 7900 XT", "0000:0a:00.0")
QUIET = Readers(lambda boot, since: Ended("unknown", "nothing is kept here"), lambda boot, since: [])

OPEN = """
import os, sys
from holdfast.devices.identity import DeviceId
from holdfast.devices.ledger import Ledger
device = DeviceId(*sys.argv[2:4])
Ledger().open(device, device.label + " fp32", "calm-heron", sys.argv[1])
os._exit(0)
"""


def ledger() -> Ledger:
    return Ledger(readers=QUIET, software=lambda device: {})


def use(device: DeviceId, *, steps: int, seconds: float) -> None:
    book = ledger()
    opened = book.open(device, f"{device.label} fp32", "calm-heron", "boot-1")
    book.close(opened, "finished", steps=steps, seconds=seconds)


def went_down(boot: str, device: DeviceId = CARD) -> None:
    """A process that uses the device ends without a word."""
    subprocess.run([sys.executable, "-c", OPEN, boot, device.label, device.key], check=True)


def test_nothing_is_known(tmp_path: Path) -> None:
    done = said("ledger", cwd=tmp_path)
    assert (done.code, done.out) == (0, "")
    assert done.err == (
        f"no device was used on this machine yet; the ledger will be {os.environ['HOLDFAST_STATE']}/ledger.jsonl\n"
    )


def test_a_card_in_quarantine_and_how_it_is_lifted(tmp_path: Path) -> None:
    use(DeviceId("cpu", "cpu", "Ryzen 9"), steps=3862, seconds=11400.0)
    use(CARD, steps=100, seconds=60.0)
    went_down("boot-1")
    assert len(ledger().settle("boot-2")) == 1
    went_down("boot-2")
    done = said("ledger", cwd=tmp_path, HOLDFAST_BOOT_ID="boot-3")
    assert done.code == 0
    assert done.err == (
        "• cuda:0 (fp32) in calm-heron: the machine went down while it was in use; it is in quarantine\n"
    )
    today = ledger().lines()[-1].time[:10]
    assert done.out == (
        "DEVICE  NAME                RUNG  TRUST          USED  STEPS  FAULTS  FREEZES\n"
        "cpu     Ryzen 9             fp32  trusted      3h 10m  3\u2009862       0        0\n".replace("\u2009", " ")
        + "cuda:0  Radeon RX 7900 XTX  fp32  quarantined  1m 00s    100       0        2\n"
        "\n"
        f"cuda:0 fp32: quarantined since {today}\n"
        "  because  the machine went down 2 times while it was in use\n"
        "  until driver, torch or kernel changes, or `holdfast ledger --forget cuda:0`\n"
    )
    lifted = said("ledger", "--forget", "cuda:0", cwd=tmp_path)
    assert (lifted.code, lifted.out) == (0, "✓ cuda:0 is trusted again; its history stays\n")
    data = said("ledger", "--json", cwd=tmp_path).json
    assert [(each["device"], each["trust"]) for each in data["devices"]] == [("cpu", "trusted"), ("cuda:0", "unknown")]
    assert (data["devices"][1]["freezes"], data["devices"][1]["uses"]) == (0, 3)


def test_every_line_can_be_read_with_its_evidence(tmp_path: Path) -> None:
    went_down("boot-1")
    ledger().note(CARD, "cuda:0 fp32", "fault", code="F006", why="an \x1b[31millegal address")
    ledger().settle("boot-2")
    told = said("ledger", "-v", cwd=tmp_path).out
    assert "  cuda:0 fp32  in use by calm-heron (train)\n" in told
    assert "  cuda:0 fp32  probation: the machine went down while it was in use\n    nothing is kept here\n" in told
    assert "fault: code F006, why an " in told and "\x1b" not in told


def test_what_is_in_use_now(tmp_path: Path) -> None:
    book = ledger()
    opened = book.open(CARD, "cuda:0 fp32", "calm-heron", "boot-1")
    try:
        done = said("ledger", cwd=tmp_path, HOLDFAST_BOOT_ID="boot-1")
        assert (done.err, done.out.splitlines()[-1]) == (
            "",
            f"in use: cuda:0 fp32 by calm-heron since {book.lines()[-1].time}",
        )
        rows = said("ledger", "--plain", cwd=tmp_path, HOLDFAST_BOOT_ID="boot-1").out
        assert rows == f"cuda:0\t{CARD.key}\tfp32\tunknown\t0\t0\t0\n"
    finally:
        book.close(opened, "finished")


def test_a_device_nobody_knows_and_a_name_that_meant_two(tmp_path: Path) -> None:
    use(CARD, steps=1, seconds=1.0)
    use(OTHER, steps=1, seconds=1.0)
    done = said("ledger", "--forget", "cuda:9", cwd=tmp_path)
    assert (done.code, done.err) == (
        2,
        "error: the ledger has no device `cuda:9`\n\nhint: a similar device exists: `cuda:0`\nhint: known: cuda:0\n",
    )
    done = said("ledger", "--forget", "cuda:0", cwd=tmp_path)
    assert (done.code, done.err.splitlines()[0]) == (2, "error: `cuda:0` names several cards")
    assert said("ledger", "--forget", "0000:0a:00.0", cwd=tmp_path).code == 0
    assert said("ledger", "--forget", CARD.key, cwd=tmp_path).code == 0


# Numbers -----------------------------------------------------------------------------------------------------------

SAID = "mm in backward, float32 [8, 4] x [4, 32]: element [0, 9] is -16.8, the CPU says -0.0168"


def accuse(*, method: int | None = 2, confirmed: bool = True) -> None:
    """What a run writes when an operator disagrees, and, once that is confirmed, when the run leaves the device."""
    book = ledger()
    use(CARD, steps=10, seconds=1.0)
    if method is not None:
        book.note(
            CARD, "cuda:0 fp32", "suspicion", why=SAID, confirmed=confirmed, by="a fresh process (7)", method=method
        )
    if confirmed:
        more = {} if method is None else {"method": method}
        book.note(CARD, "cuda:0 fp32", "fault", code="F018", why="cuda:0 computes wrong numbers at step 7", **more)
        book.note(CARD, "cuda:0 fp32", "blame", verdict="device", why=SAID)


def test_a_suspicion_alone_costs_no_trust_and_is_shown(tmp_path: Path) -> None:
    accuse(confirmed=False)
    done = said("ledger", cwd=tmp_path)
    assert "cuda:0 fp32: numbers that disagreed with the CPU\n" in done.out
    assert f"{SAID}; suspected, not confirmed\n" in done.out
    assert ledger().trust(CARD, "cuda:0 fp32").state == "trusted"


def test_a_confirmed_verdict_counts_until_it_is_pardoned_and_stays_in_the_history(tmp_path: Path) -> None:
    accuse()
    assert ledger().trust(CARD, "cuda:0 fp32").state == "probation"
    assert f"{SAID}; confirmed by a fresh process (7)\n" in said("ledger", cwd=tmp_path).out
    pardoned = said("ledger", "pardon", "cuda:0", cwd=tmp_path)
    assert (pardoned.code, pardoned.out) == (
        0,
        "✓ the verdict on the numbers of cuda:0 is taken back; it stays in the history\n",
    )
    assert ledger().trust(CARD, "cuda:0 fp32").state == "unknown"
    today = ledger().lines()[-1].time[:10]
    assert f"confirmed by a fresh process (7); pardoned {today}\n" in said("ledger", cwd=tmp_path).out
    (device,) = said("ledger", "--json", cwd=tmp_path).json["devices"]
    assert device["suspicions"][0]["confirmed"] is True and device["suspicions"][0]["pardoned"]
    assert device["faults"] == 0


def test_a_pardon_does_not_lift_what_a_freeze_left(tmp_path: Path) -> None:
    use(CARD, steps=100, seconds=60.0)
    went_down("boot-1")
    assert len(ledger().settle("boot-2")) == 1
    before = ledger().trust(CARD, "cuda:0 fp32")
    assert said("ledger", "pardon", "cuda:0", cwd=tmp_path).code == 0
    assert ledger().trust(CARD, "cuda:0 fp32") == before


def test_a_verdict_of_the_older_way_to_compare_is_not_carried_over(tmp_path: Path) -> None:
    accuse(method=None)
    assert ledger().trust(CARD, "cuda:0 fp32").state == "trusted"
    assert ledger().history(CARD).faults == 0


def test_pardon_says_what_it_needs(tmp_path: Path) -> None:
    alone = said("ledger", "pardon", cwd=tmp_path)
    assert alone.code == 2 and "needs a device" in alone.err, alone
    unknown = said("ledger", "pardon", "cuda:7", cwd=tmp_path)
    assert unknown.code == 2 and "the ledger has no device `cuda:7`" in unknown.err, unknown
