"""Whether a thread waits for a key of a store.

The stores of torch wait in C, where a stack shows only their caller. So the call is read from the bytecode of the
caller, which tells the names before it, and the store is found behind these names: `store.get(key)`,
`self.store.wait(keys)`. Nothing of the script is run, and nothing of torch is replaced.

A store that is the result of a call, as in `get_store().get(key)`, is not seen. Nor is any under Python 3.10, whose
bytecode tells lines alone.
"""

from __future__ import annotations

import dis
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Final

_METHODS: Final = frozenset({"get", "multi_get", "wait"})
_VARIABLES: Final = ("LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD")
_PASSED_OVER: Final = ("PRECALL", "PUSH_NULL", "CACHE")


def is_in_store(innermost: FrameType) -> bool:
    """Whether the innermost call on a stack is in a store that waits for keys."""
    code = innermost.f_code
    if _METHODS.isdisjoint(code.co_names):
        return False
    variable, *attributes = _callee(code, innermost.f_lasti) or ("",)
    if not attributes or attributes.pop() not in _METHODS:
        return False
    value = innermost.f_locals.get(variable, innermost.f_globals.get(variable))
    with suppress(AttributeError):
        for name in attributes:
            value = object.__getattribute__(value, "__dict__").get(name)
    return _is_store(value)


@lru_cache(maxsize=64)
def _callee(code: CodeType, lasti: int) -> tuple[str, ...]:
    """The names before the call at this place, as ("self", "store", "get"); none where there is more than names."""
    before: list[dis.Instruction] = []
    for each in dis.get_instructions(code):
        if each.offset == lasti and each.opname.startswith("CALL"):
            return _names([one for one in before if _start(one) == _start(each)]) if _start(each) else ()
        before.append(each)
    return ()


def _names(instructions: list[dis.Instruction]) -> tuple[str, ...]:
    """The variable that was loaded last, and the attributes after it. The instructions begin where the call begins."""
    names: tuple[str, ...] = ()
    for each in instructions:
        if each.opname.startswith(_VARIABLES):
            names = (each.argval,)
        elif names and each.opname in _ATTRIBUTES:
            names = (*names, each.argval)
        elif each.opname not in _PASSED_OVER:
            names = ()
    return names


def _start(instruction: dis.Instruction) -> tuple[int, int] | None:
    """Line and column; None where they are not known."""
    positions = getattr(instruction, "positions", None)
    if positions is None or positions.lineno is None or positions.col_offset is None:
        return None
    return positions.lineno, positions.col_offset


def _is_store(value: Any) -> bool:
    from torch._C._distributed_c10d import Store

    return issubclass(type(value), Store)
