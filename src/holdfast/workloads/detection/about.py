"""A checked set in numbers, for dataset.json and `holdfast detection check --json`; imports no torch."""

from __future__ import annotations

from typing import Any

from holdfast.workloads.detection.index import Checked


def about_data(checked: Checked) -> dict[str, Any]:
    """The set in numbers."""
    return {
        "schema": 1,
        "file": checked.file,
        "kind": checked.kind,
        "generated": checked.generated,
        "names": checked.names,
        "grey": checked.grey,
        "images": {name: len(part) for name, part in checked.splits.items()},
        "boxes": {name: part.counts(len(checked.names)) for name, part in checked.splits.items()},
        "left_out": checked.left_out,
        "problems": dict(checked.problems.counts),
        "notes": checked.notes,
    }
