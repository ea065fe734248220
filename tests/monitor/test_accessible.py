"""The page and the report as axe-core judges them: contrast (AA), names, roles; light and dark, wide and narrow.

axe-core is fetched from npm once, into build/axe/ (AXE names another copy of its axe.min.js). It is not in this
repository: its licence is MPL-2.0, and it has half a megabyte.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.monitor import reader, report

from .folders import make_run
from .serving import Page
from .test_page import CHROMIUM, FLAGS

VERSION = "4.14.0"
PLACE = Path(__file__).parents[2] / "build" / "axe"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
JUDGE = """async (rules) => (await axe.run(document, { runOnly: { type: 'tag', values: rules } })).violations
    .flatMap((each) => each.nodes.map((node) => `${each.id}: ${node.target.join(' ')}: ${node.failureSummary}`))"""
DARK_AND_WIDE = [
    pytest.param(False, 1280),
    *(pytest.param(*each, marks=pytest.mark.long) for each in ((False, 390), (True, 1280), (True, 390))),
]
"""`make test-all` looks at one of them, `make test-long` at all."""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (CHROMIUM names one)")


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core."""
    if os.environ.get("AXE"):
        return Path(os.environ["AXE"]).read_text(encoding="utf-8")
    file = PLACE / f"axe-{VERSION}.min.js"
    if not file.exists():
        if shutil.which("npm") is None:
            pytest.skip("needs axe-core: there is no npm to fetch it (AXE names its axe.min.js)")
        PLACE.mkdir(parents=True, exist_ok=True)
        words = ["npm", "pack", f"axe-core@{VERSION}", "--silent", "--pack-destination", str(PLACE)]
        fetched = subprocess.run(words, cwd=PLACE, capture_output=True, text=True, timeout=120)
        if fetched.returncode:
            pytest.skip(f"needs axe-core {VERSION}, and npm cannot fetch it: {fetched.stderr.strip()[-200:]}")
        with tarfile.open(PLACE / f"axe-core-{VERSION}.tgz") as archive:
            source = archive.extractfile("package/axe.min.js")
            assert source is not None
            file.write_bytes(source.read())
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("seen") / "runs"
    counted = {"faults": {"hang": 1, "device_lost": 1}, "steps": 1943}
    make_run(root, "FINISHED", accounts=counted, settings={"run": {"seed": 7}, "sources": {"run.seed": "command line"}})
    make_run(root, "FAILED", name="brisk-wren", seed=3)
    return root


@pytest.fixture(scope="module")
def server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    server = Page(runs, cache=tmp_path_factory.mktemp("cache"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.mark.all
@pytest.mark.parametrize(("dark", "width"), DARK_AND_WIDE)
def test_axe_finds_nothing(axe: str, browser: Any, server: Page, runs: Path, dark: bool, width: int) -> None:
    scheme = "dark" if dark else "light"
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce", bypass_csp=True
    )
    tab = context.new_page()
    tab.set_default_timeout(30_000)
    tab.goto(server.address)
    heron = runs / "eeg-20261115-0912-calm-heron"
    page = heron / "report.html"
    report.write(reader.open(heron, cached=False), page)
    paths = ["/", "/r/calm-heron", "/compare?runs=calm-heron,brisk-wren"]
    wrong = []
    for address in [*(server.base + path for path in paths), page.as_uri()]:
        tab.goto(address)
        tab.wait_for_selector("body[data-ready=yes]")
        tab.evaluate(axe)
        wrong += [f"{address}: {each}" for each in tab.evaluate(JUDGE, RULES)]
        if "calm-heron" in address and "compare" not in address:
            tab.keyboard.press("f")
            tab.wait_for_selector("dialog h2")
            wrong += [f"{address}, a fault: {each}" for each in tab.evaluate(JUDGE, RULES)]
    context.close()
    assert wrong == []


@pytest.mark.all
def test_axe_would_find_something(axe: str, browser: Any) -> None:
    tab = browser.new_page()
    tab.set_content(
        "<html><body style='color:#bbb;background:#fff'>pale<img src='data:,'><button></button></body></html>"
    )
    tab.evaluate(axe)
    found = {each.partition(":")[0] for each in tab.evaluate(JUDGE, RULES)}
    tab.close()
    assert {"color-contrast", "image-alt", "button-name"} <= found


@pytest.mark.all
def test_every_part_of_the_list_is_reached_by_keys(browser: Any, server: Page) -> None:
    """Tab alone leads to the run, and Enter opens it; what has the focus is outlined."""
    tab = browser.new_page()
    tab.goto(server.address)
    tab.wait_for_selector(".runs tbody tr")
    for _ in range(30):
        tab.keyboard.press("Tab")
        if tab.evaluate("() => document.activeElement.matches('.runs a.name')"):
            break
    assert tab.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"
    name = tab.evaluate("() => document.activeElement.textContent")
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".timeline")
    assert name in tab.title()
    for _ in range(40):
        tab.keyboard.press("Tab")
        if tab.evaluate("() => document.activeElement.matches('[data-fault], tr.open')"):
            break
    tab.keyboard.press("Enter")
    tab.wait_for_selector("dialog h2")
    tab.close()
