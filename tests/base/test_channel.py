"""Messages between our processes: whole lines, descriptors, and an end that is noticed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading

import pytest

from holdfast.base.channel import Channel, Closed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="socket pairs with descriptors")


def test_messages_arrive_whole_and_in_order() -> None:
    left, right = Channel.pair()
    for number in range(100):
        left.send({"number": number, "text": "ü\n" * number})
    for number in range(100):
        message, fds = right.receive()
        assert message == {"number": number, "text": "ü\n" * number}
        assert fds == []
    left.close()
    right.close()


def test_a_message_larger_than_any_buffer() -> None:
    left, right = Channel.pair()
    text = "x" * (3 << 20)
    sender = threading.Thread(target=left.send, args=({"text": text},))
    sender.start()
    assert right.receive(10.0)[0] == {"text": text}
    sender.join()
    left.close()
    right.close()


def test_part_of_a_line_waits_for_the_rest() -> None:
    left, right = Channel.pair()
    left.sock.sendall(b'{"half":')
    assert list(right.pending()) == []
    with pytest.raises(TimeoutError):
        right.receive(0.05)
    left.sock.sendall(b' 1}\n{"next": 2}\n{"thi')
    assert list(right.pending()) == [{"half": 1}, {"next": 2}]
    left.sock.sendall(b'rd": 3}\n')
    assert right.receive()[0] == {"third": 3}
    left.close()
    right.close()


def test_nothing_pending_does_not_wait() -> None:
    left, right = Channel.pair()
    assert list(right.pending()) == []
    left.send({"a": 1})
    assert list(right.pending()) == [{"a": 1}]
    left.close()
    right.close()


def test_descriptors_travel_with_their_message() -> None:
    left, right = Channel.pair()
    with tempfile.TemporaryFile() as file:
        file.write(b"through the channel")
        file.flush()
        left.send({"files": 2}, fds=[file.fileno(), file.fileno()])
        left.send({"files": 0})
    message, fds = right.receive()
    assert message == {"files": 2}
    assert len(fds) == 2
    assert os.pread(fds[0], 100, 0) == b"through the channel"
    assert right.receive() == ({"files": 0}, [])
    for fd in fds:
        os.close(fd)
    left.close()
    right.close()


def test_descriptors_belong_to_their_message_when_several_arrive_at_once() -> None:
    left, right = Channel.pair()
    reading, writing = os.pipe()
    left.send({"first": 1})
    left.send({"second": 2}, fds=[writing])
    left.send({"third": 3})
    os.close(writing)
    assert right.receive() == ({"first": 1}, [])
    message, (mine,) = right.receive()
    assert message == {"second": 2}
    assert right.receive() == ({"third": 3}, [])
    os.write(mine, b"through")
    assert os.read(reading, 10) == b"through"
    for fd in (mine, reading):
        os.close(fd)
    left.close()
    right.close()


def test_descriptors_travel_beside_a_message_of_many_chunks() -> None:
    left, right = Channel.pair()
    reading, writing = os.pipe()
    sender = threading.Thread(target=left.send, args=({"text": "y" * (1 << 20)}, [writing]))
    sender.start()
    message, fds = right.receive(10.0)
    sender.join()
    os.close(writing)
    assert len(message["text"]) == 1 << 20
    os.write(fds[0], b"!")
    assert os.read(reading, 1) == b"!"
    for fd in (reading, *fds):
        os.close(fd)
    left.close()
    right.close()


def test_another_process_gets_messages_and_descriptors() -> None:
    ours, theirs = Channel.pair()
    reading, writing = os.pipe()
    code = """
import os, sys
from holdfast.base.channel import Channel
channel = Channel.from_fd(int(sys.argv[1]))
message, fds = channel.receive()
os.write(fds[0], message["say"].encode())
channel.send({"said": len(message["say"])})
"""
    fd = theirs.fileno()
    with subprocess.Popen([sys.executable, "-c", code, str(fd)], pass_fds=[fd]) as child:
        theirs.close()
        ours.send({"say": "hello"}, fds=[writing])
        os.close(writing)
        assert ours.receive(20.0)[0] == {"said": 5}
        assert os.read(reading, 10) == b"hello"
        assert child.wait(100) == 0
    with pytest.raises(Closed):
        ours.receive()
    os.close(reading)
    ours.close()


def test_what_was_said_before_the_end_is_heard_first() -> None:
    left, right = Channel.pair()
    left.send({"last": "words"})
    left.close()
    heard = []
    with pytest.raises(Closed):
        for message in right.pending():
            heard.append(message)
    assert heard == [{"last": "words"}]
    right.close()


def test_a_line_cut_off_by_death_is_not_a_message() -> None:
    left, right = Channel.pair()
    left.send({"whole": 1})
    left.sock.sendall(b'{"cut": ')
    left.close()
    assert right.receive()[0] == {"whole": 1}
    with pytest.raises(Closed):
        right.receive()
    right.close()


def test_sending_to_nobody() -> None:
    left, right = Channel.pair()
    right.close()
    with pytest.raises(Closed):
        for _ in range(3):
            left.send({"anybody": "there?"})
    left.close()


def test_what_is_not_a_message_ends_the_conversation() -> None:
    for line in (b"[1, 2]\n", b"not json\n", b"\xff\xfe\n"):
        left, right = Channel.pair()
        left.sock.sendall(line)
        with pytest.raises(Closed):
            right.receive()
        left.close()
        right.close()


def test_it_works_without_descriptors_over_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    left, right = Channel(near), Channel(far)
    left.send({"port": "able"})
    assert right.receive(10.0) == ({"port": "able"}, [])
    left.close()
    with pytest.raises(Closed):
        right.receive(10.0)
    right.close()


def test_descriptors_nobody_took_are_closed_with_the_channel() -> None:
    left, right = Channel.pair()
    reading, writing = os.pipe()
    left.send({"take": "this"}, fds=[writing])
    os.close(writing)
    assert list(right.pending()) == [{"take": "this"}]
    right.close()
    assert os.read(reading, 1) == b"", "the writing end is still open somewhere"
    os.close(reading)
    left.close()
