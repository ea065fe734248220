"""A label that does not exist: an error has to come. On some devices it never does, and memory is overwritten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.devices.probe_catalog import Probe

if TYPE_CHECKING:
    from holdfast.probes.bench import Bench
    from holdfast.probes.compare import Outcome

PROBES = [Probe("index out of bounds", "notice", "index", ("",))]


def notice(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """Look up the eleventh of ten rows."""
    import torch

    from holdfast.probes.bench import Skip, first_line
    from holdfast.probes.compare import Outcome

    if bench.hip:
        raise Skip("on an AMD card a bad index can take the desktop down; labels are to be checked on the CPU")
    if bench.kind == "xpu":
        raise Skip("on this device a bad index may end in a lost device; labels are to be checked on the CPU")
    table = torch.nn.Embedding(10, 8)
    bench.tell("")
    try:
        with bench.on():
            table.to(bench.device)(bench.to(torch.tensor([3, 10]))).sum().item()
            bench.wait()
    except (RuntimeError, IndexError) as error:
        yield Outcome(facts={"raised": first_line(error)})
        return
    yield Outcome(why="an index out of bounds was not noticed")
