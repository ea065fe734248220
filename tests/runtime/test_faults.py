"""Every known message once, as it was printed; then exceptions and exits, real ones where possible."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from holdfast.errors import UserError
from holdfast.runtime import faults
from holdfast.runtime.faults import (
    CODES,
    STICKY_CODES,
    Fault,
    Health,
    Kind,
    classify_exception,
    classify_exit,
    explanations,
    match_text,
    signatures,
)

ROCM_FAULT = "Memory access fault by GPU node-1 (Agent handle: 0x55d1c8a4b2d0) on address 0x7f3a1c000000. Reason: "
ROCM_HW = "HW Exception by GPU node-1 (Agent handle: 0x55d1c8a4b2d0) reason :"
ROCM_QUEUE = ":0:rocdevice.cpp            :2724: 32615402 us: [pid:4211] Callback: Queue 0x7fd0b8600000 "
SEE_CUDA = "CUDA error: {}\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"


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
    known = faults.signature(expected)
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
    rows = json.loads(Path(faults.__file__).with_name("signatures.json").read_text(encoding="utf-8"))
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


# --- exceptions -------------------------------------------------------------------------------------------


def _accelerator_error(message: str, code: int) -> Exception:
    """As torch's C++ side raises it: the type, with the number beside the text."""
    error = torch.AcceleratorError(message)
    error.error_code = code  # type: ignore[attr-defined]
    return error


def test_torch_says_out_of_memory_by_type() -> None:
    fault = classify_exception(torch.OutOfMemoryError("Allocation on device"), device="cuda:0")
    assert fault is not None
    assert (fault.kind, fault.health, fault.signature) == (Kind.OUT_OF_MEMORY, Health.ALIVE, None)
    assert fault.evidence["exception"] == "torch.OutOfMemoryError"


def test_an_impossible_size_is_the_scripts_own_error_although_torch_calls_it_out_of_memory() -> None:
    message = "CUDA out of memory. Tried to allocate more than 1EB memory."
    assert classify_exception(torch.OutOfMemoryError(message), device="cuda:0") is None


@pytest.mark.parametrize("code", sorted(STICKY_CODES))
@pytest.mark.parametrize("text", ["CUDA error: words of a version to come", "CUDA error: invalid argument"])
def test_sticky_codes_count_more_than_the_text(code: int, text: str) -> None:
    fault = classify_exception(_accelerator_error(text, code), device="cuda:0")
    assert fault is not None
    assert fault.kind in (Kind.DEVICE_LOST, Kind.DRIVER)
    assert fault.health is not Health.ALIVE
    assert fault.evidence["error_code"] == code


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (2, Kind.OUT_OF_MEMORY),
        (35, Kind.UNSUPPORTED),
        (46, Kind.TRANSIENT),
        (98, Kind.UNSUPPORTED),
        (100, Kind.DRIVER),
        (209, Kind.UNSUPPORTED),
        (214, Kind.DRIVER),
        (700, Kind.DEVICE_LOST),
        (710, Kind.DEVICE_LOST),
        (719, Kind.DEVICE_LOST),
        (900, Kind.TRANSIENT),
        (12345, Kind.TRANSIENT),
    ],
)
def test_error_numbers(code: int, kind: Kind) -> None:
    fault = classify_exception(_accelerator_error("CUDA error: 错误", code), device="cuda:0")
    assert fault is not None
    assert fault.kind is kind


def test_an_accelerator_error_without_number_or_known_text_is_transient() -> None:
    fault = classify_exception(torch.AcceleratorError("who knows"), device="cuda:0")
    assert fault is not None
    assert fault.kind is Kind.TRANSIENT


def test_real_host_memory_error_from_torch() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**14)
    fault = classify_exception(caught.value, device="cpu")
    assert fault is not None
    assert fault.kind is Kind.HOST_MEMORY
    assert fault.evidence["requested_bytes"] == 4 * 10**14


