"""Prices and cards: what comes along, a user's file, SkyPilot's catalogue where it lies, and files that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.base.errors import UserError
from holdfast.planning import presets
from holdfast.planning.prices import card, cards, catalogue, prices, read


def test_every_price_that_comes_along_has_a_source_and_a_date(tmp_path: Path) -> None:
    found = prices(home=tmp_path)
    assert len(found) > 20
    assert all(each.source and each.age_days is not None and each.usd_per_hour > 0 for each in found)
    assert all(card(each.gpu) is not None for each in found)
    assert all(each.source and each.speed > 0 for each in cards())


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100 80G"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("AMD Radeon RX 7900 XTX", "RX 7900 XTX"),
        ("Tesla T4", "T4"),
        ("A10G", "A10"),
    ],
)
def test_a_card_is_known_by_what_its_driver_calls_it(name: str, gpu: str) -> None:
    found = card(name)
    assert found is not None and found.gpu == gpu


@pytest.mark.parametrize("name", ["", None, "NVIDIA A1000", "Radeon", "T400"])
def test_a_card_that_is_not_known_is_none(name: str | None) -> None:
    assert card(name) is None


def test_a_file_of_ones_own_is_used_alone(tmp_path: Path) -> None:
    own = tmp_path / "mine.csv"
    own.write_text("\ufeffgpu,cloud,usd_per_hour\nNVIDIA H200,the cellar,$0.5\n", encoding="utf-8")
    (found,) = prices(own)
    assert (found.gpu, found.cloud, found.usd_per_hour, found.source) == ("H200", "the cellar", 0.5, "mine.csv")
    assert found.stale  # nobody knows how old it is


@pytest.mark.parametrize(
    ("text", "message", "cause"),
    [
        ("card,price\nT4,1\n", "no column `gpu`, `cloud`, `usd_per_hour`", "card, price"),
        ("", "no column", "nothing"),
        ("gpu,cloud,usd_per_hour\n", "holds no price", ""),
        ("gpu,cloud,usd_per_hour\nT4,AWS,cheap\n", "usd_per_hour is 'cheap'", "line 2"),
        ("gpu,cloud,usd_per_hour\nT4,AWS,0\n", "usd_per_hour is '0'", "line 2"),
        ("gpu,cloud,usd_per_hour\nT4,AWS,nan\n", "usd_per_hour is 'nan'", "line 2"),
        ("gpu,cloud,usd_per_hour\n,AWS,1\n", "names no gpu", "line 2"),
        ("gpu,cloud,usd_per_hour\nT4,AWS,1\nT4\n", "names no cloud", "line 3"),
    ],
)
def test_what_is_wrong_with_a_price_file_is_said_with_its_line(
    tmp_path: Path, text: str, message: str, cause: str
) -> None:
    own = tmp_path / "mine.csv"
    own.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        read(own)
    assert message in raised.value.message
    assert cause in (raised.value.cause or "")


def test_a_file_that_is_not_there_or_not_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no price file"):
        read(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read"):
        read(tmp_path / "binary.csv")
    with pytest.raises(UserError, match="cannot read"):
        read(tmp_path)


SKY = """InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
g4,4,16,T4,1,,here,a,0.53,0.2
g4,4,16,T4,1,,there,a,0.51,0.3
g4x,8,32,T4,4,,there,a,0.01,0.01
p5,8,32,H200-SXM,1,,there,a,7.0,
bad,8,32,A10G,1,,there,a,0,
cpu,8,32,,,,there,a,0.01,
"""


def test_the_catalogue_of_skypilot_is_read_where_it_lies(tmp_path: Path) -> None:
    table = tmp_path / ".sky" / "catalogs" / "v8" / "aws" / "vms.csv"
    table.parent.mkdir(parents=True)
    table.write_text(SKY, encoding="utf-8")
    found = {each.gpu: each for each in catalogue(tmp_path)}
    assert set(found) == {"T4", "H200"}  # one GPU, a price above zero
    assert (found["T4"].usd_per_hour, found["T4"].spot_usd_per_hour) == (0.51, 0.2)
    assert found["T4"].age_days == 0
    newest = {(each.gpu, each.cloud): each for each in prices(home=tmp_path)}
    assert newest["T4", "AWS"].usd_per_hour == 0.51  # newer than what comes along
    assert newest["T4", "GCP"].usd_per_hour == 0.59


def test_a_damaged_catalogue_is_passed_over(tmp_path: Path) -> None:
    table = tmp_path / ".sky" / "catalogs" / "v8" / "aws" / "vms.csv"
    table.parent.mkdir(parents=True)
    table.write_bytes(b"\x00\xff,,\n" * 10)
    assert catalogue(tmp_path) == []


def test_any_script_has_the_smaller_forms_that_its_arguments_allow(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("def train(session, *, epochs=12, imgsz: int = 224, lr=0.1):\n    pass\n", encoding="utf-8")
    half, small = presets.for_script(script, {})
    assert half.for_job(("epochs",), 12) == {"epochs": "6"}
    assert half.for_job(("lr",), 12) is None and half.for_job(("epochs",), 1) is None
    assert small.for_job(("imgsz",), None) == {"imgsz": "96"}
    (_, smaller) = presets.for_script(script, {"imgsz": "640"})
    assert smaller.arguments == (("imgsz", "320"),)
    script.write_text("def train(session, lr=0.1):\n    pass\n", encoding="utf-8")
    assert presets.for_script(script, {}) == ()


def test_workloads_name_their_own() -> None:
    from holdfast.run import workload_registry

    for name in ("eeg", "eeg-challenge1", "detection", "ecosystem"):
        workload = workload_registry.find(name)
        assert workload is not None
        named = presets.from_table(list(workload.presets))
        assert named and all(each.name and (each.arguments or each.share < 1) for each in named)


def test_a_preset_is_offered_where_it_makes_the_job_smaller() -> None:
    from holdfast.run import workload_registry

    def offered(name: str, given: dict[str, str]) -> dict[str, float | None]:
        workload = workload_registry.find(name)
        assert workload is not None and workload.script is not None
        named = presets.from_table(list(workload.presets))
        return {each.name: each.score for each in presets.smaller_than(given, named, workload.script)}

    assert "the small network" in offered("ecosystem", {"preset": "full"})
    assert "the small network" not in offered("ecosystem", {}), "it is the small one by itself"
    assert "half the worlds" in offered("ecosystem", {"worlds": "8"})
    assert "half the worlds" not in offered("ecosystem", {"worlds": "2"})
    assert "the small net" not in offered("detection", {"size": "nano"})
    assert all(score is None for score in offered("detection", {"epochs": "3"}).values()), "nobody measured that"
