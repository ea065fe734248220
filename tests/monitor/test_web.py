"""The page's server: who may see what, and that a run folder from anybody stays data."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.waiting import wait_until

from .folders import make_run, stamp
from .serving import Page

EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good runs, one hostile, a link to a run elsewhere, and a secret next door."""
    place = tmp_path_factory.mktemp("place")
    root = place / "runs"
    make_run(root, "FINISHED", best={"name": "valid_bacc", "value": 0.86, "step": 1900, "epoch": 18})
    make_run(root, "STOPPED", name="brisk-wren", seed=3)
    (place / "secret.txt").write_text("the secret")
    hostile = make_run(root, "FAILED", name="evil", workload=EVIL, device=EVIL).path
    (hostile / "faults" / "01" / "stderr.txt").unlink()
    (hostile / "faults" / "01" / "stderr.txt").symlink_to(place / "secret.txt")
    (hostile / "out").symlink_to(place)
    (hostile / "page.html").write_text(EVIL)
    (hostile / f"{'x' * 20}&<b>.txt").write_text(EVIL)
    with open(hostile / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"time": stamp(9999), "step": 9999, "epoch": 99, EVIL: 1.0, "=cmd|x": 2.0}) + "\n")
    with open(hostile / "journal.jsonl", "a") as file:
        fault = {"code": EVIL, "kind": EVIL, "device": EVIL, "step": 1, "sentence": EVIL, "folder": "/x/faults/01"}
        file.write(json.dumps({"time": stamp(3000), "event": "fault", "action": EVIL, "reason": EVIL, **fault}) + "\n")
    outside = make_run(place / "elsewhere", "FINISHED", name="outside").path
    (root / "linked-run").symlink_to(outside)
    return root


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(runs, cache=tmp_path_factory.mktemp("cache"))
    yield page
    page.close()


HERON, HOSTILE = "eeg-20261115-0912-calm-heron", "eeg-20261115-0912-evil"


def test_only_with_the_token(page: Page) -> None:
    assert len(page.token) >= 32
    for path in ("/", "/r/calm-heron", "/api/runs", "/metrics", f"/api/run/{HERON}/file?path=run.json"):
        for authorization in ("", "Bearer wrong", f"Basic {page.token}", "Bearer "):
            status, headers, data = page.ask(path, Authorization=authorization)
            assert (status, b"needs its token" in data) == (401, True), path
            assert "set-cookie" not in headers
    assert page.ask(f"/?token={page.token[:-1]}x", Authorization="")[0] == 401


def test_the_token_goes_from_the_address_into_a_cookie(page: Page) -> None:
    status, headers, _ = page.ask(f"/compare?runs=a,b&token={page.token}", Authorization="")
    assert (status, headers["location"]) == (303, "/compare?runs=a%2Cb")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and f"holdfast_{page.port}=" in cookie
    assert page.ask("/api/runs", Authorization="", Cookie=cookie.partition(";")[0])[0] == 200
    elsewhere = page.ask(f"//evil.example/x?token={page.token}", Authorization="")[1]["location"]
    assert elsewhere.startswith("/") and not elsewhere.startswith("//")


