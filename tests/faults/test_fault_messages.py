"""Every known message once, as it was printed, and the table they are in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.faults import classification
from holdfast.faults.classification import STICKY_CODES, Kind, classify_exception, match_text, signatures
from holdfast.faults.terms import Health


def _messages() -> list[tuple[str, str, str]]:
    text = Path(__file__).with_name("fault_messages.txt").read_text(encoding="utf-8")
    rows = [line.split(maxsplit=2) for line in text.splitlines() if not line.startswith("#")]
    return [(id, device, message.replace("\\n", "\n")) for id, device, message in rows]


MESSAGES = _messages()


@pytest.mark.parametrize(("expected", "device", "message"), MESSAGES)
def test_each_message_is_known(expected: str, device: str, message: str) -> None:
    known = match_text(message, device=device)
    assert known is not None
    assert known.id == expected


@pytest.mark.parametrize(("expected", "device", "message"), MESSAGES)
def test_each_message_is_known_without_the_device_too(expected: str, device: str, message: str) -> None:
    known = match_text(message)
    assert known is not None
    assert known.id == expected


@pytest.mark.parametrize(("expected", "device", "message"), MESSAGES)
def test_each_message_in_an_exception_gives_its_kind(expected: str, device: str, message: str) -> None:
    known = classification.signature(expected)
    assert known is not None
    error = _RAISED_AS[known.raised_as[0]](message)
    fault = classify_exception(error, device=device)
    if known.warning or known.exit_only or known.kind is Kind.USER_ERROR:
        assert fault is None
    else:
        assert fault is not None
        assert (fault.kind, fault.signature, fault.health) == (known.kind, expected, known.health)
        assert fault.message == message


_RAISED_AS: dict[str, type[Exception]] = {
    "RuntimeError": RuntimeError,
    "ValueError": ValueError,
    "AssertionError": AssertionError,
    "ImportError": ImportError,
}


def test_every_row_that_is_text_has_a_message_above_for_each_of_its_texts() -> None:
    for row in signatures():
        mine = [message for id, _, message in MESSAGES if id == row.id]
        if row.observed is not None:
            assert not row.text
            assert row.regex is None
            assert not mine
            continue
        assert mine, row.id
        for text in row.text:
            assert any(text in message for message in mine), (row.id, text)


def test_the_table_is_well_formed() -> None:
    rows = json.loads(Path(classification.__file__).with_name("signatures.json").read_text(encoding="utf-8"))
    assert {row["row"] for row in rows if "row" in row} == set(range(1, 77))
    assert {row["row"] for row in rows if "observed" in row} == set(range(69, 75))
    ids = [row.id for row in signatures()]
    assert len(ids) == len(set(ids))
    for row in signatures():
        assert set(row.backends) <= {"any", "device", "cuda", "rocm", "mps", "xpu"}, row.id
        assert (row.kind is Kind.DRIVER) == (row.health is Health.MACHINE), row.id
        assert row.kind is not None or row.warning, row.id
        for text in (row.means, row.action):
            assert not text.endswith("."), row.id
    codes = [code for row in signatures() for code in row.codes]
    assert len(codes) == len(set(codes))


def test_every_sticky_code_leads_to_a_row_that_gives_the_process_up() -> None:
    health = {code: row.health for row in signatures() for code in row.codes}
    assert set(health) >= STICKY_CODES
    assert {code for code, left in health.items() if left is not Health.ALIVE} >= STICKY_CODES


def test_a_warning_never_hides_the_error_after_it() -> None:
    text = (
        "GTX 1060 with CUDA capability sm_61 is not compatible with the current PyTorch installation.\n"
        "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    )
    known = match_text(text)
    assert known is not None
    assert known.id == "no-kernel-image"


@pytest.mark.parametrize(
    "text", ["", "Epoch 3: loss 0.31", "ValueError: bad label", "mat1 and mat2 shapes cannot be multiplied"]
)
def test_ordinary_text_is_not_known(text: str) -> None:
    assert match_text(text) is None
