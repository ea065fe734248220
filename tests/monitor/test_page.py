"""The page as a person sees it: in a real Chromium, with screenshots kept in build/screenshots."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.monitor import reader, report

from .folders import make_run, stamp
from .serving import Page
from .test_web import EVIL

CHROMIUM = os.environ.get("CHROMIUM") or next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ENDS = """node => {
    const words = document.createRange();
    words.selectNodeContents(node);
    return words.getBoundingClientRect().right;
}"""
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (CHROMIUM names one)"),
    pytest.mark.all,  # make test has the server and its answers: test_web.py
]


class Sight:
    """A tab, and everything that went wrong in it."""

    def __init__(self, context: Any, server: Page) -> None:
        self.tab = context.new_page()
        self.server = server
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.tab.set_default_timeout(30_000)
        self.tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.tab.on("console", lambda line: self.wrong.append(line.text) if line.type == "error" else None)
        self.tab.on("dialog", lambda dialog: (self.wrong.append("a dialog"), dialog.dismiss()))
        self.tab.on("request", lambda request: self.asked.append(request.url))

    def go(self, path: str) -> None:
        self.tab.goto(self.server.base + path)
        self.tab.wait_for_selector("body[data-ready=yes]")

    def keep(self, name: str, *, full: bool = False) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.tab.screenshot(path=str(SCREENSHOTS / f"{name}.png"), full_page=full)

    def inked(self, chart: str) -> int:
        """Pixels of a chart that are not its ground."""
        count = """node => {
            const {data} = node.getContext('2d').getImageData(0, 0, node.width, node.height);
            let n = 0;
            for (let i = 3; i < data.length; i += 4) n += data[i] > 0;
            return n;
        }"""
        return int(self.tab.eval_on_selector(f'[data-chart="{chart}"] canvas', count))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("seen") / "runs"
    best = {"name": "valid_bacc", "value": 0.86, "step": 1900, "epoch": 18}
    kept = {"watchdog": {"floor": 90.0}, "run": {"seed": 7}, "sources": {"watchdog.floor": "./holdfast.toml:7"}}
    plan = {"seconds": 3000.0, "low": 2700.0, "high": 3300.0, "option": "cuda:0 fp32"}
    heron = make_run(root, "FINISHED", best=best, settings=kept, plan=plan).path
    (heron / "faults" / "01" / "README.txt").write_text("cuda:0 stopped answering.\n\nkernel  said nothing\n")
    make_run(root, "STOPPED", name="brisk-wren", seed=3)
    evil = make_run(root, "FAILED", name="evil", workload=EVIL, device=EVIL, settings={"a": {EVIL: EVIL}}).path
    (evil / f"{'x' * 10}<img src=x onerror=alert(1)>.txt").write_text(EVIL)
    (evil / "output.log").write_text(EVIL + "\n\x1b[2J\x1b]0;owned\x07\n")
    with open(evil / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"time": stamp(3900), "step": 9999, "epoch": 99, EVIL: 1.0, "</script>": 2.0}) + "\n")
    with open(evil / "journal.jsonl", "a") as file:
        words = dict.fromkeys(("code", "kind", "device", "sentence", "action", "reason", "phase"), EVIL)
        file.write(
            json.dumps({"time": stamp(3000), "event": "fault", "step": 1, "folder": "faults/01", **words}) + "\n"
        )
        file.write(
            json.dumps({"time": stamp(3001), "event": "verdict", "folder": "faults/01", "sentence": EVIL}) + "\n"
        )
    return root


@pytest.fixture(scope="module")
def server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    server = Page(runs, cache=tmp_path_factory.mktemp("cache"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser(server: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser with an empty profile, let in by the address that was printed."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")),
            executable_path=CHROMIUM,
            headless=True,
            args=FLAGS,
            viewport={"width": 1280, "height": 900},
            color_scheme="light",
        )
        context.pages[0].goto(server.address)
        yield context
        context.close()


@pytest.fixture
def sight(browser: Any, server: Page) -> Iterator[Sight]:
    sight = Sight(browser, server)
    yield sight
    sight.tab.close()
    assert sight.wrong == []
    assert [url for url in sight.asked if not url.startswith((server.base, "file:", "blob:", "data:"))] == []


def test_the_page_of_a_run_has_its_seven_parts(sight: Sight) -> None:
    sight.go("/r/calm-heron")
    assert "token" not in sight.tab.url
    assert sight.tab.inner_text("h1").startswith("Finished 1 943 steps in 1h 01m on cpu; best valid_bacc 0.8600")
    assert sight.tab.get_attribute("[role=progressbar]", "aria-valuenow") == "100"
    assert "50m 00s ±5m\nplanned time for cuda:0 fp32" in sight.tab.inner_text(".facts")
    assert "The plan said 50m 00s ±5m for cuda:0 fp32, it took 1h 01m." in sight.tab.inner_text(".verdict")
    assert sight.tab.locator(".timeline .worker").count() == 3
    assert sight.tab.locator(".timeline .device").all_text_contents() == ["cuda:0", "cpu"]
    assert sight.tab.locator(".chart .name").all_inner_texts() == ["train_loss", "valid_bacc", "rate steps/s"]
    assert sight.inked("train_loss") > 1000
    assert "warning: channel Cz is flat" in sight.tab.inner_text("#log")
    assert "watchdog.floor\t90 s\t./holdfast.toml:7" in sight.tab.inner_text("#settings")
    assert "run.seed" not in sight.tab.inner_text("#settings")  # the default, until all are asked for
    sight.tab.check("#settings input")
    assert "run.seed\t7\tdefault" in sight.tab.inner_text("#settings")
    assert "journal.jsonl" in sight.tab.inner_text("#files")
    sight.keep("run-light", full=True)


@pytest.mark.parametrize("path", ["/r/calm-heron", "/r/evil", "/", "/compare?runs=calm-heron,evil"])
def test_what_is_painted_before_the_scripts_come(sight: Sight, path: str) -> None:
    sight.tab.route("**/all.js*", lambda route: route.fulfill(body="", content_type="text/javascript"))
    sight.tab.goto(sight.server.base + path)
    assert "calm-heron" in sight.tab.inner_text("main") or EVIL in sight.tab.inner_text("main")
    assert sight.tab.evaluate("() => window.pwned") is None and sight.tab.locator("main img").count() == 0
    assert sight.tab.evaluate("() => getComputedStyle(document.body).margin") == "0px"  # the style is in it
    sight.keep(f"first{path.partition('?')[0].replace('/', '-')}")


def test_a_click_on_a_fault_opens_its_folder(sight: Sight) -> None:
    sight.go("/r/calm-heron")
    sight.tab.click('[data-fault="0"]')
    sight.tab.wait_for_selector("dialog pre:has-text('kernel  said nothing')")
    shown = sight.tab.inner_text("dialog")
    assert "cuda:0 stopped answering at step 400 in backward" in shown and "after 17 s" in shown
    assert "the device is to blame" in shown and "holdfast explain F005" in shown
    sight.keep("fault")
    sight.tab.click("text=later →")
    sight.tab.wait_for_selector("dialog h2:has-text('was lost at step 1 471')")
    sight.tab.keyboard.press("Escape")
    sight.tab.wait_for_selector("dialog", state="detached")


def test_what_is_logged_is_seen(sight: Sight, runs: Path) -> None:
    sight.go("/r/brisk-wren")
    value = sight.tab.locator('[data-chart="train_loss"] .value')
    before = value.inner_text()
    folder = runs / "eeg-20261115-0912-brisk-wren"
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"time": stamp(3800), "step": 2000, "epoch": 19, "train_loss": 0.125}) + "\n")
    with open(folder / "output.log", "a") as file:
        file.write("a new line of the script\n")
    sight.tab.wait_for_function(
        "text => document.querySelector('[data-chart=train_loss] .value').textContent === text", arg="0.125"
    )
    assert before != "0.125"
    sight.tab.wait_for_selector("#log pre:has-text('a new line of the script')")


def test_one_cursor_for_all_charts_and_a_closer_look(sight: Sight) -> None:
    sight.go("/r/calm-heron")
    canvas = sight.tab.locator('[data-chart="train_loss"] canvas')
    box = canvas.bounding_box()
    sight.tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    middle = sight.tab.locator('[data-chart="valid_bacc"] .value').inner_text()
    assert 0.56 < float(middle) < 0.84
    assert "none" not in (sight.tab.get_attribute(".timeline .cursor", "style") or "")
    sight.tab.mouse.move(box["x"] + 100, box["y"] + 60)
    sight.tab.mouse.down()
    sight.tab.mouse.move(box["x"] + 200, box["y"] + 60)
    sight.tab.mouse.up()
    assert sight.tab.locator("text=zoom out").is_visible()
    sight.keep("zoom")
    sight.tab.keyboard.press("0")
    sight.tab.locator("button:text-is('whole')").wait_for(state="hidden")


def test_keys(sight: Sight) -> None:
    sight.go("/r/calm-heron")
    sight.tab.keyboard.press("?")
    assert "switch between light and dark" in sight.tab.inner_text("dialog table")
    sight.keep("keys")
    sight.tab.keyboard.press("Escape")
    sight.tab.keyboard.press("x")
    assert sight.tab.get_attribute("button:text-is('time')", "aria-pressed") == "true"
    sight.tab.keyboard.press("f")
    assert "was lost" in sight.tab.inner_text("dialog")
    sight.tab.keyboard.press("Escape")
    sight.tab.keyboard.press("/")
    sight.tab.keyboard.type("flat")
    assert sight.tab.inner_text("#log pre") == "warning: channel Cz is flat"


def test_dark_follows_the_system_and_the_key(sight: Sight) -> None:
    ground = "() => getComputedStyle(document.body).backgroundColor"
    sight.tab.emulate_media(color_scheme="dark")
    sight.go("/r/calm-heron")
    assert sight.tab.evaluate(ground) == "rgb(13, 17, 23)"
    sight.keep("run-dark", full=True)
    sight.tab.keyboard.press("d")
    assert sight.tab.evaluate(ground) == "rgb(245, 246, 248)"
    sight.tab.reload()
    sight.tab.wait_for_selector("body[data-ready=yes]")
    assert sight.tab.evaluate(ground) == "rgb(245, 246, 248)"
    sight.tab.evaluate("() => localStorage.clear()")


@pytest.mark.all
def test_choose_and_compare(sight: Sight) -> None:
    sight.go("/")
    assert sight.tab.locator(".runs tbody tr").count() == 3
    sight.keep("runs")
    sight.tab.check("[aria-label='choose calm-heron']")
    sight.tab.check("[aria-label='choose brisk-wren']")
    sight.tab.click("text=compare 2")
    sight.tab.wait_for_selector("body[data-ready=yes]")
    assert "2 runs" in sight.tab.inner_text("h1")
    assert sight.tab.locator(".legend.big .label").count() == 2
    assert "seed" in sight.tab.inner_text("#differs") and "F005 hang" in sight.tab.inner_text("#faults")
    assert sight.inked("train_loss") > 1000
    sight.keep("compare", full=True)


def test_a_hostile_run_is_only_text(sight: Sight) -> None:
    sight.go("/")
    sight.go("/r/evil")
    assert sight.tab.locator("main img, main script, main b:has-text('pwned') img").count() == 0
    assert EVIL in sight.tab.inner_text(".lead")
    assert EVIL in sight.tab.inner_text("#log")
    sight.tab.locator("[data-fault]").last.click(force=True)
    sight.tab.wait_for_selector("dialog h2")
    assert EVIL in sight.tab.inner_text("dialog")
    assert sight.tab.evaluate("() => window.pwned") is None
    assert sight.tab.title() == "evil · holdfast"
    sight.keep("hostile")
    sight.go("/compare?runs=evil,calm-heron")
    assert sight.tab.evaluate("() => window.pwned") is None


@pytest.mark.parametrize("name", ["calm-heron", "evil"])
def test_a_report_opens_from_a_file(sight: Sight, runs: Path, tmp_path: Path, name: str) -> None:
    page = tmp_path / "report.html"
    report.write(reader.open(runs / f"eeg-20261115-0912-{name}", cached=False), page)
    sight.tab.context.set_offline(True)
    try:
        sight.tab.goto(page.as_uri())
        sight.tab.wait_for_selector("body[data-ready=yes]")
        assert sight.inked("valid_bacc") > 1000
        sight.tab.locator("[data-fault]").first.click(force=True)
        sight.tab.wait_for_selector("dialog h2")
        assert sight.tab.evaluate("() => window.pwned") is None
        if name == "calm-heron":
            sight.tab.wait_for_selector("dialog pre:has-text('kernel  said nothing')")
            sight.keep("report")
        assert sight.asked == [page.as_uri()]
    finally:
        sight.tab.context.set_offline(False)


@pytest.mark.all
def test_a_world_is_drawn_and_moves(sight: Sight, runs: Path, tmp_path: Path) -> None:
    folder = make_run(runs, "STOPPED", name="green-newt").path
    animals = [{"time": at, "prey": [[at, 2, 1, 1, 0]], "predators": [[9 - at, 8, 1, 0, 1]]} for at in range(9)]
    world = {"turn": 4, "size": 10, **animals[-1], "grass": [[0.5] * 10] * 10, "facts": ["train_loss"]}
    world["note"] = f"Predators have stopped trying. {EVIL}"
    (folder / "world.json").write_text(json.dumps({**world, "frames": animals[:-1]}))
    sight.go("/r/green-newt")
    sight.tab.wait_for_selector("#world canvas")
    assert "update 4 · 1 prey · 1 predator" in sight.tab.inner_text("#world")
    assert f"! Predators have stopped trying. {EVIL}" in sight.tab.inner_text("#world .problem")
    prey = "() => [...document.querySelector('#world canvas').getContext('2d').getImageData(%d, 144, 1, 1).data]"
    sight.tab.keyboard.press("p")  # pause: the last picture, whose prey is at 8 of 10
    assert sight.tab.evaluate(prey % 576)[:3] == [250, 240, 205]
    (folder / "world.json").write_text(json.dumps({**world, "turn": 5, "prey": [[2, 2, 1, 1, 0]]}))
    sight.tab.wait_for_selector("#world:has-text('update 5')")
    assert sight.tab.evaluate(prey % 144)[:3] == [250, 240, 205] != sight.tab.evaluate(prey % 576)[:3]
    sight.keep("world")
    page = tmp_path / "report.html"
    report.write(reader.open(folder, cached=False), page)
    sight.tab.goto(page.as_uri())
    sight.tab.wait_for_selector("body[data-ready=yes]")
    assert "update 5" in sight.tab.inner_text("#world")
    assert sight.tab.evaluate(prey % 144)[:3] == [250, 240, 205]


def test_charts_can_be_kept(sight: Sight) -> None:
    sight.go("/r/calm-heron")
    for kind, begins in (("CSV", b"time,step,epoch,train_loss"), ("PNG", b"\x89PNG")):
        with sight.tab.expect_download() as waiting:
            sight.tab.click(f"[aria-label='train_loss as {kind}']")
        assert Path(waiting.value.path()).read_bytes().startswith(begins)


def test_a_narrow_screen(sight: Sight) -> None:
    sight.tab.set_viewport_size({"width": 390, "height": 800})
    sight.go("/r/calm-heron")
    assert sight.tab.evaluate("() => document.documentElement.scrollWidth") <= 390
    sight.keep("narrow", full=True)


AS_WIDE = """part => {
    const card = document.querySelector(part), table = card && card.querySelector("table");
    return table && table.getBoundingClientRect().width > 0.85 * card.getBoundingClientRect().width;
}"""
WORDS_HAVE_ROOM = "() => (document.querySelectorAll('#findings td')[2] || {}).clientWidth > 250"


def test_a_phone_cuts_nothing_off(sight: Sight) -> None:
    """Names stay on their line, the run's name in the bar is whole, and tables are as wide as their card."""
    sight.tab.set_viewport_size({"width": 390, "height": 800})
    sight.go("/")
    row = sight.tab.locator(".runs tbody tr", has_text="calm-heron")
    name, box = row.locator("td").nth(1).bounding_box(), row.locator("input").bounding_box()
    assert name["height"] < 30 and box["x"] + box["width"] <= 390
    assert row.locator("td").nth(8).bounding_box()["height"] < 30, "when it was made is on one line"
    assert sight.tab.evaluate("() => document.documentElement.scrollWidth") <= 390
    sight.go("/r/calm-heron")
    whole = (
        "selector => { const node = document.querySelector(selector); return node.scrollWidth <= node.clientWidth; }"
    )
    assert sight.tab.evaluate(whole, "#top .here")
    for part in ("#findings", "#files"):  # in one look: the page may draw a table anew between two
        sight.tab.wait_for_function(AS_WIDE, arg=part)
    sight.tab.wait_for_function(WORDS_HAVE_ROOM)
    sight.tab.keyboard.press("f")
    sight.tab.wait_for_selector("dialog h2")
    end = sight.tab.eval_on_selector("dialog .eyebrow", ENDS)
    assert end <= sight.tab.locator("dialog .close").bounding_box()["x"], "no word is behind the button"


