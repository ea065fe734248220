"""Which releases there are, and the buckets that hold them.

    places("R5", source="original")            # OpenNeuro, then fcp-indi: the same files, 500 Hz
    places("R5", source="competition", mini=True)      # 100 Hz BDF, 20 subjects

Everything is anonymous and over HTTPS. `--base NAME=URL` (or the variable) puts another server in the place of a
bucket: a mirror in the house, or a test.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from holdfast.base.errors import UserError

VARIABLE = "HOLDFAST_EEG_BASES"
"""A JSON object of bucket names and addresses that are used instead of the public ones."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release of the Healthy Brain Network."""

    name: str
    openneuro: str
    subjects: int
    gigabytes: float
    """At 500 Hz."""
    gigabytes_100hz: float | None


RELEASES = {
    each.name: each
    for each in (
        Release("R1", "ds005505", 136, 110.7, 20.6),
        Release("R2", "ds005506", 150, 120.1, 22.4),
        Release("R3", "ds005507", 184, 149.6, 27.9),
        Release("R4", "ds005508", 324, 246.7, 46.0),
        Release("R5", "ds005509", 330, 240.7, 44.8),
        Release("R6", "ds005510", 135, 97.5, 18.2),
        Release("R7", "ds005511", 381, 262.9, None),
        Release("R8", "ds005512", 257, 168.8, 31.4),
        Release("R9", "ds005514", 295, 198.7, 37.0),
        Release("R10", "ds005515", 533, 172.4, 32.1),
        Release("R11", "ds005516", 430, 235.6, 43.8),
    )
}

_BUCKETS = {
    "openneuro": "https://s3.amazonaws.com/openneuro.org",
    "fcp-indi": "https://fcp-indi.s3.amazonaws.com",
    "competition": "https://nmdatasets.s3.amazonaws.com",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A folder in a bucket: its files are `base/prefix/path`."""

    name: str
    base: str
    prefix: str

    def url(self, path: str) -> str:
        from urllib.parse import quote

        return f"{self.base}/{quote(f'{self.prefix}/{path}')}"


def places(release: str, *, source: str, mini: bool = False, bases: dict[str, str] | None = None) -> list[Source]:
    """Where the files of a release are, the first choice first."""
    if release not in RELEASES:
        raise UserError(f"there is no release `{release}`", hints=[f"releases are {', '.join(RELEASES)}"])
    known = {**_BUCKETS, **_from_environment(), **(bases or {})}
    if source == "competition":
        folder = f"NeurIPS25/{release}_mini_L100_bdf" if mini else f"NeurIPS25/{release}_L100_bdf"
        return [Source("competition", known["competition"].rstrip("/"), folder)]
    if mini:
        raise UserError("the small sets exist as competition copies only", hints=["add `--source competition`"])
    openneuro = Source("openneuro", known["openneuro"].rstrip("/"), RELEASES[release].openneuro)
    indi = Source("fcp-indi", known["fcp-indi"].rstrip("/"), f"data/Projects/HBN/BIDS_EEG/cmi_bids_{release}")
    by_name = {"original": [openneuro, indi], "openneuro": [openneuro], "fcp-indi": [indi]}
    if source not in by_name:
        names = ", ".join(["competition", *by_name])
        raise UserError(f"there is no source `{source}`", hints=[f"sources are {names}"])
    return by_name[source]


def _from_environment() -> dict[str, str]:
    text = os.environ.get(VARIABLE, "")
    if not text:
        return {}
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict) or not set(data) <= set(_BUCKETS):
        names = ", ".join(_BUCKETS)
        raise UserError(f"{VARIABLE} is not understood", cause=f"a JSON object of addresses for {names} was expected")
    return {str(name): str(url) for name, url in data.items()}
