"""`holdfast report`: one file that says everything, and numbers for other programs."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.monitor import export, reader, report, sentences

from .folders import BEGAN, NOW, make_run, stamp
from .test_web import EVIL

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run(tmp_path: Path) -> reader.Run:
    return reader.open(make_run(tmp_path / "runs", "FINISHED").path)


class Elements(HTMLParser):
    """The elements of a page, and what stands in its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found[-1:] and self.found[-1][1].get("id") == "report-data":
            self.data += data


def test_it_is_one_file_that_asks_nobody(run: reader.Run) -> None:
    text = report.html(run)
    page = Elements(text)
    assert not [attributes for _, attributes in page.found if {"src", "href"} & attributes.keys()]
    policy = next(attributes["content"] for _, attributes in page.found if "http-equiv" in attributes) or ""
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    data = json.loads(page.data)
    assert data["head"]["sentence"].startswith("Finished 1 943 steps")
    assert len(data["series"]["m:train_loss"]["y"]) == 19
    assert data["log"][-1] == "epoch 2 done" and len(data["head"]["faults"]) == 2
    assert data["texts"]["faults/01/fault.json"].startswith("{")


def test_nothing_in_a_run_becomes_markup(tmp_path: Path) -> None:
    path = make_run(tmp_path, "FAILED", name=f"evil{'<b>'}", workload=EVIL).path
    with open(path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"time": stamp(1), "step": 9999, "epoch": 99, "</script><script>alert(1)": 1.0}) + "\n")
    page = Elements(report.html(reader.open(path)))
    assert [tag for tag, _ in page.found if tag in ("img", "b")] == []
    assert len([tag for tag, _ in page.found if tag == "script"]) == 2
    assert "</script><script>alert(1)" in json.loads(page.data)["head"]["metrics"]


@pytest.mark.parametrize(
    ("state", "info", "words"),
    [
        ("STOPPED", {}, "Stopped at step 1 943 of 6 000 after 1h 01m; its state is saved. Two faults, both recovered."),
        ("GAVE_UP", {}, "Gave up at step 1 943 of 6 000: nothing was left to try; its state is saved."),
        ("FAILED", {}, "Failed at step 1 943 of 6 000: the script raised an error of its own."),
        ("CRASHED", {}, "Crashed at step 1 943 of 6 000, last seen"),
    ],
)
def test_one_sentence(tmp_path: Path, state: str, info: dict[str, object], words: str) -> None:
    assert sentences.sentence(reader.open(make_run(tmp_path, state, **info).path), NOW).startswith(words)


def test_one_sentence_of_a_run_that_lives(tmp_path: Path) -> None:
    import time

    folder = make_run(tmp_path, "RUNNING", device="cuda:0")
    folder.lock()
    text = sentences.sentence(reader.open(folder.path), NOW)
    clock = time.strftime("%H:%M", time.localtime(NOW + 7680))
    assert text.startswith(f"Running on cuda:0, 32 %, done about {clock}. Two faults, both recovered.")
    folder.update_info(device="cpu")
    assert sentences.sentence(reader.open(folder.path), NOW).startswith("Running on cpu now, cuda:0 was left, 32 %")
    folder.update_info(state="RECOVERING")
    assert sentences.sentence(reader.open(folder.path), NOW).startswith("Recovering from F004 at step 1 471 on cpu.")
    folder.close()


def test_csv_has_every_record_in_order(tmp_path: Path) -> None:
    path = make_run(tmp_path, "FINISHED").path
    with open(path / "metrics.jsonl", "a") as file:
        for number in range(5000):
            file.write(json.dumps({"time": stamp(4000), "step": 2000 + number, "epoch": 30, "lr": number / 7}) + "\n")
        file.write(json.dumps({"time": stamp(4000), "step": 2500, "epoch": 30, "lr": None, "x,y": float("inf")}) + "\n")
    rows = list(csv.reader(io.StringIO("".join(export.csv_text(reader.open(path))))))
    assert rows[0] == ["time", "step", "epoch", "train_loss", "valid_bacc", "lr", "x,y"]
    assert [int(row[1]) for row in rows[1:]] == [*range(100, 2000, 100), *range(2000, 2501), 2500]
    assert rows[1][3:] == ["0.69", "0.56", "", ""] and rows[-1][3:] == ["", "", "", "inf"]


