"""`holdfast doctor --recorded` and `holdfast plan --recorded`: the advice for the three machines of the first user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.base.errors import UserError
from holdfast.cli import main
from holdfast.devices import recorded

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "devices" / "fixtures"
SCRIPT = ROOT / "examples" / "windows.py"
STABLE = "pip install --index-url https://stable.repo.amd.com/rocm/whl-next/"
NIGHTLY = "pip install --index-url https://rocm.nightlies.amd.com/whl-multi-arch/"
MACHINES = {
    "rx-5600-xt-masquerading": (
        1,
        [
            "D008  this is gfx1010, and HSA_OVERRIDE_GFX_VERSION makes it run as gfx1030",
            "The cause, as far as is known: D008",
            "try    unset HSA_OVERRIDE_GFX_VERSION",
            f'{STABLE} "torch[device-gfx1010]"',
            "Owners of an RX 5600 XT (Linux) and an RX 5700 XT (Windows) report that torch runs on them natively",
        ],
    ),
    "windows-rx-5700-xt": (
        0,
        [
            f'{STABLE} "torch[device-gfx1010]"',
            "report that torch runs on them natively",
            "Triton writes nothing on gfx1010, without an error (many reports",
            "train in fp32",
        ],
    ),
    "windows-rx-9070-xt": (
        0,
        [
            f'{NIGHTLY} "torch[device-gfx1201]"',
            "hipBLASLt reads past the end of its operands (document, 2026-08-27)",
            "AMD tests gfx1201 under Linux and not under Windows",
        ],
    ),
}
DECIDES = "Then the probes decide: `holdfast doctor --full --fresh --device cuda:0`"


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", MACHINES)
def test_what_a_good_engineer_says_today(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, wanted = MACHINES[name]
    assert main.main(["doctor", "--recorded", str(FIXTURES / name)]) == code
    said = flat(capsys.readouterr().out)
    for text in [*wanted, DECIDES, "works now", "Nothing was run", "sha256"]:
        assert flat(text) in said, said
    assert "HSA_OVERRIDE_GFX_VERSION=10" not in said


@pytest.mark.parametrize("name", MACHINES)
def test_a_plan_for_the_same_machine(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", str(SCRIPT), "--recorded", str(FIXTURES / name), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    card, cpu = data["devices"]
    assert cpu == {"id": "cpu", "name": cpu["name"], "refused": None}
    assert card["refused"].startswith("refused by the doctor: D008" if "masq" in name else "no verdict: run")
    assert data["steps"] and DECIDES in data["steps"][-1]
    assert main.main(["plan", str(SCRIPT), "--recorded", str(FIXTURES / name)]) == 0
    assert "Until then: `holdfast train windows.py --device cpu`." in flat(capsys.readouterr().out)


def test_a_message_with_a_recorded_machine(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(FIXTURES / "rx-7900-xtx")
    message = "ValueError: arange: cannot compute length"
    assert main.main(["doctor", "--recorded", folder, "--message", message]) == 1
    assert "F016, NumPy cannot make a range" in flat(capsys.readouterr().out)


def test_what_is_no_machine_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "--recorded", str(tmp_path)]) == 2
    assert "is not a recorded machine" in capsys.readouterr().err
    (tmp_path / "case.json").write_text('{"machine": {"os": "linux"}}')
    assert main.main(["doctor", "--recorded", str(tmp_path / "case.json")]) == 2
    assert "cannot be understood" in capsys.readouterr().err


@pytest.mark.parametrize("head", ["../escaped", "/tmp/escaped", "a/../../escaped", "link -> ../..", "x -> /etc"])
def test_a_machine_of_a_stranger_stays_in_its_folder(tmp_path: Path, head: str) -> None:
    place = tmp_path / "in" / "root"
    place.mkdir(parents=True)
    with pytest.raises(UserError, match="recorded machine names"):
        recorded.unpack(f"-- {head} --\ntext\n", place)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in", "root"]
