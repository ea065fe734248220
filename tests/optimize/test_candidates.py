"""Which candidates a machine is offered, by what it has."""

from __future__ import annotations

import pytest

from holdfast.optimize.candidates import candidates
from holdfast.optimize.processor import Machine

ALL = frozenset({"onnx", "onnxscript", "onnxruntime", "openvino"})


def offered(flags: set[str], **more: object) -> dict[str, str]:
    machine = Machine(frozenset(flags), 2, packages=ALL)
    for name, value in more.items():
        object.__setattr__(machine, name, value)
    return {each.name: each.skip for each in candidates(machine)}


def test_amx_offers_bf16_and_an_old_processor_does_not() -> None:
    assert not offered({"avx512_bf16", "amx_bf16", "avx512_vnni"})["openvino bf16"]
    assert offered({"avx2"})["openvino bf16"] == "this processor has no bf16 arithmetic"
    assert offered({"avx2"})["openvino fp16"] == "this processor has no fp16 arithmetic"
    assert not offered({"asimdhp", "asimddp"})["openvino fp16"]


def test_what_is_not_installed_is_named_with_the_way_to_get_it() -> None:
    found = offered({"avx2"}, packages=frozenset({"onnx", "onnxruntime"}))
    assert found["openvino fp32"] == "openvino is not installed: pip install 'holdfast[optimize]'"
    assert not found["onnxruntime fp32"]


def test_without_a_compiler_nothing_is_compiled() -> None:
    found = offered({"avx2"}, compiler=False)
    assert "compiler" in found["compile fp32"] and "compiler" in found["aot fp32"] and not found["export fp32"]


def test_a_gpu_brings_its_own() -> None:
    assert "compile fp16 cuda" in offered({"avx2"}, gpu=True) and "compile fp16 cuda" not in offered({"avx2"})


@pytest.mark.parametrize("wanted", [("openvino",), ("openvino fp32",)])
def test_only_those_that_are_wanted(wanted: tuple[str, ...]) -> None:
    found = candidates(Machine(frozenset({"avx2"}), 2, packages=ALL), wanted)
    assert found and all(each.engine == "openvino" for each in found)


def test_a_peer_without_settings_is_measured_only_where_it_is_named() -> None:
    assert "onnxruntime defaults" not in offered({"avx2"})
    machine = Machine(frozenset({"avx2"}), 2, packages=ALL)
    assert [each.name for each in candidates(machine, ("onnxruntime defaults",))] == ["onnxruntime defaults"]


def test_static_int8_of_openvino_starts_from_what_onnxruntime_found() -> None:
    found = offered({"avx2"}, packages=frozenset({"openvino"}))
    assert found["openvino int8-static"] == "onnx is not installed: pip install 'holdfast[optimize]'"
    assert not found["openvino fp32"] and not offered({"avx2"})["openvino int8-static"]


@pytest.mark.all
def test_this_machine_is_looked_at_without_torch() -> None:
    import subprocess
    import sys

    program = (
        "import sys; from holdfast.optimize import pipeline, verify, report, bundle, candidates, engines, processor; "
        "import holdfast.serving.app, holdfast.cli.optimize, holdfast.cli.serve, holdfast.cli.predict; "
        "processor.Machine.look(engines.packages()); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=100, check=False).returncode == 0