def test_a_picture(run: reader.Run, tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image", reason="needs the extra `monitor`")
    from holdfast.monitor import picture

    picture.write(run, tmp_path / "run.png")
    with image_module.open(tmp_path / "run.png") as image:
        assert image.format == "PNG" and image.width > 1000
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert {(255, 255, 255)} < colours and len(colours) > 100


def shown(capsys: Capsys, *words: str) -> tuple[int, str, str]:
    code = main(["report", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_the_command(run: reader.Run, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = shown(capsys, "calm-heron")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"✓ runs/eeg-20261115-0912-calm-heron/report.html, [\d.]+ kB\n", out)
    assert (run.path / "report.html").stat().st_mode & 0o777 == 0o600
    code, out, _ = shown(capsys, "latest", "-o", "a.csv", "-o", "b.json", "-q")
    assert (code, out) == (0, "a.csv\nb.json\n")
    assert json.loads((tmp_path / "b.json").read_text())["schema"] == 1
    code, out, _ = shown(capsys, "--json")
    assert code == 0 and json.loads(out)["state"] == "FINISHED" and json.loads(out)["schema"] == 1


def test_what_the_command_refuses(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "runs", "FINISHED")
    monkeypatch.chdir(tmp_path)
    code, _, err = shown(capsys, "calm-heron", "-o", "x.pdf")
    assert code == 2 and "the name must end in .html, .csv, .json or .png" in err
    code, _, err = shown(capsys, "calm-herring")
    assert code == 2 and "a similar run exists: `calm-heron`" in err
    code, _, err = shown(capsys, "calm-heron", "-o", "no/such/folder/x.html")
    assert code == 2 and "choose another place with `-o FILE`" in err


def test_without_pillow_it_says_what_to_install(
    run: reader.Run, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    code, _, err = shown(capsys, str(run.path), "-o", str(tmp_path / "x.png"))
    assert code == 2 and "pip install 'holdfast[monitor]'" in err


def test_it_says_what_the_plan_had_said(tmp_path: Path) -> None:
    plan = {"seconds": 3000.0, "low": 2700.0, "high": 3300.0, "option": "cuda:0 fp32"}
    run = reader.open(make_run(tmp_path / "runs", "FINISHED", plan=plan).path)
    data = json.loads(Elements(report.html(run)).data)
    assert data["head"]["plan"]["words"] == "the plan said 50m 00s ±5m for cuda:0 fp32"
    assert data["head"]["verdict"].endswith("The plan said 50m 00s ±5m for cuda:0 fp32, it took 1h 01m.")
    assert "The plan said 50m 00s" in report.html(run).partition("<noscript>")[2].partition("</noscript>")[0]
    folder = make_run(tmp_path / "other", "RUNNING", plan=plan)
    folder.lock()
    assert sentences.verdict(reader.open(folder.path)) == ""  # nobody knows yet what it will have taken
    folder.close()


def lines_of(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            yield name, value


def test_prometheus_units_are_in_the_names(tmp_path: Path) -> None:
    from holdfast.monitor import prometheus

    folder = make_run(tmp_path, "RUNNING", workload='a"b\\c\nd')
    folder.lock()
    text = prometheus.exposition([reader.open(folder.path)])
    folder.close()
    found = dict(lines_of(text))
    labels = 'run="calm-heron",workload="a\\"b\\\\c\\nd"'
    assert found[f"holdfast_rate_steps_per_second{{{labels}}}"] == "0.53"
    assert found[f"holdfast_time_left_seconds{{{labels}}}"] == "7680"
    assert found[f'holdfast_device_temperature_celsius{{{labels},device="cpu"}}'] == "78"
    assert found[f'holdfast_device_load_ratio{{{labels},device="cpu"}}'] == "0.94"
    assert f"holdfast_last_beat_seconds{{{labels}}}" in found
    kinds = re.findall(r"# TYPE (\w+) (\w+)", text)
    assert all((kind == "counter") == name.endswith("_total") for name, kind in kinds)
    assert len({name for name, _ in kinds}) == len(kinds) and BEGAN


def test_the_dashboard_names_only_what_there_is(tmp_path: Path) -> None:
    """Every metric it asks for is exposed, every metric has a panel, and every label it uses is there."""
    from holdfast.monitor import prometheus

    folder = make_run(
        tmp_path, "RUNNING", best={"name": "valid_bacc", "value": 0.86, "step": 1900}, accounts={"seconds_lost": 28.0}
    )
    beat = json.loads((folder.path / "beat.json").read_text())
    (folder.path / "beat.json").write_text(json.dumps({**beat, "loss": 0.5}))
    folder.lock()
    text = prometheus.exposition([reader.open(folder.path)])
    folder.close()
    labels: dict[str, set[str]] = {}
    for name, known in re.findall(r"^(\w+)\{(.*)\} ", text, re.M):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', known))
    assert set(labels) == set(prometheus.FAMILIES)
    board = json.loads(prometheus.DASHBOARD.read_text(encoding="utf-8"))
    charts = [panel for panel in board["panels"] if panel["type"] != "row"]
    asked = [(target["expr"], target["legendFormat"]) for panel in charts for target in panel["targets"]]
    asked += [(note["expr"], note["titleFormat"] + note["textFormat"]) for note in board["annotations"]["list"]]
    asked += [(variable["definition"], "") for variable in board["templating"]["list"] if "definition" in variable]
    named = {name for expr, _ in asked for name in re.findall(r"holdfast_\w+", expr)}
    assert named == set(prometheus.FAMILIES)
    for expr, legend in asked:
        there = set.intersection(*(labels[name] for name in re.findall(r"holdfast_\w+", expr)))
        used = set(re.findall(r"\{\{(\w+)\}\}", legend)) | set(re.findall(r"(\w+)=~", expr))
        used |= {word for group in re.findall(r"by \(([^)]*)\)", expr) for word in group.split(", ")}
        assert used <= there, (expr, legend)
        assert expr.count("(") == expr.count(")") and expr.count("{") == expr.count("}")
    places = [(panel["gridPos"]["x"] + panel["gridPos"]["w"]) for panel in board["panels"]]
    assert max(places) <= 24 and len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