def test_only_by_a_name_of_this_machine(page: Page) -> None:
    assert page.ask("/api/runs", Host=f"evil.example:{page.port}")[0] == 421
    assert page.ask("/api/runs", Host=f"localhost:{page.port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_can_be_changed(page: Page, method: str) -> None:
    assert page.ask("/api/runs", method=method)[0] == 405


def test_a_browser_may_run_our_own_files_alone(page: Page) -> None:
    for path in ("/", "/api/runs", "/static/base.js", "/nowhere"):
        headers = page.ask(path)[1]
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
    policy, shell = (found := page.ask("/"))[1]["content-security-policy"], found[2].decode()
    inline = re.findall(r"<style>(.*?)</style>", shell, re.S)
    assert [f"'sha256-{b64encode(sha256(each.encode()).digest()).decode()}'" for each in inline] == re.findall(
        r"'sha256-[^']+'", policy
    )
    assert "http://" not in shell and "https://" not in shell and "<script>" not in shell and 'style="' not in shell
    for name in ("all.js", "base.js", "chart.js", "run.js", "main.js", "style.css"):
        text = page.ask(f"/static/{name}")[2].decode()
        assert "https://" not in text and "innerHTML" not in text and "eval(" not in text


def test_the_first_bytes_carry_the_numbers(page: Page) -> None:
    """What is painted needs no second answer: no script, no style, no data."""
    text = page.ask("/r/calm-heron")[2].decode()
    before = text[: text.index('id="first-data"')]
    assert "Finished 1 943 steps in 1h 01m on cpu; best valid_bacc 0.8600" in before
    for value, name in (("100 %", "done"), ("1 943", "step"), ("0.3634", "train_loss"), ("0.8355", "valid_bacc")):
        assert f"<b>{value}</b><span>{name}</span>" in before
    assert text.count("<script") == 2 and '<script defer src="/static/all.js?v=' in text
    rows = page.ask("/")[2].decode()
    assert re.findall(r'class="name" href="/r/([^"]+)"', rows)[:1] and "FINISHED" in rows and "STOPPED" in rows
    some = page.ask("/compare?runs=calm-heron,brisk-wren")[2].decode()
    assert some.count('class="name"') == 2 and HOSTILE not in some


def test_the_first_bytes_take_no_markup_from_a_run(page: Page) -> None:
    for path in (f"/r/{HOSTILE}", "/", f"/compare?runs={HOSTILE}", "/r/" + quote("<img src=x onerror=alert(1)>")):
        status, headers, data = page.ask(path)
        assert status == 200 and headers["cache-control"] == "no-store"
        assert b"<img" not in data and b"onerror" in data and b"<script>" not in data, path
    given = json.loads(re.findall(r'id="first-data">(.*?)</script>', page.ask(f"/r/{HOSTILE}")[2].decode())[0])
    assert given["head"]["workload"] == EVIL  # the scripts get it whole, as data


def test_scripts_are_one_file_that_a_browser_may_keep(page: Page) -> None:
    address = re.findall(r'src="(/static/all[^"]+)"', page.ask("/")[2].decode())[0]
    status, headers, data = page.ask(address, Authorization="")
    assert (status, headers["cache-control"]) == (200, "max-age=31536000, immutable")
    assert headers["content-type"].startswith("text/javascript") and b"hf.RunPage" in data
    assert page.ask("/static/all.js?v=old")[1]["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    [
        "../brisk-wren/run.json",
        "../../secret.txt",
        "/etc/passwd",
        "faults/../../../secret.txt",
        "./run.json",
        "faults//01/README.txt",
        "out/secret.txt",
        "faults/01/stderr.txt",
        "",
        "faults",
        "run.json\0.txt",
        "..\\..\\secret.txt",
        "lock/../run.json",
    ],
)
def test_no_path_leads_out(page: Page, path: str) -> None:
    for address in ("file", "text"):
        for written in (quote(path, safe=""), quote(path, safe="/."), quote(quote(path, safe=""))):
            status, _, data = page.ask(f"/api/run/{HOSTILE}/{address}?path={written}")
            assert status == 404 and b"secret" not in data and b"root:" not in data


@pytest.mark.parametrize(
    "ident",
    ["..", "%2e%2e", "..%2felsewhere", "%2e%2e%2felsewhere%2feeg-20261115-0912-outside", "linked-run", "%00", "a/b"],
)
def test_no_name_leads_out(page: Page, ident: str) -> None:
    assert page.ask(f"/api/run/{ident}")[0] == 404
    assert page.ask(f"/api/run/{ident}/file?path=run.json")[0] == 404


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/%2e%2e%2f%2e%2e%2freader.py"]
)
def test_no_script_address_leads_out(page: Page, path: str) -> None:
    status, _, data = page.ask(path)
    assert status == 404 and b"Starlette" not in data


