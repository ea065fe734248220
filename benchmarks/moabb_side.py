"""MOABB's own pipelines, by MOABB's own evaluation, on recordings that `holdfast train eeg-classify` reads as well.

    python -m venv MOABB && MOABB/bin/pip install moabb          # its own environment: no dependency of ours
    MOABB/bin/python benchmarks/moabb_side.py --data …/muse_bids --out moabb.json

The pipelines are the four that MOABB names for the paradigm P300, with its own filter (1 to 24 Hz) and its AUROC. One
of them, tangent space with an SVM, refuses these four electrodes as it comes (matrices that are not positive
definite), so its covariances are shrunk (`oas`), as in the other two. A task of one person is `CrossSessionEvaluation`
with each recording as a session: a recording is tested by what was trained on the others, as in `eeg-classify`. A task
of several people is `CrossSubjectEvaluation`. Both see events as the set's events.tsv has them; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import tempfile
import time
import warnings
from collections import defaultdict
from importlib import metadata
from pathlib import Path
from typing import Any

import mne
import numpy as np
from moabb.datasets.base import BaseDataset
from moabb.evaluations import CrossSessionEvaluation, CrossSubjectEvaluation
from moabb.paradigms import P300
from moabb.pipelines.utils import create_pipeline_from_config

TASKS: dict[str, tuple[str, str, float, float]] = {
    "P300": ("stim_1", "stim_2", -0.1, 0.8),
    "audP300": ("stim_1", "stim_2", -0.1, 0.8),
    "N170": ("stim_1", "stim_2", -0.1, 0.8),
    "cueing": ("cue_left", "cue_right", 0.0, 1.0),
}
"""Two kinds of events, and the seconds around them: those that `eeg-classify` is given."""
RIEMANN, SKLEARN = "pyriemann", "sklearn"
PIPELINES: dict[str, list[dict[str, Any]]] = {
    "ERPCovariances + MDM": [
        {"name": "ERPCovariances", "from": f"{RIEMANN}.estimation", "parameters": {"estimator": "oas"}},
        {"name": "MDM", "from": f"{RIEMANN}.classification"},
    ],
    "XdawnCovariances + MDM": [
        {"name": "XdawnCovariances", "from": f"{RIEMANN}.estimation",
         "parameters": {"estimator": "oas", "xdawn_estimator": "scm"}},
        {"name": "MDM", "from": f"{RIEMANN}.classification"},
    ],
    "XdawnCovariances + TangentSpace + SVM": [
        {"name": "XdawnCovariances", "from": f"{RIEMANN}.estimation", "parameters": {"estimator": "oas"}},
        {"name": "TangentSpace", "from": f"{RIEMANN}.tangentspace"},
        {"name": "SVC", "from": f"{SKLEARN}.svm"},
    ],
    "xDAWN + LDA": [
        {"name": "Xdawn", "from": f"{RIEMANN}.spatialfilters"},
        {"name": "Vectorizer", "from": "mne.decoding"},
        {"name": "LinearDiscriminantAnalysis", "from": f"{SKLEARN}.discriminant_analysis"},
    ],
}  # fmt: skip
GRIDS = {"XdawnCovariances + TangentSpace + SVM": {"svc__C": [0.1, 1.0, 10], "svc__kernel": ["rbf", "linear"]}}


class Recordings(BaseDataset):
    """One task of a BIDS set of EDF files, as MOABB asks for one: every recording is a session."""

    def __init__(self, data: Path, task: str) -> None:
        self.task, self.kinds = task, TASKS[task][:2]
        self.files: dict[str, list[Path]] = defaultdict(list)
        for path in sorted(data.glob(f"sub-*/ses-*/eeg/*_task-{task}_*eeg.edf")):
            self.files[path.name.split("_")[0]].append(path)
        self.people = sorted(self.files)
        super().__init__(
            subjects=list(range(1, len(self.people) + 1)), sessions_per_subject=min(map(len, self.files.values())),
            events={"NonTarget": 1, "Target": 2}, code=f"Recordings-{re.sub('[^A-Za-z0-9]', '', task)}",
            interval=list(TASKS[task][2:]), paradigm="p300",
        )  # fmt: skip

    def _get_single_subject_data(self, subject: int) -> dict[str, dict[str, Any]]:
        files = self.files[self.people[subject - 1]]
        return {str(number): {"0": self._read(path)} for number, path in enumerate(files)}

    def _read(self, path: Path) -> Any:
        raw = mne.io.read_raw_edf(path, preload=True, verbose=False)
        raw.rename_channels({name: name.replace("EEG ", "").strip() for name in raw.ch_names})
        raw.pick("eeg", verbose=False)
        events = Path(str(path).replace("_eeg.edf", "_events.tsv"))
        with events.open(newline="") as file:
            rows = [row for row in csv.DictReader(file, delimiter="\t") if row["value"] in self.kinds]
        marks = np.zeros((1, len(raw.times)))
        for row in rows:
            at = round(float(row["onset"]) * raw.info["sfreq"])
            if at < marks.shape[1]:
                marks[0, at] = 1 + self.kinds.index(row["value"])
        stim = mne.io.RawArray(marks, mne.create_info(["STI"], raw.info["sfreq"], "stim"), verbose=False)
        raw.add_channels([stim], force_update_info=True)
        raw.set_montage("standard_1005", on_missing="ignore", match_case=False, verbose=False)
        return raw

    def data_path(self, subject: int, *_: Any, **__: Any) -> list[str]:
        return [str(path) for path in self.files[self.people[subject - 1]]]


def measured(data: Path, task: str, place: Path) -> dict[str, Any]:
    """The AUROC of each recording or person that was held out, by each pipeline."""
    dataset = Recordings(data, task)
    _, _, start, end = TASKS[task]
    paradigm = P300(tmin=0.0, tmax=end - start)  # MOABB counts from the start of the set's interval
    kind = CrossSubjectEvaluation if len(dataset.people) > 1 else CrossSessionEvaluation
    evaluation = kind(paradigm=paradigm, datasets=[dataset], overwrite=True, hdf5_path=str(place), random_state=0)
    pipes = {name: create_pipeline_from_config(parts) for name, parts in PIPELINES.items()}
    began = time.process_time()
    rows = evaluation.process(pipes, param_grid=GRIDS)
    windows = paradigm.get_data(dataset)[0].shape
    found: dict[str, Any] = {
        "evaluation": kind.__name__,
        "subjects": len(dataset.people),
        "windows": list(windows),
        "cpu_s": round(time.process_time() - began, 1),
        "pipelines": {},
    }
    for name in pipes:
        scores = [round(float(each), 4) for each in rows[rows["pipeline"] == name]["score"]]
        found["pipelines"][name] = {"mean": round(float(np.mean(scores)), 4), "each": scores}
        print(f"  {task}: {name}: {found['pipelines'][name]}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    mne.set_log_level("ERROR")
    names = ("moabb", "mne", "pyriemann", "scikit-learn", "numpy")
    record: dict[str, Any] = {
        "part": "moabb",
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python benchmarks/moabb_side.py --data {given.data.name} --tasks {given.tasks}",
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count(), "load_average": os.getloadavg()},
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in names}},
        "metric": "AUROC of each recording (CrossSession) or person (CrossSubject) that was held out",
        "tasks": {},
    }
    with tempfile.TemporaryDirectory(prefix="moabb-") as place:
        for task in given.tasks.split(","):
            record["tasks"][task] = measured(given.data, task, Path(place))
            given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
