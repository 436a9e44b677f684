"""A pickle that is read as text: what its opcodes do to bytes and stack. What their values mean is up to the reader of
each kind."""

from __future__ import annotations

from collections.abc import Mapping
from pickletools import (
    TAKEN_FROM_ARGUMENT1,
    TAKEN_FROM_ARGUMENT4,
    TAKEN_FROM_ARGUMENT4U,
    TAKEN_FROM_ARGUMENT8U,
    UP_TO_NEWLINE,
    markobject,
    opcodes,
)
from typing import Any, NamedTuple

from ..errors import FormatError

_MAX_MARKS = 100_000
"""How many marks may be open. A pickler opens one for each level of nesting, and Python's stack ends far earlier."""

_LENGTHS = {TAKEN_FROM_ARGUMENT1: 1, TAKEN_FROM_ARGUMENT4: 4, TAKEN_FROM_ARGUMENT4U: 4, TAKEN_FROM_ARGUMENT8U: 8}
_STOP, _MARK, _POP, _MEMOIZE = b".(0\x94"
_KEEPS = frozenset(b"pqr\x94")  # PUT, BINPUT, LONG_BINPUT, MEMOIZE


class Opcode(NamedTuple):
    """What an opcode does to pickle and stack, whatever it means.

    Attributes:
        has_argument: whether anything belongs to it.
        lines: how many lines do.
        nbytes: how many bytes do.
        length: of how many bytes the number is that says how many do.
        takes_mark: whether it takes all values above the last mark, and the mark.
        takes: how many values it takes then.
        gives: how many it leaves.
    """

    has_argument: bool
    lines: int
    nbytes: int
    length: int
    takes_mark: bool
    takes: int
    gives: int


def _opcodes() -> dict[int, Opcode]:
    """All opcodes of all protocols, as the standard library describes them."""
    found = {}
    for each in opcodes:
        nbytes = 0 if each.arg is None else each.arg.n
        lines = (2 if each.code in "ci" else 1) * (nbytes == UP_TO_NEWLINE)  # GLOBAL and INST have module and name
        takes_mark = markobject in each.stack_before
        takes = each.stack_before.index(markobject) if takes_mark else len(each.stack_before)
        length, gives = _LENGTHS.get(nbytes, 0), len(each.stack_after)
        found[ord(each.code)] = Opcode(nbytes != 0, lines, max(0, nbytes), length, takes_mark, takes, gives)
    return found


OPCODES = _opcodes()


class GlobalName(str):
    """The full name of a global."""

    __slots__ = ()


class PickleStack:
    """A machine with the stack of a pickle. Subclasses say what values are, by `value` and `keep`.

    Attributes:
        opcodes: those that may stand in the pickle.
        stack: values above the last mark.
    """

    opcodes: Mapping[int, Opcode] = OPCODES

    def __init__(self, pickle: bytes) -> None:
        self.stack: list[Any] = []
        self._pickle = pickle
        self._position = 0
        self._marks: list[list[Any]] = []

    def value(self, code: int, argument: bytes, taken: list[Any]) -> Any:
        """What an opcode makes of its argument and of the values that it has taken."""
        raise NotImplementedError

    def keep(self, index: str | None, value: Any) -> None:
        """Keep the value on top of the stack, under the next index if there is none. It stays there."""
        raise NotImplementedError

    def run(self) -> None:
        """Follow the pickle to its end.

        Raises:
            IndexError: it ends too early, or takes more from the stack than is there.
            KeyError: there is no such opcode.
            FormatError: it has more marks than a pickler opens.
        """
        while (code := self._take(1)[0]) != _STOP:
            opcode = self.opcodes[code]
            argument = self._argument(opcode) if opcode.has_argument else b""
            if code == _MARK:
                self._mark()
            elif code == _POP and not self.stack:
                self._pop_mark()  # picklers write it for a tuple that holds itself
            elif code in _KEEPS:
                self.keep(None if code == _MEMOIZE else index_of(code, argument), self.stack[-1])
            else:
                above = self._pop_mark() if opcode.takes_mark else []
                taken = self._pop(opcode.takes) + above if opcode.takes else above
                self.stack.extend((self.value(code, argument, taken),) * opcode.gives)

    def _argument(self, opcode: Opcode) -> bytes:
        """The bytes that belong to an opcode; of a name in two lines the full one."""
        if opcode.lines:
            return self._line() if opcode.lines == 1 else self._global_name().encode()
        return self._take(self._number(opcode.length) if opcode.length else opcode.nbytes)

    def _take(self, nbytes: int) -> bytes:
        data = self._pickle[self._position : self._position + nbytes]
        if len(data) < nbytes:
            raise IndexError
        self._position += nbytes
        return data

    def _number(self, nbytes: int) -> int:
        return int.from_bytes(self._take(nbytes), "little")

    def _global_name(self) -> str:
        """The full name that GLOBAL has, in two lines."""
        module, name = self._line().decode("utf-8"), self._line().decode("utf-8")
        return f"{'builtins' if module == '__builtin__' else module}.{name}"

    def _line(self) -> bytes:
        """All up to the end of the line, which is taken too."""
        stop = self._pickle.find(b"\n", self._position)
        if stop < 0:
            raise IndexError
        line = self._take(stop - self._position)
        self._position += 1
        return line

    def _mark(self) -> None:
        if len(self._marks) >= _MAX_MARKS:
            raise FormatError(f"its pickle is nested more than {_MAX_MARKS} levels deep")
        self._marks.append(self.stack)
        self.stack = []

    def _pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values

    def _pop_mark(self) -> list[Any]:
        """All values above the last mark, which goes."""
        values, self.stack = self.stack, self._marks.pop()
        return values


def index_of(code: int, argument: bytes) -> str:
    """The index of a PUT or a GET, which the oldest protocol has in decimal. It is a text, whose hash nobody foresees:
    where numbers are keys, they can be chosen so that each look-up goes through all of a dict."""
    return str(decimal(argument) if code in b"pg" else int.from_bytes(argument, "little"))


def decimal(line: bytes) -> int:
    """The number in a line; IndexError for what is none, or too long."""
    if not (len(line) <= 20 and line.isdigit()):
        raise IndexError
    return int(line)
