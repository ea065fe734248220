"""`holdfast plan` as people run it: measured once, followed by `train`; and what is wrong with a wish or a script."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli import plan_text
from holdfast.cli.main import main
from holdfast.planning.decide import Wanted
from holdfast.planning.measurement import MEASURED, Measurement
from holdfast.planning.plans import Plan, digest, keep, save, stamped
from holdfast.planning.presets import Preset
from holdfast.planning.prices import prices
from holdfast.planning.world import Device, JobFacts, World
from tests.cli.driving import SCRIPT, Done, holdfast

FOUND = Measurement("job", "cpu", threads=2, status=MEASURED, start_s=4.0, setup_s=1.0, step_s=0.1, spread=0.1,
                    steps_seen=40, epochs=10, batches=100, between_s=2.0, closing_s=3.0, took_s=12.0)  # fmt: skip
CARD = dataclasses.replace(FOUND, device="cuda:0", threads=0, step_s=0.02, power_w=300.0)


def made(**changes: object) -> Plan:
    """A plan of a machine with a card that has faulted, a refused one, and a CPU."""
    devices = (
        Device("cuda:0", "AMD Radeon RX 7900 XTX", "use_with_care", hours=22.0, faults=440),
        Device("cuda:1", "Radeon 780M", "refused", "conv2d forward crashes", ("D002",)),
        Device("cpu", verdict="trusted"),
    )
    world = World(
        (JobFacts("job", ("epochs",)),), devices, cores=16, prices=tuple(prices(home=Path("/nonexistent"))),
        electricity=0.17, electricity_from="./holdfast.toml:3", score=0.884, score_name="bacc", score_basis="a table",
        presets=(Preset("half the epochs", epochs_argument="epochs", share=0.5, score=0.871, basis="a table"),),
    )  # fmt: skip
    known = {"asked": "job.py", "words": (), "argv": (), "world": world, "measurements": (CARD, FOUND), **changes}
    return stamped(Plan(**known))  # type: ignore[arg-type]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """`holdfast …` in this process, which is faster: nothing is measured, and no torch is needed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: str) -> Done:
        capsys.readouterr()
        code = main(list(words))
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(made(), tmp_path / "plan.json")
    return tmp_path


@pytest.mark.long
@pytest.mark.timeout(400)  # three processes that import torch
def test_a_plan_is_measured_followed_and_compared(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT, encoding="utf-8")
    planned = holdfast("plan", "job.py", "nap=0.01", "--measure", "6s", "--json", cwd=tmp_path)
    assert planned.code == 0, planned.err
    said = planned.json
    chosen = next(row for row in said["options"] if row["chosen"])
    assert said["schema"] == 1 and said["chosen"] == chosen["row"] and said["why"]
    assert (chosen["basis"], chosen["device"], chosen["refused_by"]) == ("measured", "cpu", None)
    assert chosen["time_low_s"] < chosen["time_s"] < chosen["time_high_s"]
    assert chosen["time_parts_s"]["steps"] >= 24 * 0.01
    assert {row["kind"] for row in said["options"]} == {"local", "cloud", "advice"}
    assert "half the epochs" in [row["preset"] for row in said["options"]]

    run = holdfast("train", "job.py", "nap=0.01", "--json", cwd=tmp_path)
    assert run.code == 0, run.err
    assert re.search(r"• by the plan of .* ago: row 1, cpu", run.err)
    compared = run.json["receipt"]["plan"]
    assert compared["time_s"] == pytest.approx(chosen["time_s"], abs=0.01)
    assert compared["took_s"] > 0
    info = json.loads((Path(run.json["folder"]) / "run.json").read_text())
    assert info["plan"]["row"] == 1 and info["threads"] == chosen["threads"]
    shown = holdfast("show", "latest", cwd=tmp_path)
    assert re.search(r"the plan said .*, it took ", shown.out)
    (past,) = map(json.loads, (Path(os.environ["HOLDFAST_STATE"]) / "plans.jsonl").read_text().splitlines())
    assert past["took_s"] > 0 and past["raw_s"] == info["plan"]["raw_s"]


def test_a_plan_for_a_larger_set_says_so_and_offers_no_run_of_the_small_one(
    tmp_path: Path, here: Callable[..., Done]
) -> None:
    plan = made()
    save(dataclasses.replace(plan, world=dataclasses.replace(plan.world, larger=1000)), tmp_path / "plan.json")
    done = here("plan", "--from", "plan.json")
    assert done.code == 0, done.err
    assert (
        done.out.splitlines()[0]
        == "Measured `job.py` here: 80 steps in 2 ways, 0 s. Times are for 1,000 times the data."
    )
    assert "holdfast train" not in done.out and "holdfast plan job.py --times 1000 --why" in done.out
    assert here("plan", "--from", "plan.json", "--json").json["times_the_data"] == 1000


