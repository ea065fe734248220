"""A limit on address space (`ulimit -v`) that torch does not fit into: one sentence, and no nursery after the other."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.real_faults.driving import JOBS, Command


@pytest.mark.all
@pytest.mark.sample(2)
@pytest.mark.parametrize("kilobytes", [1_000_000, 3_000_000])
def test_a_limit_that_is_too_small_is_named(tmp_path: Path, kilobytes: int) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (kilobytes * 1024, kilobytes * 1024))

    with Command(tmp_path, "train", JOBS / "best.py", "epochs=1", "--device", "cpu", preexec_fn=limit) as command:
        code = command.end(300.0)
        if code == 0:
            pytest.skip(f"this torch fits into {kilobytes} kB")
        said = command.words()
    assert code == 2, said
    assert f"ulimit -v {kilobytes}" in said and "address space" in said and "ulimit -v unlimited" in said
    run = command.run()
    assert run.outcome.state == "FAILED" and not run.of("fault"), run.story()
