"""All idioms by name: what the kit runs, and what a worker looks up."""

from __future__ import annotations

import importlib

from tests.idioms.pieces import IDIOMS, Idiom

GROUPS = ("by_hand", "loops", "loaders", "objects", "as_they_are", "samplers", "held_out", "doc_scripts")


def idioms() -> dict[str, Idiom]:
    for group in GROUPS:
        importlib.import_module(f"tests.idioms.{group}")
    return IDIOMS
