"""The ledger: what each device did on this machine, for this user, across runs and reboots.

    ledger = Ledger()                                                 # in the user's state folder
    for each in ledger.settle(boot_id): print(each.sentence)          # what an earlier boot, or a kill, left open
    opened = ledger.open("cuda:0", "cuda:0 fp32", run="calm-heron", boot_id=boot_id)    # on disk before it is used
    ledger.note("cuda:0", "cuda:0 fp32", "fault", code="F006", why="an illegal address")
    ledger.close(opened, how="moved", steps=400, seconds=81.5)
    ledger.trust("cuda:0", "cuda:0 fp32").state                       # "probation"
    ledger.history("cuda:0").faults_per_hour                          # 0.63

An entry that is still open under another boot id means: the machine went down while this device was in use. Whose
fault that was is judged with evidence (shutdown_cause.py), and every decision is a line of its own.

One file of JSON lines, appended and flushed to the disk one by one. Lines that cannot be read are passed over. No
method raises because the disk does: a run goes on without its ledger, and `problem` says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base import processes
from holdfast.base.files import open_regular
from holdfast.base.folders import make_private, open_growing, write_whole
from holdfast.base.locks import Lock
from holdfast.base.state_folder import state_folder as state_folder
from holdfast.devices.device_lock import Alive
from holdfast.devices.identity import DeviceId, identify, machine_key
from holdfast.devices.last_boot import READERS, Readers
from holdfast.devices.ledger_summary import (
    Decision,
    History,
    Line,
    Standings,
    Trust,
    fold,
    freezes_that_count,
    history_of,
    trust_of,
)
from holdfast.devices.shutdown_cause import Case, Judgement, judge
from holdfast.run import machine
from holdfast.run.events import Event, utc_now
from holdfast.run.folder import read_lines, sync_folder

LEDGER = "ledger.jsonl"
LARGE = 1 << 20
"""Bytes from which on the ledger is made small again."""
PATIENCE = 2.0
"""Seconds to wait for another process that writes; then it is taken for stopped, and we write beside it."""
CLOCKS = 60.0
"""Seconds that the clocks of two boots may be apart."""
HOW = ("finished", "moved", "fault", "stopped")


def software(device: DeviceId) -> dict[str, str | None]:
    """What a quarantine lasts for: it ends when one of these changes."""
    return {"driver": device.driver, "torch": machine.torch_build()["version"], "kernel": platform.release()}


@dataclass(frozen=True, slots=True)
class Opened:
    """A device in use, as the ledger knows it."""

    id: str
    device: DeviceId
    rung: str
    boot: str | None
    run: str
    act: str


_SAID = {Decision.PROBATION: "it is on probation", Decision.QUARANTINE: "it is in quarantine"}


@dataclass(frozen=True, slots=True)
class Settled:
    """An entry that was left open, and what that meant."""

    label: str
    rung: str
    run: str
    judgement: Judgement

    @property
    def sentence(self) -> str:
        """For the journal and the screen."""
        rung = f" ({self.rung})" if self.rung else ""
        end = _SAID.get(self.judgement.decision)
        return f"{self.label}{rung} in {self.run}: {self.judgement.why}; {end or 'it is not blamed'}"


class Ledger:
    """The user's ledger, open for reading and writing by any number of processes at once."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        machine: str | None = None,
        readers: Readers = READERS,
        software: Callable[[DeviceId], Mapping[str, Any]] = software,
    ) -> None:
        self.folder = state_folder() if folder is None else folder
        self.path = self.folder / LEDGER
        self.machine = machine_key() if machine is None else machine
        self.problem: str | None = None
        """Why the last line could not be written, in words."""
        self._readers = readers
        self._software = software
        self._known: dict[str, DeviceId] = {}
        self._unwritten: list[Line] = []
        self._alive = Alive(self.folder / "live")
        self._open: set[str] = set()

    # -- writing -------------------------------------------------------------------------------------------

    def open(
        self, device: DeviceId | str, rung_label: str, run: str, boot_id: str | None, act: str = "train"
    ) -> Opened:
        """The device is about to be used: this is on disk when the call returns."""
        where = self.identify(device)
        line = self._line("open", where, rung_label, boot_id, run=run, act=act, name=where.name, pci=where.pci)
        line.data.update(software=dict(self._software(where)), pid=os.getpid(), alive=self._alive.hold())
        self._append([line])
        self._open.add(line.id)
        return Opened(line.id, where, line.rung, boot_id, run, act)

    def close(self, opened: Opened, how: str, steps: int = 0, seconds: float = 0.0) -> None:
        """It is no longer in use: finished, moved, fault or stopped."""
        assert how in HOW, how
        line = self._line("close", opened.device, opened.rung, opened.boot, of=opened.id, how=how)
        line.data.update(run=opened.run, act=opened.act, steps=int(steps), seconds=round(float(seconds), 3))
        self._append([line])
        self._open.discard(opened.id)
        if not self._open:
            self._alive.release()

    def leave(self) -> None:
        """This process uses no device any more. What is still open counts as left open from now on."""
        self._open.clear()
        self._alive.release()

    def note(self, device: DeviceId | str, rung_label: str, what: str, **facts: Any) -> None:
        """Something that bears on trust. What counts:

        fault   `why` or `code`; `blame="data"` or another innocent word if it is already known to be no fault of its
        blame   `verdict` of the last fault, found later: the words of standing.INNOCENT take that fault back
        probe   `ok`, `why`
        suspicion   `why`, `confirmed`, `by` whom, `method`: an operator that disagreed with the CPU
        trust   `state`: trusted, probation, quarantined or unknown; `why`
        """
        where = self.identify(device)
        clipped = {name: value[:500] if isinstance(value, str) else value for name, value in facts.items()}
        self._append([self._line("note", where, rung_label, processes.boot_id(), what=what, facts=clipped)])

    def forget(self, device: DeviceId | str) -> None:
        """Freezes and distrust of a device count no longer, on any rung. Its history stays."""
        self._append([self._line("forget", self.identify(device), "", processes.boot_id())])

    def pardon(self, device: DeviceId | str) -> None:
        """A verdict on its numbers is taken back, on every rung. It stays in the history, with the pardon."""
        self._append([self._line("pardon", self.identify(device), "", processes.boot_id())])

    def _line(self, kind: str, device: DeviceId, rung_label: str, boot: str | None, **data: Any) -> Line:
        rung = rung_label.removeprefix(device.label).strip()
        given = {name: value for name, value in data.items() if value is not None}
        identity = os.urandom(6).hex()
        return Line(kind, identity, utc_now(), self.machine, device.key, device.label, rung, boot, given)

    # -- asking --------------------------------------------------------------------------------------------

    def identify(self, device: DeviceId | str) -> DeviceId:
        """The device behind a label, found once."""
        if isinstance(device, DeviceId):
            return device
        if device not in self._known:
            self._known[device] = identify(device)
        return self._known[device]

    def lines(self) -> list[Line]:
        """Every line that can be understood, the oldest first."""
        try:
            records = list(read_lines(self.path)) if self.path.is_file() else []  # a pipe or a device would never end
        except OSError as error:  # a folder of somebody else: a run goes on without its ledger
            self.problem = str(error)
            records = []
        found = (Line.of(record) for record in records)
        return [*(line for line in found if line is not None), *self._unwritten]

    def standings(self) -> Standings:
        """What is known about every rung of every device of this machine."""
        return fold(self.lines(), self.machine)

    def in_use(self) -> list[Line]:
        """The entries of devices that a living process uses now."""
        boot = processes.boot_id()
        return [line for line in _left_open(self.lines(), self.machine) if self._in_use(line, boot)]

    def trust(self, device: DeviceId | str, rung_label: str) -> Trust:
        """How far this rung of the device may be trusted, by everything that is known."""
        where = self.identify(device)
        rung = rung_label.removeprefix(where.label).strip()
        return trust_of(self.standings(), where.key, rung, self._software(where))

    def history(self, device: DeviceId | str) -> History:
        """How long it was used and how often it failed, over all rungs and runs."""
        return history_of(self.standings(), self.identify(device).key)

    # -- settling ------------------------------------------------------------------------------------------

    def settle(self, boot_id: str | None) -> list[Settled]:
        """Decide what the entries mean that nobody closed. Called at every start, before a device is used."""
        left = [line for line in _left_open(self.lines(), self.machine) if not self._in_use(line, boot_id)]
        before = [line for line in left if boot_id is not None and line.boot not in (boot_id, None)]
        settled = [
            *((line, Judgement(Decision.KILLED, "its supervisor was killed")) for line in left if line not in before),
            *self._judge([line for line in before if not _of_another_machine(line, boot_id)]),
        ]
        written = []
        with self._locked():
            still = {line.id for line in _left_open(self.lines(), self.machine)}  # another may have settled it
            for line, judgement in settled:
                if line.id in still:
                    self._write([_verdict(line, judgement)])
                    written.append(Settled(line.label, line.rung, line.text("run", "a run"), judgement))
        for line, _ in settled:
            self._alive.clear(line.text("alive"))
        return written

    def _in_use(self, line: Line, boot_id: str | None) -> bool:
        """By the lock its owner holds; where there are no locks, by the process of that number in this boot."""
        token = line.text("alive")
        if token:
            return self._alive.is_held(token)
        pid = line.data.get("pid")
        return line.boot == boot_id and isinstance(pid, int) and processes.exists(pid)

    def _judge(self, entries: list[Line]) -> Iterator[tuple[Line, Judgement]]:
        """Boot by boot, the oldest first: what one boot shows is evidence about the next."""
        decided: list[Line] = []
        for boot in dict.fromkeys(line.boot for line in entries):
            of_boot = [line for line in entries if line.boot == boot]
            since = max(Event("open", line.time).seconds() or 0.0 for line in of_boot)
            ended, named = self._readers.ended(boot, since), self._readers.kernel(boot, since)
            standings = fold([*self.lines(), *decided], self.machine)
            for line in of_boot:
                standing = standings.get((line.device, line.rung))
                under = line.data.get("software")
                frozen = freezes_that_count(standing, under if isinstance(under, dict) else {}) if standing else []
                judgement = judge(
                    Case(
                        pci=line.text("pci") or None,
                        on_cpu=line.device == "cpu",
                        others=sorted({each.label for each in of_boot if each.device not in ("cpu", line.device)}),
                        ended=ended,
                        named=named,
                        downs=len(_boots(standings, cpu=True)),
                        excused=len(_boots(standings, cpu=False)),
                        froze_before=sum(freeze.get("boot") != boot for freeze in frozen),
                    )
                )
                decided.append(_verdict(line, judgement))
                yield line, judgement

    # -- the file ------------------------------------------------------------------------------------------

    def _append(self, lines: list[Line]) -> None:
        with self._locked():
            self._write(lines)

    def _write(self, lines: list[Line]) -> None:
        """Behind what is there, flushed to the disk. A line that was torn by a power cut is ended first."""
        text = "".join(json.dumps(line.to_json(), default=str) + "\n" for line in lines)
        try:
            created = not self.path.exists()
            fd = open_growing(self.path)
            try:
                size = os.lseek(fd, 0, os.SEEK_END)
                torn = size > 0 and os.lseek(fd, -1, os.SEEK_END) >= 0 and os.read(fd, 1) != b"\n"
                data = (b"\n" if torn else b"") + text.encode()
                while data:
                    data = data[os.write(fd, data) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            if created:
                sync_folder(self.folder)
            if size > LARGE:
                self._make_small()
        except OSError as error:
            self.problem = f"{self.path} cannot be written: {error.strerror or error}"
            self._unwritten += lines
        else:
            self.problem = None

    def _make_small(self) -> None:
        """Replace the file by one that says the same: a standing for each rung, and what is still open."""
        size = self.path.stat().st_size
        lines = [line for line in map(Line.of, read_lines(self.path)) if line is not None]
        kept = [line.to_json() for line in condensed(lines)]
        data = "".join(json.dumps(record) + "\n" for record in kept).encode()
        with open_regular(self.path) as old:
            old.seek(size)
            data += old.read()  # what somebody wrote beside us, who could not wait for the lock
        write_whole(self.path, data, durable=True)
        sync_folder(self.folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, by a lock that the kernel takes back from the dead."""
        lock = Lock(self.folder / "lock")
        deadline = time.monotonic() + PATIENCE
        with contextlib.suppress(OSError):
            make_private(self.folder)
            while not lock.take() and time.monotonic() < deadline:
                time.sleep(0.01)
        try:
            yield
        finally:
            lock.release()


def condensed(lines: Iterable[Line]) -> list[Line]:
    """The same in few lines: what every machine's devices add up to, then the entries that are still open."""
    lines = list(lines)
    kept = []
    for name in dict.fromkeys(line.machine for line in lines):
        own = [line for line in lines if line.machine == name]
        for (device, rung), standing in fold(own, name).items():
            identity = os.urandom(6).hex()
            data = {"standing": standing.to_json()}
            kept.append(Line("total", identity, standing.last, name, device, standing.label, rung, None, data))
        kept += [Line(**{**_as_dict(line), "kind": "still"}) for line in _left_open(own, name)]
    return kept


def _as_dict(line: Line) -> dict[str, Any]:
    return {name: getattr(line, name) for name in Line.__dataclass_fields__}


def _left_open(lines: Iterable[Line], machine: str) -> list[Line]:
    """Entries of this machine that neither were closed nor settled. `still` is an open one that was counted."""
    found: dict[str, Line] = {}
    for line in lines:
        if line.machine == machine and line.kind in ("open", "still"):
            found[line.id] = line
        elif line.kind in ("close", "settled"):
            found.pop(line.text("of"), None)
    return list(found.values())


def _of_another_machine(line: Line, boot_id: str | None) -> bool:
    """It was opened when this boot had begun, by another boot: two machines that look alike share this ledger."""
    began = processes.boot_time() if boot_id == processes.boot_id() else None
    opened = Event("open", line.time).seconds()
    return began is not None and opened is not None and opened > began + CLOCKS


def _verdict(line: Line, judgement: Judgement) -> Line:
    data = {
        "of": line.id,
        "run": line.data.get("run"),
        "act": line.data.get("act"),
        "software": line.data.get("software"),
        "decision": judgement.decision,
        "why": judgement.why,
        "evidence": list(judgement.evidence),
    }
    return Line(
        "settled",
        os.urandom(6).hex(),
        utc_now(),
        line.machine,
        line.device,
        line.label,
        line.rung,
        line.boot,
        {name: value for name, value in data.items() if value is not None},
    )


def _boots(standings: Standings, *, cpu: bool) -> set[str]:
    """Boots that ended uncleanly with nothing but the CPU in use, or those that were excused by them."""
    return {boot for (key, _), standing in standings.items() if (key == "cpu") is cpu for boot in standing.downs}
