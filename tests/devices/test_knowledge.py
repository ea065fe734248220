"""The knowledge file: every fact has a source and a date, and what is looked up is what the sources say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.devices import facts, knowledge, knowledge_file
from holdfast.devices.facts import plain
from holdfast.devices.remedies import catalogue

ROOT = Path(__file__).resolve().parents[2]
DATA: dict[str, Any] = json.loads((ROOT / "src/holdfast/devices/knowledge.json").read_text(encoding="utf-8"))


def sourced(value: object, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Every row of the file that states something, with the sources it names."""
    if isinstance(value, dict):
        if {"source", "sources"} & set(value):
            yield path, value.get("sources") or [value["source"]]
        for name, each in value.items():
            if name not in ("source", "sources"):
                yield from sourced(each, f"{path}/{name}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from sourced(each, f"{path}/{number}")


ROWS = dict(sourced({name: each for name, each in DATA.items() if name != "sources"}))
TABLES = ("cards", "support", "wheels", "overrides", "platforms", "bugs", "ways_out")


# --- the file ---------------------------------------------------------------------------------------------------


def test_every_row_of_every_table_has_its_source() -> None:
    for name in TABLES:
        assert [row for number, row in enumerate(DATA[name]) if f"/{name}/{number}" not in ROWS] == []
    assert {name for name, value in DATA.items() if isinstance(value, list)} == set(TABLES)
    assert {each for named in ROWS.values() for each in named} == set(DATA["sources"])


@pytest.mark.parametrize("source", facts.sources(), ids=lambda source: source.id)
def test_every_source_has_a_date_and_a_place(source: facts.Source) -> None:
    assert (source.published is None) != (source.read is None)
    assert re.fullmatch(r"20\d\d(-\d\d(-\d\d)?)?", source.date)
    assert source.date <= DATA["collected"]
    assert source.kind in ("code", "document", "report", "computed", "measured")
    assert len(source.title) > 5
    assert source.date in source.cite()


def test_as_many_cards_as_were_asked_for() -> None:
    by_vendor = {card.vendor: 0 for card in facts.cards()}
    for card in facts.cards():
        by_vendor[card.vendor] += 1
    assert by_vendor["amd"] >= 30
    assert set(by_vendor) == {"amd", "nvidia", "apple", "intel"}
    assert len(facts.by_arch()) == len(facts.cards()) == len(DATA["cards"])


def test_names_in_the_tables_are_those_of_cards() -> None:
    known = set(facts.by_arch())
    for row in (*DATA["support"], *DATA["wheels"]):
        assert set(row["archs"]) <= known, row["archs"]
    for card in facts.cards():
        assert plain(card.arch) == card.arch
        assert card.vendor != "amd" or knowledge.version_of(card.arch) is not None


def test_no_product_is_two_cards() -> None:
    named = [product for card in facts.cards() for product in card.products]
    assert len(named) == len(set(named))


def test_sentences_are_sentences() -> None:
    for bug in facts.bugs():
        assert bug.text.endswith("."), bug.id
        assert not bug.title.endswith("."), bug.id
        assert bug.cure is None or not bug.cure.text.endswith("."), bug.id
    for row in (*DATA["platforms"], *DATA["ways_out"], *DATA["overrides"]):
        assert row["text"].endswith("."), row


def test_bugs_name_remedies_that_exist() -> None:
    known = {remedy.name for remedy in catalogue()}
    assert {name for bug in facts.bugs() for name in bug.remedies} <= known
    assert {bug.guard for bug in facts.bugs() if bug.guard} == {"hipblaslt-off"}
    assert [bug.id for bug in facts.bugs() if bug.lost_when_ended] == ["r9700-lost-when-ended"]


def test_every_row_says_how_it_is_known_and_since_when() -> None:
    kinds = {"document": "document", "source": "code", "measured": "measured", "computed": "computed"}
    for name in TABLES:
        for row in DATA[name]:
            of_sources = {DATA["sources"][each]["kind"] for each in row.get("sources") or [row["source"]]}
            assert row["known"] in knowledge_file.KNOWN
            assert kinds.get(row["known"], "report") in of_sources, row


def test_every_row_has_the_day_on_which_it_was_held_against_its_source_or_says_that_it_could_not_be() -> None:
    """No row is left with a month alone: where nobody found the source again, the row says when it was sought."""
    rows = [row for name in TABLES for row in DATA[name]] + [DATA["hip_is_rocm_below"]]
    assert len(rows) >= 149
    for row in rows:
        assert row.get("sources") or row["source"], row
        assert row["known"] in knowledge_file.KNOWN, row
        day = row.get("unreached", row["checked"])
        assert "2026-11-01" <= day <= DATA["collected"] and re.fullmatch(r"20\d\d-\d\d-\d\d", day), row
        assert ("unreached" in row) == bool(re.fullmatch(r"20\d\d-\d\d", row["checked"])), row
    assert sum("unreached" in row for row in rows) <= 6
    said = knowledge.support("gfx1100", "7.0")
    assert said is not None and said.checked == "2026-11, its source not found on 2026-11-17"


@pytest.mark.parametrize(
    ("arch", "version", "os", "status"),
    [
        ("gfx1201", "10.0", "linux", "yes"),
        ("gfx1201", "10.0", "windows", "built"),
        ("gfx1200", "7.14", "windows", "built"),
        ("gfx1201", "7.2", "windows", "yes"),
        ("gfx1030", "7.2", "windows", "no"),
        ("gfx1030", "10.0", "windows", "yes"),
        ("gfx1010", "7.14", "windows", "untested"),
        ("gfx1150", "10.0", "windows", "untested"),
        ("gfx1010", "6.2", "wsl2", "no"),
        ("gfx1100", "6.2", "wsl2", None),
        ("gfx942", "10.0", "windows", None),
    ],
)
def test_support_is_by_system(arch: str, version: str, os: str, status: str | None) -> None:
    said = knowledge.support(arch, version, os)
    assert (said.status if said else None) == status
    newest = knowledge.newest_support("gfx1201", "windows")
    assert newest is not None and (newest.status, newest.channel) == ("built", "stable")


@pytest.mark.parametrize(
    ("torch", "rocm", "hip", "expected"),
    [
        ("2.12.0+rocm10.1.0a20260812", None, "7.16.26301", "10.1.0"),
        ("2.12.0", "10.1.0", "7.16.26301", "10.1.0"),
        ("2.12.0", None, "7.16.26301", None),
        ("2.5.1+rocm6.2", None, "6.2.41133-dd7f95766", "6.2"),
        ("2.9.0", None, "6.4.43484", "6.4.43484"),
        ("2.10.0+cpu", None, None, None),
        (None, None, None, None),
    ],
)
def test_the_number_of_hip_is_not_that_of_rocm(
    torch: str | None, rocm: str | None, hip: str | None, expected: str | None
) -> None:
    assert knowledge.rocm_of(torch, rocm, hip) == expected


def test_a_bug_of_a_kernel_and_of_a_rocm_that_only_torch_names() -> None:
    assert "linux-7-lockup-timeout" in ids("gfx1100", os="linux", kernel="7.0.0-29-generic")
    assert "linux-7-lockup-timeout" not in ids("gfx1100", os="linux", kernel="6.17.0-14-generic")
    assert "gfx12-hipblaslt-page-fault" in ids("gfx1201", "2.12.0", rocm="10.0")
    assert "gfx12-hipblaslt-page-fault" not in ids("gfx1201", "2.12.0", rocm="7.1")
    assert "gfx12-hipblaslt-page-fault" not in ids("gfx1100", "2.12.0+rocm10.0")
    assert "gfx1201-windows-after-attention" not in ids("gfx1201", "2.12.0+rocm7.14.0", os="windows")
    assert "gfx1201-windows-zeros" in ids("gfx1201", "2.12.0+rocm7.14.0", os="windows")
    assert "gfx1201-windows-after-attention" in ids("gfx1201", "2.13.0+rocm10.0.0", os="windows")


# --- cards ------------------------------------------------------------------------------------------------------


def test_the_card_that_was_taken_for_another() -> None:
    card = knowledge.about("gfx1010")
    assert card is not None
    assert "RX 5600 XT" in card.products
    other = knowledge.about("gfx1030")
    assert other is not None
    assert "RX 5600 XT" not in other.products


@pytest.mark.parametrize(
    ("written", "arch"),
    [
        ("gfx90a:sramecc+:xnack-", "gfx90a"),
        (" GFX1100 ", "gfx1100"),
        ("7.0", "sm_70"),
        ("sm_86", "sm_86"),
        ("12.0", "sm_120"),
        ("Apple M2 Pro", "m2"),
        ("m4", "m4"),
    ],
)
def test_an_architecture_as_others_write_it(written: str, arch: str) -> None:
    card = knowledge.about(written)
    assert card is not None
    assert card.arch == arch


@pytest.mark.parametrize("arch", [None, "", "gfx9999", "sm_13", "x"])
def test_what_nobody_knows_is_none(arch: str | None) -> None:
    assert knowledge.about(arch) is None


@pytest.mark.parametrize(
    ("vendor", "device", "arch"),
    [
        ("1002", "731f", "gfx1010"),
        ("0x1002", "0x731F", "gfx1010"),
        ("1002", "7340", "gfx1012"),
        ("1002", "73a0", "gfx1030"),
        ("1002", "73bf", "gfx1030"),
        ("1002", "73c0", "gfx1031"),
        ("1002", "13fb", "gfx1013"),
        ("1002", "7551", "gfx1201"),
        ("1002", "ffff", None),
        ("10de", "731f", None),
        ("1002", "?", None),
        ("", "", None),
    ],
)
def test_a_card_by_its_number(vendor: str, device: str, arch: str | None) -> None:
    card = knowledge.card_by_pci(vendor, device)
    assert (card.arch if card else None) == arch


# --- support and builds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "version", "expected"),
    [
        ("gfx1010", "6.2", False),
        ("gfx1010", "6.2.41133-dd7f95766", False),
        ("gfx1010", "7.14", True),
        ("gfx1030", "4.5.2", False),
        ("gfx1030", "6.2", True),
        ("gfx906", "6.0", True),
        ("gfx906", "7.0", False),
        ("gfx1102", "6.3", False),
        ("gfx1102", "7.2", None),
        ("gfx1151", "7.1", None),
        ("gfx950", "6.4", None),
        ("gfx90a", "7.14", None),
        ("gfx950", "7.0", True),
        ("gfx1034", "6.2", None),
        ("gfx1010", "10.1", True),
        ("gfx1201", "10.0", True),
        ("gfx1103", "7.14", True),
        ("gfx1030", "10.0", True),
        ("gfx1034", "10.0", True),
        ("gfx90c", "7.13", None),
        ("gfx1010", "10.3", None),
        ("gfx1010", "", None),
        ("sm_61", "12.6", True),
        ("sm_61", "13.0", False),
        ("sm_70", "13.2", False),
        ("8.9", "13.2", True),
        ("sm_120", "12.6", False),
        ("sm_120", "13.4", True),
        ("sm_90", "11.8", None),
    ],
)
def test_support(arch: str, version: str, expected: bool | None) -> None:
    assert knowledge.supported(arch, version) is expected


