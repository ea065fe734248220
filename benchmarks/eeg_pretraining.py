"""Does pretraining help? Both challenges on simulated EEG, and four tasks of real recordings, several seeds of each.

    python benchmarks/eeg_pretraining.py --out results --part simulated
    python benchmarks/eeg_pretraining.py --out results --part real --data …/muse_bids
    python benchmarks/eeg_pretraining.py --out results --part real --data …/muse_bids --add

Each pair of runs has one seed, the same windows, folds and settings, and differs in the first weights alone: those of a
run of `eeg-pretrain` with that seed, or fresh ones. What is shown is the difference inside of pairs. In the real part
nobody who is tested was in the pretraining: it sees the people of one task, and the tests are recordings of another
person. `--data` is a BIDS set with the layout of NeuroTechX's eeg-notebooks_v0.1; it is not part of the project. With
`--add` the real part keeps the rows of its result file and measures only those that are not there yet.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import common
from common import command, say
from many import Lane, Lanes, over_seeds, write

REAL: dict[str, list[str]] = {
    "P300": ["tasks=P300", "classes=stim_1,stim_2", "shift=-0.1", "size=0.9"],
    "audP300": ["tasks=audP300", "classes=stim_1,stim_2", "shift=-0.1", "size=0.9"],
    "N170": ["tasks=N170", "classes=stim_1,stim_2", "shift=-0.1", "size=0.9"],
    "SSVEP": ["tasks=SSVEP", "classes=stim_1,stim_2", "shift=0.5", "size=2.0"],
}
BETTER = {"nrmse": "smaller", "mean_r": "larger", "balanced_accuracy": "larger", "auroc": "larger"}


# Simulated ------------------------------------------------------------------------------------------------------


def simulated(lanes: Lanes, scratch: Path, seeds: int, quick: bool) -> dict[str, Any]:
    """`eeg-pretrain`, then both challenges from its weights and from fresh ones, on the set of `holdfast train eeg`."""
    os.environ["HOLDFAST_EEG_DEMO"] = str(scratch / "demo")
    from holdfast.workloads.eeg.demo import demo_data

    small = {"subjects": 12, "trials": 8, "rest_seconds": 12.0} if quick else {}
    demo_data(scratch / "demo", **small)  # once: the runs find it made
    short = ["epochs=2"] if quick else []
    # runs ask for the set of the default size, so a small one is named as data
    place = [f"data={scratch / 'demo' / 'cache'}"] if quick else []

    def chain(seed: int, pretrained: bool, lane: Lane) -> dict[str, Any]:
        runs = scratch / f"runs-{seed}-{pretrained}"
        more, spent = [*place, "tune=false", f"run.seed={seed}"], 0.0
        start: list[str] = []
        if pretrained:
            epochs = ["pretrain_epochs=1"] if quick else []
            done = lane.train(["eeg-pretrain", *more, *epochs], runs)
            start, spent = [f"parent={done['folder']}"], done["cpu_s"]
        found: dict[str, Any] = {"seed": seed, "pretrained": pretrained, "pretraining_cpu_s": spent}
        for name in ("challenge1", "challenge2"):
            done = lane.train([f"eeg-{name}", *more, *short, *start], runs)
            kept = json.loads((Path(done["folder"]) / "scores.json").read_text())
            keys = ("nrmse", "r", "mean_r")
            found[name] = {key: kept[key] for key in keys if key in kept} | {"cpu_s": done["cpu_s"]}
        say(f"  {found}")
        return found

    jobs = [
        lambda lane, seed=seed, way=way: chain(seed, way, lane) for seed in range(seeds) for way in (True, False)
    ]  # fmt: skip
    rows = lanes.all(jobs)
    good = [row for row in rows if "failed" not in row]
    pairs = {
        f"{name}, {key}": paired(good, lambda row, name=name, key=key: row[name][key])
        for name, key in (("challenge1", "nrmse"), ("challenge2", "nrmse"), ("challenge2", "mean_r"))
    }
    return {"pairs": pairs, "runs": good, "failed": [row["failed"] for row in rows if "failed" in row]}


# Real -----------------------------------------------------------------------------------------------------------


def real(
    lanes: Lanes, scratch: Path, seeds: int, quick: bool, data: Path, names: list[str], epochs: int,
    kept: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Pretraining on the people of the cueing task, then what another person's recordings are of."""
    os.environ["HOLDFAST_EEG_WINDOWS"] = str(scratch / "windows")
    others, person = scratch / "others", scratch / "person"
    _part_of(data, others, lambda name: not name.startswith("sub-N"))
    _part_of(data, person, lambda name: name.startswith("sub-N"))
    words = ["eeg", "prepare", str(others), str(scratch / "cache"), "--kind", "pretrain", "--tasks", "cueing", "--json"]
    done = subprocess.run(command(*words), stdout=subprocess.PIPE, text=True, check=False)
    say(f"  windows for pretraining: {done.stdout[:300]}")
    tasks = {name: REAL[name] for name in (names[:1] if quick else names)}
    short = ["epochs=2"] if quick else [f"epochs={epochs}"]
    had = {(row["task"], row["seed"], row["pretrained"]): row for row in kept.get("runs", [])}
    if had and kept["pretraining"]["then"] != short:
        raise SystemExit(f"the rows to add to were measured with {kept['pretraining']['then']}, not with {short}")
    missing = [seed for seed in range(seeds) if any((task, seed, True) not in had for task in tasks)]

    def before(seed: int, lane: Lane) -> dict[str, Any]:
        words = ["eeg-pretrain", f"data={scratch / 'cache'}", "tune=false", f"run.seed={seed}"]
        words.append(f"pretrain_epochs={1 if quick else 12}")
        return lane.train(words, scratch / f"before-{seed}")

    began = lanes.all([lambda lane, seed=seed: before(seed, lane) for seed in missing])
    started = dict(zip(missing, began, strict=True))
    losses = dict(enumerate(kept["pretraining"]["valid_loss"])) if had else {}
    for seed, each in started.items():
        if "failed" in each:
            continue
        found = _losses(Path(each["folder"]))
        if seed in losses:  # a run with the same seed was there before: the same code gives the same losses
            say(f"  seed {seed} was pretrained before, with {'the same' if losses[seed] == found else 'other'} losses")
        losses[seed] = found
    say(f"  pretraining, validation loss by epoch: {losses}")

    def classify(task: str, seed: int, pretrained: bool, lane: Lane) -> dict[str, Any]:
        more = [f"data={person}", "target=value", "tune=false", f"run.seed={seed}", *tasks[task], *short]
        more += [f"parent={started[seed]['folder']}"] if pretrained else []
        done = lane.train(["eeg-classify", *more], scratch / f"runs-{task}-{seed}-{pretrained}")
        kept = json.loads((Path(done["folder"]) / "scores.json").read_text())
        keys = ("balanced_accuracy", "auroc", "auroc_per_group", "baselines", "windows", "folds")
        told = {key: kept.get(key) for key in keys}
        row = {"task": task, "seed": seed, "pretrained": pretrained, **told, "cpu_s": done["cpu_s"]}
        say(f"  {row}")
        return row

    # one run of each task first: it makes the windows that the others find
    wanted = [
        (task, seed, way)
        for seed in range(seeds) for way in (False, True) for task in tasks if (task, seed, way) not in had
    ]  # fmt: skip
    first = [next(each for each in wanted if each[0] == task) for task in tasks if task in {each[0] for each in wanted}]
    rest = [each for each in wanted if each not in first]
    rows = [
        row
        for part in (first, rest)
        for row in lanes.all([lambda lane, each=each: classify(*each, lane) for each in part])
    ]
    good = [*had.values(), *(row for row in rows if "failed" not in row)]
    pairs = {
        f"{task}, {key}": paired([row for row in good if row["task"] == task], lambda row, key=key: row[key])
        for task in tasks for key in ("auroc", "balanced_accuracy")
    }  # fmt: skip
    failed = [row["failed"] for row in (*began, *rows) if "failed" in row]
    about = {"valid_loss": [losses[seed] for seed in sorted(losses)], "epochs": 12, "then": short}
    return {"pairs": pairs, "pretraining": about, "runs": good, "failed": failed}


