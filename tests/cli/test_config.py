"""`holdfast config`: text in, text out, exit code."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.run.settings import kinds

from .conftest import Command

TABLE = """\
SETTING                    VALUE     FROM
watchdog.floor             90 s      ./holdfast.toml:2
watchdog.factor            4         default
watchdog.first_step        3m        default
watchdog.setup             30m       default
watchdog.loop              60 s      default
watchdog.evaluate          10m       default
watchdog.compile           30m       default
watchdog.wait              1h        default
watchdog.term_grace        2 s       default
watchdog.kill_grace        10 s      default
snapshot.every             auto      default
snapshot.lose              1 s       default
snapshot.cost              1         default
snapshot.slots             5         default
snapshot.memory            4 GB      HOLDFAST_SNAPSHOT_MEMORY
snapshot.where             auto      default
checkpoint.every           60 s      default
checkpoint.at_epochs       true      default
checkpoint.keep            3         default
checkpoint.best            auto      default
retry.same_step            3         default
retry.without_progress     10        default
retry.in_a_row             4         default
loader.stuck_floor         5 s       default
loader.first_wait          2m        default
data.quarantine            true      default
data.skip_bad              false     default
data.outside               false     default
data.most_bad              1         default
run.folder                 runs      default
run.seed                   7         command line
run.threads                auto      default
run.device                 cuda:0    ~/.config/holdfast/config.toml:1
run.devices                off       default
run.shares                 auto      default
run.portable               false     default
run.stacks                 true      default
run.tensorboard            true      default
oom.split                  true      default
oom.allow_batchnorm_split  false     default
oom.grow_back_steps        50        default
probation.enabled          true      default
probation.first_delay      60 s      default
probation.factor           2         default
probation.max_delay        1h        default
probation.probe            2m        default
probation.steps            20        default
probation.steady           500       default
probation.returns          5         default
blame.replay               true      default
blame.budget               20 s      default
blame.non_finite           stop      default
sentinel.enabled           auto      default
sentinel.cost              0.8       default
sentinel.samples           4         default
limits.cpu_c               off       default
limits.gpu_c               off       default
limits.cpu_w               off       default
limits.gpu_w               off       default
limits.memory              off       default
limits.gpu_memory          off       default
limits.disk_free           off       default
limits.action              auto      default
limits.patience            10 s      default
notify.level               result    default
notify.command             off       default
notify.webhook             off       default
notify.format              auto      default
notify.bell                false     default
notify.digest              1h        default
track.to                   off       default
track.project              holdfast  default
track.mlflow               off       default
track.tensorboard          off       default
track.artefacts            true      default
track.patience             1h        default
external.restart           true      default
external.output            64 MiB    default
external.room              30m       default
external.hook              true      default
plan.measure               30 s      default
plan.electricity           off       default
plan.prices                off       default
"""


def test_the_table_says_where_each_value_came_from(command: Command, here: Path) -> None:
    (here / "holdfast.toml").write_text('[watchdog]\nfloor = "90s"\n')
    user_file = here.parent / "home/.config/holdfast/config.toml"
    user_file.parent.mkdir(parents=True)
    user_file.write_text('run.device = "cuda:0"\n')
    done = command("config", "run.seed=7", env={"HOLDFAST_SNAPSHOT_MEMORY": "4GB"})
    assert (done.out, done.err, done.code) == (TABLE, "", 0)


def test_a_section_with_its_meaning(command: Command) -> None:
    done = command("config", "-v", "retry")
    assert (done.err, done.code) == ("", 0)
    assert done.out == (
        "SETTING                 VALUE  FROM\n"
        "retry.same_step         3      default\n"
        "    Tries at one step when no other device is left.\n"
        "retry.without_progress  10     default\n"
        "    Workers replaced in a row without one committed step between them, whatever ended them.\n"
        "retry.in_a_row          4      default\n"
        "    Faults of a device, each within 20 steps of the last, after which the run leaves it for the next one.\n"
    )


def test_one_setting_in_full(command: Command) -> None:
    done = command("config", "snapshot.where", "snapshot.where=file")
    assert (done.err, done.code) == ("", 0)
    assert done.out == (
        "snapshot.where  file  command line\n"
        "  Where the slots live: shared memory, or a file in the run folder. Auto is memory where it fits.\n"
        "\n"
        "  accepts  auto, memory or file\n"
        "  default  auto\n"
        "  set it   snapshot.where=VALUE on the command line, HOLDFAST_SNAPSHOT_WHERE, or ./holdfast.toml\n"
    )


def test_colour_marks_what_differs_and_nothing_else_changes(command: Command) -> None:
    done = command("config", "retry", "retry.same_step=5", "--color", "always")
    assert done.out == (
        "\x1b[2mSETTING                 VALUE  FROM\x1b[0m\n"
        "\x1b[1mretry.same_step         5      command line\x1b[0m\n"
        "retry.without_progress  10     default\n"
        "retry.in_a_row          4      default\n"
    )


def test_json_holds_every_setting(command: Command) -> None:
    done = command("config", "--json", "watchdog.floor=90s")
    assert (done.err, done.code) == ("", 0)
    data = json.loads(done.out)
    assert data["schema"] == 1
    assert [row["key"] for row in data["settings"]] == list(kinds())
    assert data["settings"][0] == {
        "key": "watchdog.floor",
        "value": 90.0,
        "shown": "90 s",
        "source": "command line",
        "default": 5.0,
        "accepts": "a duration above zero such as 90s, 5m or 1h30m",
        "variable": "HOLDFAST_WATCHDOG_FLOOR",
        "description": (
            "The shortest silence that is called a hang, however fast the steps are; a deadlock is seen earlier."
        ),
    }


def test_a_name_that_is_none(command: Command) -> None:
    done = command("config", "run.sead")
    assert (done.out, done.code) == ("", 2)
    assert done.err == (
        "error: unknown setting `run.sead`\n"
        "\n"
        "hint: a similar setting exists: `run.seed`\n"
        "hint: `holdfast config` lists every setting\n"
    )


def test_a_mistake_in_a_file_is_found_here_first(command: Command, here: Path) -> None:
    (here / "pyproject.toml").write_text("[tool.holdfast.checkpoint]\nkeep = 0\n")
    done = command("config")
    assert (done.out, done.code) == ("", 2)
    assert done.err == (
        'error: checkpoint.keep is "0", which is not allowed\n'
        "  cause: set by ./pyproject.toml:2\n"
        "\n"
        "hint: use a whole number, 1 or more; the default is 3\n"
    )


def test_a_mistake_with_json_is_one_object_too(command: Command) -> None:
    done = command("config", "--json", "oom.split=perhaps")
    assert done.code == 2
    assert json.loads(done.out)["error"]["message"] == 'oom.split is "perhaps", which is not allowed'
    assert done.err.startswith("error: oom.split")
