"""The life of one rank: `holdfast train` below an agent, from joining the others to its exit code.

    torchrun --nproc-per-node 2 -m holdfast train my_script.py    # torch's elastic agent
    holdfast launch --nproc 2 my_script.py                        # an agent of ours, which watches the ranks

A rank that ends with a code other than 0 makes the agent start a new process (torchrun: all), so only what a new start
may mend does. Below our own agent a rank stays when another is lost: it leaves the script and the process group,
and calls the script again in the next group. What is over (done, stopped, the script's own error) is written down for
those that come after.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base import processes
from holdfast.base.board import Phase
from holdfast.base.errors import HoldfastError, ScriptFailed
from holdfast.distributed import rank_devices, rank_end, rank_numbers, rank_undo, roster
from holdfast.distributed.job import Job
from holdfast.distributed.place import CORES, LAUNCHER, MACHINE, START_AGAIN, Place
from holdfast.distributed.rank_devices import MOVED, Told
from holdfast.distributed.rank_numbers import Case
from holdfast.distributed.rank_nursery import NESTED, RankNursery
from holdfast.distributed.share_keeper import Policy
from holdfast.faults.classification import Fault, Kind, classify_exception
from holdfast.run.folder import RunFolder
from holdfast.run.messages import RankStarted
from holdfast.run.states import RunState

if TYPE_CHECKING:
    import torch

    from holdfast.base.board import Board
    from holdfast.console.order import Order
    from holdfast.distributed.group import Group
    from holdfast.distributed.rank_link import Follower, Writer

_FATAL = ("non_finite", "wrong_numbers", "bad_data", "user_error", "unsupported")
"""What new ranks would only meet again."""
_OF_DEVICE = ("wrong_numbers", "unsupported")
"""Of these, what a rank does not meet on another device: below our own agent it moves there."""
PR_SET_PDEATHSIG = 1
_ONCE = "script-once"
"""The note that the script cannot be called twice in one process."""


def live(order: Order, place: Place, make: Callable[[], RunFolder]) -> int:
    """Train as one of several; returns the exit code of this process. `make` makes the run folder, if nobody has."""
    job = Job(Path(place.job)) if place.job else Job.of_agent(place.agent, first=place.local_rank == 0)
    if job.outcome is not None:
        return rank_end.code_of(job.outcome, place)
    board = job.new_board(place.seat)
    _stop_politely(board)
    run = _run_folder(job, place, make)
    if place.watched and (place.run or place.stays):
        _speak_into(Path(place.run) if place.run else job.path, place)
    try:
        _Life(order, place, job, board, run).to_the_end()
    except HoldfastError as error:
        rank_end.write_down(job, error)
        if not place.watched:
            rank_end.show(error)
    except _StartAgain as again:
        if job.outcome is None:
            job.leave(place.seat, again.why, **again.more)
            return START_AGAIN
    if job.outcome is None:  # done, and it is for the rank that keeps the run folder to say so
        return 0
    if run is not None and not place.watched:
        rank_end.settle(run, job.outcome)
    return rank_end.code_of(job.outcome, place)


class _StartAgain(Exception):
    """New ranks may mend it."""

    def __init__(self, why: str, **more: Any) -> None:
        super().__init__(why)
        self.why = why
        self.more = more


# Before -----------------------------------------------------------------------------------------------------


def _stop_politely(board: Board) -> None:
    """SIGTERM and Ctrl-C ask for a stop at the next boundary; so does the death of the agent."""

    parent, launcher = os.getppid(), int(os.environ.get(LAUNCHER) or 0)

    def asked(*_: object) -> None:
        if NESTED in os.environ and os.getppid() != parent and _runs(launcher):
            os._exit(START_AGAIN)  # only the nursery has died: there will be another
        if int(os.environ.get(MACHINE) or 0) and not _runs(launcher):
            os._exit(START_AGAIN)  # the agent of this machine has died: the others go on without its ranks
        board.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, asked)
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _runs(pid: int) -> bool:
    info = processes.inspect(pid)
    return processes.exists(pid) and (info is None or info.state != "Z")


def _run_folder(job: Job, place: Place, make: Callable[[], RunFolder]) -> RunFolder | None:
    """The run folder, for the rank that keeps it: of those on its machine, the first."""
    if place.watched:
        if place.run is None or place.local_rank:
            return None
        run = RunFolder.open(Path(place.run))
        run.share_lock()
        return run
    if place.rank:
        return None
    known = job.noted("run").get("path")
    run = RunFolder.open(Path(known)) if isinstance(known, str) else make()
    job.note("run", {"path": str(run.path.absolute())})
    run.lock(wait=10.0)
    return run


def _speak_into(run: Path, place: Place) -> None:
    """What this rank prints goes to a file of the run; the first one's is shown."""
    from holdfast.worker import worker

    worker._redirect_output(run / ("output.log" if place.seat == 0 else f"output-rank{place.seat}.log"))
    worker._prepare_stacks(run / f"stacks-rank{place.seat}.txt")


