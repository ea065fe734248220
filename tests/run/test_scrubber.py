"""What a report must not hold is not in it, and what it needs still is."""

from __future__ import annotations

import json
import os
import socket

import pytest

from holdfast.run.scrubber import LEFT_OUT, left_in, scrub


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/annabel")
    monkeypatch.setenv("USER", "annabel")
    monkeypatch.setenv("LOGNAME", "annabel")
    monkeypatch.setattr(socket, "gethostname", lambda: "annabels-box")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/annabel/data/x.bin is gone", "~/data/x.bin is gone"),
        ("/mnt/clinic/patients/run.py:12", "…/run.py:12"),
        ("File /opt/venv/lib/python3.11/site-packages/torch/nn.py", "File …/nn.py"),
        (r"C:\Users\Bella\torch\x.dll was blocked", r"…\x.dll was blocked"),
        ("annabel@annabels-box says", f"{LEFT_OUT}@{LEFT_OUT} says"),
        ("mail ann@example.org", f"mail {LEFT_OUT}"),
        ("connect to 10.1.2.3:7878", f"connect to {LEFT_OUT}"),
        ("GPU-8c2f41aa-03aa-11ee-be56-0242ac120002 lost", f"{LEFT_OUT} lost"),
        ("hf_abcdefghijklmnop", LEFT_OUT),
        # what is needed to understand it stays
        ("/dev/kfd: no access", "/dev/kfd: no access"),
        ("0000:03:00.0 amdgpu ring gfx timeout", "0000:03:00.0 amdgpu ring gfx timeout"),
        ("conv2d fp16 backward: 3.1e-2 of 4e-3", "conv2d fp16 backward: 3.1e-2 of 4e-3"),
        ("1/2 of the checks, 4 it/s", "1/2 of the checks, 4 it/s"),
        ("https://pytorch.org/get-started/locally/", "https://pytorch.org/get-started/locally/"),
    ],
)
def test_texts(text: str, clean: str) -> None:
    assert scrub(text) == clean


def test_fields_are_left_out_by_their_names_and_versions_are_not_addresses() -> None:
    data = {
        "uuid": "8c2f", "serial": "0324", "API_KEY": "x", "driver": "24.20.11.1", "pci": "0000:03:00.0",
        "memory_bytes": 5, "uuid_known": True, "nested": [{"path": "/srv/ann/x"}, None, 1.5],
    }  # fmt: skip
    assert scrub(data) == {
        "uuid": LEFT_OUT, "serial": LEFT_OUT, "API_KEY": LEFT_OUT, "driver": "24.20.11.1", "pci": "0000:03:00.0",
        "memory_bytes": 5, "uuid_known": True, "nested": [{"path": "…/x"}, None, 1.5],
    }  # fmt: skip


def test_words_that_were_named_go_first() -> None:
    assert scrub({"folder": "/tmp/tmpq1/runs/x"}, {"/tmp/tmpq1/runs": "RUNS"}) == {"folder": "RUNS/x"}


def test_the_last_look_sees_what_is_left() -> None:
    assert left_in("all is well on cuda:0") == []
    assert left_in("annabel was here") == ["annabel"]
    assert "/home/annabel" in left_in("in /home/annabel/x")
    assert left_in(json.dumps(scrub({"text": "annabel in /home/annabel on annabels-box"}))) == []


def test_a_user_called_root_takes_no_word_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, "root")
    monkeypatch.setenv("HOME", "/srv/homes/superuser")
    monkeypatch.setattr(os, "getuid", lambda: 0, raising=False)
    assert scrub("the root of the tree") == "the root of the tree"
    assert scrub("/srv/homes/superuser/x/y.py") == "~/x/y.py"
