"""What is known about cards, builds and their bugs: a reviewed file of facts, each with its source and date.

    about("gfx1010").products                  # ("RX 5600", "RX 5600 XT", "RX 5700", ...)
    card_by_pci("1002", "731f").arch           # "gfx1010"
    supported("gfx1010", "6.2")                # False: not on AMD's list; None where nobody says
    supported("gfx1201", "10.0", "windows")    # None: built there, and not tested
    rocm_of("2.12.0+rocm10.0.0", hip="7.16")   # "10.0.0": the number of HIP is not that of ROCm
    in_build("gfx1010", ["gfx900", "gfx1030"]) # False: this torch has no code for it
    override("gfx1010", "gfx1030").means       # "dangerous"
    wheels_for("gfx1010", "linux")[0].install("gfx1010")     # "pip install --index-url …"
    known_bugs("gfx1201", torch="2.9.0+rocm6.4", os="linux") # [Bug("gfx1201-double-backward-nan"), ...]

It explains a measurement and never overrules one: nothing here makes a device trusted or refused. What no source says
is None. The facts are in knowledge.json, their shapes in `facts`; what to do without a usable GPU is in `advising`.
No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from holdfast.devices import facts
from holdfast.devices.facts import Bug, Card, Note, Override, Support, Wheel, plain

_TRUE = dict.fromkeys(("yes", "some", "deprecated", "untested"), True)
_TRUE |= dict.fromkeys(("no", "community"), False)
"""What a word of the table says about support; the others (preview, runtime, built) say neither."""


# Looking up --------------------------------------------------------------------------------------------------------


def about(arch: str | None) -> Card | None:
    """What is known of an architecture, as sysfs, torch or a person writes it: gfx90a:sramecc+, sm_86, 8.6, M2 Pro."""
    return facts.by_arch().get(plain(arch)) if arch else None


def card_by_pci(vendor: str, device: str) -> Card | None:
    """The card behind `1002:731f`; only AMD's ids are listed."""
    if _hex(vendor) != 0x1002:
        return None
    number = _hex(device)
    return next((card for card in facts.by_arch().values() if any(_within(number, each) for each in card.pci)), None)


def support(arch: str, version: str, os: str = "linux") -> Support | None:
    """What AMD says of an architecture in a version of ROCm on a system; None where it says nothing.

    What is not supported on Linux is not under WSL2 either; the rest of WSL2 has no list.
    """
    name, asked = plain(arch), numbers(version)[:2]
    rows = [row for row in facts.data()["support"] if name in row["archs"]]
    for row in rows:
        status = row["archs"][name]
        there = os in row["os"] or (os == "wsl2" and "linux" in row["os"] and status == "no")
        if asked and there and numbers(row["from"]) <= asked <= numbers(row["to"]):
            return _support(row, status, f"ROCm {version}")
    return None


def newest_support(arch: str, os: str = "linux") -> Support | None:
    """The same, in the newest version of ROCm that anything is said about."""
    name = plain(arch)
    rows = [row for row in facts.data()["support"] if name in row["archs"] and os in row["os"]]
    last = max(rows, key=lambda row: numbers(row["to"]), default=None)
    return _support(last, last["archs"][name], f"ROCm {last['to']}") if last else None


def _support(row: Mapping[str, Any], status: str, toolkit: str) -> Support:
    where = {"os": tuple(row["os"]), "channel": row["channel"], **facts.how(row)}
    return Support(status, toolkit, facts.source(row["source"]), **where)


def supported(arch: str, version: str, os: str = "linux") -> bool | None:
    """Is it on the list? For AMD that is the list of ROCm `version`, for NVIDIA what torch publishes for CUDA."""
    name = plain(arch)
    if not name.startswith("sm_"):
        said = support(name, version, os)
        return _TRUE.get(said.status) if said else None
    asked = numbers(version)[:2]
    rows = [row for row in facts.data()["wheels"] if row["toolkit"] == "cuda" and _between(asked, row)]
    answers = [in_build(name, row["archs"]) for row in rows]
    return any(answers) if asked and answers else None


