"""The table of candidates as text, and the report of a bundle as one HTML file. No torch here.

lines(result)        # for the terminal
page(result)         # for a browser, without scripts or network
"""

from __future__ import annotations

from html import escape
from typing import Any

from holdfast.base.human import size, table
from holdfast.optimize import flame

_ORDER = {"ok": 0, "baseline": 1, "as called": 2, "refused": 3, "failed": 4, "crashed": 5, "hung": 6, "skipped": 7}


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Measured ones by speed, then what was refused or failed."""
    return sorted(rows, key=lambda row: (_ORDER[row["state"]] > 2, -float(row.get("ratio") or 0), _ORDER[row["state"]]))


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    value = 1000 * seconds
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def cells(row: dict[str, Any]) -> list[str]:
    """One candidate: name, threads, latency, times eager, size, memory, start, agreement, remark."""
    score = next(((name, value) for name, value in (row.get("scores") or {}).items()), None)
    agreement = row.get("agreement")
    threads = "-" if row["state"] == "skipped" else str(row["threads"])
    spread = (
        f" [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
        if row["state"] != "baseline" and "ratio_low" in row
        else ""
    )
    return [
        row["name"],
        threads,
        milliseconds(row.get("p50")),
        milliseconds(row.get("p95")),
        milliseconds(row.get("p99")),
        f"{row['ratio']:.2f}x{spread}" if "ratio" in row else "-",
        size(row.get("bytes")) if row.get("bytes") else "-",
        size(row.get("rss")) if row.get("rss") else "-",
        f"{row['cold_s']:.1f} s" if row.get("cold_s") else "-",
        "-" if agreement is None else f"{agreement:.5f}",
        "-" if score is None else f"{score[0]} {score[1]:.4f}",
        remark(row),
    ]


HEADER = ("VARIANT", "THR", "P50", "P95", "P99", "TIMES EAGER", "SIZE", "MEMORY", "START", "AGREES", "SCORE", "")


def remark(row: dict[str, Any]) -> str:
    if row.get("chosen"):
        return "← chosen"
    if row["state"] == "ok":
        return ""
    if row["state"] == "baseline":
        return "the baseline"
    reason = row.get("reason") or ""
    return reason if row["state"] == "as called" else f"{row['state']}: {reason}"


def lines(result: dict[str, Any], *, width: int = 200) -> list[str]:
    """The answer as text: findings, table, choice."""
    about = result["subject"]
    known = f"{about['parameters']:,} parameters · {_inputs(about)} · {about['validation']} validation inputs"
    told = [f"{about['name']} · {known}"]
    told += [f"• {each}" for each in result["findings"]]
    rows = sorted_rows(result["rows"])
    measured = [row for row in rows if row["state"] in ("ok", "baseline", "as called", "refused") and "p50" in row]
    others = [row for row in rows if row not in measured]
    shown = [cells(row) for row in measured]
    reasons = {row["name"]: row["reason"] for row in measured if row["state"] == "refused"}
    for cell in shown:
        cell[-1] = "refused" if cell[-1].startswith("refused") else cell[-1]
    told += ["", *table(shown, header=HEADER, right=(1, 2, 3, 4, 6, 7, 8, 9))]
    told += [f"  ✗ {name} refused: {why}" for name, why in reasons.items()]
    told += [f"  {'☠' if row['state'] in ('crashed', 'hung') else '·'} {row['name']} {row['state']}: {row['reason']}"
             for row in others]  # fmt: skip
    best = result["chosen"]
    told += ["", f"Chosen: {best['name']}, {best['threads']} thread{'s' * (best['threads'] > 1)}: "
             f"{best['ratio']:.2f} times eager inference_mode at batch 1 (half of the rounds between "
             f"{best['ratio_low']:.2f} and {best['ratio_high']:.2f})."]  # fmt: skip
    called = next((row for row in result["rows"] if row["state"] == "as called"), None)
    if called is not None and "ratio" in called:
        told.append(f"That is {best['ratio'] / called['ratio']:.1f} times the way it was called.")
    told.append(_scores(result))
    return told


def to_json(result: dict[str, Any]) -> dict[str, Any]:
    """What `--json` prints: the fields that others rely on, and everything else that was found."""
    baseline = next(row for row in result["rows"] if row["state"] == "baseline")
    return {
        "baseline": {"p50_ms": _ms(baseline["p50"])},
        "candidates": [_public(row) for row in sorted_rows(result["rows"])],
        **{key: value for key, value in result.items() if key != "manifest"},
    }


def _public(row: dict[str, Any]) -> dict[str, Any]:
    keys = ("name", "engine", "precision", "threads", "state")
    return {
        **{key: row[key] for key in keys},
        **{f"p{share}_ms": _ms(row.get(f"p{share}")) for share in (50, 95, 99)},
        "speedup": row.get("ratio"),
        "score_delta": None if row.get("loss") is None else -float(row["loss"]),
        "refused_by": (row.get("reason") or None) if row["state"] not in ("ok", "baseline", "as called") else None,
        "chosen": bool(row.get("chosen")),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _inputs(about: dict[str, Any]) -> str:
    return ", ".join("x".join(map(str, each["shape"])) for each in about["inputs"])


def _scores(result: dict[str, Any]) -> str:
    before, after = result["scores"], result["chosen"].get("scores") or {}
    if not before:
        return "There is no score: what was compared are the outputs. Give targets with --data to compare scores."
    words = [f"{name} {value:.4f} → {after[name]:.4f}" for name, value in before.items() if name in after]
    return f"Scores, fp32 eager → chosen: {', '.join(words)} (a loss of {100 * result['max_loss']:g} % is allowed)."


# The page -----------------------------------------------------------------------------------------------------------

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
table{border-collapse:collapse;font-size:13px;margin:1rem 0}td,th{padding:.25rem .6rem;border-bottom:1px solid #d5dae0;
text-align:left}td:not(:last-child){white-space:nowrap}td.n{text-align:right;font-variant-numeric:tabular-nums}tr.chosen{background:#e3f1e6;font-weight:600}
tr.off{color:#67707a}
.note{color:#67707a}@media(prefers-color-scheme:dark){body{background:#14171a;color:#e4e7ea}td,th{border-color:#3a4149}
tr.chosen{background:#1f3a27}tr.off,.note{color:#98a1ab}}
"""


