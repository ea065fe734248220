"""Notes what a device computes: the inputs and outputs of some operators of one ordinary step.

    recorder = Recorder(device, label="cuda:0", samples=4)
    with recorder.look(step=120):
        loss = fn(batch); loss.backward()
    cases = recorder.taken()                       # on the host; on a GPU once `recorder.ready()`

It sits below autograd, so that forward and backward operators are both seen, and changes nothing: inputs are copied
before the operator runs, outputs after it, on the stream of the step. Which operators: those that were looked at the
least, forward and backward alike. A look has a budget of bytes and of operators.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.worker.operators.case import DTYPES, Case, encoded, shape_of, taken_apart
from holdfast.worker.operators.families import CONVOLUTIONS, MATMULS, has_bound
from holdfast.worker.operators.parts import Limits, Part
from holdfast.worker.operators.slices import cut

BUDGET = 16 << 20
"""Bytes of a look."""
OPERATORS = 24
"""Operators of a look."""
SPARE = 16 << 20
"""Bytes beyond the budget that the last operator of a look may take."""
LEAST = 4
"""Of which so many are wanted, however large they are."""
SPREAD = 0.25
"""The chance of an operator in the second half of the first look: nobody knows yet how many are to come."""
KINDS = 4096
"""Kinds that are remembered; a script with ever new shapes would fill the memory otherwise."""
WHOLE, PARTS = "whole", ("forward", "backward", "optimizer")
"""What a look can be at."""
_MOVES = ("_to_copy", "clone", "copy_")
_HELD = frozenset(DTYPES.values())


class Recorder:
    """Chooses operators, look by look, and keeps what they did."""

    def __init__(self, device: torch.device, *, label: str = "", samples: int = 4, seed: int | None = None) -> None:
        self.device = device
        self.label = label or str(device)
        self.limits = Limits(samples=samples)
        self.operators, self.budget = OPERATORS, BUDGET
        self.everything = False
        """Each kind once, in this look: a device that has to prove itself."""
        self.wanted: set[str] = set()
        """Kinds under suspicion: always looked at."""
        self.seen: Counter[str] = Counter()
        """Looks at each kind of operator."""
        self.left_alone: Counter[str] = Counter()
        """Operators that cannot be compared, by the reason."""
        self.looked = 0
        """Operators that were looked at, in all."""
        self.cannot: set[str] = set()
        """Kinds that cannot be compared."""
        self._kinds: dict[tuple[Any, ...], str] = {}
        self._chance = random.Random(seed)
        self._cases: list[Case] = []
        self._met: dict[str, Counter[str]] = {}
        """By the part of a step: how often each kind was called when it was looked at last."""
        self._open: _Mode | None = None
        self._bytes = 0.0
        """What an operator takes of the budget, about."""
        self._event: Any = None
        self._room()  # the first time is slow: before the training, not in the step that is looked at

    def _room(self) -> Tensor | None:
        """Locked memory for the copies of one look. It goes back to torch, which keeps it, with the last of them."""
        if self.device.type != "cuda":
            return None
        return torch.empty(self.budget + SPARE, dtype=torch.uint8, pin_memory=True)

    @contextlib.contextmanager
    def look(self, step: int = 0, *, parts: bool = False) -> Iterator[None]:
        """Around one step. With `parts`, `enters` says what comes, and the look is at one part: it costs less."""
        self._cases = []
        mode = self._open = _Mode(self, step, self._part() if parts and not self.everything else WHOLE)
        if mode.part == WHOLE:
            mode.__enter__()
        try:
            yield
        finally:
            self._open = None
            mode.leave()
        self._ends(mode)
        if self.device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record()

    def enters(self, part: str) -> None:
        """The step comes to its forward, backward or optimizer, or to something else."""
        mode = self._open
        if mode is None or mode.part == WHOLE:
            return
        if mode.part == part:
            mode.__enter__()
        else:
            mode.leave()

    def _part(self) -> str:
        """Parts that nobody has looked at yet come first; then by the operators they have."""
        for kind in self.wanted:
            return "backward" if kind.startswith("backward") else self._chance.choice(("forward", "optimizer"))
        new = [part for part in PARTS if part not in self._met]
        return new[0] if new else self._chance.choices(PARTS, [len(self._met[part]) + 1 for part in PARTS])[0]

    def ready(self) -> bool:
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def taken(self) -> list[Case]:
        cases, self._cases = self._cases, []
        return cases

    def ours(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.device.type == self.device.type

    def plan(self, part: str) -> dict[str, int] | None:
        """Kinds for this look, those that were looked at the least first, and which of its calls; None: all are new."""
        met = self._met.get(part)
        if not met or self.everything:
            return None
        room = max(LEAST, int(self.budget / max(1.0, self._bytes)))
        order = sorted(met, key=lambda kind: (self.seen[kind], self._chance.random()))
        chosen = {*order[: min(self.operators, room)], *self.wanted}
        return {kind: self._chance.randrange(max(1, met[kind])) for kind in chosen}

    def kind_of(self, title: str, back: bool, tensors: list[Tensor]) -> str:
        """The operator with its shapes and formats, in words; the words are made once."""
        key = (title, back, *[part for each in tensors for part in (each.dtype, each.shape)])
        kind = self._kinds.get(key)
        if kind is None:
            words = " ".join(f"{each.dtype}{list(each.shape)}" for each in tensors)
            kind = f"{'backward' if back else 'forward'} {title} {words}"
            if len(self._kinds) < KINDS:
                self._kinds[key] = kind
        return kind

    def takes(self, kind: str) -> None:
        self.looked += 1
        if len(self.seen) < KINDS or kind in self.seen:
            self.seen[kind] += 1

    def never(self, kind: str, why: str) -> None:
        """It cannot be compared: no look has room for it again."""
        if why != "on another device":
            self.left_alone[why] += 1
        if len(self.cannot) < KINDS:
            self.cannot.add(kind)

    def _ends(self, look: _Mode) -> None:
        """What a look has shown of the step: the next one is planned with it."""
        self._met[look.part] = look.met
        if look.kinds:
            self._bytes += 0.5 * ((self.budget - look.left) / len(look.kinds) - self._bytes)


class _Mode(TorchDispatchMode):
    """One look."""

    def __init__(self, recorder: Recorder, step: int, part: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.step = step
        self.part = part
        self.inside = False
        self.left = recorder.budget
        self.room, self.filled = recorder._room(), 0
        self.kinds: set[str] = set()
        self.met: Counter[str] = Counter()
        self.plan = recorder.plan(part)
        self.before = recorder._met.get(part, Counter())

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs compiled, as in every other step: a look changes no bit. What it calls is seen."""
        return True

    def __enter__(self) -> _Mode:
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
        try:
            noted = self._note(func, args, kwargs)
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError) as error:
            noted = None  # an operator we do not understand is the script's business
            self.recorder.left_alone[f"{func.__name__}: {type(error).__name__}"] += 1
        out = func(*args, **kwargs)
        if noted is not None:
            self._keep(*noted, out)
        return out

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Case, Part] | None:
        """The case with its inputs; None if this one is not looked at. Nearly all calls end at the third line."""
        info = _info(func)
        if info is None:
            return None
        tensors = [each for each in args if isinstance(each, Tensor)]
        if len(tensors) < len(args):
            tensors += [e for each in args if isinstance(each, (list, tuple)) for e in each if isinstance(e, Tensor)]
        tensors += [each for each in kwargs.values() if isinstance(each, Tensor)]
        back = torch._C._current_graph_task_id() != -1
        kind = self.recorder.kind_of(info[0], back, tensors)
        if not self._wants(kind):
            return None
        why = self._unfit(tensors)
        given = _named(func, args, kwargs)
        if "out" in func._schema.overload_name:  # what compiled code asks for; the functional operator is the same
            given.pop("out", None)
        if given.get("dropout_p"):
            why = f"{info[0]}: it draws random numbers"
        part = None
        if not why:
            part = cut(info[0], given, self.recorder._chance, self.recorder.limits, pointwise=info[1])
            why = f"{info[0]}: too large to be compared" if part is None else ""
        if part is None:
            self.recorder.never(kind, why)
            return None
        self.kinds.add(kind)
        self.recorder.takes(kind)
        return self._case(func, given, part, "backward" if back else "forward", kind), part

    def _unfit(self, tensors: list[Tensor]) -> str:
        """Why these are left alone."""
        if not all(type(each) in (Tensor, torch.nn.Parameter) and _plain(each) for each in tensors):
            return "tensors of another kind"
        return "on another device" if tensors and not any(self.recorder.ours(each) for each in tensors) else ""

    def _wants(self, kind: str) -> bool:
        """Whether to take this call."""
        recorder = self.recorder
        if kind in recorder.cannot:
            return False
        call = self.met[kind]
        if call or len(self.met) < KINDS:
            self.met[kind] = call + 1
        if kind in self.kinds:
            return False
        if recorder.everything:
            return True
        if len(self.kinds) >= recorder.operators or self.left <= 0:
            return False
        if self.plan is not None and kind in self.plan:
            return call == self.plan[kind]
        return kind not in self.before and recorder._chance.random() < self._rate()

    def _rate(self) -> float:
        """The chance of a kind that the look before has not met."""
        known, most = len(self.before), self.recorder.operators
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
            precision=product_precision(self.recorder.device, func._schema.name.partition("::")[2]),
            device=self.recorder.label,
            full=full,
            kind=kind,
        )

    def _keep(self, case: Case, part: Part, out: Any) -> None:
        listed = list(out) if isinstance(out, (list, tuple)) else [out]
        try:
            plain = [each if isinstance(each, Tensor) and _plain(each) else None for each in listed]
            chosen = {n: each for n, each in part.outputs(plain).items() if each.is_floating_point() and each.numel()}
            case.outputs = {n: self._copy(each) for n, each in chosen.items()}
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            self.recorder.left_alone[f"{case.title}: {type(error).__name__}"] += 1
            return
        if case.outputs:
            self.recorder._cases.append(case)

    def _copy(self, tensor: Tensor) -> Tensor:
        """On the host; on a GPU the copy is under way when this returns."""
        tensor = tensor.detach()
        self.left -= tensor.numel() * tensor.element_size()
        if tensor.device.type == "cpu":
            return tensor.clone(memory_format=torch.contiguous_format)
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


def changes_compiled_code() -> bool:
    """Whether a look would make compiled code run uncompiled, with other roundings: so it is in older versions."""
    if hasattr(TorchDispatchMode, "ignore_compile_internals"):
        return False
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"]["ok"])


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
