"""Probes of a device again, with remedies.

with RemedyTrials(device, results, host=Host, ledger=ledger, full=False) as trials:
    trials.run("network fp16", {"MIOPEN_DEBUG_CONV_WINOGRAD": "0"}).ok
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.devices import battery, probe_catalog
from holdfast.devices.battery import Host, ProbeResult
from holdfast.devices.ledger import Ledger
from holdfast.devices.traits import HUNG

AGAIN_AFTER_HANG = 20.0
"""Seconds of silence that a probe which hung gets when it is tried with a remedy: healthy, it takes less than two."""


class RemedyTrials:
    """Probes with remedies: one host for each environment, one process for all checks of a probe."""

    def __init__(
        self,
        device: str,
        results: Sequence[ProbeResult],
        *,
        host: Callable[[Mapping[str, str]], Host],
        ledger: Ledger,
        full: bool,
    ) -> None:
        self.device = device
        self.ledger = ledger
        self.full = full
        self._make_host = host
        self.hung = {probe_catalog.find(each.probe).name for each in results if each.status == HUNG}
        self._env: dict[str, str] | None = None
        self._host: Host | None = None
        self._seen: dict[tuple[str, tuple[tuple[str, str], ...]], list[ProbeResult]] = {}

    def __enter__(self) -> RemedyTrials:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None

    def run(self, check: str, env: Mapping[str, str]) -> ProbeResult:
        """One check with a remedy; the others of its probe are remembered."""
        probe = probe_catalog.find(check)
        key = (probe.name, tuple(sorted(env.items())))
        if key not in self._seen:
            if self._env != dict(env):
                self._close()
                self._env, self._host = dict(env), self._make_host(env)
            patience = AGAIN_AFTER_HANG if probe.name in self.hung else None
            self._seen[key] = battery.run_one(
                self.device,
                probe.name,
                env=env,
                host=self._host,
                ledger=self.ledger,
                deadline_s=patience,
                full=self.full,
            )
        named = [each for each in self._seen[key] if each.probe == check]
        return named[0] if named else ProbeResult(check, self.device, "skipped")
