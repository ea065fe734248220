"""Who connects to the agent of the first machine, over real sockets: strangers, machines that come twice or late."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import dataclass_json, processes
from holdfast.distributed import rank_devices, rank_ladder, roster
from holdfast.distributed.agent import Member
from holdfast.distributed.job import GONE, Job
from holdfast.distributed.leader import _STRANGERS, LeaderAgent
from holdfast.distributed.machine_agent import MachineAgent
from holdfast.distributed.machine_link import (
    AnswerAgain,
    Challenge,
    Hello,
    MachineLink,
    Pulse,
    RankReady,
    StartRank,
    TurnedAway,
    Welcome,
    proof,
)
from holdfast.distributed.rank_ladder import Answer, RankLadder
from holdfast.distributed.rank_undo import Undone
from holdfast.distributed.torchrun import Wanted
from holdfast.faults.classification import Fault, Kind
from holdfast.faults.ladder import Move
from holdfast.faults.terms import Action
from holdfast.run.folder import RunFolder
from holdfast.run.settings import Settings

pytestmark = pytest.mark.all
"""Closing a leader takes two seconds, for each of these tests."""
OWN = Hello("", "", 0, "leader", "", "m0", "1", "2.6", "digest", 2, 1)
TOKEN = "secret"


class Leading:
    """The leader of two machines, and what it says."""

    def __init__(self, folder: Path, *, least: int | None = None, patience: float = 600.0) -> None:
        self.job = Job.create()
        self.said: list[str] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.setblocking(False)
        wanted = Wanted(1, nodes=2, least=least, patience=patience)
        self.agent = LeaderAgent(
            self.job, wanted, ["train", str(folder / "none.py")], dict(os.environ), folder / "ranks.log",
            server=self.server, own=OWN, token=TOKEN, run=RunFolder(folder / "run"), floor=1.0, patience=patience,
            say=self.said.append,
        )  # fmt: skip

    def until(self, holds: Callable[[], Any]) -> None:
        """What the leader does in each look for the other machines; it starts no ranks."""
        deadline = time.monotonic() + 100.0
        while not holds():
            assert time.monotonic() < deadline, self.said
            self.agent._accept()
            self.agent._greet()
            for machine in self.agent._machines.values():
                self.agent._hear_machine(machine)
            self.agent._check_who_never_came()
            time.sleep(0.005)

    def client(self) -> Client:
        return Client(self, socket.create_connection(self.server.getsockname()))


class Client:
    """A plain socket at the port of the leader."""

    def __init__(self, leading: Leading, sock: socket.socket) -> None:
        self.leading, self.sock = leading, sock
        self.text = b""
        sock.setblocking(False)

    def hear(self) -> bytes:
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self.text += data or b"END"
        return data

    def line(self) -> dict[str, Any]:
        self.leading.until(lambda: self.hear() is None or b"\n" in self.text or b"END" in self.text)
        line, _, self.text = self.text.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def is_closed(self) -> bool:
        self.hear()
        return b"END" in self.text

    def hello(self, *, token: str = TOKEN, **changes: Any) -> dict[str, Any]:
        """What the leader answers."""
        nonce = secrets.token_hex(16)
        shown = proof(token, "machine", nonce, self.line()["nonce"])
        told = dataclasses.replace(OWN, nonce=nonce, proof=shown, machine=1, agent="a", host="m1").to_json()
        self.sock.sendall(json.dumps({**told, **changes}).encode() + b"\n")
        return self.line()


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Leading]:
    made = Leading(tmp_path)
    yield made
    _end(made)


def _end(made: Leading) -> None:
    for machine in made.agent._machines.values():
        if machine.link is not None:
            machine.link.close()
    made.agent.close()
    made.job.remove()


STRANGE = {
    "no proof": {"proof": "\ud800"},
    "no nonce": {"nonce": "\ud800"},
    "another proof": {"proof": "00"},
}


@pytest.mark.parametrize("what", [*STRANGE, "brackets", "objects", "pulse"])
def test_a_line_of_a_stranger_ends_its_connection_alone(leading: Leading, what: str) -> None:
    stranger = leading.client()
    stranger.line()
    lines = {"brackets": b"[" * 8000, "objects": b'{"a":' * 1600, "pulse": json.dumps(Pulse(1.0).to_json()).encode()}
    told = {**OWN.to_json(), "nonce": "a", "proof": "00", "machine": 1, "host": "x" * 5000, **STRANGE.get(what, {})}
    link = leading.agent._strangers[0].link
    stranger.sock.sendall(lines.get(what, json.dumps(told).encode()) + b"\n")
    leading.until(stranger.is_closed)
    if what in lines:
        assert link._why == "it sent something that is no message of this version"
    assert leading.job.outcome is None
    assert leading.client().hello()["kind"] == "welcome"


def test_the_others_do_not_wait_for_a_machine_that_was_lost_and_is_back(leading: Leading) -> None:
    """However long its processes took to start before: they join at a commit."""
    agent = leading.agent
    assert leading.client().hello()["kind"] == "welcome"
    _, other = agent._members
    other.pid, other.ready = roster.far(1, 4242), True
    agent._published, agent._number, agent._slowest = {1: other.pid}, 1, 600.0
    agent._lose(agent._machines[1], "the connection was closed")
    assert leading.client().hello(agent="b")["kind"] == "welcome"
    assert not agent._is_worth_waiting_for(other)


@pytest.mark.parametrize("pid", [-1, 0, 1 << 32, (3 << 32) + 5])
def test_a_number_that_no_process_can_have_is_not_heard(leading: Leading, pid: int) -> None:
    """It would be taken for a process of another machine."""
    agent = leading.agent
    agent._heed(agent._machines[1], RankReady(1, pid))
    assert not list(leading.job.path.glob("ready-*"))
    agent._heed(agent._machines[1], RankReady(1, 7))
    assert roster.is_ready(leading.job, roster.far(1, 7))


def test_a_stranger_does_not_keep_the_leader_busy(leading: Leading) -> None:
    """It reads no more than a greeting, however much is there; and lines are not copied again for each line."""
    stranger = leading.client()
    stranger.line()
    data = json.dumps({"kind": "challenge", "nonce": "a"}).encode() + b"\n"
    sent = 0
    try:
        while sent < 4_000_000:
            sent += stranger.sock.send(data * 1000)
    except BlockingIOError:
        pass
    assert sent > 100_000
    link = leading.agent._strangers[0].link
    leading.until(lambda: not leading.agent._strangers)
    assert link._taken <= 1 << 13


def test_many_lines_take_time_in_proportion() -> None:
    near, far = socket.socketpair()
    link = MachineLink(near, floor=5.0)
    link.trusted = True
    line = json.dumps(Pulse(1.0).to_json()).encode() + b"\n"

    def seconds(lines: int) -> float:
        link._in += line * lines
        began = time.process_time()
        assert list(link.pump()) == []
        return time.process_time() - began

    seconds(1000)
    few, many = min(seconds(2_000) for _ in range(3)), seconds(160_000)
    assert many < 80 * few * 3, "eighty times as many lines"
    link.close()
    far.close()


def test_another_token_is_told_once_and_the_run_goes_on(leading: Leading) -> None:
    for _ in range(3):
        answer = leading.client().hello(token="other", host="x" * 5000)
        assert (answer["kind"], answer["text"]) == ("turned_away", "the tokens differ")
        assert TurnedAway("", exit_code=answer.get("exit_code", 2)).exit_code == 2
    assert leading.said == ["a machine at 127.0.0.1 cannot join: the tokens differ"]
    assert leading.job.outcome is None
    assert leading.client().hello()["kind"] == "welcome"


def test_a_name_without_end_is_cut(leading: Leading) -> None:
    assert leading.client().hello(host="x\x1b[2J" + "y" * 5000, script="other")["kind"] == "turned_away"
    assert len(leading.said[0]) < 200 and "\x1b" not in leading.said[0]
    assert (leading.job.outcome or {})["state"] == "FAILED", "it has the token, and the run cannot begin without it"


def test_silent_connections_do_not_keep_a_machine_out(leading: Leading) -> None:
    silent = [leading.client() for _ in range(2 * _STRANGERS)]
    leading.until(lambda: len(leading.agent._strangers) == _STRANGERS and silent[0].is_closed())
    assert leading.client().hello()["kind"] == "welcome"
    for each in silent:
        each.sock.close()


def test_a_machine_that_is_back_before_its_loss_was_noticed_comes_later(leading: Leading) -> None:
    """Its old connection is silent and not closed, as after a loss of power."""
    first = leading.client()
    assert first.hello()["kind"] == "welcome"
    answers = []

    def answer() -> str:
        answers.append(leading.client().hello(agent="b"))
        return str(answers[-1]["kind"])

    while answer() != "welcome":
        assert answers[-1].get("later") is True
    assert len(answers) > 1 and leading.job.outcome is None


def test_a_second_process_with_the_number_of_one_that_lives_is_refused(leading: Leading) -> None:
    first = leading.client()
    assert first.hello()["kind"] == "welcome"
    pulse = json.dumps(Pulse(1.0).to_json()).encode() + b"\n"
    while True:
        first.sock.sendall(pulse)
        answer = leading.client().hello(agent="b")
        assert answer["kind"] == "turned_away"
        if not answer.get("later"):
            break
    assert answer["text"] == "another process is machine 1 already, on m1"
    assert leading.job.outcome is None, "the run goes on with the one it has"


@pytest.mark.parametrize("least", [1, 2])
def test_a_machine_that_came_and_went_before_the_start_is_not_waited_for_without_end(
    tmp_path: Path, least: int
) -> None:
    leading = Leading(tmp_path, least=least, patience=0.5)
    try:
        client = leading.client()
        assert client.hello()["kind"] == "welcome"
        client.sock.close()
        machine, member = leading.agent._machines[1], leading.agent._members[1]
        leading.until(lambda: machine.lost)
        if least == 1:
            leading.until(lambda: not leading.agent._is_worth_waiting_for(member))
            assert leading.job.outcome is None
        else:
            leading.until(lambda: leading.job.outcome)
            assert "machine 1 did not connect in" in (leading.job.outcome or {})["error"]["message"]
    finally:
        _end(leading)


# -- the agent of another machine ----------------------------------------------------------------------------------


class Joining:
    """The agent of machine 1, and the port where it looks for the first machine."""

    def __init__(self, folder: Path, *, patience: float = 600.0, floor: float = 100.0) -> None:
        self.job = Job.create()
        self.said: list[str] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.setblocking(False)
        hello = dataclasses.replace(OWN, machine=1, agent="a")
        self.agent = MachineAgent(
            self.job, self.server.getsockname(), hello, ["--version"], dict(os.environ), folder / "ranks.log",
            token=TOKEN, floor=floor, patience=patience, say=self.said.append, rescue=lambda: None,
        )  # fmt: skip

    def until(self, holds: Callable[[], Any], seconds: float = 100.0) -> bool:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                return False
            self.agent.look(0.01)
        return True

    def accept(self) -> MachineLink | None:
        try:
            return MachineLink(self.server.accept()[0], floor=100.0)
        except BlockingIOError:
            return None

    def welcome(self) -> MachineLink:
        """The next connection, as the leader welcomes it."""
        found: list[Any] = []
        assert self.until(lambda: found.append(self.accept()) or found[-1])
        link: MachineLink = found[-1]
        link.send(Challenge("nonce"))
        heard: list[Any] = []
        assert self.until(lambda: heard.extend(link.pump()) or heard)
        link.trusted = True
        link.send(Welcome(proof(TOKEN, "leader", "nonce", heard[0].nonce), "launch", "run"))
        return link

    def close(self) -> None:
        self.agent.close()
        self.server.close()
        self.job.remove()


@pytest.mark.parametrize("says", ["nothing", "a challenge"])
def test_a_port_that_answers_and_never_welcomes_is_given_up(tmp_path: Path, says: str) -> None:
    joining = Joining(tmp_path, patience=1.0, floor=0.3)
    links: list[MachineLink] = []

    def answered() -> bool:
        link = joining.accept()
        if link is not None:
            links.append(link)
            if says == "a challenge":
                link.send(Challenge("nonce"))
        return joining.job.outcome is not None

    try:
        assert joining.until(answered)
        outcome = joining.job.outcome or {}
        assert (outcome["state"], outcome["error"]["exit_code"]) == ("GAVE_UP", 4)
        assert "no connection to the first machine for" in outcome["error"]["message"] and len(links) > 1
    finally:
        for link in links:
            link.close()
        joining.close()


def test_an_answer_to_come_later_is_followed(tmp_path: Path) -> None:
    joining = Joining(tmp_path)
    try:
        found: list[Any] = []
        assert joining.until(lambda: found.append(joining.accept()) or found[-1])
        found[-1].send(TurnedAway("not yet", later=True))
        link = joining.welcome()
        assert joining.until(lambda: joining.agent._greeted) and joining.job.outcome is None
        link.close()
    finally:
        joining.close()


def test_no_process_is_left_of_a_fork_during_which_the_connection_was_lost(tmp_path: Path) -> None:
    joining = Joining(tmp_path)
    nursery = joining.agent._forker._process.pid
    try:
        first = joining.welcome()
        assert joining.until(lambda: joining.agent._greeted and joining.agent._forker.ready)
        os.kill(nursery, signal.SIGSTOP)  # the fork takes as long as the test wants
        first.send(StartRank(1, 0, 1, 2))
        assert joining.until(lambda: joining.agent._forking)
        first.close()
        assert joining.until(lambda: "the first machine is lost" in " ".join(joining.said))
        seen: list[Any] = []
        assert not joining.until(lambda: seen.append(joining.accept()) or seen[-1], seconds=2.0), "it connected again"
        os.kill(nursery, signal.SIGCONT)
        second = joining.welcome()
        assert joining.agent._forking is None and not joining.agent.pids
        assert joining.until(lambda: joining.agent._greeted) and not joining.agent._members
        second.close()
    finally:
        processes.send(nursery, signal.SIGCONT)
        joining.close()


def test_what_a_ladder_has_decided_is_told_again_after_a_new_connection(tmp_path: Path) -> None:
    """The process of the rank ended while nothing arrived any more: the first machine has to hear of wrong numbers."""
    joining = Joining(tmp_path)
    seat, pid = 1, 4194305  # no process has this number
    ladder = RankLadder(joining.job, None, Settings.load({}), devices=["pretend:0"], seats=[seat])
    joining.agent._ladder = ladder
    wrong = Fault(Kind.WRONG_NUMBERS, "pretend:0", step=8)
    try:
        first = joining.welcome()
        assert joining.until(lambda: joining.agent._greeted)
        ladder.starting(seat)
        ladder.started(seat, pid)
        joining.job.accuse(seat, pid, "lost", fault=wrong.to_json())
        joining.agent._ended(Member(seat, machine=1, local=0, pid=pid), 76)
        first.close()
        second = joining.welcome()
        second.trusted = True
        heard: list[Any] = []
        assert joining.until(lambda: heard.extend(second.pump()) or AnswerAgain in map(type, heard))
        (again,) = [one for one in heard if isinstance(one, AnswerAgain)]
        assert (again.seat, again.pid, again.answer["after"]) == (seat, pid, "cpu")
        assert again.answer["undone"]["seat"] == seat and rank_devices.told(joining.job, seat) is not None
        second.close()
    finally:
        joining.close()


def test_an_answer_that_comes_late_undoes_what_others_have_committed_since(leading: Leading) -> None:
    made = Answer(Fault(Kind.WRONG_NUMBERS, "rank 1", step=8), Move(Action.NEXT_RUNG, 1), "cuda:0", "cpu", Undone(1, 2))
    told = AnswerAgain(1, 77, dataclass_json.write(made))
    leading.agent._number = 6
    machine = leading.client()
    assert machine.hello()["kind"] == "welcome"
    for each in (dataclasses.replace(told, seat=0), told, told):  # seat 0 is not on that machine
        machine.sock.sendall(json.dumps(each.to_json()).encode() + b"\n")
    pid = roster.far(1, 77)
    leading.until(lambda: rank_ladder.answer(leading.job, pid) is not None)
    found = rank_ladder.answer(leading.job, pid)
    assert found is not None and found.fault.device == "rank 1" and found.undone == Undone(1, 6)
    assert leading.job.noted(f"{GONE}-{pid}")["pid"] == pid, "the rank that writes the journal tells it"