def device_for(asked: str, place: Place, devices: Sequence[str] = ()) -> str:
    """The one named for its seat; else a card of its own for every rank of a machine that has enough, or the CPU."""
    if devices:
        return devices[place.local_rank]
    if asked == "auto":
        import torch

        return f"cuda:{place.local_rank}" if torch.cuda.device_count() >= place.local_ranks else "cpu"
    if asked in ("cuda", "pretend"):
        return f"{asked}:{place.local_rank}"
    return asked


def share_one_card(asked: str, place: Place, devices: Sequence[str] = ()) -> bool:
    """`--device cuda:0` names one card, for all ranks of a machine; `--devices` may name others as well.

    NCCL takes neither two ranks on one card nor one without a card.
    """
    if devices:
        return len(set(devices)) < len(devices) or any(not each.startswith("cuda") for each in devices)
    return asked.startswith("cuda:") and place.local_ranks > 1


# Training ---------------------------------------------------------------------------------------------------


class _Life:
    """This process as a rank: in one process group, and where it stays when another is lost, in the next ones too."""

    def __init__(self, order: Order, place: Place, job: Job, board: Board, run: RunFolder | None) -> None:
        self.order = order
        self.place = place
        self.job = job
        self.board = board
        self.run = run
        self.settings = order.settings
        told = rank_devices.told(job, place.seat)
        if told is None:  # nobody keeps a ladder, and would take the ranks back to where devices were right
            self.settings = order.settings.override({"sentinel.enabled": "never"}, "ranks without a ladder")
        self.policy = Policy.of(self.settings)
        self.movable = told is not None and told.device != "cpu"
        """Whether this rank can be on another device."""
        self.label = told.device if told else device_for(self.settings.run.device, place, self.policy.devices)
        self.link: Follower | Writer | None = None
        self._first = place.local_rank == 0
        """Whether what this process prints is shown."""
        self.trial: Case | None = None
        """The step that the ranks of this group look into before they take it."""
        self.groups = self.calls = 0
        """So many process groups, and calls of the script."""

    def to_the_end(self) -> None:
        """Ends with an outcome in the job, or says nothing because another rank does."""
        import multiprocessing

        import torch

        from holdfast.distributed.rank_link import Writer
        from holdfast.worker import step

        if hasattr(os, "fork"):
            multiprocessing.set_start_method("fork", force=True)
        torch.set_num_threads(threads_for(self.order, self.place.local_ranks))
        self.device = self._open_device()
        if self.place.stays:
            _import_ahead()
            roster.say_ready(self.job)
        try:
            while not self._in_one_group():
                step.free_memory(self.device)  # the objects of the script that was left
        except HoldfastError as error:  # said before this process ends: the others will ask why it has
            rank_end.write_down(self.job, error)
            raise
        finally:
            outcome, link = self.job.outcome, self.link
            if link is not None and outcome and outcome["state"] == RunState.GAVE_UP:
                # No group agrees on it any more, and what is saved now must be right all the same.
                rank_undo.give_up(rank_undo.noted(self.job), link.snapshots.memory)
            if link is not None and not isinstance(link, Writer) and outcome and outcome["state"] == RunState.GAVE_UP:
                link = Writer.of_the_last(self.job, self.place, self.settings, self.board, link.snapshots)
            if isinstance(link, Writer):
                rank_end.save_what_failed(link, self.job)
                link.teller.scalars.close()

    def _take_threads(self) -> None:
        """A CPU beside accelerators gets the cores that their ranks, and all loader processes, leave."""
        import torch

        from holdfast.distributed.rank_watch import Boards

        cores = int(os.environ.get(CORES) or 0)
        if self.place.local_rank not in self.policy.beside or not cores:
            return
        boards = Boards(self.job)
        loaders = max((each.beat.loaders for each in boards.look()), default=0)
        boards.close()
        torch.set_num_threads(self.policy.threads_beside(cores, loaders))

    def _open_device(self) -> torch.device:
        """A card that is gone is no error of the script: the agent tries again later, and the others may go on."""
        from holdfast.injection import away
        from holdfast.worker import worker

        try:
            away.check(self.place.seat)
            return worker.open_device(self.label)
        except (RuntimeError, OSError) as error:
            text = str(error).partition("\n")[0]
            print(f"rank {self.place.seat} cannot open its device: {text}", file=sys.stderr, flush=True)
            raise _StartAgain("device", text=text, device=self.label) from error

    def _in_one_group(self) -> bool:
        """Train until it is over; False if the group broke and this process goes on in another one."""
        from holdfast.distributed.group import Group
        from holdfast.distributed.joined_ranks import PeerLost
        from holdfast.distributed.roster import RosterGone
        from holdfast.worker import worker
        from holdfast.worker.session import LostWorker, StopRun

        seed, group = self.settings.run.seed, None
        try:
            self._find_place()
            self._take_threads()
            self.board.enter(Phase.SETUP)  # for a rank that stays, too: until its next step it may take as long
            self.groups += 1
            worker.seed_everything(seed)
            patience = self.settings.watchdog.setup
            group = Group.join(
                self.place,
                self.board,
                self.job,
                device=self.device,
                seed=seed,
                patience=patience,
                one_card=share_one_card(self.settings.run.device, self.place, self._devices_now())
                or rank_devices.over_gloo(self.job, self.place.restarts),
                mixed=rank_devices.mixed(self.job, self.place.restarts),
                policy=self.policy,
            )
            group.begin()
            self._go_on(group)
            return True
        except StopRun:
            rank_end.stop(self.link, self.job)
            return True
        except RosterGone:
            if self.job.outcome is None and self.link is not None:  # the agent is gone: as if it had asked us to stop
                rank_end.stop(self.link, self.job)
            return True
        except PeerLost as lost:
            if group is not None and group.looked and self.trial is not None:
                rank_numbers.note(self.job, self.trial.noted_by(self.place.seat, looked=True))
            return self._leave_group(group, str(lost))
        except LostWorker as lost:
            if lost.fault.kind is Kind.NON_FINITE and self.place.stays and group is not None:
                return self._after_numbers(group, lost.fault)
            of_another = self.place.stays and lost.fault.evidence.get("rank", self.place.rank) != self.place.rank
            kind = lost.fault.kind.value
            if kind in _FATAL and not (kind in _OF_DEVICE and (of_another or self.movable)):
                raise ScriptFailed(lost.fault.sentence(), cause=lost.fault.cause()) from None
            if of_another:  # that rank ends: it knows whether it can be on another device
                return self._leave_group(group, str(lost))
            raise _StartAgain("lost", fault=lost.fault.to_json()) from None
        finally:
            if group is not None and self.place.stays:
                group.leave()

    def _after_numbers(self, group: Group, fault: Fault) -> bool:
        """Numbers of a step were not finite. All go back to before it: to look for the samples, or without them."""
        from holdfast.distributed.rank_link import Writer

        seat, before = self.place.seat, self.trial
        again = before is not None and before.step == fault.step  # the ranks have looked, and it passed their look
        if fault.blame is None and not again:
            own = group.own_loss_is_bad(fault.step or 0)
            rank_numbers.note(self.job, Case(seat, self.place.restarts, fault, own))
            return self._leave_group(group, "numbers were not finite")
        if before is not None:
            fault = before.named() if fault.blame is None else fault
            rank_numbers.note(self.job, before.noted_by(seat, again=True))
        if fault.blame is not None and isinstance(self.link, Writer):
            self.link.tell_verdict(rank_numbers.verdict_of(fault))
        if isinstance(fault.evidence.get("leave_out"), dict):
            group.leave_out(fault.evidence["leave_out"])  # type: ignore[arg-type]
            rank_numbers.forget(self.job, seat)
            return self._leave_group(group, "samples whose numbers are not finite are left out")
        if fault.blame in (None, "device") and fault.evidence.get("seat") is not None:
            if fault.evidence["seat"] != seat:  # that rank ends: it knows whether it can be on another device
                return self._leave_group(group, fault.sentence())
            if self.movable:
                raise _StartAgain("lost", fault=fault.to_json()) from None
        raise rank_numbers.failure(fault) from None

    def _leave_group(self, group: Group | None, why: str) -> bool:
        """Another rank is lost. This process goes on in the next group, if it can."""
        if not self.place.stays or (self.calls and self.job.noted(_ONCE)):
            raise _StartAgain("peer", text=why) from None
        self._make_room(why)  # the agent may have asked all to leave for this
        self.place = self.place if group is None else group.place
        if self.link is not None:
            self.link.pause()
        roster.ask(self.job, self.place.restarts)
        return False

    def _make_room(self, why: str) -> None:
        """End this process if the next one of this rank is to be on another device."""
        told = rank_devices.told(self.job, self.place.seat)
        if told is not None and told.device != self.label:
            raise _StartAgain(MOVED, text=why) from None

    def _find_place(self) -> None:
        if self.place.stays:
            before = self.place.restarts if self.groups else 0
            self.board.enter(Phase.PEERS)  # waiting for others is no hang of this rank; a spare may wait for days
            launcher = int(os.environ.get(LAUNCHER) or 0)
            now = roster.await_next(self.job, after=before, launcher=launcher, stop=self._stops_waiting)
            rank = now.rank_of(os.getpid())
            assert rank is not None
            self.place = replace(
                self.place, rank=rank, ranks=now.ranks, local_ranks=now.beside(rank), restarts=now.number, roster=now
            )
            # Scripts ask the environment. A spare, and a rank behind an empty seat, began with other numbers.
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(now.ranks), LOCAL_WORLD_SIZE=str(self.place.local_ranks))

    def _stops_waiting(self) -> bool:
        """A process in no group, which may be a spare, hears of its device here; of a stop, see `_stops_alone`."""
        self._make_room("its device has recovered")
        return self._stops_alone()

    def _stops_alone(self) -> bool:
        """Asked to stop while others are away: nobody is there to agree on it with. This rank can save the state."""
        from holdfast.distributed.rank_link import Writer

        return isinstance(self.link, Writer) and self.board.stop_requested

    def _go_on(self, group: Group) -> None:
        """From the newest snapshot that all have."""
        from holdfast.distributed.rank_link import Writer

        self.link = self._take_role()
        if isinstance(self.link, Writer):
            ranks = self.place.ranks
            self.link.run.update_info(state=RunState.RUNNING, device=self._devices(), ranks=ranks)
        self.link.find_start(group)
        told = rank_devices.told(self.job, self.place.seat)
        if told is None or told.device != self.label:  # the next process of this rank is to be on another device
            told = Told(self.label)
        if told.from_cpu and self.groups == 1:
            self.link.snapshots.memory.agree_on_newest()  # if this device is wrong, all come back to here
        if self.movable:
            self.link.snapshots.keep_start(self.place.restarts)
        if self.place.stays:
            self.link.snapshots.agree_on_checked(group)
        left_out = group.left_out() if self.place.stays else []
        self.trial = self._to_look_into(group)
        if isinstance(self.link, Writer):
            most = self.settings.retry.without_progress
            rank_end.check_progress(self.job, self.link.snapshots.step, len(left_out), most)
        self.calls += 1
        try:
            _run_script(
                self.order,
                self.place,
                self.link,
                group,
                self.settings,
                self.device,
                told,
                left_out,
                self._failed_step(),
            )
        except ScriptFailed as failed:
            if self.calls > 1 and not self.link.advanced:
                # A script may do what a process can do once. A new process decides whether the error is its own, and
                # from here on no rank calls it twice: else each would be lost to the others in turn.
                self.job.note(_ONCE, {"error": failed.message})
                raise _StartAgain("again", text=failed.message) from None
            raise
        rank_end.finish(self.link, self.job)

    def _to_look_into(self, group: Group) -> Case | None:
        """The step whose numbers were not finite, and which is still to come."""
        from holdfast.distributed.rank_link import Writer

        if not self.place.stays or self.link is None:
            return None
        step, own = self.link.snapshots.step, rank_numbers.noted(self.job, self.place.seat)
        case = rank_numbers.to_look_into(group.of_all(own), step)
        if own and rank_numbers.to_look_into(own, step) is None:
            rank_numbers.forget(self.job, self.place.seat)  # the run is past it
        group.trial = 0 if case is None else case.step
        if case is not None and isinstance(self.link, Writer):
            self.link.tell_case(case)
        return case

    def _failed_step(self) -> dict[str, Any] | None:
        """The step that each rank computes its part of again before it takes it, for the session."""
        case = self.trial
        if case is None:
            return None
        return {"fault": case.named().to_json(), "looked": case.looked or not self.settings.blame.replay}

    def _devices_now(self) -> list[str]:
        """Of the ranks of this group, where devices were named."""
        seats = range(self.place.ranks) if self.place.roster is None else self.place.roster.seats
        return [self.policy.devices[seat] for seat in seats] if self.policy.devices else []

    def _devices(self) -> str:
        """For run.json."""
        return "+".join(self._devices_now()) or f"{self.place.ranks}x{self.device.type}"

    def _speak(self, *, first: bool) -> None:
        """What rank 0 prints is shown, whichever process that is."""
        from holdfast.worker import worker

        if self.place.run is not None and first != self._first:
            self._first = first
            sys.stdout.flush()
            name = "output.log" if first else f"output-rank{self.place.seat}.log"
            worker._redirect_output(Path(self.place.run) / name)

    def _take_role(self) -> Follower | Writer:
        """Rank 0 keeps the run folder. While the first seat is empty that is another process than before and after."""
        from holdfast.distributed.rank_link import Follower, Writer

        before, writes = self.link, self.run is not None
        if self.place.stays:
            writes = self.place.rank == 0 and self.place.run is not None
            self._speak(first=self.place.rank == 0)
        if before is not None and isinstance(before, Writer) == writes:
            before.rejoin(self.place)
            return before
        snapshots = None if before is None else before.snapshots
        if isinstance(before, Writer):
            before.teller.scalars.close()
        if not writes:
            return Follower(self.job, self.place, self.settings, self.board, snapshots)
        if self.run is None:
            self.run = RunFolder.open(Path(self.place.run or ""))
            self.run.share_lock()
        return Writer(self.job, self.place, self.settings, self.board, self.run, snapshots)