BUSY = "The machine was busy while this was measured (13 processes wanted 2 cores)"


def test_a_busy_machine_is_told_in_the_text_and_to_programs(tmp_path: Path, here: Callable[..., Done]) -> None:
    for load, told in ((13.2, True), (0.0, False)):
        save(made(load=load, cores=2), tmp_path / "plan.json")
        assert (BUSY in " ".join(here("plan", "--from", "plan.json").out.split())) is told
        said = here("plan", "--from", "plan.json", "--json").json
        assert (said["busy"], said["load"], said["cores"]) == (told, load or None, 2)


@pytest.mark.all
@pytest.mark.sample(2)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("load", [0.1, 50.0])
def test_how_busy_the_machine_was_is_kept_with_what_was_measured(
    tmp_path: Path, here: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, load: float
) -> None:
    """A script that is over before its first step is measured soon; the load is that of another machine."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    (tmp_path / "job.py").write_text("def train(session):\n    pass\n", encoding="utf-8")
    done = here("plan", "job.py", "--measure", "20s", "--json", "--save", "plan.json")
    kept = json.loads((tmp_path / "plan.json").read_text())
    assert (kept["load"], kept["cores"]) == (load if load > 3 else 0.0, 2), done.err
    assert done.json["busy"] is (load > 3)


@pytest.mark.parametrize(
    ("words", "cause"), [(["--times", "0"], "1 or more"), (["--times", "9", "--steps", "5"], "--steps")]
)
def test_a_factor_that_cannot_be_is_refused(
    words: list[str], cause: str, tmp_path: Path, here: Callable[..., Done]
) -> None:
    (tmp_path / "job.py").write_text(SCRIPT, encoding="utf-8")
    done = here("plan", "job.py", *words)
    assert done.code == 2 and f"--times {words[1]} cannot be" in done.err and cause in done.err


def test_the_table_names_each_row_its_basis_and_why_it_is_not_taken(saved: Path, here: Callable[..., Done]) -> None:
    done = here("plan", "--from", "plan.json")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "Measured `job.py` here: 80 steps in 2 ways, 0 s."
    assert lines[2].split() == ["#", "WHERE", "MODEL", "TIME", "COST", "RISK", "SCORE", "BASIS"]
    assert re.match(r" 1  cuda:0 +as asked +\d\d s ±\S+ +<?\$0.01 +medium +0.884 +measured  ←", lines[3])
    assert re.match(r" 2  cpu, 2 threads +as asked +2m \d\ds ±\S+ +- +low +0.884 +measured", lines[4])
    text = done.out
    assert re.search(r" 3  cuda:0 +half the epochs .* 0.871", text)
    assert re.search(r" -  cuda:1 +- +- +- +- +- +refused  by the doctor: D002", text)
    assert "needs --budget" in text and "more rented GPUs: `--all`" in text
    text = " ".join(text.split())
    assert "Chosen: row 1. Of the rows that will do, it is done first." in text
    assert "If cuda:0 fails for good, the run continues as row 2." in text
    assert "Electricity 0.17 $/kWh (./holdfast.toml:3). Cloud prices: SkyPilot catalogue" in text
    assert "holdfast train job.py --row 2" in text


def test_the_same_file_decides_the_same_for_everyone(saved: Path, here: Callable[..., Done]) -> None:
    words = ("plan", "--from", "plan.json", "--json", "--deadline", "10m", "--risk", "low")
    first, again = here(*words), here(*words)
    assert first.json == again.json
    assert first.json["options"][first.json["chosen"] - 1]["device"] == "cpu"  # the card is a risk


def test_every_number_says_where_it_comes_from(saved: Path, here: Callable[..., Done]) -> None:
    text = here("plan", "--from", "plan.json", "--why").out
    assert "40 steps measured in 12.0 s: 20 ms each, spread 10 %" in text
    assert "time: start 4.0 s + set-up 1.0 s + steps 20.0 s + evaluation 20.0 s" in text
    assert "faults: 440 in 22.0 h of use here (ledger)" in text
    assert "energy: 300 W measured in the trial" in text
    assert "no run of this finished here yet" in text
    assert "sources disagree" in text
    assert re.search(r"row 1 is faster( and cheaper)?( and less risky)?, and not worse in any column", text)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--deadline", "2020-01-01T09:00"], "the deadline 2020-01-01T09:00 is in the past", "--deadline 12h"),
        (["--deadline", "soon"], "the deadline `soon` cannot be understood", "--deadline 12h"),
        (["--deadline", "0"], "the deadline is 0", "--deadline 12h"),
        (["--budget", "0"], "the budget is $0", "leave --budget out"),
        (["--budget", "-3"], "the budget is $-3", "leave --budget out"),
    ],
)
def test_a_wish_that_cannot_be_is_told_and_the_table_is_still_shown(
    saved: Path, here: Callable[..., Done], words: list[str], message: str, hint: str
) -> None:
    done = here("plan", "--from", "plan.json", *words)
    assert done.code == 2
    assert f"error: {message}" in done.err and hint in done.err
    assert " 1  cuda:0" in done.out
    told = here("plan", "--from", "plan.json", *words, "--json").json
    assert told["error"]["message"] == message and len(told["options"]) > 5


def test_nothing_that_fits_is_an_answer_of_no(saved: Path, here: Callable[..., Done]) -> None:
    done = here("plan", "--from", "plan.json", "--deadline", "5s")
    assert done.code == 1
    assert "No row will do: late" in done.out


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}', '{"schema": 1, "asked": 3, "world": {}}', "\x00"])
def test_a_file_that_is_no_plan_is_told(tmp_path: Path, here: Callable[..., Done], text: str) -> None:
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    done = here("plan", "--from", "plan.json")
    assert done.code == 2 and "error: plan.json" in done.err and "Traceback" not in done.err


def test_no_device_at_all_still_shows_what_could_be_done(tmp_path: Path, here: Callable[..., Done]) -> None:
    nothing = dataclasses.replace(made().world, devices=(Device("cpu", verdict="refused", why="fp32 is wrong"),))
    save(made(world=nothing, measurements=()), tmp_path / "plan.json")
    done = here("plan", "--from", "plan.json")
    assert done.code == 1
    assert "error: no device here can train" in done.err
    assert "by the doctor: fp32 is wrong" in done.out
    assert "nothing was measured here to compare with" in done.out


@pytest.mark.long
def test_a_script_that_raises_and_a_wrong_price_file_are_both_told(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "mine.csv").write_text("card,price\nT4,1\n", encoding="utf-8")
    done = holdfast("plan", "job.py", "fail_at=0", "--prices", "mine.csv", "--measure", "5s", cwd=tmp_path)
    assert done.code == 2
    assert "error: the price file mine.csv has no column `gpu`" in done.err
    assert "error: job.py could not be measured" in done.err
    assert "cause: it raised ValueError: the script's own mistake (job.py, line" in done.err
    assert "it raised ValueError" in done.out  # the row says so too
    assert not (Path(os.environ["HOLDFAST_STATE"]) / "plans").exists()  # nothing to follow


def test_two_plans_at_once_would_measure_each_other(tmp_path: Path, here: Callable[..., Done]) -> None:
    from holdfast.devices.device_lock import try_lock

    (tmp_path / "job.py").write_text(SCRIPT, encoding="utf-8")
    state = Path(os.environ["HOLDFAST_STATE"])
    state.mkdir(parents=True, exist_ok=True)
    fd = os.open(state / "plan.lock", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"pid 4711, eeg\n")
    try:
        assert try_lock(fd)
        done = here("plan", "job.py")
    finally:
        os.close(fd)
    assert done.code == 2
    assert "error: another `holdfast plan` is measuring on this machine" in done.err and "pid 4711, eeg" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan"], "nothing to plan: no script was given"),
        (["plan", "egg"], "unknown workload `egg`"),
        (["plan", "none.py"], "no script `none.py`"),
        (["plan", "job.py", "epoch=3"], "unknown setting `epoch`"),
        (["plan", "job.py", "--measure", "-1"], "`--measure -1` is not a duration"),
        (["plan", "job.py", "--risk", "none"], "--risk is `none`, but it has to be one of"),
        (["train", "job.py", "--row", "2"], "there is no plan, so --row has no meaning"),
    ],
)
def test_usage(tmp_path: Path, here: Callable[..., Done], words: list[str], message: str) -> None:
    (tmp_path / "job.py").write_text(SCRIPT, encoding="utf-8")
    done = here(*words)
    assert done.code == 2 and message in done.err


# What train does with one -------------------------------------------------------------------------------------------


def kept(folder: Path, **changes: object) -> Plan:
    """A plan for job.py in this folder, kept as if it had just been measured here."""
    script = folder / "job.py"
    script.write_text(SCRIPT, encoding="utf-8")
    job = str(script)
    world = World((JobFacts(job, ("epochs", "nap")),), (Device("cpu"),), presets=(
        Preset("half the epochs", epochs_argument="epochs", share=0.5),))  # fmt: skip
    measured = (dataclasses.replace(FOUND, job=job, threads=1, epochs=2, batches=8, step_s=0.5),)
    scripts = ((job, digest(script)),)
    plan = made(asked=job, world=world, measurements=measured, scripts=scripts, **changes)
    keep(plan)
    return plan


@pytest.mark.long
def test_a_row_with_fewer_epochs_trains_fewer(tmp_path: Path) -> None:
    kept(tmp_path, wanted=Wanted(deadline_s=17.0))
    run = holdfast("train", "job.py", "--json", cwd=tmp_path)
    assert run.code == 0, run.err
    assert "half the epochs" in run.err
    info = json.loads((Path(run.json["folder"]) / "run.json").read_text())
    assert info["arguments"] == {"epochs": "1"} and info["plan"]["preset"] == "half the epochs"
    assert run.json["receipt"]["steps"] == 8


def commands(text: str) -> dict[str, str]:
    """What the lines below the table say a command does, by what it does."""
    found = (re.split(r"  +", line.strip()) for line in text.splitlines() if line.startswith("  holdfast "))
    return {what: command for command, what in found}


@pytest.mark.long
def test_the_line_below_the_table_starts_the_row_it_names(tmp_path: Path) -> None:
    plan = kept(tmp_path, wanted=Wanted(deadline_s=17.0), words=("epochs=2",))
    rows = plan.rows()
    text = "\n".join(plan_text.page(plan, rows, plan.decided(rows)))
    assert re.search(r"half the epochs .*←", text) and "Chosen: row 2." in text
    line = commands(text)["start row 2"]
    assert line == f"holdfast train {tmp_path / 'job.py'} epochs=2 --row 2"
    run = holdfast(*line.split()[1:], "--json", cwd=tmp_path)
    assert run.code == 0, run.err
    info = json.loads((Path(run.json["folder"]) / "run.json").read_text())
    assert info["arguments"] == {"epochs": "1"} and info["plan"]["preset"] == "half the epochs"
    assert run.json["receipt"]["steps"] == 8


def test_an_argument_that_was_given_is_changed_only_by_a_row_that_was_named(tmp_path: Path) -> None:
    from holdfast.cli import planned
    from holdfast.cli.train import add_parser
    from holdfast.console.usage import One
    from holdfast.run.settings import Settings

    kept(tmp_path, wanted=Wanted(deadline_s=17.0), words=("epochs=2",))
    script, told = str(tmp_path / "job.py"), list[str]()
    settings = Settings.load({}, cwd=tmp_path, env={})
    assert planned.find(add_parser(One()).parse([script, "epochs=2"]), settings, told.append) is None
    start = f"`holdfast train {script} epochs=2 --row 2` starts it"
    assert told == [f"• the plan chose row 2, half the epochs: {start}; this run has epochs=2 as given"]
    named = planned.find(add_parser(One()).parse([script, "epochs=2", "--row", "2"]), settings, told.append)
    assert named is not None and named.option.preset == "half the epochs"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ((), "holdfast train job.py --row 1"),
        (("--risk", "low"), "holdfast train job.py --row 2"),  # the card is a risk
    ],
)
def test_what_is_decided_from_a_file_is_started_by_its_row(
    saved: Path, here: Callable[..., Done], flags: tuple[str, ...], line: str
) -> None:
    """`holdfast train` by itself follows what was decided when it was measured."""
    said = commands(here("plan", "--from", "plan.json", *flags).out)
    assert said[f"start row {line[-1]}"] == line


def test_the_commands_can_be_typed(tmp_path: Path) -> None:
    plan = made(asked="my job.py", words=("note=a b",), argv=("--data", "/x y"))
    said = commands("\n".join(plan_text.page(plan, plan.rows(), plan.decided())))
    assert said["start row 1"] == "holdfast train 'my job.py' 'note=a b' -- --data '/x y'"
    assert said["start row 2"] == "holdfast train 'my job.py' 'note=a b' --row 2 -- --data '/x y'"
    assert said["every number, and where it came from"] == "holdfast plan 'my job.py' 'note=a b' --why -- --data '/x y'"


@pytest.mark.parametrize("how", ["device", "words", "old", "changed"])
def test_no_plan_is_followed_where_none_holds(tmp_path: Path, how: str) -> None:
    from holdfast.cli import planned
    from holdfast.cli.train import add_parser
    from holdfast.console.usage import One
    from holdfast.run.settings import Settings

    plan = kept(tmp_path)
    words = [str(tmp_path / "job.py")]
    settings = Settings.load({"run.device": "cpu"} if how == "device" else {}, cwd=tmp_path, env={})
    told: list[str] = []
    if how == "words":
        words.append("epochs=7")
    elif how == "old":
        keep(dataclasses.replace(plan, made_at=time.time() - 8 * 86400))
    elif how == "changed":
        (tmp_path / "job.py").write_text(SCRIPT + "\n# changed\n", encoding="utf-8")
    assert planned.find(add_parser(One()).parse(words), settings, told.append) is None
    assert bool(told) == (how in ("old", "changed"))


def test_the_plan_knows_the_script_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.planning import plans

    kept(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert plans.kept("job.py", ["run.folder=elsewhere"], []) is not None
    assert plans.kept("job.py", ["epochs=3"], []) is None
