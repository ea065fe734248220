"""Bodies alone: several .npy in a row, headers that were seen before, and claims that are not believed."""

from __future__ import annotations

import io

import numpy as np
import pytest

from holdfast.optimize.bodies import NPY, NPZ, BadBody, read, write

TWO = [{"name": "own", "shape": [3], "dtype": "float32"}, {"name": "others", "shape": [2, 2], "dtype": "float32"}]
OWN, OTHERS = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(8, dtype=np.float32).reshape(2, 2, 2)


def npys(*arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    for each in arrays:
        np.save(file, each)
    return file.getvalue()


def test_several_arrays_one_after_the_other() -> None:
    for _ in range(2):  # the second time the headers are known
        own, others = read(npys(OWN, OTHERS), NPY, TWO, 1 << 20)
        assert np.array_equal(own, OWN) and np.array_equal(others, OTHERS)
    body, kind = write([OWN, OTHERS], ["a", "b"], NPY, rows=False)
    file = io.BytesIO(body)
    assert kind == NPY and np.array_equal(np.load(file), OWN) and np.array_equal(np.load(file), OTHERS)
    body, kind = write([OWN, OTHERS], ["a", "b"], NPZ, rows=False)
    assert kind == NPZ and np.array_equal(np.load(io.BytesIO(body))["b"], OTHERS)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (npys(OWN), 400),
        (npys(OWN, OTHERS, OWN), 400),
        (npys(OWN, OTHERS) + b"x", 400),
        (npys(OWN, OTHERS)[:-1], 400),
        (npys(OWN) + b"\x93NUMPY\x01\x00", 400),
        (npys(OWN, np.array(["a"])), 415),
        (npys(OWN).replace(b"(2, 3)", b"(9, 9)") + npys(OTHERS), 400),
    ],
)
def test_too_few_too_many_and_cut_ones(body: bytes, status: int) -> None:
    for _ in range(2):
        with pytest.raises(BadBody) as bad:
            read(body, NPY, TWO, 1 << 20)
        assert bad.value.status == status


def test_fortran_order_and_a_header_seen_before_with_other_numbers() -> None:
    one = [TWO[1]]
    turned = np.asfortranarray(OTHERS + 5)
    assert np.array_equal(read(npys(turned), NPY, one, 1 << 20)[0], turned)
    assert np.array_equal(read(npys(OTHERS), NPY, one, 1 << 20)[0], OTHERS)


def test_memory_for_headers_is_bounded() -> None:
    from holdfast.optimize import bodies

    for count in range(1, 600):
        read(npys(np.zeros((count, 3), np.float32)), NPY, [TWO[0]], 1 << 20)
        write([np.zeros((count, 3), np.float32)], ["a"], NPY, rows=False)
    assert len(bodies._headers) <= 256 and len(bodies._saved_headers) <= 256