def test_memory_errors_of_python_and_the_system() -> None:
    for error in (MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")):
        fault = classify_exception(error, device="cpu")
        assert fault is not None
        assert fault.kind is Kind.HOST_MEMORY


def _raise_chained(first: BaseException, second: BaseException, *, cause: bool) -> BaseException:
    try:
        try:
            raise first
        except BaseException:
            if cause:
                raise second from first
            raise second  # noqa: B904  (the context is the point)
    except BaseException as error:
        return error


@pytest.mark.parametrize("cause", [True, False])
def test_a_device_error_inside_the_scripts_own_error_is_found(cause: bool) -> None:
    inner = RuntimeError(SEE_CUDA.format("an illegal memory access was encountered"))
    fault = classify_exception(_raise_chained(inner, ValueError("training failed"), cause=cause), device="cuda:0")
    assert fault is not None
    assert (fault.kind, fault.signature) == (Kind.DEVICE_LOST, "illegal-address")


def test_an_error_raised_from_none_hides_what_came_before() -> None:
    error = _raise_chained(RuntimeError(SEE_CUDA.format("device not ready")), ValueError("mine"), cause=False)
    error.__suppress_context__ = True
    assert classify_exception(error, device="cuda:0") is None


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert classify_exception(first, device="cuda:0") is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_a_group_of_errors_is_looked_through() -> None:
    group = eval("ExceptionGroup('two', [ValueError('mine'), oom])", {"oom": torch.OutOfMemoryError("full")})
    fault = classify_exception(group, device="cuda:0")
    assert fault is not None
    assert fault.kind is Kind.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "error",
    [
        ValueError("CUDA error: an illegal memory access was encountered"),
        KeyError("CUDA out of memory"),
        AssertionError("CUDA error: device-side assert triggered"),
        OSError("HIP out of memory"),
        ConnectionResetError("the database hung up"),
        EOFError("no more data"),
        RuntimeError("shape '[2, 3]' is invalid for input of size 7"),
        RuntimeError("camera: device not ready"),
        RuntimeError("the robot's arm reported a misaligned address label"),
        RecursionError("maximum recursion depth exceeded"),
        UserError("no such file"),
        RuntimeError("Expected all tensors to be on the same device, but found at least two devices"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda:0", "mps", "xpu:0"])
def test_the_scripts_own_errors_stay_its_own(error: Exception, device: str) -> None:
    assert classify_exception(error, device=device) is None


@pytest.mark.parametrize("decision", [KeyboardInterrupt(), SystemExit(1), GeneratorExit()])
def test_a_decision_to_stop_is_no_fault_even_after_one(decision: BaseException) -> None:
    assert classify_exception(decision, device="cuda:0") is None
    after = _raise_chained(torch.OutOfMemoryError("full"), decision, cause=False)
    assert classify_exception(after, device="cuda:0") is None


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(SEE_CUDA.format("an illegal memory access was encountered")),
        RuntimeError("miopenStatusUnknownError"),
        _accelerator_error("CUDA error: unspecified launch failure", 719),
    ],
)
def test_on_the_cpu_no_device_is_blamed(error: Exception) -> None:
    assert classify_exception(error, device="cpu") is None


def test_on_the_cpu_memory_still_counts() -> None:
    fault = classify_exception(torch.OutOfMemoryError("injected"), device="cpu")
    assert fault is not None
    assert fault.kind is Kind.OUT_OF_MEMORY


def test_messages_of_one_backend_do_not_count_on_another() -> None:
    assert classify_exception(RuntimeError("Invalid buffer size: 3"), device="cuda:0") is None
    assert classify_exception(RuntimeError("MIOpen: miopenStatusUnknownError"), device="mps") is None


def test_a_long_message_is_shortened() -> None:
    fault = classify_exception(torch.OutOfMemoryError("x" * 100_000), device="cuda:0")
    assert fault is not None
    assert len(fault.message) <= 2000


LOADER_KILL = """
import os, signal
from torch.utils.data import DataLoader, Dataset
from holdfast.runtime.faults import classify_exception

class Deadly(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

caught = []
try:
    try:
        list(DataLoader(Deadly(), num_workers=1, multiprocessing_context="fork"))
    except (RuntimeError, ConnectionError, EOFError) as error:
        caught.append(error)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
except RuntimeError as error:     # torch raises in a signal handler, so possibly a moment later than above
    caught.append(error)
for error in caught:
    print(classify_exception(error, device="cpu").kind, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_a_loader_process_that_was_really_killed() -> None:
    done = _ended(LOADER_KILL)
    assert set(done.stdout.split()) == {"loader_died"}, done.stderr


def test_holdfasts_own_loader_says_died_or_stuck() -> None:
    loader = pytest.importorskip("holdfast.runtime.loader")
    for cause, kind in (
        ("loader child 42 was killed by SIGSEGV", Kind.LOADER_DIED),
        ("loader child 42 is stopped", Kind.LOADER_STUCK),
        ("loader child 42 gave nothing for 31 s", Kind.LOADER_STUCK),
    ):
        error = loader.LoaderFailed("batch 3 cannot be loaded", cause=cause, samples=[7, 9], epoch=0, batch=3)
        fault = classify_exception(error, device="cuda:0")
        assert fault is not None
        assert fault.kind is kind
        assert fault.evidence["samples"] == [7, 9]


# --- exits ------------------------------------------------------------------------------------------------


def _ended(code: str) -> subprocess.CompletedProcess[str]:
    """A real process that ends by `code`."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


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
    done = _ended(f"import os, signal; os.kill(os.getpid(), signal.{name})")
    fault = classify_exit(exitcode=done.returncode, last_words=done.stderr, oom_kills=0, device="cpu")
    assert fault.kind is kind
    assert fault.evidence["signal"] == name
    assert fault.health is Health.DEAD


def test_a_real_segmentation_fault_keeps_its_last_words() -> None:
    done = _ended("import ctypes; ctypes.string_at(0)")
    fault = classify_exit(exitcode=done.returncode, last_words=done.stderr, oom_kills=0, device="cpu")
    assert fault.kind is Kind.CRASH
    assert fault.message


@pytest.mark.parametrize("status", [0, 1, 7, 99])
def test_a_real_exit(status: int) -> None:
    done = _ended(f"import os; print('bye'); os._exit({status})")
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


# --- the fault itself -------------------------------------------------------------------------------------


def test_a_fault_travels_as_json() -> None:
    fault = classify_exit(exitcode=-11, last_words="x", oom_kills=0, device="cuda:0").at(step=3, phase="data")
    line = json.dumps(fault.to_json())
    assert Fault.from_json(json.loads(line)) == fault
    assert json.loads(line)["code"] == "F002"
    newer = {**fault.to_json(), "field_of_a_newer_version": 1}
    assert Fault.from_json(newer) == fault
    assert Fault.from_json({"kind": "hang"}) == Fault(Kind.HANG)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            Fault(Kind.OUT_OF_MEMORY, "cuda:0", 3862, "backward"),
            "cuda:0 ran out of memory at step 3 862 in backward",
        ),
        (Fault(Kind.HANG, "cuda:0", 3862), "cuda:0 stopped answering at step 3 862"),
        (
            Fault(Kind.CRASH, "cuda:1", evidence={"exitcode": -11, "signal": "SIGSEGV"}),
            "the worker on cuda:1 crashed (SIGSEGV)",
        ),
        (
            Fault(Kind.EXIT, "cpu", 0, evidence={"status": "exit status 7"}),
            "the worker on cpu ended without a word (exit status 7) at step 0",
        ),
        (Fault(Kind.KEEPER_DIED), "the keeper ended"),
        (Fault(Kind.DEVICE_LOST), "the device was lost"),
    ],
)
def test_sentences(fault: Fault, sentence: str) -> None:
    assert fault.sentence() == sentence


