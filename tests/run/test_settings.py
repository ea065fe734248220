"""Settings: where a value comes from, and what is said about one that is wrong. Texts are held as texts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.errors import ExitCode, UserError
from holdfast.run.settings import Settings, describe, kinds, parse_overrides, sections, user_file, variable


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / ".config" / "holdfast").mkdir(parents=True)
    return home


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    return project


def text_of(error: UserError) -> str:
    lines = [f"error: {error.message}"]
    lines += [f"cause: {error.cause}"] if error.cause else []
    return "\n".join(lines + [f"hint: {hint}" for hint in error.hints])


# Defaults -------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_design() -> None:
    settings = Settings()
    assert (settings.watchdog.floor, settings.watchdog.factor) == (5.0, 4.0)
    assert (settings.watchdog.first_step, settings.watchdog.setup) == (180.0, 1800.0)
    assert (settings.watchdog.evaluate, settings.watchdog.compile) == (600.0, 1800.0)
    assert (settings.watchdog.term_grace, settings.watchdog.kill_grace) == (2.0, 10.0)
    assert (settings.snapshot.every, settings.snapshot.slots) == ("auto", 5)
    assert (settings.snapshot.lose, settings.snapshot.cost) == (1.0, 1.0)
    assert (settings.snapshot.memory, settings.snapshot.where) == ("auto", "auto")
    assert (settings.checkpoint.every, settings.checkpoint.at_epochs) == (60.0, True)
    assert (settings.checkpoint.keep, settings.checkpoint.best) == (3, "auto")
    assert (settings.retry.same_step, settings.retry.without_progress) == (3, 10)
    assert (settings.loader.stuck_floor, settings.loader.first_wait) == (5.0, 120.0)
    assert (settings.run.folder, settings.run.seed, settings.run.threads) == ("runs", 0, "auto")
    assert (settings.run.device, settings.run.portable, settings.run.stacks) == ("auto", False, True)
    assert (settings.oom.split, settings.oom.allow_batchnorm_split) == (True, False)
    assert settings.oom.grow_back_steps == 50


def test_every_default_is_a_value_that_its_own_setting_accepts() -> None:
    for key, kind in kinds().items():
        value = Settings().get(key)
        assert kind.parse(value) == value, key
        assert kind.parse(kind.show(value)) == value, key


def test_every_setting_says_what_it_means() -> None:
    for key in kinds():
        assert describe(key).endswith("."), key
    assert describe("oom.grow_back_steps") == (
        "Steps that must succeed in pieces before larger ones are tried again, half as many."
    )


def test_without_anything_set_all_is_default(project: Path, home: Path) -> None:
    settings = Settings.load({}, project, {"HOME": str(home)})
    assert settings == Settings()
    assert {settings.source(key) for key in kinds()} == {"default"}
    assert settings.changed() == []


# The order of places --------------------------------------------------------------------------------------


def test_each_place_wins_over_those_below_it(project: Path, home: Path) -> None:
    env = {"HOME": str(home)}
    (home / ".config/holdfast/config.toml").write_text("[run]\nseed = 1\n")
    seen = [(Settings.load({}, project, env), "~/.config/holdfast/config.toml:2")]
    (project / "pyproject.toml").write_text("[project]\nname = 'x'\n\n[tool.holdfast.run]\nseed = 2\n")
    seen.append((Settings.load({}, project, env), "./pyproject.toml:5"))
    (project / "holdfast.toml").write_text("run.seed = 3\n")
    seen.append((Settings.load({}, project, env), "./holdfast.toml:1"))
    env["HOLDFAST_RUN_SEED"] = "4"
    seen.append((Settings.load({}, project, env), "HOLDFAST_RUN_SEED"))
    seen.append((Settings.load({"run.seed": "5"}, project, env), "command line"))

    assert [settings.run.seed for settings, _ in seen] == [1, 2, 3, 4, 5]
    assert [settings.source("run.seed") for settings, _ in seen] == [source for _, source in seen]


def test_places_add_up_key_by_key(project: Path, home: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.holdfast]\nrun.folder = 'out'\n")
    (project / "holdfast.toml").write_text("[watchdog]\nfloor = '7s'\n")
    settings = Settings.load({"oom.split": "no"}, project, {"HOME": str(home), "HOLDFAST_RUN_DEVICE": "cpu"})
    assert dict(settings.sources) == {
        "run.folder": "./pyproject.toml:2",
        "watchdog.floor": "./holdfast.toml:2",
        "run.device": "HOLDFAST_RUN_DEVICE",
        "oom.split": "command line",
    }
    assert settings.changed() == ["watchdog.floor", "run.folder", "run.device", "oom.split"]


LINES = """\
# floor = "1s", says a comment
[snapshot]
every = 2                       # the same key as below
[checkpoint]
every = "5m"
[watchdog]
factor = 3
"floor" = "7s"
[loader]
stuck_floor = '6s'
[run]
folder = '''
runs/here'''
"""


def test_the_line_is_the_one_that_sets_the_value(project: Path) -> None:
    (project / "holdfast.toml").write_text(LINES)
    settings = Settings.load({}, project, {})
    assert {key: source.rpartition(":")[2] for key, source in settings.sources.items()} == {
        "snapshot.every": "3",
        "checkpoint.every": "5",
        "watchdog.factor": "7",
        "watchdog.floor": "8",
        "loader.stuck_floor": "10",
        "run.folder": "12",
    }
    assert settings.watchdog.floor == 7.0


def test_a_text_that_looks_like_a_table_is_not_one(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        "[project]\ndescription = '''\n[tool.holdfast.watchdog]\nfloor = 1\n'''\n[tool.holdfast.watchdog]\nfloor = 2\n"
    )
    settings = Settings.load({}, project, {})
    assert (settings.watchdog.floor, settings.source("watchdog.floor")) == (2.0, "./pyproject.toml:7")


@pytest.mark.parametrize("text", ["oom = { split = false, grow_back_steps = 9 }\n", "oom.split = false\n"])
def test_inline_tables_and_dotted_keys_work(project: Path, text: str) -> None:
    (project / "holdfast.toml").write_text("\n" + text)
    settings = Settings.load({}, project, {})
    assert settings.oom.split is False
    assert settings.source("oom.split") == "./holdfast.toml:2"


def test_the_user_file_follows_xdg_and_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_file({"HOME": "/home/ann"}) == Path("/home/ann/.config/holdfast/config.toml")
    assert user_file({"HOME": "/home/ann", "XDG_CONFIG_HOME": "/x"}) == Path("/x/holdfast/config.toml")
    relative = {"HOME": "/home/ann", "XDG_CONFIG_HOME": "x"}
    assert user_file(relative) == Path("/home/ann/.config/holdfast/config.toml")
    monkeypatch.setattr(sys, "platform", "win32")
    assert user_file({"APPDATA": str(tmp_path)}) == tmp_path / "holdfast" / "config.toml"


def test_an_empty_variable_counts_as_not_set() -> None:
    assert Settings.load({}, "/", {"HOLDFAST_RUN_SEED": "", "HOLDFAST_PORTABLE": ""}) == Settings()


def test_the_short_variable_for_portable_mode() -> None:
    assert Settings.load({}, "/", {"HOLDFAST_PORTABLE": "1"}).run.portable is True
    both = {"HOLDFAST_RUN_PORTABLE": "no", "HOLDFAST_PORTABLE": "1"}
    assert Settings.load({}, "/", both).run.portable is False


def test_foreign_variables_of_holdfast_are_left_alone() -> None:
    assert Settings.load({}, "/", {"HOLDFAST_WORKER_GENERATION": "3", "HOLDFAST_RUN": "x"}) == Settings()


# Values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("watchdog.floor", "1h30m", 5400.0),
        ("watchdog.factor", "2.5", 2.5),
        ("snapshot.memory", "512MiB", 2**29),
        ("snapshot.memory", "auto", "auto"),
        ("snapshot.where", "file", "file"),
        ("checkpoint.best", "valid_loss", "valid_loss"),
        ("checkpoint.best", "none", "none"),
        ("run.threads", "8", 8),
        ("run.device", "cuda:1", "cuda:1"),
        ("run.seed", "9223372036854775807", 2**63 - 1),
        ("run.folder", "a folder/with blanks", "a folder/with blanks"),
        ("oom.split", "off", False),
        ("run.portable", "YES", True),
    ],
)
def test_text_becomes_a_typed_value(key: str, text: str, value: object) -> None:
    settings = Settings.load({key: text}, "/", {})
    assert settings.get(key) == value
    assert type(settings.get(key)) is type(value)


def test_toml_values_are_taken_as_they_are(project: Path) -> None:
    (project / "holdfast.toml").write_text(
        "[watchdog]\nfloor = 7\nfactor = 3\n[snapshot]\nmemory = 4000\n[oom]\nsplit = false\n"
    )
    settings = Settings.load({}, project, {})
    assert (settings.watchdog.floor, settings.watchdog.factor) == (7.0, 3.0)
    assert (settings.snapshot.memory, settings.oom.split) == (4000, False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("watchdog.floor", "0s"),
        ("watchdog.floor", -1),
        ("watchdog.floor", float("nan")),
        ("watchdog.floor", float("inf")),
        ("watchdog.floor", True),
        ("watchdog.floor", [5]),
        ("watchdog.factor", "0.5"),
        ("watchdog.factor", "nan"),
        ("snapshot.every", "0"),
        ("snapshot.every", 1.5),
        ("snapshot.every", True),
        ("snapshot.slots", 2),
        ("snapshot.memory", "0"),
        ("snapshot.memory", "huge"),
        ("run.seed", "-1"),
        ("run.seed", str(2**63)),
        ("run.seed", "seven"),
        ("run.threads", "0"),
        ("run.device", "cuda:"),
        ("run.device", "GPU 0"),
        ("run.folder", ""),
        ("oom.split", "maybe"),
        ("oom.split", 2),
        ("checkpoint.best", "2nd best!"),
    ],
)
def test_values_that_are_refused(key: str, value: object) -> None:
    with pytest.raises(UserError) as caught:
        Settings.load({key: value}, "/", {})
    assert caught.value.message.startswith(f'{key} is "')
    assert caught.value.exit_code is ExitCode.USAGE


# What is said ---------------------------------------------------------------------------------------------

SAID = {
    ("watchdog.floor", "soon"): """\
