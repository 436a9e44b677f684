"""What the pickle of a torch file says of its storages. It is read as text: nothing in it is looked up, made or called.

So any pickle is followed, whatever it names. Most values are of no interest here and stand on the stack as None.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..codec import FROM_TORCH
from ..errors import FormatError
from .names import shown
from .pickle_stack import GlobalName, PickleStack, decimal, index_of

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
_MAX_NAME_NBYTES = 64
"""A longer name is none that is looked for. What is kept may be copied and hashed for every few bytes of a pickle."""
_MAX_MEMO = 2 << 20
"""How many texts, names and storages a pickle may come back to: a byte is enough to have one kept."""

_GLOBAL, _STACK_GLOBAL, _LONG, _LONG1, _PERSID, _BINPERSID = b"c\x93L\x8aPQ"
_TEXTS = frozenset(b"XU\x8cT")  # BINUNICODE, SHORT_BINSTRING, SHORT_BINUNICODE, BINSTRING
_NUMBERS = frozenset(b"KMJ")  # BININT1, BININT2, BININT
_TUPLES = frozenset(b"t\x85\x86\x87")
_GETS = frozenset(b"ghj")
_VALUES = _TEXTS | _NUMBERS | _TUPLES | _GETS | frozenset(b"c\x93L\x8aPQR\x81")
"""Opcodes whose values may be of interest; those of the others are None."""


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
        self._memo: dict[str, Any] = {}  # without what is None
        self._num_kept = 0

    def value(self, code: int, argument: bytes, taken: list[Any]) -> Any:
        if code not in _VALUES:
            return None
        if code in _TEXTS:
            return _text(argument)
        if code in _GETS:
            return self._memo.get(index_of(code, argument))
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

    def keep(self, index: str | None, value: Any) -> None:
        if index is None:
            index = str(self._num_kept)
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


def _long(code: int, argument: bytes) -> int | None:
    """A number that a size may be, None for one that is too long for that or negative."""
    if code == _LONG:
        digits = argument.rstrip(b"L")
        return decimal(digits) if digits.isdigit() and len(digits) <= 20 else None
    return int.from_bytes(argument, "little") if len(argument) <= 9 else None


def _text(data: bytes) -> str | None:
    """A text, if it may be of interest. One wide character would take 80 bytes."""
    return data.decode("ascii") if len(data) <= _MAX_TEXT_NBYTES and data.isascii() else None


def _name(name: str) -> GlobalName | None:
    """The name of a global, if it may be of interest: torch's are."""
    return GlobalName(name) if name.startswith("torch.") and len(name) <= _MAX_NAME_NBYTES else None


def _tuple(values: list[Any]) -> Any:
    """Only what names a storage or uses one is kept, and nothing that is nested: tuples in tuples take memory."""
    kept = len(values) > 4 and (values[0] == "storage" or isinstance(values[0], Storage))
    return tuple(None if type(value) is tuple else value for value in values) if kept else None