def test_links_are_no_runs_and_no_files(page: Page) -> None:
    assert sorted(row["run"] for row in page.json("/api/runs")["runs"]) == ["brisk-wren", "calm-heron", "evil"]
    files = [file["path"] for file in page.json(f"/api/run/{HOSTILE}")["body"]["files"]]
    assert "page.html" in files and not [path for path in files if "secret" in path or "stderr" in path]


def test_files_are_downloads_never_pages(page: Page) -> None:
    status, headers, data = page.ask(f"/api/run/{HOSTILE}/file?path=page.html")
    assert (status, data.decode()) == (200, EVIL)
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-disposition"].startswith("attachment;")
    assert "sandbox" in headers["content-security-policy"]
    odd = quote(f"{'x' * 20}&<b>.txt", safe="")
    assert odd in page.ask(f"/api/run/{HOSTILE}/file?path={odd}")[1]["content-disposition"]


def test_what_is_in_a_run_is_json(page: Page) -> None:
    status, headers, data = page.ask(f"/api/run/{HOSTILE}")
    assert status == 200 and headers["content-type"] == "application/json" and headers["cache-control"] == "no-store"
    head = json.loads(data)["head"]
    assert head["workload"] == EVIL and EVIL in head["metrics"]


def test_a_run_by_its_name(page: Page) -> None:
    found = page.json("/api/run/calm-heron")
    assert found["head"]["id"] == HERON
    assert found["head"]["sentence"] == (
        "Finished 1 943 steps in 1h 01m on cpu; best valid_bacc 0.8600 at epoch 19. Two faults, both recovered."
    )
    assert [chart["title"] for chart in found["head"]["charts"]] == ["train_loss", "valid_bacc", "rate"]
    assert page.ask("/api/run/nobody")[0] == 404


def test_points_of_a_part(page: Page) -> None:
    query = f"key={quote('m:train_loss')}&key=rate&key=nothing&points=50"
    whole = page.json(f"/api/run/{HERON}/series?{query}")["series"]
    assert set(whole) == {"m:train_loss", "rate"}
    assert whole["m:train_loss"]["x"] == list(range(100, 2000, 100))
    part = page.json(f"/api/run/{HERON}/series?{query}&from=500&to=700")["series"]["m:train_loss"]
    assert part["x"] == [400, 500, 600, 700, 800]  # one more at each side, so that lines go to the edge
    odd = page.json(f"/api/run/{HERON}/series?key=rate&points=nan&from=x&to=1e999&by=moon")
    assert odd["series"]["rate"]["n"] == 18


def test_every_record_as_csv(page: Page) -> None:
    status, _, data = page.ask(f"/api/run/{HERON}/metrics.csv")
    lines = data.decode().splitlines()
    assert status == 200 and lines[0] == "time,step,epoch,train_loss,valid_bacc" and len(lines) == 20
    assert lines[1] == "2026-11-15T09:15:14.000Z,100,0,0.69,0.56"
    assert "'=cmd|x" in page.ask(f"/api/run/{HOSTILE}/metrics.csv")[2].decode().splitlines()[0]


def test_runs_side_by_side(page: Page) -> None:
    found = page.json("/api/compare?run=calm-heron&run=brisk-wren&run=nobody&key=m:valid_bacc")
    assert [run["run"] for run in found["runs"]] == ["calm-heron", "brisk-wren"]
    assert found["differs"] == [{"group": "identity", "key": "seed", "values": [None, "3"]}]
    assert found["faults"] == ["F004 device_lost", "F005 hang"] and found["same_seed"] is False
    assert len(found["series"][HERON]["m:valid_bacc"]["y"]) == 19


