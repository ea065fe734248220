#!/usr/bin/env python3
"""Pictures of page, report and terminal in many sizes, for somebody to look at after a change: build/looks/*.png.

    python scripts/looks.py           # about two minutes
    python scripts/looks.py page      # page and reports alone; or: terminal

The runs are made up, and written by the code that writes real ones: without a fault, with one, with fifty, one that is
under way, and five hundred in a folder. Nothing of them is shown in the documentation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from browser import Browser, monitor
from pages import ROOT

from holdfast.monitor.reader import boot_id
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder, list_runs, write_json

PLACE = ROOT / "build" / "looks"
EPOCHS, BATCHES, SECOND = 40, 100, 1.5
"""Of each long run: epochs, steps of an epoch, and seconds of a step."""
STATES = ("FINISHED", "FINISHED", "FINISHED", "STOPPED", "FAILED", "CRASHED", "GAVE_UP")
KINDS = (
    ("F005", "hang", "backward", "cuda:0 stopped answering", "replace", "new worker on cuda:0, try 1 of 3"),
    ("F007", "killed", "forward", "the worker on cuda:0 was killed from outside (SIGKILL)", "replace", "new worker"),
    ("F001", "out_of_memory", "optimizer", "memory ran out", "retry", "the same step again on cuda:0"),
    ("F004", "device_lost", "forward", "cuda:0 was lost", "replace", "new worker on cuda:0, try 2 of 3"),
)
READING = {"device": "cuda:0", "name": "AMD Radeon RX 7900 XTX", "load_pct": 97.0, "memory_used_bytes": 9.2e9,
           "memory_total_bytes": 24.0e9, "temperature_c": 71.0, "power_w": 288.0}  # fmt: skip


def made(root: Path, faults: int, *, state: str = "FINISHED", epochs: int = EPOCHS, age: timedelta) -> RunFolder:
    """A run of `epochs` with so many faults, evenly spread, as a supervisor would have written it.

    One that has not finished has done two thirds of them. One that is RUNNING stays locked.
    """
    planned, epochs = epochs, epochs if state == "FINISHED" else max(1, 2 * epochs // 3)
    began = datetime.now(timezone.utc) - age

    def stamp(seconds: float) -> str:
        return (began + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    info = {"created": stamp(0), "device": "cuda:0", "seed": faults, "threads": 8, "holdfast": "0.1.0"}
    settings = {"snapshot": {"lose": 5.0}, "run": {"seed": faults}, "sources": {"snapshot.lose": "./holdfast.toml:7"}}
    run = RunFolder.create(root, "eeg-challenge1", {**info, "python": "3.12.4", "settings": settings})
    steps = epochs * BATCHES
    run.append(Event("start", stamp(0), {"device": "cuda:0", "step": 0}))
    run.append(Event("worker", stamp(4), {"device": "cuda:0", "generation": 0, "pid": 71, "torch": "2.8.0"}))
    for number in range(faults):
        _fault(run, number, step=(number + 1) * steps // (faults + 1), stamp=stamp)
    for epoch in range(epochs):
        step = (epoch + 1) * BATCHES
        loss = 0.1 + 0.8 * math.exp(-epoch / 9) + 0.02 * math.sin(epoch * 1.7 + faults)
        record = {"train_loss": loss, "valid_loss": loss + 0.05 + 0.002 * epoch, "valid_bacc": 0.9 - 0.35 * loss}
        run.append_metrics({"time": stamp(step * SECOND), "step": step, "epoch": epoch, **record})
    end = steps * SECOND
    run.append(Event("checkpoint", stamp(end), {"step": steps, "path": str(run.path / f"checkpoints/{steps:06}")}))
    left = (planned - epochs) * BATCHES * SECOND
    run.write_beat({"time": stamp(end), "device": "cuda:0", "phase": "backward", "step": steps,
                    "steps_total": planned * BATCHES, "epoch": epochs, "epochs": planned, "rate": 1 / SECOND,
                    "time_left_s": left, "recoveries": faults,
                    "readings": {"devices": [READING], "disk_free_bytes": 412e9}})  # fmt: skip
    counts = {
        kind: sum(at % len(KINDS) == number for at in range(faults)) for number, (_, kind, *_) in enumerate(KINDS)
    }
    accounts = {"steps": steps, "faults": {kind: count for kind, count in counts.items() if count}}
    best = {"name": "valid_bacc", "value": 0.8649, "step": steps, "epoch": epochs - 1}
    run.update_info(state=state, best=best, accounts=accounts, boot_id="elsewhere")
    (run.path / "output.log").write_text("".join(f"epoch {epoch + 1} done\n" for epoch in range(epochs)))
    if state == "RUNNING":
        run.update_info(boot_id=boot_id())
        run.lock()
        run.flush()
        return run
    run.append(Event("end", stamp(end + 1), {"state": state, "exit_code": 0, "step": steps}))
    run.update_info(ended=stamp(end + 1))
    replaced = sum(KINDS[number % len(KINDS)][4] == "replace" for number in range(faults))
    sums = {"steps": steps, "survived": state == "FINISHED", "steps_lost": 0, "recoveries": replaced}
    receipt = {**sums, "faults": accounts["faults"], "seconds_lost": 7.5 * faults, "weights_sha256": "5c" * 32}
    run.put("receipt.json", {"schema": 1, **receipt})
    run.flush()
    run.close()
    return run


@contextlib.contextmanager
def alive(run: RunFolder) -> Iterator[None]:
    """A beat each half second, as long as somebody looks."""
    over, beat = threading.Event(), json.loads((run.path / "beat.json").read_text())

    def go_on() -> None:
        while not over.wait(0.5):
            run.write_beat({**beat, "time": datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")})

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        run.close()


def _fault(run: RunFolder, number: int, *, step: int, stamp: Any) -> None:
    code, kind, phase, words, action, reason = KINDS[number % len(KINDS)]
    folder, at = run.next_fault_folder(), step * SECOND
    sentence = f"{words} at step {step} in {phase}"
    write_json(folder / "fault.json", {"fault": {"code": code, "kind": kind, "sentence": sentence, "evidence": {}}})
    where = {"code": code, "device": "cuda:0", "step": step, "folder": str(folder)}
    run.append(Event("fault", stamp(at), {**where, "kind": kind, "phase": phase, "sentence": sentence,
                                          "action": action, "reason": reason}))  # fmt: skip
    if action == "replace":
        run.append(Event("worker", stamp(at + 6), {"device": "cuda:0", "generation": number + 1, "pid": 72 + number}))
    run.append(Event("verdict", stamp(at + 6), {**where, "blame": "unknown", "sentence": "the cause is not known yet"}))
    run.append(Event("recovered", stamp(at + 7), {"step": step, "seconds": 6.0, "lost_s": 7.5}))


def pictures_of_pages(few: Path, many: Path, empty: Path) -> None:
    reports = [(run, _report(run)) for run in sorted(few.iterdir())]
    for width, height in ((390, 844), (1280, 900), (2000, 1100)):
        for dark in (False, True):
            end = f"{width}-{'dark' if dark else 'light'}"
            with Browser(width=width, height=height, dark=dark) as browser:
                for root, name in ((few, "few"), (many, "many"), (empty, "none")):
                    with monitor(root) as address:
                        browser.go(address)
                        browser.keep(PLACE / f"runs-{name}-{end}.png")
                        if root is few:
                            base = address.partition("?")[0]
                            for run in sorted(few.iterdir(), key=lambda run: "01" in os.listdir(run / "faults")):
                                browser.go(f"{base}r/{run.name}")
                                browser.keep(PLACE / f"page-{_what(run)}-{end}.png", whole=True)
                            for key, name in (("f", "fault"), ("?", "keys")):  # of the last page
                                browser.tab.keyboard.press(key)
                                browser.tab.wait_for_selector("dialog h2")
                                browser.keep(PLACE / f"dialog-{name}-{end}.png")
                            names = ",".join(run.name for run in sorted(few.iterdir()))
                            browser.go(f"{base}compare?runs={names}")
                            browser.keep(PLACE / f"compare-{end}.png", whole=True)
                for run, page in reports:
                    browser.go(page.as_uri())
                    browser.keep(PLACE / f"report-{_what(run)}-{end}.png", whole=True)


def _what(run: Path) -> str:
    """How many faults it had, or that it is under way: for the name of a picture."""
    live = json.loads((run / "run.json").read_text())["state"] == "RUNNING"
    return "live" if live else str(len(list((run / "faults").iterdir())))


def _report(run: Path) -> Path:
    from holdfast.monitor import reader, report

    page = run / "report.html"
    report.write(reader.open(run, cached=False), page)
    return page


def pictures_of_terminal(few: Path, many: Path) -> None:
    for columns, rows in ((80, 24), (200, 50)):
        drawn = {f"watch-{_what(run)}": _screens([run], (columns, rows)) for run in sorted(few.iterdir())}
        most = sorted(few.iterdir(), key=lambda run: len(os.listdir(run / "faults")))
        drawn["watch-light"] = _screens(most, (columns, rows), keys=("d", "e", "g", "r"))
        runs = [run.path for run in list_runs(many)]
        drawn["watch-many"] = _screens(runs, (columns, rows), keys=("r",))
        with Browser(width=columns * 8, height=rows * 18, dark=True) as browser:
            for name, screens in drawn.items():
                for key, drawing in screens.items():
                    browser.tab.set_content(f"<body style='margin:0;background:#000'>{drawing}</body>")
                    browser.tab.add_style_tag(content="svg { width: 100vw; height: auto; }")
                    browser.keep(PLACE / f"{name}-{key}-{columns}x{rows}.png", whole=True)


def _screens(
    folders: list[Path], size: tuple[int, int], keys: Iterable[str] = ("e", "g", "question_mark")
) -> dict[str, str]:
    """The screen of `holdfast watch` at first and after each key, as SVG."""
    from holdfast.monitor.terminal.app import Watch

    found: dict[str, str] = {}

    async def look() -> None:
        app = Watch(folders, at=len(folders) - 1, explain=lambda code: [f"about {code}"])
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            found["first"] = app.export_screenshot()
            for key in keys:
                await pilot.press(key)
                await pilot.pause(0.3)
                found[key] = app.export_screenshot()

    asyncio.run(look())
    return found


def main() -> int:
    wanted = sys.argv[1:] or ["page", "terminal"]
    with tempfile.TemporaryDirectory(prefix="holdfast-looks-") as place:
        few, many, empty = (Path(place) / name for name in ("few", "many", "empty"))
        for faults in (0, 1, 50):
            made(few, faults, age=timedelta(hours=30 - faults / 10))
        under_way = made(few, 3, state="RUNNING", age=timedelta(seconds=2 * EPOCHS // 3 * BATCHES * SECOND))
        empty.mkdir()
        for number in range(500):
            made(many, number % 3, state=STATES[number % len(STATES)], epochs=3, age=timedelta(hours=number + 1))
        with alive(under_way):
            if "page" in wanted:
                pictures_of_pages(few, many, empty)
            if "terminal" in wanted:
                pictures_of_terminal(few, many)
    print(f"{len(list(PLACE.glob('*.png')))} pictures in {PLACE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
