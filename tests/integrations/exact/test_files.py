"""Which files of a script are put back after a restart."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from holdfast.integrations.exact import files

MEMORY = Path("/dev/shm")


@pytest.mark.skipif(not os.access(MEMORY, os.W_OK), reason="no /dev/shm here")
def test_files_of_a_script_that_was_started_in_memory_are_found_and_shared_memory_is_not() -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, tempfile.NamedTemporaryFile(dir=MEMORY) as shared:
        shared.write(b"of processes")
        with open(Path(folder) / "log.csv", "w") as log, open(os.devnull, "w") as nothing:
            log.write("step 1\n")
            found = files.sizes([log, shared, nothing])
    assert found.get(log.name) == 7
    assert shared.name not in found and os.devnull not in found
