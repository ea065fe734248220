"""The battery: probes one after the other on one device, each in a process of its own. No torch here.

    with Host() as host:                                            # torch is imported while we look around
        for result in run("cuda:0", select("cuda:0"), host, ledger=Ledger()):
            result.probe, result.status, result.error, result.bound # "conv2d fp16 backward", "failed", 0.31, 0.011

    run_one("cuda:0", "conv2d fp16", env={"MIOPEN_FIND_MODE": "2"}) # the same, for a remedy that is being tried

Whatever a probe does is a result: it passes, fails, crashes, hangs, or does not apply. Before each check of an
accelerator the ledger says which; a check that took the machine down is not done again unless told to.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from holdfast.devices.ledger import Ledger
from holdfast.devices.ledger_summary import freezes_that_count
from holdfast.devices.probe_catalog import Probe, find, kind_of, select
from holdfast.devices.probe_host import Host
from holdfast.devices.probe_turn import RUNG, Turn
from holdfast.devices.results import STATUSES, ProbeResult, skipped

PATIENCE = {"hung": 2, "crashed": 4}
"""After so many of these the rest is skipped: each may take a driver, or the desktop, with it."""

Results = Iterator[ProbeResult]

__all__ = ["STATUSES", "Host", "Probe", "ProbeResult", "run", "run_one", "select", "took_machine_down"]


def run(
    device: str,
    probes: Iterable[Probe],
    host: Host,
    *,
    ledger: Ledger | None = None,
    full: bool = False,
    again: bool = False,
    deadline_s: float | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    announce: Callable[[str], None] | None = None,
    share: bool = False,
    alone: Callable[[Probe], AbstractContextManager[object]] = lambda probe: nullcontext(),
) -> Iterator[ProbeResult]:
    """The results, check by check, as they come.

    `again` repeats checks that took the machine down. `announce` is told the name of each check before it begins.
    `deadline_s` replaces the deadline of each probe, `options` change those of some by name. With `share`, probes that
    can are done in one process, which saves the time to open the device; one that fails there is done again alone, and
    that is what counts. Each probe runs inside of what `alone` gives for it.
    """
    risky = kind_of(device) != "cpu"
    before = {} if again or ledger is None or not risky else took_machine_down(ledger, device)
    counts = dict.fromkeys(STATUSES, 0)
    over, slack = "", 0.0
    for probe in probes:
        if over:
            yield from skipped(probe, device, probe.checks, over)
            continue
        abandoned: list[str] = []

        def take(shared: bool, probe: Probe = probe, slack: float = slack, left: list[str] = abandoned) -> Results:
            place = Path(tempfile.mkdtemp(prefix="holdfast-probe-"))
            turn = Turn(
                probe,
                device,
                host,
                place,
                ledger=ledger if risky else None,
                full=full,
                deadline_s=deadline_s or probe.deadline_s + slack,
                options=dict((options or {}).get(probe.name, {})),
                announce=announce or (lambda name: None),
                before=before,
                shared=shared,
            )
            try:
                yield from turn.results()
            finally:
                turn.close()
                shutil.rmtree(place, ignore_errors=True)
                left += [turn.abandoned] if turn.abandoned else []

        with alone(probe):
            found: Iterable[ProbeResult] = take(False) if not (share and probe.shares) else list(take(True))
            if isinstance(found, list) and any(result.status == "failed" for result in found):
                host.part(device)
                found = take(False)
            for result in found:
                counts[result.status] += 1
                if result.evidence.get("family") == "launch":  # a device that starts slowly is not hung
                    slack = 2 * (result.error or 0.0)
                yield result
        over = next(iter(abandoned), "") or next(
            (
                f"not tried: this device {'hung' if word == 'hung' else 'crashed'} {most} times before"
                for word, most in PATIENCE.items()
                if counts[word] >= most
            ),
            "",
        )


def run_one(
    device: str,
    name: str,
    *,
    env: Mapping[str, str] | None = None,
    host: Host | None = None,
    ledger: Ledger | None = None,
    deadline_s: float | None = None,
    full: bool = False,
    options: Mapping[str, Any] | None = None,
) -> list[ProbeResult]:
    """All checks of one probe; `env` is what a remedy sets. A host of that environment saves the import of torch."""
    probe = find(name)
    own = Host(env) if host is None else host
    chosen = {probe.name: options} if options else None
    try:
        return list(run(device, [probe], own, ledger=ledger, deadline_s=deadline_s, full=full, options=chosen))
    finally:
        if host is None:
            own.close()


def took_machine_down(ledger: Ledger, device: str) -> dict[str, str]:
    """The checks of this device that a boot ended with, and when; `Ledger.settle` must have been called.

    What was so under another driver, torch or kernel, or was forgotten on request, counts no longer.
    """
    where = ledger.identify(device)
    standing = ledger.standings().get((where.key, RUNG))
    if standing is None:
        return {}
    found = {}
    for freeze in freezes_that_count(standing, ledger._software(where)):
        act = freeze.get("act")
        if isinstance(act, str) and act.startswith(f"{RUNG} "):
            found[act.removeprefix(f"{RUNG} ")] = str(freeze.get("time", ""))
    return found
