"""Every `$ …` line of README.md and docs/ is typed here, or says which test types it, or why nobody can here.

The blocks are run in a folder as a reader would have it: the README's script, a plain one of his own, and two finished
runs whose names stand for those in the text.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import ROOT, SCRIPTS, Block, blocks

BLOCKS = list(blocks("console"))
TYPED_BY = {
    r"eeg download": ("workloads/eeg/test_download.py", '"download"'),
    r"eeg simulate": ("workloads/eeg/test_check.py", '"simulate"'),
    r"eeg check": ("workloads/eeg/test_check.py", '"check"'),
    r"eeg prepare": ("workloads/eeg/test_prepare_cache.py", '"prepare"'),
    r"eeg (score|submit)": ("workloads/eeg/test_runs.py", '"submit"'),
    r"eeg search": ("workloads/eeg/test_search.py", '"search"'),
    r"train eeg": ("workloads/eeg/test_runs.py", '"eeg-challenge2"'),
    r"(train )?detection": ("workloads/detection/test_command.py", '"predict"'),
    r"resume --at-boot": ("cli/test_at_boot.py", '"--at-boot"'),
    r"doctor": ("cli/test_doctor.py", '"doctor"'),
    r"verify": ("cli/test_verify.py", '"verify"'),
    r"plan": ("cli/test_plan.py", '"plan"'),
    r"train (detection|job) --row": ("cli/test_plan.py", '"--row"'),
    r"launch .*--cloud": ("distributed/test_cloud.py", '"--cloud"'),
    r"launch .*--nodes": ("distributed/test_watch.py", '"--nodes"'),
    r"launch": ("distributed/test_ranks.py", '"launch"'),
    r"pull": ("distributed/test_moving.py", '"pull"'),
    r"push \S+ \w+:": ("distributed/test_moving.py", '"push"'),
    r"optimize": ("optimize/test_optimize.py", '"optimize"'),
    r"predict": ("optimize/test_bundle.py", '"predict"'),
    r"serve": ("optimize/serving.py", '"serve"'),
    r"watch --web": ("monitor/test_web.py", '"--web"'),
    r"run -- (yolo|accelerate)": ("supervisor/scripts/test_commands.py", '"yolo"'),
    r"notify \w+-": ("monitor/test_notify.py", '"notify"'),
    r"track \w+-|train .* track\.to=": ("monitor/trackers/test_tracker_delivery.py", '"track"'),
    r"chaos -- ": ("cli/test_chaos_command.py", '"chaos"'),
    r"chaos \S+ --faults": ("workloads/eeg/test_runs.py", '"--faults"'),
}
"""`holdfast …` that a test of its own types, with the machinery around it: a bucket, two machines, a card."""
NOT_HERE = {
    r"make (demo|test)": "this is make test; tests/test_project.py tries the parts of the demo",
    r"pip install": "changes the environment; tests/test_package.py installs into one of its own",
    r"loginctl": "changes the system",
    r".*--device (mps|cuda)": "needs that device",
    r".*HOLDFAST_PRETEND": "typed by tests/faults with a pretended device",
    r".*HOLDFAST_CHAOS": "typed by tests/faults with a plan of its own",
}


class Folder:
    """What a reader has in front of him."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []
        self.tried: set[str] = set()
        script = next(block for block in SCRIPTS if block.page == "README.md")
        (path / "my_script.py").write_text(script.text, encoding="utf-8")
        shutil.copy(ROOT / "tests" / "supervisor" / "scripts" / "scripts" / "plain_script.py", path / "plain.py")
        (path / "train.py").write_text(
            "import sys\nsys.argv = sys.argv[:1] + ['--steps', '5']\nexec(open('plain.py').read())\n"
        )
        (path / "found.sh").write_text("#!/bin/sh\ncat > told.json\n")
        (path / "found.sh").chmod(0o700)
        self.env = dict(os.environ, HOLDFAST_STATE=str(path / "state"), HOLDFAST_RUN_THREADS="1", HOME=str(path))
        self.env["HOLDFAST_NOTIFY_COMMAND"] = str(path / "found.sh")
        for _ in range(2):
            done = self.type("holdfast train my_script.py epochs=1 --json")
            assert done.returncode == 0, done.stderr
            self.names.append(json.loads(done.stdout)["run"])

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        for told, real in zip(("calm-heron", "keen-skua"), self.names, strict=False):
            command = command.replace(told, real)
        command = command.replace("--random 20", "--random 2")  # ten times as many take ten times as long
        command = command.replace("/mnt/disk/runs", "elsewhere").replace("~/", "").replace(" --open", "")
        words = shlex.split(command, comments=True)
        env = dict(self.env)
        while re.fullmatch(r"[A-Z_]+=\S+", words[0]):
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        start = {"holdfast": [sys.executable, "-m", "holdfast"], "python": [sys.executable]}[words[0]]
        words = [sys.executable if word == "python" else word for word in words[1:]]
        return subprocess.run(
            [*start, *words], cwd=self.path, env=env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    made = Folder(tmp_path_factory.mktemp("console"))
    yield made
    made.type("holdfast stop --all --wait")


def typed(block: Block) -> list[str]:
    return [line[2:].strip() for line in block.text.splitlines() if line.startswith("$ ")]


def elsewhere(command: str) -> str | None:
    """Where else, or why nowhere; None for what is typed here."""
    for pattern, reason in NOT_HERE.items():
        if re.match(pattern, command):
            return reason
    for pattern, (file, _) in TYPED_BY.items():
        if re.match(rf"holdfast {pattern}", command.partition(" #")[0].strip()):
            return f"tests/{file}"
    return None


def test_there_is_nothing_else_in_a_console() -> None:
    """What somebody types begins with `$`; what is listed above is there, so the lists do not outlive the pages."""
    every = [command for block in BLOCKS for command in typed(block)]
    assert len(every) > 100
    unused = [pattern for pattern in NOT_HERE if not any(re.match(pattern, each) for each in every)]
    unused += [pattern for pattern in TYPED_BY if not any(re.match(f"holdfast {pattern}", each) for each in every)]
    assert unused == []
    for file, word in TYPED_BY.values():
        assert word in (ROOT / "tests" / file).read_text(encoding="utf-8"), file


@pytest.mark.long
@pytest.mark.parametrize("block", [block for block in BLOCKS if any(not elsewhere(each) for each in typed(block))],
                         ids=str)  # fmt: skip
def test_what_is_typed_works(block: Block, folder: Folder) -> None:
    for line in typed(block):
        command = line.partition(" #")[0].strip()
        kind = "holdfast chaos … --random" if "--random" in command else command
        again = kind in folder.tried and re.match(r"holdfast (train|run|env|chaos)\b", kind) and "--detach" not in line
        folder.tried.add(kind)
        if elsewhere(line) is None and not again:
            done = folder.type(command)
            said = f"{command}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
            assert done.returncode == 0, said
            assert done.stdout.strip() or done.stderr.strip(), said
