"""The connection between two agents, over real sockets; names of machines and processes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from holdfast.distributed import interfaces, roster
from holdfast.distributed.leader import seats_of
from holdfast.distributed.machine_link import (
    Hello,
    LinkLost,
    MachineLink,
    RankGone,
    StartRank,
    difference,
    is_proof,
    proof,
)
from holdfast.distributed.torchrun import Wanted
from tests.waiting import wait_until


@pytest.fixture
def ends() -> Iterator[tuple[MachineLink, socket.socket]]:
    """One end is a link, the other one a plain socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = socket.create_connection(server.getsockname())
        sock, _ = server.accept()
    link = MachineLink(sock, floor=0.3)
    yield link, other
    link.close()
    other.close()


def _lost(link: MachineLink) -> str:
    """Why the link is lost; it takes a moment for bytes to arrive."""

    found: list[str] = []

    def ended() -> bool:
        list(link.pump())
        try:
            link.check()
        except LinkLost as lost:
            found.append(str(lost))
        return bool(found)

    assert wait_until(ended)
    return found[0]


def test_records_come_as_they_were_sent(ends: tuple[MachineLink, socket.socket]) -> None:
    link, other = ends
    there = MachineLink(other, floor=5.0)
    sent = [StartRank(2, 0, 1, 4), RankGone(2, 4711, -9, True, left={"why": "hung"}, step=7)]
    for message in sent:
        there.send(message)
    found: list[object] = []
    assert wait_until(lambda: found.extend(link.pump()) or len(found) == 2)
    assert found == sent


@pytest.mark.parametrize(
    "line",
    [b"{}", b"[1]", b"\x80\x04K\x01.", b'{"kind":"start_rank","seat":"two"}', b'{"kind":"nobody_knows"}'],
    ids=["empty", "a list", "a pickle", "another type", "another kind"],
)
def test_what_is_no_record_ends_the_connection(ends: tuple[MachineLink, socket.socket], line: bytes) -> None:
    link, other = ends
    other.sendall(line + b"\n")
    assert _lost(link) == "it sent something that is no message of this version"


def test_a_stranger_cannot_send_a_line_without_end(ends: tuple[MachineLink, socket.socket]) -> None:
    link, other = ends
    other.sendall(json.dumps({"kind": "hello", "host": "x" * 20_000}).encode())
    assert _lost(link) == "it sent a line without end"


def test_a_silence_is_too_long_when_none_like_it_has_ended(ends: tuple[MachineLink, socket.socket]) -> None:
    link, other = ends
    there = MachineLink(other, floor=5.0)
    time.sleep(0.25)
    there.send(StartRank(0, 0, 1, 1))
    assert wait_until(lambda: list(link.pump()))
    assert link.limit >= 1.0, "four times the pause that has ended"
    began = time.monotonic()
    assert _lost(link).startswith("no answer for ")
    assert time.monotonic() - began >= 0.9


def test_the_end_of_the_other_process_is_noticed_at_once(ends: tuple[MachineLink, socket.socket]) -> None:
    link, other = ends
    other.close()
    assert _lost(link) == "the connection was closed"


def test_a_proof_is_good_for_one_greeting() -> None:
    shown = proof("secret", "machine", "a", "b")
    assert is_proof(shown, "secret", "machine", "a", "b")
    for wrong in (("other", "machine", "a", "b"), ("secret", "leader", "a", "b"), ("secret", "machine", "a", "c")):
        assert not is_proof(shown, *wrong)


def test_processes_of_two_machines_with_one_number_are_not_taken_for_each_other() -> None:
    numbers = {
        (machine, pid): pid if machine == 0 else roster.far(machine, pid) for machine in range(3) for pid in (7, 8)
    }
    for here in range(3):
        seen = {key: roster.as_seen_on(here, number) for key, number in numbers.items()}
        assert len(set(seen.values())) == 6 and all(seen[here, pid] == pid for pid in (7, 8))


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("10.0.0.1", ("10.0.0.1", 29400)),
        ("box:1234", ("box", 1234)),
        ("fe80::1", ("fe80::1", 29400)),
        ("[fe80::1]:80", ("fe80::1", 80)),
    ],
)
def test_addresses(address: str, found: tuple[str, int]) -> None:
    assert interfaces.split(address, 29400) == found


def test_the_interface_to_this_machine_is_loopback() -> None:
    assert interfaces.interface_to("127.0.0.1") in ("lo", "lo0")


def test_spares_are_on_the_machines_in_turn() -> None:
    seats = seats_of(Wanted(2, nodes=2, spares=3))
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2), (0, 3)]
    assert [(member.machine, member.local) for member in seats] == places
    assert [member.seat for member in seats] == list(range(7))


def test_machines_that_differ() -> None:
    def hello(**more: object) -> Hello:
        given = {"machine": 1, "nodes": 2, "nproc": 2, "holdfast": "1", "torch": "2.6", "script": "a"}
        rest = dict.fromkeys(("nonce", "proof", "agent", "launch", "host"), "")
        return Hello(**{**given, **rest, **more})  # type: ignore[arg-type]

    assert difference(hello(machine=0), hello()) is None
    assert difference(hello(machine=0), hello(torch="2.7")) == "it has torch 2.7, the first machine has 2.6"
    assert "--nodes is 3" in (difference(hello(machine=0), hello(nodes=3)) or "")
    ours = {"order": "a", "parts": {"lr": "1", "epochs": "2"}}
    assert difference(hello(machine=0, **ours), hello(**ours)) is None
    other = hello(order="b", parts={"lr": "3", "epochs": "2", "run.shares": "4"})
    assert difference(hello(machine=0, **ours), other) == "its lr, run.shares are not those of the first machine"
    unnamed = hello(**{**ours, "order": "b"})
    assert "its arguments or settings" in (difference(hello(machine=0, **ours), unnamed) or "")
