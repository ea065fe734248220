"""Where a script is: the frames from its first line down to `optimizer.step()`, and the loops that are open in each.

    frames = stack(sys._getframe())        # the outermost first, without torch's own last ones
    place(frames)                          # equal in two processes that are at the same place of the same script
    iterators(frame)                       # what the `for` loops around this place draw from, the outermost first
    set_locals(frame, {"epoch": 3})        # in a function that runs

Local variables of a function that runs can be read and written with Python's own means. The iterator of a `for` loop
is on the frame's value stack, which Python shows to nobody. The compiler knows where: `dis.stack_effect` gives the
depth before each instruction, and with it the place of each iterator. It is read from the frame's memory, whose form
is tried first on a function of ours (`can_read`). With a Python of another form the script is not led back.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import hashlib
import sys
import types
from typing import Any

_F_FRAME = 2 * ctypes.sizeof(ctypes.c_ssize_t) + ctypes.sizeof(ctypes.c_void_p)
"""Where a frame object keeps the address of its data: behind what every object has, and `f_back`. Python 3.11 on."""
_MOST_WORDS = 32
_TORCH = ("torch.optim", "torch.amp", "torch.cuda.amp", "torch.autograd.profiler", "torch.utils._contextlib")
_ITERATOR = "iterator"

Place = list[list[Any]]
"""One row for each frame: file, function, a digest of its instructions, the instruction it is at."""


def stack(inner: types.FrameType | None) -> list[types.FrameType]:
    """The frames around `inner`, the outermost first. torch's own frames around the hook are left out."""
    while inner is not None and str(inner.f_globals.get("__name__", "")).startswith(_TORCH):
        inner = inner.f_back
    found: list[types.FrameType] = []
    while inner is not None:
        found.append(inner)
        inner = inner.f_back
    found.reverse()
    begin = next((at for at, each in enumerate(found) if each.f_globals.get("__name__") == "__main__"), 0)
    return found[begin:]


def place(frames: list[types.FrameType]) -> Place:
    return [where(frame) for frame in frames]


def where(frame: types.FrameType) -> list[Any]:
    code = frame.f_code
    return [code.co_filename, _name(code), _digest(code), _instruction(code, frame.f_lasti)]


def line(frame: types.FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _name(code: types.CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name))


@functools.lru_cache(4096)
def _digest(code: types.CodeType) -> str:
    return hashlib.blake2s(code.co_code, digest_size=8).hexdigest()


# -- the loops of a frame ------------------------------------------------------------------------------------------


def iterators(frame: types.FrameType) -> list[Any]:
    """What the `for` loops around the place of this frame draw from, the outermost first."""
    code = frame.f_code
    marks = _stacks(code).get(_instruction(code, frame.f_lasti), ())
    if _ITERATOR not in marks:
        return []
    base = _values(frame)
    return [_object(base + at * _WORD) for at, mark in enumerate(marks) if mark == _ITERATOR]


_WORD = ctypes.sizeof(ctypes.c_void_p)
_CALLS = ("CALL", "PRECALL", "CALL_KW", "CALL_FUNCTION_EX")


def waiting(frame: types.FrameType) -> list[tuple[int, Any]]:
    """Values that an expression around the call at this place has read already, by their place on the stack.

    `total += train()` reads `total` before it calls. Only plain values are listed: a container is the same object.
    """
    code = frame.f_code
    at = _instruction(code, frame.f_lasti)
    each = _listed(code).get(at)
    if each is None or each.opname not in _CALLS:
        return []
    marks, base = _stacks(code).get(at, ()), _values(frame)
    after = len(marks) + dis.stack_effect(each.opcode, each.arg)
    if each.opname == "PRECALL":  # Python 3.11 has two instructions for a call, and either may make it
        after += dis.stack_effect(dis.opmap["CALL"], each.arg)
    found = []
    for place in (place for place in range(max(0, after - 1)) if marks[place] != _ITERATOR):
        if ctypes.c_void_p.from_address(base + place * _WORD).value:
            found.append((place, _object(base + place * _WORD)))
    return found


@functools.lru_cache(1024)
def _listed(code: types.CodeType) -> dict[int, dis.Instruction]:
    return {each.offset: each for each in dis.get_instructions(code)}


def set_waiting(frame: types.FrameType, place: int, value: Any) -> None:
    """Put another value into a place that `waiting` has listed."""
    _put(_values(frame) + place * _WORD, value)


def set_iterator(frame: types.FrameType, number: int, iterator: Any) -> None:
    """Let the loop of that number (as `iterators` lists them) draw from this one, from its next pass on."""
    code = frame.f_code
    marks = _stacks(code)[_instruction(code, frame.f_lasti)]
    at = [at for at, mark in enumerate(marks) if mark == _ITERATOR][number]
    _put(_values(frame) + at * _WORD, iterator)


def _put(address: int, value: Any) -> None:
    word = ctypes.c_void_p.from_address(address)
    before = ctypes.cast(word.value or 0, ctypes.py_object)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    word.value = id(value)
    ctypes.pythonapi.Py_DecRef(before)  # the frame's own; `before` has one as well, so it is not the last here


def _object(address: int) -> Any:
    return ctypes.cast(ctypes.c_void_p.from_address(address).value or 0, ctypes.py_object).value


def _values(frame: types.FrameType) -> int:
    """The address of the frame's value stack."""
    data = ctypes.c_void_p.from_address(id(frame) + _F_FRAME).value or 0
    return data + (_locals_at() + _slots(frame.f_code)) * _WORD


