"""What the pickle of a torch file says of its storages. It is read as text: nothing in it is looked up, made or called.

So any pickle is followed, whatever it names. Most values are of no interest here and stand on the stack as None.
"""

from __future__ import annotations

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

from ..codec import FROM_TORCH
from ..errors import FormatError
from .names import shown
from .pickle_stack import GlobalName, PickleStack

BYTES = "U8"
"""The dtype of a storage that has no other, or several."""

# By the name of a class of storages: the dtype, and how many bytes stand for one element in `numel`.
_STORAGES = {
    "DoubleStorage": ("F64", 8),
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": (BYTES, 1),
    "BoolStorage": ("BOOL", 1),
    "ComplexFloatStorage": ("C64", 8),
    "ComplexDoubleStorage": ("F64", 16),  # its parts: safetensors has no C128
    "QInt8Storage": ("I8", 1),
    "QInt32Storage": ("I32", 4),
    "QUInt8Storage": (BYTES, 1),
    "QUInt4x2Storage": (BYTES, 1),
    "QUInt2x4Storage": (BYTES, 1),
}
_UNTYPED = "torch.storage.UntypedStorage"
_REBUILD = "torch._utils._rebuild_tensor_v3"
_REBUILD_DTYPE = 6
"""Which argument of it is the dtype of the tensor, and so of an untyped storage."""

_MAX_TEXT_NBYTES = 32
"""A longer text is no key of a storage, and in no name that is looked for."""
_MAX_MEMO = 2 << 20
"""How many texts, names and storages a pickle may come back to: a byte is enough to have one kept."""

_LENGTHS = {TAKEN_FROM_ARGUMENT1: 1, TAKEN_FROM_ARGUMENT4: 4, TAKEN_FROM_ARGUMENT4U: 4, TAKEN_FROM_ARGUMENT8U: 8}
_STOP, _MARK, _POP, _MEMOIZE = b".(0\x94"
_GLOBAL, _STACK_GLOBAL, _LONG, _LONG1, _PERSID, _BINPERSID = b"c\x93L\x8aPQ"
_TEXTS = frozenset(b"XU\x8cT")  # BINUNICODE, SHORT_BINSTRING, SHORT_BINUNICODE, BINSTRING
_NUMBERS = frozenset(b"KMJ")  # BININT1, BININT2, BININT
_TUPLES = frozenset(b"t\x85\x86\x87")
_GETS = frozenset(b"ghj")
_VALUES = _TEXTS | _NUMBERS | _TUPLES | _GETS | frozenset(b"c\x93L\x8aPQR\x81")
"""Opcodes whose values may be of interest; those of the others are None."""
_OTHERS = frozenset(b"(0pqr\x94")
"""MARK, POP, and those that keep a value."""


class _Opcode(NamedTuple):
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


def _opcodes() -> dict[int, _Opcode]:
    """All opcodes of all protocols, as the standard library describes them."""
    found = {}
    for each in opcodes:
        nbytes = 0 if each.arg is None else each.arg.n
        lines = (2 if each.code in "ci" else 1) * (nbytes == UP_TO_NEWLINE)  # GLOBAL and INST have module and name
        takes_mark = markobject in each.stack_before
        takes = each.stack_before.index(markobject) if takes_mark else len(each.stack_before)
        length, gives = _LENGTHS.get(nbytes, 0), len(each.stack_after)
        found[ord(each.code)] = _Opcode(nbytes != 0, lines, max(0, nbytes), length, takes_mark, takes, gives)
    return found


_OPCODES = _opcodes()


class Storage(NamedTuple):
    """A storage that a pickle names."""

    key: str
    nbytes: int


def read_storages(pickle: bytes) -> dict[str, tuple[str, int]]:
    """By key the dtype and size of each storage.

    Raises:
        FormatError: it is no pickle, or says of a storage what torch does not write.
    """
    reader = _StorageReader(pickle)
    try:
        reader.run()
    except (IndexError, KeyError, UnicodeDecodeError):
        raise FormatError("its pickle is damaged") from None
    return {
        storage.key: (dtypes.pop() if len(dtypes) == 1 else BYTES, storage.nbytes)
        for storage, dtypes in reader.storages.values()
    }