def rocm_of(torch: str | None, rocm: str | None = None, hip: str | None = None) -> str | None:
    """The version of ROCm of a build: what its own version says, then torch.version.rocm, then HIP's where they agree.

    ROCm 10.1 has HIP 7.16, and 7.10 had HIP 7.2: from there on the number of HIP says nothing about ROCm.
    """
    named = re.search(r"\+(?:\w+\.)?rocm(\d[\d.]*\d|\d)", torch or "")
    if named or rocm:
        return named[1] if named else rocm
    limit = numbers(facts.data()["hip_is_rocm_below"]["version"])
    return hip if hip and numbers(hip)[:2] < limit else None


def in_build(arch: str, archs: Iterable[str] | None) -> bool | None:
    """Has a build that was made for `archs` code for this card?

    AMD's code runs on its own architecture alone. NVIDIA's runs on later ones of the same major number, and PTX
    (`compute_…`) on all later ones.
    """
    listed = [plain(each) for each in archs or ()]
    name = plain(arch)
    if not listed:
        return None
    if name in listed:
        return True
    if not name.startswith("sm_"):
        return None if any("generic" in each for each in listed) else False
    mine = _capability(name)
    exact = [_capability(each) for each in listed if each.startswith("sm_")]
    portable = [_capability(each) for each in listed if each.startswith("compute_")]
    return any(each[0] == mine[0] and each <= mine for each in exact) or any(each <= mine for each in portable)


def wheels_for(arch: str, os: str = "linux", machine: str = "x86_64", *, driver: str | None = None) -> list[Wheel]:
    """What is published today with code for this card, the most fitting first: those made for it by name ahead.

    A row may come first for some cards on some systems (`first_for`), where what stands before it is known to fail.
    What NVIDIA's `driver` ("nvidia 570.86.15", or the version alone) is too old for is left out.
    """
    name = plain(arch)
    rows = [row for row in facts.data()["wheels"] if not row.get("past")]
    fits = [row for row in rows if os in row["os"] and row.get("machine", machine) == machine]
    have = numbers((driver or "").rpartition(" ")[2])
    if have and have[0] >= 100:  # Windows counts 32.0.15.7652, which says nothing here
        fits = [row for row in fits if "driver" not in row or have >= numbers(row["driver"]["from"])]
    mine = [row for row in fits if in_build(name, row["archs"])]
    return [facts.wheel(row) for row in sorted(mine, key=lambda row: name not in row.get("first_for", {}).get(os, ()))]


def override(arch: str, claimed: str) -> Override | None:
    """What to expect of a card that runs as another; None if the two are the same or one is not AMD's."""
    mine, theirs = version_of(arch), version_of(claimed)
    if mine is None or theirs is None or mine == theirs:
        return None
    same = "minor" if mine[:2] == theirs[:2] else "major" if mine[0] == theirs[0] else "nothing"
    row = next(row for row in facts.data()["overrides"] if row["same"] == same)
    return Override(row["means"], row["text"], facts.cited(row))


def version_of(arch: str) -> tuple[int, int, int] | None:
    """gfx90a is (9, 0, 10), gfx1030 is (10, 3, 0): major, minor and step are one number each, the last two in hex."""
    match = re.fullmatch(r"gfx(\d{1,2})([0-9a-f])([0-9a-f])", plain(arch))
    return (int(match[1]), int(match[2], 16), int(match[3], 16)) if match else None


def platform_notes(os: str, vendor: str) -> list[Note]:
    """What is known of a maker's cards under `windows` or `wsl2`."""
    return [facts.note(row) for row in facts.data()["platforms"] if row["os"] == os and row["vendor"] == vendor]


