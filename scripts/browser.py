"""A real Chromium for scripts that look at pages.

    with Browser(width=1280, height=900, dark=True) as browser:
        browser.go("http://127.0.0.1:7878/?token=…")
        browser.keep(Path("page.png"), whole=True)

CHROMIUM names one that is not found by its usual names. Needs playwright, as the tests of the page do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
PATIENCE = 20.0
"""Seconds for the monitor to end."""


class Browser:
    """One tab of a browser with an empty profile."""

    def __init__(self, *, width: int, height: int, dark: bool, scale: float = 1.0) -> None:
        found = os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)
        if found is None:
            sys.exit("error: no Chromium is installed (CHROMIUM names one)")
        self._path, self._dark, self._scale = found, dark, scale
        self._size = {"width": width, "height": height}
        self._open = ExitStack()

    def __enter__(self) -> Browser:
        from playwright.sync_api import sync_playwright

        playwright = self._open.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=self._path, headless=True, args=FLAGS)
        self._open.callback(browser.close)
        scheme: Any = "dark" if self._dark else "light"
        self.tab = browser.new_page(viewport=self._size, color_scheme=scheme, device_scale_factor=self._scale)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def go(self, address: str, *, ready: str = "body[data-ready=yes]") -> None:
        self.tab.goto(address)
        if ready:
            self.tab.wait_for_selector(ready)

    def keep(self, path: Path, *, whole: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.tab.screenshot(path=str(path), full_page=whole)


@contextmanager
def monitor(runs: Path) -> Iterator[str]:
    """`holdfast watch --web` of a folder of runs; its address with the token."""
    words = ["watch", "--web", "--no-browser", "--folder", str(runs), "--port", "0"]
    server = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        line = next((line for line in server.stdout if "http" in line), "")
        if not line:
            sys.exit("error: the monitor did not start")
        yield line.split()[-1]
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE)
