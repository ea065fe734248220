"""One look at a step: below autograd, it sees every operator and takes those that are chosen."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from holdfast.state.torch_private import TorchDispatchMode, in_backward
from holdfast.worker.operators.case import DTYPES, Case, encoded, shape_of, taken_apart
from holdfast.worker.operators.choice import KINDS, Choice
from holdfast.worker.operators.families import CONVOLUTIONS, MATMULS, has_bound
from holdfast.worker.operators.parts import Part
from holdfast.worker.operators.slices import cut

SPREAD = 0.25
"""The chance of an operator in the second half of the first look: nobody knows yet how many are to come."""
LEAST = 1
"""Operators of a look, however long the look takes."""
LISTED = 8
"""Operators of a look that lists the calls of the step as well, which takes its time."""
_MOVES = ("_to_copy", "clone", "copy_")
_HELD = frozenset(DTYPES.values())
_KNOWN = (Tensor, torch.nn.Parameter)


class Look(TorchDispatchMode):
    """One look."""

    def __init__(self, choice: Choice, step: int, part: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.choice = choice
        self.step = step
        self.part = part
        self.inside = False
        self.left = choice.budget
        self.room, self.filled = choice.room(), 0
        self.kinds: set[str] = set()
        self.met: Counter[str] = Counter()
        self.places: dict[str, list[int]] = {}
        """The numbers of the calls of each kind, while this look lists them."""
        self.plan = choice.plan(part)
        self.chosen = choice.chosen(part, self.plan)
        """The calls to look at, by their number; None: this look lists the calls of the step."""
        self.before = choice.met.get(part, Counter())
        self.most = choice.operators if self.chosen is not None else min(choice.operators, LISTED)
        self.calls = 0
        self.spent = 0.0
        """Seconds that the look itself took so far, without the operators of the step."""
        self.shifted = False
        """Whether the step makes other calls than the one that was listed."""
        self.streams: set[Any] = set()
        """Of CUDA, that copies are on: FSDP2 computes on others than the script does."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs compiled, as in every other step: a look changes no bit. What it calls is seen."""
        return True

    def __enter__(self) -> Look:
        if not self.inside:
            self.inside = True
            super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def leave(self) -> None:
        if self.inside:
            self.inside = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if types and any(map(_of_parts, types)):  # of FSDP2: what it does to this rank's part comes here next
            return NotImplemented
        number, self.calls = self.calls, self.calls + 1
        if self.chosen is not None and number not in self.chosen:  # nearly all calls: a look costs what they cost
            return func(*args, **kwargs)
        began = time.perf_counter()
        try:
            noted = self._note(func, args, kwargs)
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError) as error:
            noted = None  # an operator we do not understand is the script's business
            self.choice.left_alone[f"{func.__name__}: {type(error).__name__}"] += 1
        self.spent += time.perf_counter() - began
        out = func(*args, **kwargs)
        if noted is not None:
            began = time.perf_counter()
            case, part, again = noted
            self._keep(case, part, out if again is None else self._without_dropout(func, again))
            self.spent += time.perf_counter() - began
        return out

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Case, Part, dict[str, Any] | None] | None:
        """The case with its inputs; None if this one is not looked at. The last: what to call once more for it."""
        info = _info(func)
        if info is None:
            return None
        tensors = [each for each in args if isinstance(each, Tensor)]
        if len(tensors) < len(args):
            tensors += [e for each in args if isinstance(each, (list, tuple)) for e in each if isinstance(e, Tensor)]
        tensors += [each for each in kwargs.values() if isinstance(each, Tensor)]
        if not all(type(each) in _KNOWN for each in tensors):
            # Before its kind is made: plain tensors of the same shapes are compared. For tensors in parts torch calls
            # each operator once with such ones, to learn the shapes.
            self.choice.left_alone["tensors of another kind"] += 1
            self.shifted = self.shifted or self.chosen is not None
            return None
        back = in_backward()
        kind = self.choice.kind_of(info[0], back, tensors)
        if not self._wants(kind):
            return None
        why = self._unfit(tensors)
        given = _named(func, args, kwargs)
        if "out" in func._schema.overload_name:  # what compiled code asks for; the functional operator is the same
            given.pop("out", None)
        again = None
        if given.get("dropout_p"):
            again = given = {**given, "dropout_p": 0.0}
        part = None
        if not why:
            part = cut(info[0], given, self.choice.chance, self.choice.limits, pointwise=info[1])
            why = f"{info[0]}: too large to be compared" if part is None else ""
        if part is None:
            self.choice.never(kind, why)
            return None
        self.kinds.add(kind)
        self.choice.takes(kind)
        return self._case(func, given, part, "backward" if back else "forward", kind), part, again

    def _unfit(self, tensors: list[Tensor]) -> str:
        """Why these are left alone."""
        if not all(map(_plain, tensors)):
            return "tensors of another format"
        return "on another device" if tensors and not any(self.choice.ours(each) for each in tensors) else ""

    def _wants(self, kind: str) -> bool:
        """Whether to take this call."""
        choice = self.choice
        if self.chosen is not None and self.chosen[self.calls - 1] != kind:
            self.shifted = True
        if kind in choice.cannot:
            return False
        call = self.met[kind]
        if call or len(self.met) < KINDS:
            self.met[kind] = call + 1
            self.places.setdefault(kind, []).append(self.calls - 1)
        if kind in self.kinds:
            return False
        if choice.everything:
            return True
        if len(self.kinds) >= self.most or self.left <= 0:
            return False
        if len(self.kinds) >= LEAST and self.spent > choice.most_s:
            return False
        if self.chosen is not None:
            return True
        if self.plan is not None and kind in self.plan:
            return call == self.plan[kind]
        return kind not in self.before and choice.chance.random() < self._rate()

    def _rate(self) -> float:
        """The chance of a kind that the look before has not met."""
        known, most = len(self.before), self.most
        if known:
            return min(1.0, most / known)
        return 1.0 if 2 * len(self.kinds) < most else SPREAD

    def _case(self, func: Any, given: dict[str, Any], part: Part, part_of_step: str, kind: str) -> Case:
        found: list[Tensor] = []
        places = taken_apart(part.arguments, found)
        full: dict[str, Any] = {}
        if not part.whole:
            whole: list[Tensor] = []
            arguments = encoded(taken_apart(given, whole))
            full = {"kwargs": arguments, "shapes": [_shape(each) for each in whole]}
        encoded(places)  # raises for what cannot be written down
        copies = [self._copy(each) for each in found]
        return Case(
            name=func._schema.name,
            overload="" if "out" in func._schema.overload_name else func._schema.overload_name,
            args=[],
            kwargs=places,
            tensors=copies,
            part=part_of_step,
            step=self.step,
            precision=product_precision(self.choice.device, func._schema.name.partition("::")[2]),
            device=self.choice.label,
            full=full,
            kind=kind,
        )

    def _without_dropout(self, func: Any, given: dict[str, Any]) -> Any:
        """The answer to compare where the operator draws: it is asked again without. The step's random numbers stay."""
        device = self.choice.device
        ours = device.type == "cuda"
        before = torch.cuda.get_rng_state(device) if ours else torch.get_rng_state()
        try:
            return func(**given)
        except RuntimeError as error:  # no memory for one more, or no such kernel: the step is not to suffer from that
            self.choice.left_alone[f"{func.__name__} without dropout: {type(error).__name__}"] += 1
            return ()
        finally:
            torch.cuda.set_rng_state(before, device) if ours else torch.set_rng_state(before)

    def _keep(self, case: Case, part: Part, out: Any) -> None:
        listed = list(out) if isinstance(out, (list, tuple)) else [out]
        try:
            plain = [each if isinstance(each, Tensor) and _plain(each) else None for each in listed]
            chosen = {n: each for n, each in part.outputs(plain).items() if each.is_floating_point() and each.numel()}
            case.outputs = {n: self._copy(each) for n, each in chosen.items()}
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            self.choice.left_alone[f"{case.title}: {type(error).__name__}"] += 1
            return
        if case.outputs:
            self.choice.cases.append(case)

    def _copy(self, tensor: Tensor) -> Tensor:
        """On the host; on a GPU the copy is under way when this returns."""
        tensor = tensor.detach()
        self.left -= tensor.numel() * tensor.element_size()
        if tensor.device.type == "cpu":
            return tensor.clone(memory_format=torch.contiguous_format)
        if tensor.device.type == "cuda":
            self.streams.add(torch.cuda.current_stream(tensor.device))
        place = self._place(tensor)
        if place is None:
            return tensor.contiguous().to("cpu", non_blocking=tensor.device.type == "cuda")
        return place.copy_(tensor, non_blocking=True)

    def _place(self, tensor: Tensor) -> Tensor | None:
        """In the room of this look; None where it is full."""
        size = tensor.numel() * tensor.element_size()
        if self.room is None or self.filled + size > self.room.numel():
            return None
        place = self.room[self.filled : self.filled + size].view(tensor.dtype).view(tensor.shape)
        self.filled += -(-size // 64) * 64
        return place


def _of_parts(kind: type) -> bool:
    """Tensors of which each rank holds a part (DTensor)."""
    return kind is not Tensor and hasattr(kind, "device_mesh") and hasattr(kind, "to_local")


_INFOS: dict[Any, tuple[str, bool] | None] = {}


def _info(func: Any) -> tuple[str, bool] | None:
    """The operator's name and whether it is elementwise; None for one that is left alone."""
    if func not in _INFOS:
        _INFOS[func] = _look_up(func)
    return _INFOS[func]


def _look_up(func: Any) -> tuple[str, bool] | None:
    schema = func._schema
    space, _, title = schema.name.partition("::")
    attends = title.startswith("_scaled_dot_product")  # it draws only where it drops out, which has no reference
    drawn = torch.Tag.nondeterministic_seeded in func.tags and not attends
    view = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
    if space != "aten" or drawn or view or not schema.returns or not has_bound(title):
        return None
    if schema.overload_name.endswith("out") and title not in MATMULS | CONVOLUTIONS:
        return None
    if title == "detach" or any(str(each.type) == "Generator" for each in schema.arguments):
        return None
    return title, torch.Tag.pointwise in func.tags or title in _MOVES


def _plain(tensor: Tensor) -> bool:
    return tensor.dtype in _HELD and tensor.layout == torch.strided and not tensor.is_quantized


def _shape(tensor: Tensor) -> dict[str, Any]:
    return asdict(shape_of(tensor))


def _named(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name, so that a part of them can be put in their place."""
    names = [each.name for each in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def product_precision(device: torch.device, title: str) -> str:
    """How products of fp32 are computed now: as written, in TF32, or in bf16."""
    if title in CONVOLUTIONS:
        return "tf32" if device.type == "cuda" and _cudnn_tf32() else "ieee"
    with contextlib.suppress(RuntimeError):  # as below
        chosen = torch.get_float32_matmul_precision()
        return {"highest": "ieee", "high": "tf32", "medium": "bf16"}.get(chosen, "tf32")
    return "tf32"


def _cudnn_tf32() -> bool:
    with contextlib.suppress(RuntimeError):  # the old way of asking raises once the new one was used
        return bool(torch.backends.cudnn.allow_tf32)
    return True