error: watchdog.floor is "soon", which is not allowed
cause: set on the command line
hint: use a duration above zero such as 90s, 5m or 1h30m; the default is 5 s""",
    ("snapshot.where", "memry"): """\
error: snapshot.where is "memry", which is not allowed
cause: set on the command line
hint: did you mean `memory`?
hint: use auto, memory or file; the default is auto""",
    ("run.threads", "many"): """\
error: run.threads is "many", which is not allowed
cause: set on the command line
hint: use auto, or a whole number, 1 or more; the default is auto""",
    ("watchdog.flor", "1s"): """\
error: unknown setting `watchdog.flor`
cause: set on the command line
hint: a similar setting exists: `watchdog.floor`
hint: `holdfast config` lists every setting""",
    ("wachdog.floor", "1s"): """\
error: unknown setting `wachdog.floor`
cause: set on the command line
hint: a similar setting exists: `watchdog.floor`
hint: `holdfast config` lists every setting""",
    ("seed", "1"): """\
error: unknown setting `seed`
cause: set on the command line
hint: a similar setting exists: `run.seed`
hint: `holdfast config` lists every setting""",
    ("retry", "1"): """\
error: unknown setting `retry`
cause: set on the command line
hint: settings of `retry`: retry.same_step, retry.without_progress, retry.in_a_row
hint: `holdfast config` lists every setting""",
    ("retry.zzz", "1"): """\