def test_a_world_and_pictures_of_a_run(page: Page, runs: Path) -> None:
    folder = runs / "eeg-20261115-0912-brisk-wren"
    (folder / "hunt.gif").write_bytes(b"GIF89a, more or less")
    (folder / "evil.gif").write_text(EVIL)
    (folder / "world.json").write_text(json.dumps({"size": 4.0, "turn": 3, "prey": [[1, 1, 1, 0, 1], EVIL]}))
    page.ask("/r/brisk-wren")
    assert wait_until(lambda: page.json("/api/run/brisk-wren/world")["world"] is not None)
    assert page.json("/api/run/brisk-wren/world")["world"]["frames"][0]["prey"] == [[1.0, 1.0, 1.0, 0.0, 1.0]]
    status, headers, data = page.ask("/api/run/brisk-wren/picture?path=hunt.gif")
    assert (status, headers["content-type"], headers["x-content-type-options"]) == (200, "image/gif", "nosniff")
    assert data.startswith(b"GIF89a") and headers["content-security-policy"] == "default-src 'none'; sandbox"
    for path in ("evil.gif", "run.json", "../secret.gif", "hunt.gif%00"):
        assert page.ask(f"/api/run/brisk-wren/picture?path={path}")[0] == 404
    assert page.ask("/api/run/nobody/picture?path=hunt.gif")[0] == 404
    assert page.ask("/api/run/brisk-wren/picture?path=hunt.gif", Authorization="")[0] == 401


def test_prometheus_can_read_it(page: Page) -> None:
    page.json("/api/run/calm-heron")
    status, headers, data = page.ask("/metrics")
    text = data.decode()
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'holdfast_step{run="calm-heron",workload="eeg"} 1943\n' in text
    assert 'holdfast_faults_total{run="calm-heron",workload="eeg",code="F005",device="cuda:0"} 1\n' in text
    assert 'holdfast_device_power_watts{run="calm-heron",workload="eeg",device="cpu"} 142\n' in text
    assert 'holdfast_run_state{run="calm-heron",workload="eeg",state="FINISHED"} 1\n' in text


def test_the_dashboard_can_be_fetched(page: Page) -> None:
    status, headers, data = page.ask("/grafana.json")
    assert (status, json.loads(data)["uid"]) == (200, "holdfast") and "attachment" in headers["content-disposition"]
    assert page.ask("/grafana.json", Authorization="")[0] == 401


def test_news_of_a_run_that_changes(page: Page, runs: Path) -> None:
    with page.news("run=brisk-wren") as news:
        kind, first = next(news)
        assert (kind, first["run"]) == ("run", "brisk-wren")
        with open(runs / "eeg-20261115-0912-brisk-wren" / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"time": stamp(3800), "step": 2000, "epoch": 19, "train_loss": 0.125}) + "\n")
        kind, second = next(news)
        assert (kind, second["metrics"]["train_loss"]) == ("run", 0.125)
        assert second["version"] > first["version"]


def test_news_of_a_new_run(page: Page, runs: Path) -> None:
    with page.news("list=1") as news:
        make_run(runs, "FINISHED", name="new-one")
        kind, told = next(news)
        assert kind == "runs" and "new-one" in [row["run"] for row in told["runs"]]


def test_the_next_free_port_is_taken_and_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        page = Page(tmp_path / "none", "--port", str(port), cache=tmp_path)
        try:
            assert page.said[0] == f"port {port} is in use; this page is at {page.port}"
            assert port < page.port <= port + 40 or page.port > 0
            assert page.json("/api/runs")["runs"] == []
        finally:
            page.close()
    assert page.process.returncode == 0


def test_it_ends_at_once_though_a_page_is_open(tmp_path: Path) -> None:
    page = Page(tmp_path, cache=tmp_path)
    with page.news("list=1"):
        began = time.monotonic()
        page.close()
        assert page.process.returncode == 0 and time.monotonic() - began < 60


@pytest.mark.all
def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['starlette'] = None; from holdfast.cli.main import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, "watch", "--web"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'holdfast[monitor]'" in done.stderr
