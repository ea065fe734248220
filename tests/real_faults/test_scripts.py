"""A script's own errors end the run at once, with the script's own words; and bad input is refused, never retried."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from holdfast.base.errors import ScriptFailed, UserError
from tests.real_faults.conftest import Drive
from tests.real_faults.driving import Run

HEAD = """
import torch, holdfast
from torch import nn
from torch.utils.data import TensorDataset

def parts():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    data = holdfast.Loader(TensorDataset(torch.randn(16, 4), torch.arange(16) % 2), batch_size=4)
    return model, optimizer, data

def loss_of(model):
    return lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return path


# The user's own exception --------------------------------------------------------------------------------------

AT_IMPORT = """
def helper():
    raise LookupError("no such table")

helper()

def train(session):
    pass
"""
IN_THE_LOOP = """
def helper(step):
    if step == {step}:
        raise LookupError("no such table")

def train(session):
    model, optimizer, data = parts()
    session.protect(model=model, optimizer=optimizer, data=data)
    for epoch in session.epochs(3):
        for batch in session.batches(data):
            helper(session.step_count)
            session.step(loss_of(model), batch)
"""
IN_THE_LOSS = """
def helper(step):
    if step == {step}:
        raise LookupError("no such table")

def train(session):
    model, optimizer, data = parts()
    session.protect(model=model, optimizer=optimizer, data=data)

    def loss(batch):
        helper(session.step_count)
        return loss_of(model)(batch)

    for epoch in session.epochs(3):
        for batch in session.batches(data):
            session.step(loss, batch)
"""
WORDS_OF_A_DEVICE = """
def train(session):
    model, optimizer, data = parts()
    session.protect(model=model, optimizer=optimizer, data=data)

    def helper(batch):
        raise ValueError("CUDA out of memory, said somebody else")

    for batch in session.batches(data):
        session.step(helper, batch)
"""


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("text", "step"),
    [(AT_IMPORT, None), (IN_THE_LOOP, 0), (IN_THE_LOOP, 5), (IN_THE_LOSS, 0), (IN_THE_LOSS, 5)],
    ids=["import", "loop-0", "loop-5", "loss-0", "loss-5"],
)
@pytest.mark.parametrize("device", ["cpu", "pretend:0"])
def test_a_scripts_own_exception_is_never_retried(
    drive: Drive, tmp_path: Path, text: str, step: int | None, device: str
) -> None:
    run = drive(write(tmp_path, text.replace("{step}", str(step))), device=device)
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
    error = run.outcome.error
    assert isinstance(error, ScriptFailed)
    assert error.message == "script.py raised LookupError: no such table"
    assert run.receipt["faults"] == {"user_error": 1}
    assert len(run.of("worker")) <= 1
    words = (run.folder / "traceback.txt").read_text()
    assert words.startswith("Traceback")
    assert (
        'script.py", line' in words and "in helper" in words and words.rstrip().endswith("LookupError: no such table")
    )
    assert words.strip() in (run.folder / "output.log").read_text()
    first = words.splitlines()[1]
    assert "script.py" in first, first  # the user's own frames, not ours, come first
    if step == 5:
        assert run.checkpoint().step == 5
        assert str(error.saved).startswith("step 5 in ")


def test_a_quoted_device_message_is_the_scripts_own_error(drive: Drive, tmp_path: Path) -> None:
    run = drive(write(tmp_path, WORDS_OF_A_DEVICE), device="pretend:0")
    assert (run.outcome.state, run.outcome.exit_code) == ("FAILED", 1), run.story()
    assert run.receipt["faults"] == {"user_error": 1}


@pytest.mark.sample(2)
@pytest.mark.parametrize(("words", "state"), [("sys.exit(3)", "FAILED"), ("sys.exit()", "FAILED")])
def test_a_script_that_leaves(drive: Drive, tmp_path: Path, words: str, state: str) -> None:
    run = drive(write(tmp_path, f"import sys\ndef train(session):\n    {words}\n"))
    assert run.outcome.state == state, run.story()
    assert run.outcome.exit_code == (1 if "3" in words else 2)


@pytest.mark.sample(2)
@pytest.mark.parametrize("how", ["Exception", "BaseException"])
def test_catching_everything_does_not_go_on_with_a_lost_device(drive: Drive, tmp_path: Path, how: str) -> None:
    text = """
    def train(session):
        model, optimizer, data = parts()
        session.protect(model=model, optimizer=optimizer, data=data)
        for epoch in session.epochs(2):
            for batch in session.batches(data):
                try:
                    session.step(loss_of(model), batch)
                except HOW:
                    print("never mind")
    """.replace("HOW", how)
    run = drive(write(tmp_path, text), device="pretend:0", faults="device_assert@3")
    assert run.outcome.state == "FINISHED", run.story()
    assert run.faults() == ["device_lost"]
    assert (run.receipt["steps"], run.receipt["steps_repeated"]) == (8, 1)


# Bad input -----------------------------------------------------------------------------------------------------