error: unknown setting `retry.zzz`
cause: set on the command line
hint: settings of `retry`: retry.same_step, retry.without_progress, retry.in_a_row
hint: `holdfast config` lists every setting""",
    ("quux.frob", "1"): """\
error: unknown setting `quux.frob`
cause: set on the command line
hint: `holdfast config` lists every setting""",
}


@pytest.mark.parametrize(("key", "value"), SAID)
def test_what_is_said_about_a_mistake(key: str, value: str) -> None:
    with pytest.raises(UserError) as caught:
        Settings.load({key: value}, "/", {})
    assert text_of(caught.value) == SAID[key, value]


def test_a_mistake_in_a_file_names_the_line(project: Path) -> None:
    (project / "holdfast.toml").write_text("[watchdog]\nfactor = 3\nfloor = true\n")
    with pytest.raises(UserError) as caught:
        Settings.load({}, project, {})
    assert text_of(caught.value) == (
        'error: watchdog.floor is "true", which is not allowed\n'
        "cause: set by ./holdfast.toml:3\n"
        "hint: use a duration above zero such as 90s, 5m or 1h30m; the default is 5 s"
    )


def test_an_unknown_table_names_the_line(project: Path) -> None:
    (project / "holdfast.toml").write_text("\n[snapshots]\nevery = 3\n")
    with pytest.raises(UserError) as caught:
        Settings.load({}, project, {})
    assert text_of(caught.value) == (
        "error: unknown setting `snapshots.every`\n"
        "cause: set by ./holdfast.toml:3\n"
        "hint: a similar setting exists: `snapshot.every`\n"
        "hint: `holdfast config` lists every setting"
    )


@pytest.mark.parametrize("name", ["HOLDFAST_WATCHDOG_FLOR", "HOLDFAST_WACHDOG_FLOOR"])
def test_a_misspelt_variable_is_found(name: str) -> None:
    with pytest.raises(UserError) as caught:
        Settings.load({}, "/", {name: "1s"})
    assert text_of(caught.value) == (
        f"error: the environment variable {name} is not the name of a setting\n"
        "hint: a similar one exists: `HOLDFAST_WATCHDOG_FLOOR`\n"
        f"hint: unset it with `unset {name}`, or see `holdfast config`"
    )


def test_a_broken_file_names_the_place(project: Path) -> None:
    (project / "holdfast.toml").write_text("[watchdog]\nfloor = = 3\n")
    with pytest.raises(UserError) as caught:
        Settings.load({}, project, {})
    assert caught.value.message == "./holdfast.toml is not valid TOML"
    assert "line 2" in (caught.value.cause or "")


def test_a_file_that_is_not_text_is_a_user_error(project: Path) -> None:
    (project / "holdfast.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read"):
        Settings.load({}, project, {})


def test_a_folder_in_place_of_the_file_is_a_user_error(project: Path) -> None:
    (project / "holdfast.toml").mkdir()
    with pytest.raises(UserError, match="cannot read"):
        Settings.load({}, project, {})


def test_a_broken_pyproject_without_our_table_is_not_our_business(project: Path) -> None:
    (project / "pyproject.toml").write_text("[project\nname = 'x'\n")
    assert Settings.load({}, project, {}) == Settings()


# Words of the command line --------------------------------------------------------------------------------


def test_words_of_the_command_line_become_overrides() -> None:
    assert parse_overrides(["run.seed=7", "run.folder=a=b", "oom.split = no", "run.seed=8"]) == {
        "run.seed": "8",
        "run.folder": "a=b",
        "oom.split": "no",
    }


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (
            "run.seed",
            "error: `run.seed` is not a setting\ncause: settings are written as section.key=value\n"
            "hint: for example `run.seed=...`",
        ),
        (
            "=3",
            "error: `=3` is not a setting\ncause: settings are written as section.key=value\n"
            "hint: for example `run.seed=...`",
        ),
        (
            "oom.splt=3",
            "error: unknown setting `oom.splt`\ncause: set on the command line\n"
            "hint: a similar setting exists: `oom.split`\nhint: `holdfast config` lists every setting",
        ),
    ],
)
def test_words_that_are_no_settings(word: str, text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_overrides([word])
    assert text_of(caught.value) == text


# Other processes ------------------------------------------------------------------------------------------


def test_settings_travel_as_json(project: Path) -> None:
    settings = Settings.load({"snapshot.memory": "4GB", "watchdog.floor": "90s"}, project, {"HOLDFAST_RUN_SEED": "3"})
    back = Settings.from_json(json.loads(json.dumps(settings.to_json())))
    assert back == settings
    assert back.sources == settings.sources
    assert settings.to_json()["watchdog"]["floor"] == 90.0


def test_json_with_a_wrong_value_is_refused() -> None:
    data = Settings().to_json()
    data["watchdog"]["floor"] = "soon"
    with pytest.raises(UserError, match=r"watchdog\.floor"):
        Settings.from_json(data)


def test_json_of_an_older_version_gets_defaults_for_what_it_lacks() -> None:
    assert Settings.from_json({"run": {"seed": 7}}) == Settings.load({"run.seed": 7}, "/", {})


def test_an_override_says_who_wanted_it() -> None:
    settings = Settings.load({"run.seed": "7"}, "/", {}).override({"snapshot.every": 4}, source="the plan")
    assert settings.snapshot.every == 4
    assert settings.source("snapshot.every") == "the plan"
    assert settings.source("run.seed") == "command line"


def test_settings_are_frozen_and_names_are_stable() -> None:
    with pytest.raises(AttributeError):
        Settings().run.seed = 1  # type: ignore[misc]
    stable = ["watchdog", "snapshot", "checkpoint", "retry", "loader", "run", "oom", "probation", "blame", "sentinel"]
    assert set(stable) <= set(sections())
    assert variable("oom.allow_batchnorm_split") == "HOLDFAST_OOM_ALLOW_BATCHNORM_SPLIT"
    assert len({variable(key) for key in kinds()}) == len(kinds())


def test_importing_settings_stays_light() -> None:
    heavy = ("torch", "numpy", "rich", "tomllib", "tomli", "difflib", "argparse")
    code = f"import sys, holdfast.run.settings; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
