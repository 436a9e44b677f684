"""What the pickle of a Flight Recorder says. It is read as text: nothing in it is looked up, made or called."""

from __future__ import annotations

import struct
from typing import Any, Final

from tensorwire.errors import FormatError
from tensorwire.files.pickle_stack import OPCODES, PickleStack, index_of

_MAX_VALUES: Final = 1 << 23
"""A byte may make a value of sixty; 20,000 operations, ten times what torch keeps by default, have half as many."""

_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}  # NONE, NEWTRUE, NEWFALSE
_INTEGERS, _SIGNED = frozenset(b"KMJ\x8a"), frozenset(b"J\x8a")  # BININT1, BININT2, BININT, LONG1
_TEXTS, _TUPLES, _GETS = frozenset(b"X\x8c"), frozenset(b")t\x85\x86\x87"), frozenset(b"hj")
_EMPTY_LIST, _EMPTY_DICT, _BINFLOAT = b"]}G"
_APPENDS, _SETS = frozenset(b"ae"), frozenset(b"su")

# As torch writes it in C++, and as Python does with protocols 2 to 4. There is no opcode that names a global.
_FOLLOWED = {code: OPCODES[code] for code in (*_CONSTANTS, *b"KMJ\x8aX\x8c)t\x85\x86\x87hj]}Gaesu(qr\x94\x80\x95.")}


def read_pickle(data: bytes) -> Any:
    """Numbers, texts, lists, tuples, and dicts whose keys are texts. A value may stand in it several times.

    Raises:
        FormatError: it is no whole pickle of such values, or too large a one.
    """
    reader = _DumpReader(data)
    try:
        reader.run()
        return reader.stack.pop()
    except (IndexError, KeyError, TypeError):
        raise FormatError("it is no whole pickle of numbers and texts alone") from None


class _DumpReader(PickleStack):
    opcodes = _FOLLOWED

    def __init__(self, pickle: bytes) -> None:
        super().__init__(pickle)
        self._kept: dict[str, Any] = {}
        self._num_values = 0

    def keep(self, index: str | None, value: Any) -> None:
        self._kept[str(len(self._kept)) if index is None else index] = value

    def value(self, code: int, argument: bytes, taken: list[Any]) -> Any:
        self._num_values += 1
        if self._num_values > _MAX_VALUES:
            raise FormatError(f"its pickle has more than {_MAX_VALUES:,} values")
        if code in _TEXTS:
            return argument.decode(errors="replace")
        if code in _INTEGERS:
            return int.from_bytes(argument, "little", signed=code in _SIGNED)
        if code in _GETS:
            return self._kept[index_of(code, argument)]
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _TUPLES:
            return tuple(taken)
        if code == _BINFLOAT:
            return struct.unpack(">d", argument)[0]
        if code in (_EMPTY_LIST, _EMPTY_DICT):
            return [] if code == _EMPTY_LIST else {}
        return self._filled(code, taken[0], taken[1:]) if taken else None  # of opcodes that say nothing

    def _filled(self, code: int, container: Any, values: list[Any]) -> Any:
        if code in _APPENDS and isinstance(container, list):
            container += values
        elif code in _SETS and isinstance(container, dict) and len(values) % 2 == 0:
            keys = values[::2]
            if not all(isinstance(key, str) for key in keys):  # what else is hashed may be nested without end
                raise TypeError
            container.update(zip(keys, values[1::2], strict=True))
        else:
            raise TypeError
        return container
