"""What to know before any table of candidates: the free gains, and what was chosen that is not the plain thing.

for line in findings(rows, subject): print(line)
"""

from __future__ import annotations

from typing import Any


def findings(rows: list[dict[str, Any]], subject: dict[str, Any]) -> list[str]:
    """What to know before any table: the free gains first."""
    told = []
    called = next((row for row in rows if row["state"] == "as called"), None)
    if called is not None and called["ratio"] < 0.97:
        told.append(
            f"You were timing training mode: as your factory returns it, a call takes {1 / called['ratio']:.1f} times "
            "as long as after model.eval() under torch.inference_mode(). That part is free."
        )
    alone = next(
        (row for row in rows if row["engine"] == "eager" and row["state"] == "ok" and row["threads"] == 1), None
    )
    if alone is not None and alone["precision"] == "fp32" and alone["ratio"] > 1.1:
        told.append(
            f"Eager PyTorch is {alone['ratio']:.1f} times as fast with one thread as with all cores here: set "
            "torch.set_num_threads(1), or compare the table with that row."
        )
    best = next((row for row in rows if row.get("chosen")), None)
    if best is not None and best["device"] != "cpu":
        told.append(
            f"The bundle is for a GPU like this machine's, where it is {best.get('ratio_on_device', 1.0):.1f} times as "
            "fast as eager PyTorch on the same GPU; `--device cpu` makes one that runs anywhere."
        )
    if best is not None and best.get("program"):
        told.append(
            f"predict.py runs {best['program']} with all cores to itself: there it is {best['alone_ratio']:.2f} times "
            f"as fast as {best['name']}, which a server runs beside its other work."
        )
    if best is not None and best["merge"] > 1:
        told.append(
            f"Between the transformer's layers {best['merge']} neighbouring tokens are one. That is an approximation, "
            "judged on the validation set like int8; `--no-merge` keeps every token."
        )
    return told + list(subject.get("notes", []))
