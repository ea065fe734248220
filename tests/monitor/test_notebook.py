"""`holdfast.watch()`: one cell of a notebook that updates itself, in a real IPython shell."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.base.errors import UserError
from tests.monitor.folders import make_run, stamp
from tests.waiting import wait_until

pytest.importorskip("IPython", reason="IPython is not installed")


class Published:
    """What a notebook would get."""

    def __init__(self) -> None:
        self.messages: list[tuple[dict[str, Any], dict[str, Any], bool]] = []

    def publish(self, data: dict[str, Any], **more: Any) -> None:
        self.messages.append((data, more.get("transient") or {}, bool(more.get("update"))))


@pytest.fixture
def shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    published = Published()
    shell.display_pub.publish = published.publish
    shell.user_ns["published"] = published
    yield shell
    InteractiveShell.clear_instance()


def test_one_cell_is_updated_until_the_run_is_over(shell: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path, name="<b>bold")
    run.lock()
    published = shell.user_ns["published"]

    def finish() -> None:
        assert wait_until(lambda: len(published.messages) > 1), "it is shown again while it goes on"
        with open(run.path / "journal.jsonl", "a", encoding="utf-8") as journal:
            journal.write(json.dumps({"time": stamp(3800), "event": "end", "state": "FINISHED", "step": 6000}) + "\n")
        run.update_info(state="FINISHED")

    thread = threading.Thread(target=finish)
    thread.start()
    shell.user_ns["folder"] = tmp_path
    done = shell.run_cell("import holdfast; holdfast.watch(folder=folder, every=0.2)")
    thread.join()
    run.close()
    assert done.error_in_exec is None
    first, *later = published.messages
    assert not first[2] and later and all(update for _, _, update in later)
    assert len({transient["display_id"] for _, transient, _ in published.messages}) == 1, "one cell"
    page = first[0]["text/html"]
    assert page.startswith("<pre") and "&lt;b&gt;bold · eeg" in page and "<b>bold" not in page
    assert "FINISHED" in published.messages[-1][0]["text/html"]


def test_in_the_background_the_next_cell_can_run(shell: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.lock()
    published = shell.user_ns["published"]
    shell.user_ns["folder"] = tmp_path
    before = time.monotonic()
    shell.run_cell("import holdfast; holdfast.watch('calm-heron', folder=folder, every=0.1, wait=False)")
    assert time.monotonic() - before < 100
    assert wait_until(lambda: len(published.messages) >= 3)
    run.update_info(state="FINISHED")
    run.close()
    assert wait_until(lambda: all(thread.name != "holdfast-watch" for thread in threading.enumerate()))


def test_without_a_notebook_it_prints_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    holdfast.watch(make_run(tmp_path, "FINISHED").path)
    assert capsys.readouterr().out.startswith("calm-heron · eeg · FINISHED")
    with pytest.raises(UserError, match="no runs in"):
        holdfast.watch(folder=tmp_path / "nowhere")
