"""What an hour of a rented GPU costs, and how fast cards are: tables with source and date. No network, no torch.

    prices(Path("mine.csv"))        # yours instead; UserError with the line for what is wrong in it
    prices()                        # SkyPilot's catalogue where it lies on this machine, and the table that comes along
    card("NVIDIA H200")             # Card(gpu="H200", speed=5.6, …); None for one that is not known

The columns of a price file: gpu, cloud, usd_per_hour; and, if you like, spot_usd_per_hour, source, date.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.base.errors import UserError
from holdfast.base.files import open_regular, read_bounded

HERE = Path(__file__).parent
NEEDED = ("gpu", "cloud", "usd_per_hour")
_MOST = 64 << 20
_STALE_DAYS = 90


@dataclass(frozen=True, slots=True)
class Price:
    """One GPU for an hour."""

    gpu: str
    cloud: str
    usd_per_hour: float
    spot_usd_per_hour: float | None = None
    source: str = ""
    date: str = ""

    @property
    def age_days(self) -> int | None:
        """None where the date is not known."""
        try:
            then = time.mktime(time.strptime(self.date, "%Y-%m-%d"))
        except ValueError:
            return None
        return max(0, int((time.time() - then) // 86400))

    @property
    def stale(self) -> bool:
        return self.age_days is None or self.age_days > _STALE_DAYS


@dataclass(frozen=True, slots=True)
class Card:
    """How fast a card trains, compared with others. A prior: sources disagree by a factor of two."""

    gpu: str
    speed: float
    """In fp32 or TF32; an RTX 3090 is 1."""
    memory_gb: float | None = None
    rated_w: float | None = None
    source: str = ""
    matches: tuple[str, ...] = ()


def prices(own: Path | None = None, *, home: Path | None = None) -> list[Price]:
    """The table to use: a user's file alone, else the newer of what is known for each card and cloud."""
    if own is not None:
        return read(own)
    found = {(each.gpu, each.cloud): each for each in read(HERE / "prices.csv")}
    for each in catalogue(home):
        known = found.get((each.gpu, each.cloud))
        if known is None or each.date >= known.date:
            found[each.gpu, each.cloud] = each
    return list(found.values())


def read(path: Path) -> list[Price]:
    """A price file; UserError for what cannot be one."""
    try:
        text = read_bounded(path, _MOST).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"no price file `{path}`", cause="the file does not exist", hints=[_form()]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the price file {path}", cause=str(error), hints=[_form()]) from None
    rows = csv.DictReader(io.StringIO(text))
    columns = [str(name or "").strip() for name in rows.fieldnames or ()]
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise UserError(
            f"the price file {path} has no column {', '.join(f'`{name}`' for name in missing)}",
            cause=f"its first line has: {', '.join(columns) or 'nothing'}",
            hints=[_form()],
        )
    rows.fieldnames = columns
    found = []
    try:
        for row in rows:
            found.append(_price(row, path, rows.line_num))
    except csv.Error as error:
        raise UserError(f"the price file {path} cannot be read", cause=f"line {rows.line_num}: {error}") from None
    if not found:
        raise UserError(f"the price file {path} holds no price", hints=[_form()])
    return found


def _form() -> str:
    return "its first line is gpu,cloud,usd_per_hour,spot_usd_per_hour,source,date; the last three may be left out"


def _price(row: dict[str, str | None], path: Path, line: int) -> Price:
    def number(name: str, *, needed: bool) -> float | None:
        text = (row.get(name) or "").strip()
        if not text and not needed:
            return None
        try:
            value = float(text.lstrip("$"))
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise UserError(
                f"{name} is {text!r} in the price file {path}",
                cause=f"line {line}: a price is a number above zero",
                hints=[_form()],
            )
        return value

    gpu, cloud = (row.get("gpu") or "").strip(), (row.get("cloud") or "").strip()
    if not gpu or not cloud:
        raise UserError(f"the price file {path} names no {'gpu' if not gpu else 'cloud'}", cause=f"line {line}")
    known = card(gpu)
    return Price(
        gpu=known.gpu if known else gpu,
        cloud=cloud,
        usd_per_hour=number("usd_per_hour", needed=True) or 0.0,
        spot_usd_per_hour=number("spot_usd_per_hour", needed=False),
        source=(row.get("source") or "").strip() or path.name,
        date=(row.get("date") or "").strip(),
    )


# SkyPilot's catalogue -------------------------------------------------------------------------------------------

_NAMES = {"A100": "A100 40G", "A100-80GB": "A100 80G", "A10G": "A10", "RTXA6000": "RTX A6000", "RTX3090": "RTX 3090"}
_NAMES |= {"RTX4090": "RTX 4090", "H100-SXM": "H100", "H200-SXM": "H200", "RTX6000-Ada": "RTX 6000 Ada"}
_CLOUDS = {"aws": "AWS", "gcp": "GCP", "azure": "Azure", "lambda": "Lambda", "runpod": "RunPod", "vast": "Vast"}


def catalogue(home: Path | None = None) -> list[Price]:
    """The cheapest single GPU of each kind and cloud that SkyPilot has downloaded here; its files are only read."""
    root = (Path.home() if home is None else home) / ".sky" / "catalogs"
    found: dict[tuple[str, str], Price] = {}
    try:
        tables = sorted(root.glob("v*/*/vms.csv"))
    except OSError:
        return []
    for table in tables:
        cloud = _CLOUDS.get(table.parent.name)
        if cloud is None:
            continue
        try:
            _cheapest(table, cloud, found)
        except (OSError, ValueError, csv.Error):
            continue  # half a download, or another format: what comes along is used
    return list(found.values())


def _cheapest(table: Path, cloud: str, found: dict[tuple[str, str], Price]) -> None:
    with open_regular(table) as raw:
        when = time.strftime("%Y-%m-%d", time.localtime(os.fstat(raw.fileno()).st_mtime))
        for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", errors="replace")):
            name, count = row.get("AcceleratorName") or "", row.get("AcceleratorCount") or ""
            price, spot = _amount(row.get("Price")), _amount(row.get("SpotPrice"))
            if not name or _amount(count) != 1.0 or price is None:
                continue
            gpu = _NAMES.get(name, name)
            known = found.get((gpu, cloud))
            if known is None or price < known.usd_per_hour:
                best = spot if known is None or known.spot_usd_per_hour is None else known.spot_usd_per_hour
                found[gpu, cloud] = Price(gpu, cloud, price, best, "SkyPilot catalogue here", when)
            elif spot is not None and (known.spot_usd_per_hour is None or spot < known.spot_usd_per_hour):
                found[gpu, cloud] = replace(known, spot_usd_per_hour=spot)


def _amount(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


# Cards ----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def cards() -> tuple[Card, ...]:
    """Every card with a known speed."""
    with open(HERE / "cards.csv", encoding="utf-8", newline="") as file:
        return tuple(
            Card(
                row["gpu"], float(row["speed"]), _amount(row["memory_gb"]), _amount(row["rated_w"]), row["source"],
                tuple(row["matches"].split("|")),
            )
            for row in csv.DictReader(file)
        )  # fmt: skip


def card(name: str | None) -> Card | None:
    """The card that a driver, a price list or a person calls so."""
    if not name:
        return None
    plain = _bare(name)
    exact = next((each for each in cards() if _bare(each.gpu) == plain), None)
    if exact is not None:
        return exact
    hits = [(len(text), each) for each in cards() for text in each.matches if _within(_bare(text), plain)]
    return max(hits, key=lambda hit: hit[0])[1] if hits else None


def _bare(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def _within(part: str, whole: str) -> bool:
    return f" {part} " in f" {whole} "