@pytest.mark.parametrize(
    ("arch", "archs", "expected"),
    [
        ("gfx1010", ["gfx900", "gfx1030"], False),
        ("gfx1031", ["gfx1030"], False),
        ("gfx90a", ["gfx90a:xnack-"], True),
        ("gfx1010", ["gfx10-1-generic"], None),
        ("gfx1010", None, None),
        ("gfx1010", [], None),
        ("sm_86", ["sm_80"], True),
        ("sm_86", ["sm_89"], False),
        ("sm_61", ["sm_75", "sm_80"], False),
        ("sm_120", ["sm_90"], False),
        ("sm_120", ["sm_90", "compute_90"], True),
        ("sm_90", ["sm_90a"], True),
    ],
)
def test_code_in_a_build(arch: str, archs: list[str] | None, expected: bool | None) -> None:
    assert knowledge.in_build(arch, archs) is expected


def test_the_build_to_install() -> None:
    first, nightly, former = knowledge.wheels_for("gfx1010")
    command = 'pip install --index-url https://stable.repo.amd.com/rocm/whl-next/ "torch[device-gfx1010]"'
    assert first.install("gfx1010") == command
    assert knowledge.wheels_for("gfx1010", "windows")[0].install("gfx1010") == command
    assert (first.channel, nightly.channel, former.channel) == ("stable", "nightly", "stable")
    assert former.install("gfx1010") == command.replace(
        "stable.repo.amd.com/rocm/whl-next", "repo.amd.com/rocm/whl-multi-arch"
    )
    # ROCm 10.0 is known to fail there, so the nightly builds come first.
    assert knowledge.wheels_for("gfx1201", "windows")[0].channel == "nightly"
    assert knowledge.wheels_for("gfx1201", "linux")[0].channel == "stable"
    (old,) = knowledge.wheels_for("sm_61")
    assert old.install("sm_61") == "pip install torch --index-url https://download.pytorch.org/whl/cu126"
    assert knowledge.wheels_for("sm_120")[0].install("sm_120") == "pip install torch"
    assert knowledge.wheels_for("gfx803") == []
    assert knowledge.wheels_for("sm_61", machine="aarch64") == []
    assert [each.since for each in knowledge.wheels_for("sm_86")] == ["13.0", "12.6"]
    assert [each.since for each in knowledge.wheels_for("sm_86", driver="570.86.15")] == ["12.6"]
    assert [each.since for each in knowledge.wheels_for("sm_86", driver="nvidia 570.86.15")] == ["12.6"]
    for new_enough in ("580.65", "nvidia 580.1", "32.0.15.7652", "nvidia", None):
        assert [each.since for each in knowledge.wheels_for("sm_86", driver=new_enough)] == ["13.0", "12.6"]
    assert knowledge.wheels_for("sm_120", driver="570.86.15") == []