def _slots(code: types.CodeType) -> int:
    """How many words hold variables: a parameter that is a cell, too, has one."""
    names = set(code.co_varnames)
    return len(code.co_varnames) + len([cell for cell in code.co_cellvars if cell not in names]) + len(code.co_freevars)


@functools.cache
def _locals_at() -> int:
    """How many words come before the first variable in a frame's data: found in a frame of ours."""
    return _find_first(object())


def _find_first(first: object) -> int:
    frame = sys._getframe()
    data = ctypes.c_void_p.from_address(id(frame) + _F_FRAME).value or 0
    for word in range(_MOST_WORDS):
        if ctypes.c_void_p.from_address(data + word * _WORD).value == id(first):
            return word
    return -1


@functools.cache
def can_read() -> str:
    """Why the loops of a frame cannot be read in this build of Python; empty if they can: seen on one of ours."""
    if sys.implementation.name != "cpython" or sys.version_info < (3, 11):
        return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor} does not show its loops"
    if getattr(sys, "_is_gil_enabled", lambda: True)() is False or sys.version_info >= (3, 14):
        return "this build of Python keeps its loops in another form"
    if _locals_at() < 0:
        return "this build of Python keeps its variables elsewhere"
    outer, inner = iter(range(7)), iter([object(), object()])
    found, drawn = _try_out(outer, inner)
    if len(found) != 2 or found[0] is not outer or found[1] is not inner or drawn != [1, 2, 3]:
        return "this build of Python keeps its loops elsewhere"
    if _try_out_waiting(1000003) != 2000008:
        return "this build of Python keeps its expressions elsewhere"
    return ""


def _try_out_waiting(total: int) -> int:
    """2,000,000 + 8, if the value that the sum has read already is found and set."""

    def look(frame: types.FrameType) -> int:
        for place, value in waiting(frame):
            if value == 1000003:
                set_waiting(frame, place, 2000000)
        return 8

    total += look(sys._getframe())
    return total


def _try_out(outer: Any, inner: Any) -> tuple[list[Any], list[int]]:
    """Two loops around a place, as they are seen from there; and what the inner one draws once it was set."""
    found: list[Any] = []
    drawn: list[int] = []

    def look(frame: types.FrameType) -> None:
        if not found:
            found.extend(iterators(frame))
            set_iterator(frame, 1, iter([1, 2, 3]))

    for _ in outer:
        with memoryview(b""):
            for each in inner:
                drawn += [each] if found else []
                look(sys._getframe())
        break
    return found, drawn


@functools.lru_cache(4096)
def _instructions(code: types.CodeType) -> list[int]:
    return [each.offset for each in dis.get_instructions(code)]


def _instruction(code: types.CodeType, offset: int) -> int:
    """Where the instruction begins: a call that Python makes without C is left behind its last word."""
    import bisect

    offsets = _instructions(code)
    return offsets[max(0, bisect.bisect_right(offsets, offset) - 1)] if offsets else -1


@functools.lru_cache(1024)
def _stacks(code: types.CodeType) -> dict[int, tuple[str, ...]]:
    """The value stack before each instruction, as marks: which places hold the iterator of a `for` loop."""
    listed = list(dis.get_instructions(code))
    by_offset = {each.offset: number for number, each in enumerate(listed)}
    handlers = [(entry.start, entry.end, entry.target, entry.depth + 1 + entry.lasti) for entry in _handlers(code)]
    found: dict[int, tuple[str, ...]] = {}
    waiting: list[tuple[int, tuple[str, ...]]] = [(0, ())]
    while waiting:
        number, marks = waiting.pop()
        if number >= len(listed) or listed[number].offset in found:
            continue
        each = listed[number]
        found[each.offset] = marks
        for start, end, target, depth in handlers:
            if start <= each.offset < end and target in by_offset:
                waiting.append((by_offset[target], _cut(marks, depth)))
        jumps = each.opcode in dis.hasjrel or each.opcode in dis.hasjabs
        argument = each.arg if each.opcode >= dis.HAVE_ARGUMENT else None
        if jumps:
            waiting.append((by_offset[each.argval], _after(each, marks, argument, jump=True)))
        if not _ends(each.opname):
            waiting.append((number + 1, _after(each, marks, argument, jump=False)))
    return found


def _handlers(code: types.CodeType) -> list[Any]:
    return list(getattr(dis.Bytecode(code), "exception_entries", ()))


def _after(each: dis.Instruction, marks: tuple[str, ...], argument: int | None, *, jump: bool) -> tuple[str, ...]:
    if each.opname == "RETURN_GENERATOR":  # what a generator is sent first is on its stack
        return (*marks, "")
    depth = len(marks) + dis.stack_effect(each.opcode, argument, jump=jump)
    new = _cut(marks, depth)
    return (*new[:-1], _ITERATOR) if each.opname in ("GET_ITER", "GET_YIELD_FROM_ITER") and new else new


def _cut(marks: tuple[str, ...], depth: int) -> tuple[str, ...]:
    return marks[: max(0, depth)] + ("",) * (depth - len(marks))


def _ends(name: str) -> bool:
    return name.startswith(
        ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD")
    )


# -- variables -----------------------------------------------------------------------------------------------------


def set_locals(frame: types.FrameType, values: dict[str, Any]) -> None:
    """Give these variables of a function that runs, or waits, these values."""
    known = frame.f_locals  # before Python 3.13 each look at it reads the variables anew, so one look has to do
    known.update(values)
    if sys.version_info < (3, 13) and known is not frame.f_globals:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
