"""Which connections a process has to other ranks, and that only those are ended."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from holdfast.distributed.connections import connections, ends, hang_up, has_ended

pytestmark = pytest.mark.skipif(
    not (Path("/proc/self/fd").is_dir() or Path("/dev/fd").is_dir()), reason="this system lists no descriptors"
)


def test_both_ends_are_known_and_a_pair_of_another_kind_is_left_alone() -> None:
    before = connections()
    unix = socket.socketpair()  # as libraries use them between their own threads
    server = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(server.getsockname())
    far, _ = server.accept()
    try:
        own = connections() - before
        here, there = ends(own), ends(own, far=True)
        assert len(own) == 4 and len(here) == 2 and set(here.values()) == set(there.values())
        of_near = next(each for each in own if each[0] == near.fileno())
        assert not has_ended(*of_near)
        hang_up([next(each for each in own if each[0] == far.fileno())])
        assert far.recv(1) == b"" and has_ended(*of_near)
        unix[0].send(b"x")
        assert unix[1].recv(1) == b"x"
        assert has_ended(of_near[0], of_near[1] + 1), "the number belongs to another file by now"
    finally:
        for each in (*unix, server, near, far):
            each.close()
