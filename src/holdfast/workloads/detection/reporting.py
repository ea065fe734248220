"""What a detection run says at its end, and keeps in its folder.

report(session, found, checked, still)       # prints a table; scores.json, worst.png, curves.png, confusion.png
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

import holdfast
from holdfast.base import files
from holdfast.base.folders import write_whole
from holdfast.base.human import table as in_columns
from holdfast.workloads.detection import pictures
from holdfast.workloads.detection.evaluate import Found, Scores, confusion, evaluate, worst
from holdfast.workloads.detection.index import Checked
from holdfast.workloads.detection.samples import Still


def report(session: holdfast.Session, found: Found, checked: Checked, still: Still) -> Scores:
    """Scores, mistakes and pictures."""
    index, names, folder = checked.splits["val"], checked.names, session.run.folder
    scores = evaluate(found, index, names)
    mistakes = confusion(found, index, len(names))
    chosen = worst(found, index)
    for line in lines(scores, checked):
        print(line, flush=True)
    _save(pictures.worst_sheet(found, index, names, chosen, channels=still.channels), folder / "worst.png")
    _save(pictures.curves(scores, names), folder / "curves.png")
    _save(pictures.confusion_table(mistakes, names), folder / "confusion.png")
    files.write_json(folder / "scores.json", as_json(scores, checked, mistakes, chosen))
    print(f"  pictures   {folder}/worst.png, curves.png, confusion.png", flush=True)
    return scores


def _save(image: Any, path: Path) -> None:
    data = io.BytesIO()
    image.save(data, format="PNG")
    write_whole(path, data.getvalue())


def lines(scores: Scores, checked: Checked) -> list[str]:
    """The scores as a person reads them."""
    told = f"mAP50 {scores.map50:.3f} · mAP50-95 {scores.map:.3f} on {len(checked.splits['val'])} validation images"
    rows = [[each["name"], str(each["boxes"]), _number(each["ap50"]), _number(each["ap"])] for each in scores.classes]
    shown = in_columns(rows, header=["class", "boxes", "AP50", "AP50-95"], right=(1, 2, 3))
    return [f"{told}{', GENERATED' if checked.generated else ''}", *(f"  {line}" for line in shown)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def as_json(scores: Scores, checked: Checked, mistakes: Any, chosen: list[tuple[int, int, int]]) -> dict[str, Any]:
    index = checked.splits["val"]
    return {
        "schema": 1,
        "generated": checked.generated,
        "images": len(index),
        "map50": scores.map50,
        "map50_95": scores.map,
        "classes": scores.classes,
        "recall": np.linspace(0, 1, 101).round(2).tolist(),
        "precision": [[round(each, 4) for each in row] for row in scores.curves.tolist()],
        "confusion": mistakes.tolist(),
        "worst": [{"image": index.path(number), "missed": missed, "wrong": wrong} for number, missed, wrong in chosen],
    }
