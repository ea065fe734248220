"""The small files beside a recording: which are missing, broken, or say something else than the recording itself.

    sidecars.faults(recording, source)      # {"rates-disagree": "its sidecar says 500 Hz, its header 250 Hz", …}
    sidecars.renamed(recording, header)     # "its channels.tsv names Fz, its header E2", or empty
    sidecars.table_fault(path, "onset")     # "it is separated by commas, not by tabs", or empty

Nothing here raises on data.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from holdfast.base import files
from holdfast.workloads.eeg import bids
from holdfast.workloads.eeg.bids import Recording
from holdfast.workloads.eeg.faults import DataFault
from holdfast.workloads.eeg.reading import Source

_MOST_JSON = 4 << 20


def faults(recording: Recording, source: Source | None) -> dict[str, str]:
    """What is wrong with the files beside one recording, by the code of the finding."""
    found: dict[str, str] = {}
    broken = [fault for path in bids.sidecar_paths(recording) if (fault := json_fault(path))]
    if broken:
        found["broken-json"] = "; ".join(broken)
    elif not any(path.exists() for path in bids.sidecar_paths(recording)):
        found["missing-json"] = "no eeg.json"
    tables = {"events.tsv": (recording.events, "onset"), "channels.tsv": (recording.channels, "name")}
    if recording.task.lower().startswith("rest"):
        tables = {name: each for name, each in tables.items() if name != "events.tsv" or each[0] is not None}
    missing = [name for name, (path, _) in tables.items() if path is None]
    damaged = [
        f"{path.name}: {fault}" for path, column in tables.values() if path and (fault := table_fault(path, column))
    ]
    if missing:
        found["missing-table"] = f"no {', no '.join(missing)}"
    if damaged:
        found["broken-table"] = "; ".join(damaged)
    if source is not None:
        if disagreement := rates_disagree(recording, source.rate):
            found["rates-disagree"] = disagreement
        if other := renamed(recording, source.channels):
            found["renamed-channels"] = other
    return found


def json_fault(path: Path) -> str:
    """Why a sidecar cannot be read; empty if it can, or is not there."""
    try:
        read = json.loads(files.read_bounded(path, _MOST_JSON).decode("utf-8-sig"))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path.name}: {error.strerror or error}"
    except (ValueError, RecursionError) as error:
        return f"{path.name} is no json: {error}"[:200]
    return "" if isinstance(read, dict) else f"{path.name} holds no names with values"


def table_fault(path: Path, column: str) -> str:
    """Why a table cannot be used; empty if it can, or is not there."""
    try:
        bids.table(path, needs=column)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error.strerror or error)
    except DataFault as fault:
        return fault.detail.removeprefix(f"{path.name}: ")
    return ""


def rates_disagree(recording: Recording, rate: float) -> str:
    """The sampling rates of header and sidecar, where they are not the same."""
    said = recording.sidecar.get("SamplingFrequency")
    number = bids.number(said) if isinstance(said, str) else files.number(said)
    if not number > 0 or abs(number - rate) <= 0.001 * rate:
        return ""
    return f"its sidecar says {number:g} Hz, its header {rate:g} Hz"


def renamed(recording: Recording, header: Sequence[str]) -> str:
    """Channels of channels.tsv that the recording itself calls something else."""
    rows = bids.channel_table(recording)
    named = [row["name"] for row in rows if row.get("name") and row.get("type", "EEG").upper() == "EEG"]
    strange = [name for name in named if name not in header]
    unnamed = [name for name in header if name not in {row.get("name") for row in rows}]
    if not strange or not unnamed:
        return ""
    return f"its channels.tsv names {_some(strange)}, its header {_some(unnamed)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
