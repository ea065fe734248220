"""Products with a narrow operand that ends where its memory ends: libraries that read past it fault here.

The shapes are those of LoRA adapters, on which hipBLASLt reset RX 9000 cards (rocm-libraries issues 7992 and 11718): a
tile of 64 for an operand of 16, and a depth that is no multiple of the tile's. It belongs to the full set, which
runs without the guard of such cards; a card that passes is used without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.devices.probe_catalog import Probe

if TYPE_CHECKING:
    from holdfast.probes.bench import Bench
    from holdfast.probes.compare import Outcome

SHAPES = ((4096, 16, 94), (2048, 16, 243), (1024, 16, 343), (3072, 16, 1025))
"""Rows, columns and depth."""
SEGMENT = 2 << 20
"""Bytes that a card's memory is mapped in: what lies behind one may not be there."""
TIMES = 50
BOUND = 0.02
"""Of the whole product, relative; bf16 rounds to 0.004."""
PROBES = [
    Probe("narrow products", "compute", "matmul", ("",), precision="bf16", situation="sustained", kinds=("cuda",))
]


def compute(bench: Bench, spec: dict[str, Any]) -> Iterator[Outcome]:
    """Each product many times, against float64 on the CPU."""
    import torch

    from holdfast.probes.bench import Skip
    from holdfast.probes.compare import Outcome

    if bench.real and not bench.hip:
        raise Skip("made for a fault of AMD's libraries")
    bench.set_precision("bf16")
    bench.tell("")
    source = torch.Generator().manual_seed(7)
    errors = []
    for rows, columns, depth in SHAPES:
        left, right = (torch.randn(count, depth, generator=source).bfloat16() for count in (rows, columns))
        wanted = left.double() @ right.double().T
        with bench.on():
            here, narrow = bench.to(left), at_the_end(bench, right)
            for _ in range(TIMES if bench.real else 1):
                found = here @ narrow.T
            bench.wait()
        errors.append((found.cpu().double() - wanted).norm() / wanted.norm())
    worst = float(torch.stack(errors).max())  # NaN if one of them is
    yield Outcome(worst, BOUND, {"shapes": [list(shape) for shape in SHAPES], "times": TIMES})


def at_the_end(bench: Bench, tensor: Any) -> Any:
    """The same numbers on the device, in the last bytes of a segment of their own."""
    import torch

    size = tensor.numel() * tensor.element_size()
    segment = torch.empty(SEGMENT, dtype=torch.uint8, device=bench.device)
    place = segment[SEGMENT - size :].view(tensor.dtype).view(tensor.shape)
    place.copy_(tensor)
    return place