def page(result: dict[str, Any]) -> str:
    """One HTML file: findings, table, profile."""
    about, best = result["subject"], result["chosen"]
    body = [f"<h1>{escape(about['name'])}</h1>"]
    times = f"{milliseconds(best['p50'])} instead of {milliseconds(best['baseline_p50'])}, batch 1"
    name = escape(best["name"])
    body.append(f"<p><b>{name}</b> is {best['ratio']:.2f} times as fast as eager inference_mode ({times}).</p>")
    body += [f"<p>{escape(each)}</p>" for each in result["findings"]]
    body.append(f"<p>{escape(_scores(result))}</p>")
    body.append("<table><tr>" + "".join(f"<th>{escape(each.capitalize())}</th>" for each in HEADER) + "</tr>")
    for row in sorted_rows(result["rows"]):
        kind = "chosen" if row.get("chosen") else "" if row["state"] in ("ok", "baseline") else "off"
        cell = "".join(
            f'<td class="{"n" if 0 < at < 10 else ""}">{escape(each)}</td>' for at, each in enumerate(cells(row))
        )
        body.append(f'<tr class="{kind}">{cell}</tr>')
    body.append("</table>")
    profiles = result.get("profile") or {}
    longest = max((sum(row["seconds"] for row in rows) for rows in profiles.values()), default=0.0)
    for name, rows in profiles.items():
        body += _profile(name, rows, longest) if rows else [f"<h2>{escape(_silent(name, result))}</h2>"]
    if profiles:
        body.append('<p class="note">Layers are timed one by one, and PyTorch without the fused kernel that would hide '
                    "them, so their sum may be more than a call takes. The grey line over each picture is its length "
                    "beside the other's.</p>")  # fmt: skip
    machine = result["machine"]
    body.append(f'<p class="note">Measured on {escape(machine["cpu"])}, {machine["cores"]} cores '
                f'({escape(", ".join(machine["arithmetic"]) or "no special arithmetic")}). Latency is of one call '
                "at batch 1, turn by turn with the baseline; memory is after the first call.</p>")  # fmt: skip
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(about['name'])}</title>"
        + f"<style>{_STYLE}{flame.STYLE}</style>"
        + "\n".join(body)
        + "</html>\n"
    )


def _profile(name: str, rows: list[dict[str, Any]], longest: float) -> list[str]:
    total = sum(row["seconds"] for row in rows) or 1.0
    told = [f"<h2>Where the time goes, {name}: {milliseconds(total)}</h2>", flame.picture(rows, longest)]
    told.append("<table><tr><th>Layer<th>Kind<th>Time<th>Share</tr>")
    for row in rows[:20]:
        told.append(f"<tr><td>{escape(row['layer'])}<td>{escape(row['kind'])}<td class=n>{milliseconds(row['seconds'])}"
                    f"<td class=n>{100 * row['seconds'] / total:.1f} %</tr>")  # fmt: skip
    return [*told, "</table>"]


def _silent(name: str, result: dict[str, Any]) -> str:
    engine = result["chosen"]["engine"] if name == "after" else "PyTorch"
    return f"Where the time goes, {name}: {engine} does not say"


def profile_lines(result: dict[str, Any], most: int = 8) -> list[str]:
    """The same as a table for the terminal, with bars."""
    told: list[str] = []
    for name, rows in (result.get("profile") or {}).items():
        if not rows:
            told += ["", _silent(name, result)]
            continue
        total = sum(row["seconds"] for row in rows) or 1.0
        told += ["", f"Where the time goes, {name} ({milliseconds(total)}, batch 1):"]
        shares = [(row, row["seconds"] / total) for row in rows[:most]]
        shown = [[row["layer"][-48:], row["kind"], milliseconds(row["seconds"]), f"{100 * share:.0f} %",
                  "▮" * max(1, round(24 * share))] for row, share in shares]  # fmt: skip
        told += [f"  {line}" for line in table(shown, right=(2, 3))]
    return told
