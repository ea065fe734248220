"""Where it happened, without what nobody else may read."""

from __future__ import annotations

import json

import pytest

from holdfast.record.evidence import environment

SECRETS = {
    "HF_TOKEN": "hf_abcdefghijklmnop",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "DATABASE_URL": "postgres://user:pencil@db/x",
    "MY_OWN_THING": "private",
}


def test_no_secret_is_kept() -> None:
    variables = {
        **SECRETS,
        "PATH": "/usr/bin",
        "CUDA_VISIBLE_DEVICES": "0",
        "HSA_OVERRIDE_GFX_VERSION": "10.3.0",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
        "NCCL_DEBUG": "INFO",
        "NCCL_AUTH_TOKEN": "pencil",
        "TORCH_HOME": "https://user:pencil@host/models",
        "HOLDFAST_UNSUPERVISED": "0",
    }
    facts = environment.look(variables)
    kept = facts["environment"]
    assert kept["PATH"] == "/usr/bin"
    assert kept["HSA_OVERRIDE_GFX_VERSION"] == "10.3.0"
    assert kept["TORCHINDUCTOR_CACHE_DIR"] == "/tmp/inductor"
    assert kept["TORCH_HOME"] == "(left out)"
    assert not set(SECRETS) & set(kept)
    text = json.dumps(facts)
    assert not any(value in text for value in (*SECRETS.values(), "pencil"))


def test_arguments_are_cleaned_too() -> None:
    info = {
        "run": "calm-heron",
        "script": "/srv/train.py",
        "argv": [
            "--hf-token",
            "pencil",
            "--lr",
            "0.1",
            "--data",
            "https://me:pencil@host/d",
            "key=sk-0123456789abcdef",
        ],
        "arguments": {"api_key": "pencil", "epochs": "3", "proxy": "http://a:pencil@b", "max_tokens": "7"},
        "settings": {"everything": "else"},
        "seed": 7,
    }
    run = environment.look({}, info)["run"]
    assert run["argv"] == ["--hf-token", "***", "--lr", "0.1", "--data", "(left out)", "key=***"]
    assert run["arguments"] == {"api_key": "***", "epochs": "3", "proxy": "(left out)", "max_tokens": "7"}
    assert (run["run"], run["seed"]) == ("calm-heron", 7)
    assert "settings" not in run
    assert "pencil" not in json.dumps(run)


@pytest.mark.parametrize("info", [{}, {"argv": "text", "arguments": ["list"]}, {"argv": None, "arguments": {"a": {}}}])
def test_the_record_of_a_run_may_be_anything(info: dict[str, object]) -> None:
    json.dumps(environment.look({}, info))