def _import_ahead() -> None:
    """What a fork of the nursery has, in a process that is none: a spare must not begin to import when it is needed."""
    if NESTED not in os.environ:
        for name in RankNursery.first:
            importlib.import_module(name)


def threads_for(order: Order, ranks: int) -> int:
    """As many as were asked for, for each rank as with torchrun, or a rank's part of those there are."""
    return order.threads if threads_asked(order) else max(1, order.threads // ranks)


def threads_asked(order: Order) -> bool:
    """In the process of `holdfast launch`; the ranks get a number from it in any case."""
    from holdfast.console.order import threads_said

    return isinstance(order.settings.run.threads, int) or threads_said(os.environ) is not None


def _run_script(
    order: Order,
    place: Place,
    link: Any,
    group: Any,
    settings: Any,
    device: Any,
    told: Told,
    left_out: Sequence[dict[str, Any]],
    trial: dict[str, Any] | None,
) -> None:
    """`trial`: a step of which each rank computes its part again before it is taken."""
    from holdfast.data import sample_marks
    from holdfast.distributed.group import PIECES
    from holdfast.distributed.joined_ranks import PeerLost
    from holdfast.distributed.script_calls import group_is_here
    from holdfast.faults.ladder import Rung
    from holdfast.worker import worker
    from holdfast.worker.session import Run, Session

    folder = link.run.path if hasattr(link, "run") else Path(place.run or os.curdir)
    if place.stays and place.run is None:  # the first machine keeps the run folder
        folder = _folder_for_runs(settings.run.folder, link.job)
    described = Run(order.facts.path.stem, folder, settings.run.seed, place.restarts, link.newest() is not None)
    session = Session(
        link, run=described, rungs=[Rung(told.device)], rung=0, settings=settings, device=device, peers=group
    )
    pieces = int(link.job.noted(PIECES).get("pieces", 1))
    if place.roster is not None and place.roster.spans:  # each machine has notes of its own
        pieces = max(int(each["pieces"]) for each in group.of_all([{"pieces": pieces}]))
    session.begin_with(pieces=pieces, cpu_batch=False, trial=trial, probation=told.probation, leave_out=left_out)
    if pieces > 1:
        session._attempts.pieces.stay()
    if told.kind == "pretend":
        from holdfast.injection import pretend

        pretend.arm(session, told.device, None)
    marks = link.job.marks(place.seat) if place.stays else folder  # each rank finds those of its predecessor alone
    sample_marks.begin(marks, policy=sample_marks.Policy.of(settings.data), beat=link.board.beat, tell=link.send)
    try:
        with group_is_here():  # some scripts do all of it while they are imported
            train = worker.load_train(order.facts.path, order.argv)
            link.send(RankStarted(place.restarts, place.rank, os.getpid()))
            train(session, **worker.bind(train, order.arguments))
        session._finish()
    except HoldfastError:
        raise
    except Exception as error:  # the script's own, or an error of the device that came out where nobody tries again
        if group.lost_a_rank():
            raise PeerLost(str(error).partition("\n")[0]) from error
        fault = classify_exception(error, device=told.device) if told.device != "cpu" else None
        if fault is not None:
            raise _StartAgain("lost", fault=fault.to_json()) from error
        print(worker._own_traceback(error), file=sys.stderr, flush=True)
        raise ScriptFailed(
            worker._summary(error), cause=_where(worker._place(error), place), hints=["fix it, then resume the run"]
        ) from error
    finally:
        sample_marks.end()
        if place.stays:
            session._abandon()


def _folder_for_runs(root: str | Path, job: Job) -> Path:
    """That of this machine, for operators that disagreed with the CPU; the job's where there can be none."""
    folder = Path(root).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return job.path
    return folder


def _where(place_in_script: str | None, place: Place) -> str:
    return f"{place_in_script} (rank {place.seat})" if place_in_script else f"in rank {place.seat}"