NOTHING_PROTECTED = """
def train(session):
    model, optimizer, data = parts()
    for epoch in session.epochs(2):
        pass
"""
NO_PARAMETERS = """
def train(session):
    model, optimizer, data = parts()
    session.protect(model=nn.ReLU(), optimizer=optimizer, data=data)
"""
OPTIMIZER_NOT_PROTECTED = """
def train(session):
    model, optimizer, data = parts()
    session.protect(model=model, data=data)
    for batch in session.batches(data):
        session.step(loss_of(model), batch)
"""
OTHER_OPTIMIZER = """
def train(session):
    model, optimizer, data = parts()
    session.protect(model=model, optimizer=optimizer, data=data)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in session.batches(data):
        session.step(loss_of(model), batch, optimizer=other)
"""
LOADER_NOT_PROTECTED = """
def train(session):
    model, optimizer, data = parts()
    session.protect(model=model, optimizer=optimizer)
    for batch in session.batches(data):
        session.step(loss_of(model), batch)
"""
NOT_A_LOADER = """
def train(session):
    model, optimizer, data = parts()
    session.protect(model=model, optimizer=optimizer)
    for batch in session.batches(torch.utils.data.DataLoader(data.dataset)):
        pass
"""
NOT_JSON = """
class Brain:
    pass

class World:
    def state_dict(self):
        return {"agents": [0, 1, {"brain": Brain()}]}
    def load_state_dict(self, state):
        pass

def train(session):
    model, optimizer, data = parts()
    session.protect(model=model, optimizer=optimizer, data=data, world=World())
    for batch in session.batches(data):
        session.step(loss_of(model), batch)
"""
NO_STATE = """
def train(session):
    model, optimizer, data = parts()
    session.protect(model=model, optimizer=optimizer, data=data, world=object())
"""
EMPTY_DATASET = """
def train(session):
    holdfast.Loader(TensorDataset(torch.zeros(0, 4)), batch_size=4)
"""
PROTECTED_TWICE = """
def train(session):
    model, optimizer, data = parts()
    session.protect(model=model)
    session.protect(optimizer=optimizer)
"""
FOREIGN_PARAMETERS = """
def train(session):
    model, optimizer, data = parts()
    session.protect(model=nn.Linear(3, 3), optimizer=optimizer, data=data)
"""
NO_GRADIENT = """
def train(session):
    model, optimizer, data = parts()
    session.protect(model=model, optimizer=optimizer, data=data)
    for batch in session.batches(data):
        session.step(lambda b: loss_of(model)(b).detach(), batch)
"""
NOT_A_LOSS = """
def train(session):
    model, optimizer, data = parts()
    session.protect(model=model, optimizer=optimizer, data=data)
    for batch in session.batches(data):
        session.step(lambda b: model(b[0]), batch)
"""
NO_TRAIN = """
def trian(session):
    pass
"""

BAD_INPUT = {
    "nothing protected": (NOTHING_PROTECTED, "nothing is protected", "protect"),
    "no parameters": (NO_PARAMETERS, "has no parameters", ""),
    "optimizer not protected": (OPTIMIZER_NOT_PROTECTED, "no optimizer is protected", "protect it"),
    "another optimizer": (OTHER_OPTIMIZER, "the SGD given to session.step was not protected", "protect"),
    "loader not protected": (LOADER_NOT_PROTECTED, "this Loader was not protected", "data=data"),
    "not a loader": (NOT_A_LOADER, "this DataLoader was not protected", "data=data"),
    "not tensor, not JSON": (NOT_JSON, "world.agents[2].brain", ""),
    "no state": (NO_STATE, "world", ""),
    "empty dataset": (EMPTY_DATASET, "is empty", "path"),
    "protected twice": (PROTECTED_TWICE, "session.protect was called twice", "in one call"),
    "foreign parameters": (FOREIGN_PARAMETERS, "belong to no protected module", "protect the module"),
    "no gradient": (NO_GRADIENT, "has no gradient", ""),
    "not a loss": (NOT_A_LOSS, "must return the loss", "mean"),
    "no train": (NO_TRAIN, "train", ""),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused_with_a_cause_and_a_hint(drive: Drive, tmp_path: Path, case: str) -> None:
    text, message, hint = BAD_INPUT[case]
    run: Run = drive(write(tmp_path, text))
    error = run.outcome.error
    assert isinstance(error, UserError), run.story()
    assert run.outcome.exit_code == 2
    assert message in f"{error.message} {error.cause}", error.to_json()
    assert error.hints, "what can be done about it?"
    assert hint in " ".join(error.hints), error.hints
    assert not run.of("fault"), "nothing is retried"
    assert len(run.of("worker")) <= 1
    assert run.receipt["steps"] == 0


def test_a_resumed_script_that_protects_other_objects(drive: Drive, tmp_path: Path) -> None:
    text = """
    def train(session):
        model, optimizer, data = parts()
        names = {"model": model, "optimizer": optimizer, "data": data}
        session.protect(**names)
        for batch in session.batches(data):
            session.step(loss_of(model), batch)
            if session.step_count == 3:
                raise LookupError("stop here")
    """
    script = write(tmp_path, text)
    run = drive(script)
    assert run.outcome.exit_code == 1
    script.write_text(script.read_text().replace('"model": model', '"net": model'))
    again = drive(script, resume=run.folder)
    assert again.outcome.exit_code == 2, again.story()
    assert "other objects" in str(again.outcome.error)
    assert run.checkpoint().step == 2  # what was saved is still there; the body of step 3 was not over