def test_what_did_not_happen_in_a_run_that_is_over_is_not_said_to_come(sight: Sight) -> None:
    sight.go("/r/brisk-wren")
    assert "not yet" not in sight.tab.inner_text("main") and "so far" not in sight.tab.inner_text("main")


@pytest.mark.all
def test_a_folder_without_runs(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    server = Page(tmp_path / "runs", cache=tmp_path / "cache")
    tab = browser.new_page()
    try:
        tab.goto(server.address)
        tab.wait_for_selector("body[data-ready=yes]")
        assert f"There are no runs in {tmp_path / 'runs'} yet. To start one: holdfast train my_script.py" in (
            tab.inner_text("main")
        )
        assert not tab.locator("table").is_visible() and not tab.locator("button.main").is_visible()
    finally:
        tab.close()
        server.close()


def test_a_list_says_how_many_runs_it_leaves_out(sight: Sight) -> None:
    def older(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace('"left_out":0', '"left_out":7'))

    sight.tab.route(sight.server.base + "/", older)
    sight.go("/")
    shown = sight.tab.locator(".runs tbody tr").count()
    assert f"The list shows the newest {shown} of {shown + 7} runs." in sight.tab.inner_text("#runs")


def test_old_data_says_so_in_words(sight: Sight, runs: Path) -> None:
    folder = make_run(runs, "RUNNING", name="old-one", boot_id=reader.boot_id())
    beat = json.loads((folder.path / "beat.json").read_text())
    (folder.path / "beat.json").write_text(json.dumps({**beat, "time": stamp(-100_000)}))
    folder.lock()
    try:
        sight.go("/r/old-one")
        assert "last beat" in sight.tab.inner_text(".status") and "ago" in sight.tab.inner_text(".status")
        assert "what you see is how it was then" in sight.tab.inner_text("h1")
    finally:
        folder.close()


@pytest.mark.all
def test_fifty_faults_do_not_cover_each_other(sight: Sight, runs: Path) -> None:
    """Marks that would touch become one, which opens the last of them; lines leave the curve to be seen."""
    folder = make_run(runs, "FINISHED", name="unlucky", seed=5).path
    with open(folder / "journal.jsonl", "a") as file:
        for number in range(50):
            fault = {"event": "fault", "code": "F007", "kind": "killed", "device": "cpu", "step": 1500 + 8 * number}
            words = {"sentence": f"fault {number} of many", "action": "replace", "reason": "a new worker"}
            file.write(json.dumps({"time": stamp(2400 + 24 * number), **fault, **words}) + "\n")
    sight.tab.set_viewport_size({"width": 390, "height": 800})
    sight.go("/r/unlucky")
    marks = sight.tab.locator(".timeline .fault path")
    boxes = sorted((box["y"], box["x"]) for box in (mark.bounding_box() for mark in marks.all()))
    gaps = [after[1] - before[1] for before, after in itertools.pairwise(boxes) if before[0] == after[0]]
    assert 3 < len(boxes) < 30 and min(gaps) > 6, "neighbours do not hide each other"
    sight.tab.locator(".timeline .fault").last.click()
    assert "fault 49 of many" in sight.tab.inner_text("dialog h2")
    assert "faults, the last: F007 fault 49 of many" in (
        sight.tab.locator(".timeline .fault").last.get_attribute("aria-label") or ""
    )
    drawn = sight.tab.evaluate("() => hf.page.charts.values().next().value.marked")
    sight.tab.keyboard.press("Escape")
    end = sight.tab.locator("#files a", has_text="download").first.bounding_box()
    assert end["x"] + end["width"] < 380 and sight.tab.locator("#top .status").bounding_box()["height"] < 30
    assert 3 < len(drawn) < 30 and all(after - before > 6 for before, after in itertools.pairwise(drawn))


def test_lines_are_told_apart_without_colours(sight: Sight) -> None:
    sight.go("/compare?runs=calm-heron,brisk-wren")
    looks = sight.tab.evaluate("() => Array.from({length: 32}, (_, i) => JSON.stringify(hf.look(i)))")
    assert len(set(looks)) == 32
    dashes = [json.loads(look)["dash"] for look in looks]
    assert all(before != after for before, after in itertools.pairwise(dashes))
    shown = sight.tab.locator(".legend.big .swatch line").evaluate_all(
        "all => all.map(x => x.getAttribute('stroke-dasharray'))"
    )
    assert len(shown) == 2 and shown[0] != shown[1]


@pytest.mark.all
def test_a_dialog_shows_what_can_be_done(sight: Sight) -> None:
    """No key of a world where there is none, five keys as a range, no way to a fault before the only one."""
    sight.go("/r/calm-heron")
    sight.tab.keyboard.press("?")
    keys = sight.tab.inner_text("dialog table")
    assert "simulated world" not in keys and "1 … 5" in keys and "open the last fault" in keys
    sight.tab.keyboard.press("Escape")
    sight.tab.evaluate(
        "() => void hf.faultDialog(hf.page.source, hf.page.head.faults.slice(0, 1), 0, hf.page.body.files)"
    )
    assert "of 1" not in sight.tab.inner_text("dialog") and "earlier" not in sight.tab.inner_text("dialog")
    assert sight.tab.inner_text("#settings").count("T09:12") == 0, "a time is written as everywhere else"
