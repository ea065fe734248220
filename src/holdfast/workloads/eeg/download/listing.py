"""What a bucket holds below a folder: S3's own list, page by page, anonymous.

for found in listing.below(source, "sub-NDARAC904DMU/"):
    found.path, found.size, found.md5          # md5 is known where the object was put in one piece
"""

from __future__ import annotations

import random
import re
import time
import xml.etree.ElementTree as tree
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlencode

from holdfast.workloads.eeg.download import web
from holdfast.workloads.eeg.download.sources import Source

_MOST = 64 << 20
"""Bytes of one page of a list; a real one has about 400 kB."""
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Found:
    """An object, by its path below the source's folder."""

    path: str
    size: int
    md5: str = ""


def below(source: Source, under: str = "", *, only_here: bool = False, pause: float = 0.5) -> Iterator[Found]:
    """Every object whose path begins with `under`; `only_here` leaves out what is in folders below that."""
    token = ""
    while True:
        query = {"list-type": "2", "prefix": f"{source.prefix}/{under}"}
        query.update({"delimiter": "/"} if only_here else {})
        query.update({"continuation-token": token} if token else {})
        page = _page(f"{source.base}/?{urlencode(query)}", pause)
        for entry in page.iter("Contents"):
            found = _found(entry, f"{source.prefix}/")
            if found is not None:
                yield found
        token = (page.findtext("NextContinuationToken") or "").strip()
        if (page.findtext("IsTruncated") or "").strip() != "true" or not token:
            return


def _page(url: str, pause: float) -> tree.Element:
    for number in range(_TRIES):
        try:
            with web.get(url) as answer:
                text = b""
                for chunk in answer.chunks():
                    text += chunk
                    if len(text) > _MOST:
                        raise web.Trouble(web.ELSEWHERE, "the list is longer than any list")
            if answer.total is not None and len(text) < answer.total:
                raise web.Trouble(web.LATER, "the list broke off")
            return _parsed(text)
        except web.Trouble as trouble:
            if trouble.kind != web.LATER or number == _TRIES - 1:
                raise
            time.sleep(trouble.wait or pause * 2**number * random.uniform(0.5, 1.0))
    raise AssertionError  # the last try raised


def _parsed(text: bytes) -> tree.Element:
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:  # entities that grow without end; S3 sends none
        raise web.Trouble(web.ELSEWHERE, "the list is not one of S3")
    try:
        page = tree.fromstring(text)
    except tree.ParseError as error:
        raise web.Trouble(web.LATER, f"the list cannot be read: {error}") from error
    for element in page.iter():
        element.tag = element.tag.rpartition("}")[2]  # without the name space
    if page.tag != "ListBucketResult":
        raise web.Trouble(web.ELSEWHERE, "the answer is not a list")
    return page


def _found(entry: tree.Element, prefix: str) -> Found | None:
    key, size = entry.findtext("Key") or "", (entry.findtext("Size") or "").strip()
    if not key.startswith(prefix) or key.endswith("/") or not size.isdigit():
        return None
    tag = (entry.findtext("ETag") or "").strip().strip('"')
    return Found(key.removeprefix(prefix), int(size), tag if re.fullmatch(r"[0-9a-f]{32}", tag) else "")
