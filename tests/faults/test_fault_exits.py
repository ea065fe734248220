"""Which fault the end of a process is: real processes and real signals where possible."""

from __future__ import annotations

import sys

import pytest

from holdfast.faults.classification import Kind, classify_exit
from holdfast.faults.terms import Health
from tests.faults.ends import ended

ROCM_FAULT = "Memory access fault by GPU node-1 (Agent handle: 0x55d1c8a4b2d0) on address 0x7f3a1c000000. Reason: "
ROCM_HW = "HW Exception by GPU node-1 (Agent handle: 0x55d1c8a4b2d0) reason :"
ROCM_QUEUE = ":0:rocdevice.cpp            :2724: 32615402 us: [pid:4211] Callback: Queue 0x7fd0b8600000 "


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SIGSEGV", Kind.CRASH),
        ("SIGABRT", Kind.CRASH),
        ("SIGBUS", Kind.CRASH),
        ("SIGILL", Kind.CRASH),
        ("SIGFPE", Kind.CRASH),
        ("SIGKILL", Kind.KILLED),
        ("SIGTERM", Kind.KILLED),
        ("SIGHUP", Kind.KILLED),
    ],
)
def test_real_signals(name: str, kind: Kind) -> None:
    done = ended(f"import os, signal; os.kill(os.getpid(), signal.{name})")
    fault = classify_exit(exitcode=done.returncode, last_words=done.stderr, oom_kills=0, device="cpu")
    assert fault.kind is kind
    assert fault.evidence["signal"] == name
    assert fault.health is Health.DEAD


def test_a_real_segmentation_fault_keeps_its_last_words() -> None:
    done = ended("import ctypes; ctypes.string_at(0)")
    fault = classify_exit(exitcode=done.returncode, last_words=done.stderr, oom_kills=0, device="cpu")
    assert fault.kind is Kind.CRASH
    assert fault.message


@pytest.mark.parametrize("status", [0, 1, 7, 99])
def test_a_real_exit(status: int) -> None:
    done = ended(f"import os; print('bye'); os._exit({status})")
    fault = classify_exit(exitcode=done.returncode, last_words="bye\n\n", oom_kills=0, device="cpu")
    assert (fault.kind, fault.message) == (Kind.EXIT, "bye")
    assert fault.evidence["status"] == f"exit status {status}"


def test_the_out_of_memory_killer_is_told_from_other_kills() -> None:
    killed = classify_exit(exitcode=-9, last_words="", oom_kills=0, device="cuda:0")
    assert killed.kind is Kind.KILLED
    starved = classify_exit(exitcode=-9, last_words="", oom_kills=1, device="cuda:0")
    assert (starved.kind, starved.signature) == (Kind.HOST_MEMORY, "host-out-of-memory")
    assert starved.evidence["oom_kills"] == 1
    crashed = classify_exit(exitcode=-11, last_words="", oom_kills=1, device="cuda:0")
    assert crashed.kind is Kind.CRASH


@pytest.mark.parametrize(
    ("words", "kind", "health"),
    [
        (ROCM_FAULT + "Page not present or supervisor privilege.", Kind.DEVICE_LOST, Health.DEAD),
        (ROCM_HW + "GPU Hang", Kind.DEVICE_LOST, Health.DEAD),
        (ROCM_HW + "ECC", Kind.DRIVER, Health.MACHINE),
        ("hipErrorNoBinaryForGpu: Unable to find code object", Kind.UNSUPPORTED, Health.DEAD),
        (
            ROCM_QUEUE + "Aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES … Available Free mem : 0 MB",
            Kind.OUT_OF_MEMORY,
            Health.DEAD,
        ),
        ("terminate called after throwing an instance of 'std::bad_alloc'", Kind.HOST_MEMORY, Health.DEAD),
        ("free(): invalid pointer", Kind.CRASH, Health.DEAD),
    ],
)
def test_an_abort_is_named_by_what_was_printed_last(words: str, kind: Kind, health: Health) -> None:
    last_words = f"Epoch 1: loss 0.69\n{words}\nFatal Python error: Aborted\n  File train.py, line 3 in step\n"
    fault = classify_exit(exitcode=-6, last_words=last_words, oom_kills=0, device="cuda:0")
    assert (fault.kind, fault.health, fault.message) == (kind, health, words)
    assert fault.signature is not None


def test_an_error_that_was_survived_is_not_blamed_for_a_later_crash() -> None:
    words = "CUDA out of memory. Tried to allocate 2.00 GiB\nrecovered\nFatal Python error: Segmentation fault"
    fault = classify_exit(exitcode=-11, last_words=words, oom_kills=0, device="cuda:0")
    assert (fault.kind, fault.signature) == (Kind.CRASH, None)


def test_only_the_end_of_the_output_counts() -> None:
    words = ROCM_HW + "GPU Hang\n" + "step\n" * 500
    fault = classify_exit(exitcode=-11, last_words=words, oom_kills=0, device="cuda:0")
    assert fault.kind is Kind.CRASH


def test_a_device_is_not_blamed_for_a_crash_on_the_cpu() -> None:
    words = "my notes: Memory access fault by GPU node-1 (Agent handle: 0x1) …"
    fault = classify_exit(exitcode=-6, last_words=words, oom_kills=0, device="cpu")
    assert fault.kind is Kind.CRASH


def test_a_kill_from_outside_is_not_explained_by_old_text() -> None:
    fault = classify_exit(exitcode=-15, last_words=ROCM_HW + "GPU Hang", oom_kills=0, device="cuda:0")
    assert fault.kind is Kind.KILLED


@pytest.mark.parametrize(
    ("exitcode", "kind", "shown"),
    [
        (0xC0000005, Kind.CRASH, "0xC0000005, access violation"),
        (0xC0000005 - 2**32, Kind.CRASH, "0xC0000005, access violation"),
        (0xC0000409, Kind.CRASH, "0xC0000409, stack buffer overrun or abort"),
        (0xC0000017, Kind.HOST_MEMORY, "0xC0000017, no memory"),
        (0xC0000135, Kind.UNSUPPORTED, "0xC0000135, a DLL was not found"),
        (0xC000013A, Kind.KILLED, "0xC000013A, Ctrl-C"),
    ],
)
def test_windows_exit_codes(exitcode: int, kind: Kind, shown: str) -> None:
    fault = classify_exit(exitcode=exitcode, last_words="", oom_kills=0, device="cuda:0")
    assert (fault.kind, fault.evidence["status"]) == (kind, shown)


@pytest.mark.parametrize(
    ("exitcode", "kind", "name"),
    [(139, Kind.CRASH, "SIGSEGV"), (134, Kind.CRASH, "SIGABRT"), (137, Kind.KILLED, "SIGKILL")],
)
def test_a_signal_as_a_shell_reports_it(exitcode: int, kind: Kind, name: str) -> None:
    fault = classify_exit(exitcode=exitcode, last_words="", oom_kills=0, device="cpu")
    assert (fault.kind, fault.evidence["signal"]) == (kind, name)


def test_a_signal_without_a_name() -> None:
    fault = classify_exit(exitcode=-63, last_words="", oom_kills=0, device="cpu")
    assert fault.kind is Kind.KILLED
    assert fault.evidence["signal"]
