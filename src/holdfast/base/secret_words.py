"""Secrets among the words of a command: found by what they look like, or by the option they belong to.

    redact(["train.py", "--token", "hf_x1y2", "--lr", "0.1"])     # ["train.py", "--token", "***", "--lr", "0.1"]
    redact(["postgres://ann:pw@db/x"])                            # ["postgres://***@db/x"]

What is written down about a run (run.json, journal, evidence, reports) is written down like this. Numbers and the words
of options that only sound like it stay: `--key-frames 3`, `-p 8080`, `--pad-token "[PAD]"`, `--token-count 512`.
"""

from __future__ import annotations

import re

HIDDEN = "***"


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_HARD = _set("password passwd passphrase pwd pw secret secrets credential credentials apikey passcode")
"""Words in the name of an option whose value is hidden, whatever it is."""
_SOFT = _set("token key pass auth pat bearer cookie webhook dsn")
"""The same, unless the value is a number or the name goes on to mean something else."""
_KEYS = _set(
    "api access secret private auth encryption signing license account master app client service deploy "
    "subscription wandb hf openai anthropic aws gcp azure comet neptune mlflow github gitlab hub storage "
    "shared"
)
"""What stands before `key` where it is a secret: the key of a table or of an image is none."""
_NOT_TOKENS = _set(
    "pad eos bos unk mask cls sep special start end stop begin image img class num max min n prefix register "
    "video audio text next first last decoder forced new sos per patch query visual"
)
_MEANS_ELSE = _set(
    "count counts id ids len length limit budget size dim dims embedding embeddings embed type types dropout "
    "level mask rate per file path dir folder env name var frames frame padding shape format kind mixer "
    "merging pooling through index idx column field url host port user fn func bits map order prefix suffix "
    "separator"
)
"""`--token-count`, `--key-frames`, `--password-file`: what follows says that the value is something else."""
_FLAGS = _set("use no with enable disable skip allow require without has is trust")
"""An option that begins like this has no value of its own."""
_PLAIN = re.compile(r"[-+]?[\d.,:x_]+(?:e[-+]?\d+)?%?|true|false|yes|no|on|off|none|null|auto", re.IGNORECASE)

_LOOKS = re.compile(
    r"\bsk-(?:[a-z]+\d*-){0,2}(?=[A-Za-z0-9_]*\d)[A-Za-z0-9_-]{8,}"
    r"|\b[sr]k_(?:live|test)_\w{8,}"
    r"|\bgh[pousr]_\w{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{8,}|\bhf_[A-Za-z0-9]{16,}|\bnpm_[A-Za-z0-9]{16,}"
    r"|\bpypi-[\w-]{16,}|\bdop_v1_\w{16,}|\bxox[a-z]-[\w-]{8,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bAIza[\w-]{20,}"
    r"|\bya29\.[\w-]{8,}|\bSG\.[\w-]{8,}\.[\w-]+|\beyJ[\w-]{6,}\.[\w-]+(?:\.[\w-]*)?"
)
_USER = re.compile(r"(\b[a-zA-Z][\w+.-]*://)[^/\s@]+@")
_SCHEME = re.compile(r"\b(bearer|basic)(\s+)\S+", re.IGNORECASE)
_HEADER = re.compile(
    r"^((?:proxy-)?authorization|x-api-key|api-key|x-auth-token|cookie|set-cookie)(\s*:\s*).+",
    re.IGNORECASE | re.DOTALL,
)
_INNER = re.compile(
    r"((?:^|[\s?&;,{(\"'])[\"']?[\w-]*(?:password|passwd|pwd|secret|api[-_]?key|access[-_]?token|auth[-_]?token"
    r"|signature|x-amz-credential|x-amz-security-token|(?<=[?&])token|(?<=[?&])sig|(?<=[?&])key)[\"']?\s*[=:]\s*[\"']?)"
    r"[^\s\"'&;,}]+",
    re.IGNORECASE,
)


def redact(argv: list[str]) -> list[str]:
    """Arguments with whatever is, or sounds like, a secret left out."""
    kept: list[str] = []
    option = ""
    for word in argv:
        name, equals, value = word.partition("=")
        if option and not (word.startswith("-") and len(word) > 1) and _hides(option, word):
            kept.append(HIDDEN)
        elif equals and re.fullmatch(r"-{0,2}[\w.+/@-]+", name) and _hides(name, value):
            kept.append(f"{name}={HIDDEN}")
        else:
            kept.append(without_secrets(word))
        option = word if (word.startswith("-") and not equals) or word.lower() == "bearer" else ""
    return kept


def without_secrets(text: str) -> str:
    """A text without what looks like a secret, wherever it stands in it."""
    if "PRIVATE KEY" in text:
        return HIDDEN
    text = _USER.sub(rf"\1{HIDDEN}@", text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _SCHEME.sub(rf"\1\2{HIDDEN}", text)
    if re.search(r"[\s?&;{'\"]", text):
        text = _INNER.sub(rf"\1{HIDDEN}", text)
    return _LOOKS.sub(HIDDEN, text)


def _hides(option: str, value: str) -> bool:
    """Whether the value of this option is a secret. A value that is plain is one for some names only."""
    if option in ("-p", "-pw", "-k") or option.lower() == "bearer":
        return not _PLAIN.fullmatch(value)
    if option in ("-u", "--user"):
        return ":" in value and not _PLAIN.fullmatch(value)
    words = _words(option)
    if not words or words[0] in _FLAGS:
        return False
    for at, word in enumerate(words):
        if at + 1 < len(words) and words[-1] in _MEANS_ELSE:
            return False
        if word in _HARD:
            return value.lower() not in ("none", "null", "true", "false")
        if word in _SOFT and at == len(words) - 1 and not _PLAIN.fullmatch(value):
            before = words[at - 1] if at else ""
            return before not in _NOT_TOKENS if word == "token" else word != "key" or not before or before in _KEYS
    return False


def _words(option: str) -> list[str]:
    """`--hf_authToken` is hf, auth, token."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", option.lstrip("-"))
    return [word for word in re.split(r"[^A-Za-z0-9]+", apart.lower()) if word]