def test_every_kind_has_a_sentence_and_a_health() -> None:
    for kind in Kind:
        fault = Fault(kind, "cuda:0", 1, "forward")
        assert fault.sentence().endswith(" at step 1 in forward")
        assert fault.health in Health


def test_the_cause_is_what_the_message_means() -> None:
    fault = classify_exception(RuntimeError(SEE_CUDA.format("device-side assert triggered")), device="cuda:0")
    assert fault is not None
    assert fault.cause().startswith("a check inside a kernel failed")
    assert Fault(Kind.CRASH, message="first\nsecond").cause() == "first"


def test_at_adds_what_the_observer_knows_and_keeps_the_rest() -> None:
    fault = Fault(Kind.OUT_OF_MEMORY, "cuda:0", step=4, phase="forward", evidence={"a": 1})
    assert fault.at(phase="backward", pieces=2) == Fault(
        Kind.OUT_OF_MEMORY, "cuda:0", step=4, phase="backward", evidence={"a": 1, "pieces": 2}
    )
    assert fault.at() == fault


# --- explanations -----------------------------------------------------------------------------------------


def test_codes_are_public_and_do_not_move() -> None:
    """If this fails you renumbered a code: logs, docs and dashboards of users depend on it."""
    assert {code: kind.value for kind, code in CODES.items()} == {
        "F001": "out_of_memory",
        "F002": "crash",
        "F003": "device_lost",
        "F004": "transient",
        "F005": "hang",
        "F006": "host_memory",
        "F007": "killed",
        "F008": "exit",
        "F009": "unsupported",
        "F010": "driver",
        "F011": "loader_died",
        "F012": "loader_stuck",
        "F013": "nursery_died",
        "F014": "keeper_died",
        "F015": "supervisor_died",
        "F016": "user_error",
        "F017": "non_finite",
        "F018": "wrong_numbers",
        "F019": "bad_data",
        "F020": "machine_down",
        "F021": "disk_full",
    }


def test_every_kind_is_explained_under_its_code() -> None:
    assert {row.kind: row.code for row in explanations()} == dict(CODES)
    assert len({row.slug for row in explanations()}) == len(CODES)
    for row in explanations():
        assert row.level in ("note", "warning", "error")
        for text in (row.seen, row.means, row.does, row.you_can):
            assert text.endswith((".", "…")), (row.code, text)
            assert "\n" not in text, row.code


def test_the_page_in_the_docs_is_up_to_date() -> None:
    root = Path(__file__).resolve().parents[2]
    done = _run_script(root / "scripts" / "make_fault_docs.py", "--check")
    assert done.returncode == 0, "run scripts/make_fault_docs.py"


def _run_script(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(path), *words], capture_output=True, text=True, timeout=60, check=False)


def test_importing_takes_no_torch_and_reads_no_table() -> None:
    done = _ended(
        """
        import sys
        import holdfast.runtime.faults as faults, holdfast.runtime.ladder
        heavy = {"torch", "numpy", "json", "tomllib", "tomli", "rich", "argparse"} & set(sys.modules)
        assert not heavy, heavy
        assert faults.signatures.cache_info().currsize == 0
        """
    )
    assert done.returncode == 0, done.stderr
