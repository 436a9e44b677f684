"""The bytes and the stack of a pickle that is read as text. What its opcodes mean is up to the reader of each kind."""

from __future__ import annotations

from typing import Any

from ..errors import FormatError

_MAX_MARKS = 100_000
"""How many marks may be open. A pickler opens one for each level of nesting, and Python's stack ends far earlier."""


class GlobalName(str):
    """The full name of a global."""

    __slots__ = ()


class PickleStack:
    """Methods raise IndexError if the pickle ends too early, or takes more from the stack than is there.

    Attributes:
        stack: values above the last mark.
    """

    def __init__(self, pickle: bytes) -> None:
        self.stack: list[Any] = []
        self._pickle = pickle
        self._position = 0
        self._marks: list[list[Any]] = []

    def take(self, nbytes: int) -> bytes:
        data = self._pickle[self._position : self._position + nbytes]
        if len(data) < nbytes:
            raise IndexError
        self._position += nbytes
        return data

    def number(self, nbytes: int) -> int:
        return int.from_bytes(self.take(nbytes), "little")

    def global_name(self) -> str:
        """The full name that GLOBAL has, in two lines."""
        module, name = self.line().decode("utf-8"), self.line().decode("utf-8")
        return f"{'builtins' if module == '__builtin__' else module}.{name}"

    def line(self) -> bytes:
        """All up to the end of the line, which is taken too."""
        stop = self._pickle.find(b"\n", self._position)
        if stop < 0:
            raise IndexError
        line = self.take(stop - self._position)
        self._position += 1
        return line

    def mark(self) -> None:
        """Raises FormatError for more marks than a pickler opens."""
        if len(self._marks) >= _MAX_MARKS:
            raise FormatError(f"its pickle is nested more than {_MAX_MARKS} levels deep")
        self._marks.append(self.stack)
        self.stack = []

    def pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values

    def pop_mark(self) -> list[Any]:
        """All values above the last mark, which goes."""
        values, self.stack = self.stack, self._marks.pop()
        return values