class _StorageReader(PickleStack):
    """A machine with the stack of a pickle.

    Attributes:
        storages: by key each storage that was named, and the dtypes under which it was.
    """

    def __init__(self, pickle: bytes) -> None:
        super().__init__(pickle)
        self.storages: dict[str, tuple[Storage, set[str]]] = {}
        self._memo: dict[int, Any] = {}  # without what is None
        self._num_kept = 0

    def run(self) -> None:
        while (code := self.take(1)[0]) != _STOP:
            opcode = _OPCODES[code]
            argument = self._argument(opcode) if opcode.has_argument else b""
            if code in _OTHERS:
                self._do(code, argument)
                continue
            above = self.pop_mark() if opcode.takes_mark else []
            taken = self.pop(opcode.takes) + above if opcode.takes else above
            value = self._value(code, argument, taken) if code in _VALUES else None
            self.stack.extend((value,) * opcode.gives)

    def _argument(self, opcode: _Opcode) -> bytes:
        """The bytes that belong to an opcode; of a name in two lines the full one."""
        if opcode.lines:
            return self.line() if opcode.lines == 1 else self.global_name().encode()
        return self.take(self.number(opcode.length) if opcode.length else opcode.nbytes)

    def _do(self, code: int, argument: bytes) -> None:
        """Follow an opcode that does something else than to take values and to give some."""
        if code == _MARK:
            self.mark()
        elif code == _POP:
            if self.stack:
                self.stack.pop()
            else:
                self.pop_mark()  # picklers write it for a tuple that holds itself
        else:
            self._keep(self._num_kept if code == _MEMOIZE else _index(code, argument))

    def _value(self, code: int, argument: bytes, taken: list[Any]) -> Any:
        """What an opcode makes of its argument and of the values that it took."""
        if code in _TEXTS:
            return _text(argument)
        if code in _GETS:
            return self._memo.get(_index(code, argument))
        if code in _TUPLES:
            return _tuple(taken)
        if code in _NUMBERS:
            return int.from_bytes(argument, "little")
        if code in (_LONG, _LONG1):  # the only forms of a number of elements from 2^31 on
            return _long(code, argument)
        if code == _GLOBAL:
            return _name(argument.decode("utf-8"))
        if code == _STACK_GLOBAL:
            return _name(".".join(taken)) if all(type(text) is str for text in taken) else None
        if code in (_PERSID, _BINPERSID):
            return self._storage(taken[0] if taken else None)
        return self._note_dtype(*taken)

    def _keep(self, index: int) -> None:
        value = self.stack[-1]
        self._num_kept += 1
        if value is None:
            self._memo.pop(index, None)
            return
        self._memo[index] = value
        if len(self._memo) > _MAX_MEMO:
            raise FormatError(f"its pickle comes back to more than {_MAX_MEMO} values")

    def _storage(self, identifier: Any) -> Storage:
        if not (isinstance(identifier, tuple) and len(identifier) == 5 and identifier[0] == "storage"):
            raise FormatError("its pickle refers to something that is no storage")
        _, kind, key, _, numel = identifier
        if not (isinstance(kind, GlobalName) and isinstance(key, str) and isinstance(numel, int)):
            raise FormatError("its pickle refers to a storage in a way that torch does not write")
        dtype, nbytes = _STORAGES.get(kind.removeprefix("torch."), (None, 1))
        if dtype is None and kind != _UNTYPED:
            raise FormatError(f"its pickle names {shown(kind)} as a class of storages")
        storage, dtypes = self.storages.setdefault(key, (Storage(key, numel * nbytes), set()))
        if storage.nbytes != numel * nbytes:
            raise FormatError(f"its pickle gives storage {shown(key)} two sizes")
        dtypes.update([] if dtype is None else [dtype])
        return storage

    def _note_dtype(self, called: Any, arguments: Any) -> None:
        if called == _REBUILD and isinstance(arguments, tuple) and len(arguments) > _REBUILD_DTYPE:
            storage, dtype = arguments[0], arguments[_REBUILD_DTYPE]
            if not (isinstance(storage, Storage) and isinstance(dtype, GlobalName)):
                raise FormatError("its pickle makes a tensor in a way that torch does not write")
            self.storages[storage.key][1].add(FROM_TORCH.get(dtype.removeprefix("torch."), BYTES))


def _index(code: int, argument: bytes) -> int:
    """The index of a PUT or a GET, which the oldest protocol has in decimal."""
    return _decimal(argument) if code in b"pg" else int.from_bytes(argument, "little")


def _decimal(line: bytes) -> int:
    if not (len(line) <= 20 and line.isdigit()):
        raise IndexError
    return int(line)


def _long(code: int, argument: bytes) -> int | None:
    """A number that a size may be, None for one that is too long for that or negative."""
    if code == _LONG:
        digits = argument.rstrip(b"L")
        return _decimal(digits) if digits.isdigit() and len(digits) <= 20 else None
    return int.from_bytes(argument, "little") if len(argument) <= 9 else None


def _text(data: bytes) -> str | None:
    """A text, if it may be of interest. One wide character would take 80 bytes."""
    return data.decode("ascii") if len(data) <= _MAX_TEXT_NBYTES and data.isascii() else None


def _name(name: str) -> GlobalName | None:
    """The name of a global, if it may be of interest: torch's are."""
    return GlobalName(name) if name.startswith("torch.") else None


def _tuple(values: list[Any]) -> Any:
    """Only what names a storage or uses one is kept, and nothing that is nested: tuples in tuples take memory."""
    kept = len(values) > 4 and (values[0] == "storage" or isinstance(values[0], Storage))
    return tuple(None if type(value) is tuple else value for value in values) if kept else None