def test_every_amd_card_that_is_sold_has_a_build() -> None:
    without = [card.arch for card in facts.cards() if card.vendor == "amd" and not knowledge.wheels_for(card.arch)]
    assert without == ["gfx803", "gfx90c", "gfx1013"]


# --- masquerades ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "claimed", "means"),
    [
        ("gfx1010", "gfx1030", "dangerous"),
        ("gfx1031", "gfx1030", "tolerated"),
        ("gfx1103", "gfx1100", "tolerated"),
        ("gfx1150", "gfx1100", "dangerous"),
        ("gfx90c", "gfx900", "tolerated"),
        ("gfx1010", "gfx1100", "refused"),
        ("gfx90a", "gfx942", "dangerous"),
        ("gfx1030", "gfx1030", None),
        ("sm_86", "gfx1030", None),
    ],
)
def test_a_masquerade(arch: str, claimed: str, means: str | None) -> None:
    said = knowledge.override(arch, claimed)
    assert (said.means if said else None) == means


@pytest.mark.parametrize("card", [card for card in facts.cards() if card.vendor == "amd"], ids=lambda card: card.arch)
def test_a_version_and_its_name_are_one(card: facts.Card) -> None:
    version = knowledge.version_of(card.arch)
    assert version is not None
    assert "gfx{}{:x}{:x}".format(*version) == card.arch