def _part_of(data: Path, to: Path, wanted: Any) -> None:
    """Some of the subjects of a set, as a set."""
    to.mkdir(parents=True)
    for each in data.iterdir():
        if each.name.startswith("sub-") and not wanted(each.name):
            continue
        shutil.copytree(each, to / each.name) if each.is_dir() else shutil.copy(each, to)
    rows = (data / "participants.tsv").read_text().splitlines()
    kept = [rows[0], *(row for row in rows[1:] if wanted(row.split("\t")[0]))]
    (to / "participants.tsv").write_text("\n".join(kept) + "\n")


def _losses(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [round(row["valid_loss"], 4) for row in rows if "valid_loss" in row]


# Both -----------------------------------------------------------------------------------------------------------


def paired(rows: list[dict[str, Any]], value: Any) -> dict[str, Any]:
    """With and without, seed by seed, and the mean difference with its interval over seeds."""
    by = {(row["seed"], row["pretrained"]): value(row) for row in rows}
    seeds = sorted({seed for seed, _ in by if (seed, True) in by and (seed, False) in by})
    with_, without = ([by[seed, way] for seed in seeds] for way in (True, False))
    apart = [a - b for a, b in zip(with_, without, strict=True)]
    return {
        "seeds": seeds,
        "pretrained": with_,
        "fresh": without,
        "mean_pretrained": over_seeds(with_) if seeds else None,
        "mean_fresh": over_seeds(without) if seeds else None,
        "difference": over_seeds(apart) if seeds else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=common.RESULTS)
    parser.add_argument("--part", choices=("simulated", "real"), required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tasks", default=",".join(REAL), help="of the real part")
    parser.add_argument("--epochs", type=int, default=20, help="of the real part, after pretraining")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=0, help="runs at a time; 0: one for each core")
    parser.add_argument(
        "--add", action="store_true", help="keep the rows of the result file, measure the others (real)"
    )
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.part == "real" and given.data is None:
        parser.error("--part real needs --data")
    name = f"eeg-pretraining-{given.part}-cpu"
    earlier = json.loads((given.out / f"{name}.json").read_text()) if given.add else {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-pretraining-", ignore_cleanup_errors=True) as place:
        scratch = Path(place)
        common.adopt(scratch)
        lanes = Lanes(most=given.lanes)
        if given.part == "simulated":
            measured = simulated(lanes, scratch, given.seeds, given.quick)
        else:
            chosen, kept = given.tasks.split(","), earlier.get("measured", {})
            measured = real(lanes, scratch, given.seeds, given.quick, given.data, chosen, given.epochs, kept)
    measured["better"] = BETTER
    if earlier:
        measured["added_to"] = {key: earlier[key] for key in ("date", "command", "machine", "versions", "seconds")}
    write(given.out / f"{name}.json", name.removesuffix("-cpu"), measured, seconds=time.monotonic() - began)
    for what, pair in measured["pairs"].items():
        say(f"  {what}: {pair['mean_pretrained']} pretrained, {pair['mean_fresh']} fresh, apart {pair['difference']}")


if __name__ == "__main__":
    main()
