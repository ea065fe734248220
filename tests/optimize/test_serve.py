"""`holdfast serve`, the real process over loopback: right answers for all, clear errors, nothing lost or leaked."""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from holdfast.base import processes
from holdfast.serving.memory import READ, Bodies
from holdfast.serving.readers import possible
from tests.optimize import small
from tests.optimize.serving import HEAD, TOKEN, Served, npy, serving


@pytest.fixture(
    scope="module",
    params=[0, pytest.param(2, marks=pytest.mark.skipif(not possible(), reason="this system hands no connections on"))],
    ids=["alone", "readers"],
)
def served(made: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """One process that does everything, and one for which two others read."""
    with serving(made, request.param) as found:
        yield found
    assert "inputs answered" in found.said and found.child.returncode == 0


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


X = np.random.default_rng(2).standard_normal((3, 6)).astype(np.float32)


def test_npy_in_npy_out(served: Served) -> None:
    status, body = served.ask("POST", "/predict", npy(X))
    assert status == 200 and np.allclose(np.load(io.BytesIO(body)), X @ small.WEIGHT, atol=1e-5)


def test_json_in_json_out(served: Served) -> None:
    for question in ({"x": X.tolist()}, {"inputs": X.tolist()}, X.tolist()):
        status, body = served.ask(
            "POST", "/predict", json.dumps(question).encode(), {**HEAD, "Content-Type": "application/json"}
        )
        assert status == 200 and np.allclose(json.loads(body)["y"], X @ small.WEIGHT, atol=1e-5)


def test_npz_and_one_input_without_its_batch(served: Served) -> None:
    status, body = served.ask("POST", "/predict", npz(x=X), {**HEAD, "Content-Type": "application/x-npz"})
    assert status == 200 and np.load(io.BytesIO(body))["y"].shape == (3, 2)
    status, body = served.ask("POST", "/predict", npy(X[0]))
    assert status == 200 and np.load(io.BytesIO(body)).shape == (1, 2)


def test_without_the_token_nothing_but_health(served: Served) -> None:
    assert served.ask("GET", "/healthz", headers={}) == (200, b"ok\n")
    for path in ("/", "/metrics", "/predict", "/x"):
        assert served.ask("GET", path, headers={})[0] == 401
        assert served.ask("GET", path, headers={"Authorization": "Bearer nonsense"})[0] == 401


def test_metrics_and_about(served: Served) -> None:
    served.ask("POST", "/predict", npy(X))
    text = served.ask("GET", "/metrics")[1].decode()
    assert re.search(r'holdfast_serve_requests_total\{status="200"\} [1-9]', text)
    assert 'holdfast_serve_latency_seconds{quantile="0.99"}' in text
    assert json.loads(served.ask("GET", "/")[1])["inputs"] == small.SUBJECT["inputs"]
    assert served.ask("GET", "/nothing")[0] == 404 and served.ask("GET", "/predict")[0] == 405


def test_wrong_requests_are_told(served: Served) -> None:
    nan = X.copy()
    nan[1, 2] = np.nan
    huge = npy(X).replace(b"(3, 6)", b"(9**9,)"[:6])
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\0" * 5_000_000)
    plain = {"Content-Type": "application/json"}
    packed = {"Content-Type": "application/x-npz"}
    assert served.error(npy(X[:, :5])) == (422, "`x` has the shape (3, 5)")
    assert served.error(npy(nan)) == (422, "`x` holds NaN or infinity")
    assert served.error(npy(np.array(["a", "b"]))) == (415, "an array of <U1 is not accepted")
    assert served.error(npy(np.array([{}], dtype=object))) == (415, "an array of object is not accepted")
    assert served.error(npy(np.ones((0, 6), np.float32))) == (422, "there is no input")
    assert served.error(npy(X)[:-4])[0] == 400
    assert served.error(huge)[0] == 400
    assert served.error(b"") == (400, "this is no .npy")
    assert served.error(b"\x80\x04.")[0] == 400
    assert served.error(b"{", **plain) == (400, "this is not JSON")
    assert served.error(b"[" * 50_000, **plain)[0] == 400
    assert served.error(b'{"z": 1}', **plain) == (422, "`x` is missing")
    assert served.error(b'{"x": [[1, 2], [3]]}', **plain) == (422, "`x` is no array")
    assert served.error(b'{"x": [[NaN, 1, 1, 1, 1, 1]]}', **plain) == (422, "`x` holds NaN or infinity")
    assert served.error(b'{"x": ["a"]}', **plain)[0] == 422
    assert served.error(bomb.getvalue(), **packed)[0] == 413
    assert served.error(b"PK nothing", **packed)[0] == 400
    assert served.error(b"x", **{"Content-Type": "image/png"})[0] == 415
    assert served.ask("POST", "/predict", npy(X))[0] == 200, "and it goes on"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nA: 1\r\nA: 2\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n" + b"X: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (
            b"POST /predict HTTP/1.1\r\nAuthorization: Bearer %b\r\nContent-Length: 1000000\r\n\r\n" % TOKEN.encode(),
            413,
        ),
        (b"POST /predict HTTP/1.1\r\nAuthorization: Bearer %b\r\nContent-Length: -1\r\n\r\n" % TOKEN.encode(), 400),
        (b"POST /predict HTTP/1.1\r\nAuthorization: Bearer %b\r\n\r\n" % TOKEN.encode(), 411),
        (
            b"POST /predict HTTP/1.1\r\nAuthorization: Bearer %b\r\nTransfer-Encoding: chunked\r\n\r\n"
            % TOKEN.encode(),
            501,
        ),
    ],
)
def test_what_is_no_proper_http_is_refused(served: Served, raw: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as sock:
        sock.sendall(raw)
        assert sock.recv(1000).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.all
def test_sixteen_clients_at_once_get_their_own_answers(served: Served) -> None:
    wrong: list[str] = []

    def client(number: int) -> None:
        rng = np.random.default_rng(number)
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        for _ in range(40):
            x = rng.standard_normal((int(rng.integers(1, 4)), 6)).astype(np.float32)
            connection.request("POST", "/predict", npy(x), HEAD)
            answer = connection.getresponse()
            found = np.load(io.BytesIO(answer.read()))
            if answer.status != 200 or not np.allclose(found, x @ small.WEIGHT, atol=1e-4):
                wrong.append(f"client {number}: {answer.status} {found}")
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_a_body_in_pieces_with_the_next_question_behind_it(served: Served) -> None:
    """Its memory is lent to the next one: nothing of the one before may be left in it."""
    questions = [np.random.default_rng(number).standard_normal((500, 6)).astype(np.float32) for number in range(6)]
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as sock, sock.makefile("rb") as file:
        sent = b"".join(_question(each) for each in questions)
        for at in range(0, len(sent), 5000):
            sock.sendall(sent[at : at + 5000])
            time.sleep(0.001)
        for each in questions:
            assert np.allclose(_told(file), each @ small.WEIGHT, atol=1e-4)


def _question(array: np.ndarray) -> bytes:
    body = npy(array)
    head = f"POST /predict HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/x-npy\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _told(file: io.BufferedIOBase) -> np.ndarray:
    assert file.readline().startswith(b"HTTP/1.1 200 ")
    length = 0
    while (line := file.readline().strip().lower()) != b"":
        length = int(line[16:]) if line.startswith(b"content-length: ") else length
    found: np.ndarray = np.load(io.BytesIO(file.read(length)))
    return found


@pytest.mark.all
def test_memory_for_bodies_is_lent_and_never_more_than_is_kept() -> None:
    pool = Bodies(most=3 * READ)
    first, second = pool.take(2 * READ), pool.take(2 * READ)
    pool.give(first)
    assert pool.take(2 * READ) is first
    pool.give(first)
    pool.give(second)  # there is no room for both
    assert pool.take(2 * READ) is second and pool.take(2 * READ) is not first
    small_one = pool.take(10)
    pool.give(small_one)
    assert pool.take(10) is not small_one, "what is small is cheaper made anew"


def test_many_questions_before_the_first_answer_are_answered_in_order(served: Served) -> None:
    questions = [np.full((1, 6), float(number), np.float32) for number in range(50)]
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as sock, sock.makefile("rb") as file:
        for each in questions:
            sock.sendall(_question(each))
        for each in questions:
            assert np.allclose(_told(file), each @ small.WEIGHT, atol=1e-4)


def test_a_head_that_was_let_in_opens_no_door_to_others(served: Served) -> None:
    assert served.ask("POST", "/predict", npy(X))[0] == 200
    for token in ("", TOKEN[:-1], TOKEN + "x", TOKEN.upper()):
        assert served.ask("POST", "/predict", npy(X), {**HEAD, "Authorization": f"Bearer {token}"})[0] == 401


@pytest.mark.all
def test_connections_that_send_nothing_keep_nobody_out(served: Served) -> None:
    """More than it admits: the silent ones go, a client with a question gets in, and nothing stays behind."""
    silent = []
    before = _held(served)
    try:
        for _ in range(1500):
            try:
                silent.append(socket.create_connection(("127.0.0.1", served.port), timeout=60))
            except OSError:  # this process may have fewer descriptors than the server
                for each in silent[-50:]:  # and needs some itself
                    each.close()
                break
        assert len(silent) > 300
        assert served.ask("POST", "/predict", npy(X))[0] == 200
    finally:
        for each in silent:
            each.close()
    text = served.ask("GET", "/metrics")[1].decode()
    connections = re.search(r"^holdfast_serve_connections (\d+)", text, re.MULTILINE)
    assert connections is not None and int(connections[1]) <= 1024
    assert _held(served) < before + 60_000_000


def _held(served: Served) -> int:
    """Bytes of memory of all of its processes, where the system says."""
    seen = [processes.inspect(pid) for pid in (served.child.pid, *processes.children(served.child.pid))]
    return sum(each.rss_bytes for each in seen if each is not None)
