"""What comes after a run that is one stage of several: read off the run folders, which may be anybody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import UserError
from holdfast.cli import stages
from holdfast.run import workload_registry
from holdfast.run.folder import RunFolder

ORDER = ("eeg-pretrain", "eeg-challenge1", "eeg-challenge2")


def make(root: Path, name: str, state: str, parent: str | None = None, **more: Any) -> RunFolder:
    left = list(ORDER[ORDER.index(name) + 1 :])
    info = {
        "created": f"2026-11-15T09:00:{len(list(root.glob('*'))):02d}.000Z",
        "state": state,
        "parent": parent,
        "stages": {"of": "eeg-pretrained", "left": left, "words": ["epochs=2", "notify.command=mail me"]},
    }
    return RunFolder.create(root, name, {**info, **more})


def test_what_is_left_depends_on_what_was_begun(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    first = make(root, ORDER[0], "FINISHED")
    parent = first.path.name
    left = stages.rest(first)
    assert left is not None and (left.names, left.parent, left.begun) == ([*ORDER[1:]], parent, None)
    assert left.words == ["epochs=2", f"run.folder={root.absolute()}"]  # a folder names no command

    make(root, ORDER[1], "FINISHED", parent, stages=None)  # by hand, from the same weights: not of this chain
    left = stages.rest(first)
    assert left is not None and left.names == [*ORDER[1:]]

    second = make(root, ORDER[1], "STOPPED", parent)
    left = stages.rest(first)
    assert left is not None and left.names == [*ORDER[1:]]
    assert left.begun is not None and left.begun.path == second.path

    second.update_info(state="FINISHED")
    for each in (first, second):
        left = stages.rest(each)
        assert left is not None and (left.names, left.parent, left.begun) == ([ORDER[2]], parent, None)

    third = make(root, ORDER[2], "FINISHED", parent)
    assert [stages.rest(each) for each in (first, second, third)] == [None, None, None]


def test_the_stages_of_another_chain_are_not_ours(tmp_path: Path) -> None:
    one, other = (make(tmp_path / "runs", ORDER[0], "FINISHED") for _ in range(2))
    for name in ORDER[1:]:
        make(tmp_path / "runs", name, "FINISHED", one.path.name)
    assert stages.rest(one) is None
    left = stages.rest(other)
    assert left is not None and left.names == [*ORDER[1:]]


@pytest.mark.parametrize(
    "wrong", [None, "all", {"of": "nothing"}, {"of": "eeg-pretrained", "left": 3}, {"of": "eeg-pretrained", "left": []}]
)
def test_a_run_that_is_no_stage_has_nothing_after_it(tmp_path: Path, wrong: Any) -> None:
    assert stages.rest(make(tmp_path / "runs", ORDER[0], "FINISHED", stages=wrong)) is None


@pytest.mark.parametrize("left", [["../evil.py"], ["detection"], [["eeg-challenge1"]]])
def test_only_stages_of_the_workload_are_started(tmp_path: Path, left: Any) -> None:
    run = make(tmp_path / "runs", ORDER[0], "FINISHED", stages={"of": "eeg-pretrained", "left": left, "words": []})
    with pytest.raises(UserError, match="names stages that `eeg-pretrained` does not have"):
        stages.rest(run)


def test_later_stages_of_a_chain_that_inherits_nothing_begin_with_weights_of_their_own(tmp_path: Path) -> None:
    words = [f"run.folder={tmp_path / 'runs'}"]
    for name, argument in (("eeg", None), ("eeg-pretrained", "first")):
        workload = workload_registry.find(name)
        assert workload is not None
        run = stages._create(workload, [workload.stages[-1]], words, "first", None)
        assert run.info["parent"] == "first"  # `holdfast resume` of any of them finds the others
        assert run.info["arguments"].get("parent") == argument