# --- bugs -------------------------------------------------------------------------------------------------------


def ids(*args: Any, **more: Any) -> set[str]:
    return {bug.id for bug in knowledge.known_bugs(*args, **more)}


def test_a_bug_needs_its_architecture_or_its_name() -> None:
    assert "gfx1201-double-backward-nan" in ids("gfx1201")
    assert "gfx1201-double-backward-nan" not in ids("gfx1200")
    assert "gtx16-amp-nan" in ids("sm_75", name="NVIDIA GeForce GTX 1660 Ti")
    assert "gtx16-amp-nan" in ids(None, name="Quadro T1000")
    assert "gtx16-amp-nan" not in ids("sm_75", name="Tesla T4")
    assert "gtx16-amp-nan" not in ids("sm_75", name="NVIDIA GeForce RTX 2060")
    assert knowledge.known_bugs(None) == []


def test_what_is_known_to_differ_rules_a_bug_out_and_what_is_unknown_does_not() -> None:
    assert "gfx1201-windows-backward-hang" in ids("gfx1201", None, None, "windows")
    assert "gfx1201-windows-backward-hang" in ids("gfx1201")
    assert "gfx1201-windows-backward-hang" not in ids("gfx1201", None, None, "linux")
    assert "gfx1100-torch-2.7-slow" in ids("gfx1100", "2.7.1+rocm6.3")
    assert "gfx1100-torch-2.7-slow" not in ids("gfx1100", "2.6.0+rocm6.2")
    assert "gfx1100-torch-2.7-slow" not in ids("gfx1100", "2.8.0")
    assert "gfx101x-rocm-5.3-to-6.0" in ids("gfx1010", "2.1.0+rocm5.6")
    assert "gfx101x-rocm-5.3-to-6.0" not in ids("gfx1010", "2.5.1+rocm6.2")
    assert "cuda-13-drops-old-cards" in ids("sm_61", "2.12.1+cu130")
    assert "cuda-13-drops-old-cards" not in ids("sm_61", "2.12.1+cu126")
    assert "cuda-13-drops-old-cards" not in ids("sm_75", "2.12.1+cu130")


