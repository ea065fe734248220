"""Which fault an exception is, or none: real ones where possible."""

from __future__ import annotations

import errno
import sys

import pytest
import torch

from holdfast.base.errors import UserError
from holdfast.faults.classification import STICKY_CODES, Kind, classify_exception
from holdfast.faults.terms import Health
from tests.faults.ends import ended

SEE_CUDA = "CUDA error: {}\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"


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
from holdfast.faults.classification import classify_exception

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


@pytest.mark.all
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_a_loader_process_that_was_really_killed() -> None:
    done = ended(LOADER_KILL)
    assert set(done.stdout.split()) == {"loader_died"}, done.stderr


def test_holdfasts_own_loader_says_died_or_stuck() -> None:
    loader = pytest.importorskip("holdfast.data.loader")
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