def known_bugs(
    arch: str | None,
    torch: str | None = None,
    driver: str | None = None,
    os: str | None = None,
    *,
    name: str | None = None,
    claimed: str | None = None,
    env: Mapping[str, str] | None = None,
    rocm: str | None = None,
    kernel: str | None = None,
) -> list[Bug]:
    """Reports that name the device's architecture or product, unless something that is known speaks against them.

    `torch` is the whole version ("2.5.1+rocm6.2"), `driver` a name and a version, `os` linux, windows, wsl2 or macos. A
    report about a variable is left out where `env` is known not to have it. `rocm` is the build's, where its version
    does not say it (see `rocm_of`); `kernel` that of Linux.
    """
    case = {
        "arch": plain(arch) if arch else None,
        "claimed": plain(claimed) if claimed else None,
        "name": name,
        "os": os,
        "torch": torch,
        "driver": driver,
        "env": env,
        "rocm": rocm,
        "kernel": kernel,
    }
    return [facts.bug(row) for row in facts.data()["bugs"] if _concerns(row, case) and not _ruled_out(row, case)]


# Does a report concern this device? -------------------------------------------------------------------------------


def _concerns(row: Mapping[str, Any], case: Mapping[str, Any]) -> bool:
    """Its architecture or its name is among those of the report."""
    arch, name = case["arch"], case["name"]
    by_arch = arch is not None and any(fnmatchcase(arch, each) for each in row.get("archs", ()))
    return by_arch or (name is not None and any(re.search(each, name) for each in row.get("names", ())))


def _ruled_out(row: Mapping[str, Any], case: Mapping[str, Any]) -> bool:
    """Something that is known of the device does not fit. What is unknown rules nothing out, except a masquerade."""
    if "claimed" in row and not any(fnmatchcase(case["claimed"] or "", each) for each in row["claimed"]):
        return True
    if "os" in row and case["os"] is not None and case["os"] not in row["os"]:
        return True
    if "env" in row and case["env"] is not None:
        text = row.get("env_text", "")
        if not any(name in case["env"] and text in case["env"][name] for name in row["env"]):
            return True
    version, _, build = (case["torch"] or "").partition("+")
    cuda = re.match(r"cu(\d+)(\d)$", build)
    known = {
        "torch": version,
        "rocm": rocm_of(case["torch"], case["rocm"]) or "",
        "cuda": f"{cuda[1]}.{cuda[2]}" if cuda else "",
        "kernel": case["kernel"] or "",
    }
    if any(name in row and seen and not _between(numbers(seen), row[name]) for name, seen in known.items()):
        return True
    return "driver" in row and _other_driver(row["driver"], case["driver"])


def _other_driver(row: Mapping[str, str], driver: str | None) -> bool:
    word, _, version = (driver or "").partition(" ")
    return word == row["name"] and bool(version) and not _between(numbers(version), row)


def _between(version: tuple[int, ...], row: Mapping[str, Any]) -> bool:
    """`from` and `to` are included, `below` is not; what is missing is open."""
    first, last, below = (numbers(str(row.get(name, ""))) for name in ("from", "to", "below"))
    return (
        (not first or version >= first)
        and (not last or version[: len(last)] <= last)
        and (not below or version < below)
    )


def numbers(version: str) -> tuple[int, ...]:
    """ "6.2.41133-dd7f95766" is (6, 2, 41133); what does not begin with a number is ()."""
    match = re.match(r"\d+(?:\.\d+)*", version.strip())
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _capability(name: str) -> tuple[int, int]:
    """sm_86 is (8, 6), sm_120a is (12, 0)."""
    digits = re.sub(r"\D", "", name) or "0"
    return int(digits[:-1] or 0), int(digits[-1])


def _hex(text: str) -> int:
    try:
        return int(text.strip().lower().removeprefix("0x"), 16)
    except ValueError:
        return -1


def _within(number: int, ids: str) -> bool:
    first, _, last = ids.partition("-")
    return _hex(first) <= number <= _hex(last or first)