def test_a_masquerade_has_to_be_seen() -> None:
    assert "gfx101x-as-gfx103x" in ids("gfx1010", claimed="gfx1030")
    assert "gfx101x-as-gfx103x" not in ids("gfx1010")
    assert "gfx101x-as-gfx103x" not in ids("gfx1031", claimed="gfx1030")


def test_a_variable_and_a_driver_are_looked_at() -> None:
    bug = "rocm-expandable-segments-hang"
    on = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert bug in ids("gfx1100", env=on, os="linux")
    assert bug not in ids("gfx1100", env={}, os="linux")
    assert bug not in ids("gfx1100", env={"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"})
    assert bug in ids("gfx1100", driver="amdgpu-drm 3.61", env=on)
    assert bug not in ids("gfx1100", driver="amdgpu-drm 3.64", env=on)
    assert bug in ids("gfx1100", driver="amdgpu 6.10.5", env=on)  # another number: it says nothing


@pytest.mark.parametrize("bug", facts.bugs(), ids=lambda bug: bug.id)
def test_every_bug_can_be_found(bug: facts.Bug) -> None:
    """None is written in a way that no device could ever match."""
    when = bug.when
    pattern = when["archs"][0] if "archs" in when else ""
    arch = pattern.replace("?", "0").replace("*", "1030" if "gfx" in pattern else "1") or None
    first = {name: when[name][0].replace("?", "0") for name in ("claimed", "os") if name in when}
    r9700 = dict.fromkeys(("rdna4-busy-queues", "r9700-lost-when-ended"), "AMD Radeon AI PRO R9700")
    arc = dict.fromkeys(("battlemage-hang-stays", "arc-b-old-torch"), "Intel(R) Arc(TM) B570 Graphics")
    name = {"gtx16-amp-nan": "GTX 1650", **arc, **r9700}.get(bug.id)
    env = {when["env"][0]: when.get("env_text", "10.3.0")} if "env" in when else {}
    found = knowledge.known_bugs(arch, None, None, first.get("os"), name=name, claimed=first.get("claimed"), env=env)
    assert bug.id in {each.id for each in found}


def test_notes_on_windows_and_wsl() -> None:
    assert any("RCCL" in note.text for note in knowledge.platform_notes("windows", "amd"))
    assert any("/dev/dxg" in note.text for note in knowledge.platform_notes("wsl2", "amd"))
    assert knowledge.platform_notes("linux", "amd") == []


def test_the_page_in_the_docs_is_up_to_date() -> None:
    script = ROOT / "scripts" / "make_hardware_docs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, "run scripts/make_hardware_docs.py"
