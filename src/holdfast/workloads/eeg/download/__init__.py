"""Recordings from public buckets, whatever happens on the way.

    wanted = Selection(releases=("R5",), tasks=("RestingState",), mini=True)
    plan = download.plan("data", wanted)               # lists the buckets; nothing is fetched yet
    plan.bytes_to_get, len(plan.files)
    result = download.fetch(plan, parallel=8)          # run it again after anything: it goes on where it was
    result.failed                                      # {path: why}, empty if all is here and verified

sources.py     which releases there are and where
listing.py     what a bucket holds: S3's own list, anonymous, over HTTPS
web.py         a request, and what its failure means
planning.py    what was asked for, what is here already, what is to be fetched
transfer.py    one file: resume, retry, verify, quarantine
fetching.py    many files: threads, journal, space, progress
"""

from __future__ import annotations

from holdfast.workloads.eeg.download.fetching import Result, fetch
from holdfast.workloads.eeg.download.planning import Plan, Selection, Wanted, plan
from holdfast.workloads.eeg.download.sources import RELEASES, Source

__all__ = ["RELEASES", "Plan", "Result", "Selection", "Source", "Wanted", "fetch", "plan"]
