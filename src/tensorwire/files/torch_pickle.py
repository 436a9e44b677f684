"""What the pickle of a torch file says of its storages. It is read as text: nothing in it is looked up, made or called.

Only what ``torch.load(weights_only=True)`` would load is read: the opcodes that it knows, and the globals that it
allows without being asked. Most values are of no interest here and stand on the stack as None.
"""

from __future__ import annotations

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

ALLOWED = frozenset(
    {
        "_codecs.encode",
        *(f"builtins.{name}" for name in ("bytearray", "complex", "set")),
        *(f"collections.{name}" for name in ("Counter", "OrderedDict")),
        *(f"torch.{name}" for name in (*FROM_TORCH, *_STORAGES, "Size", "Tensor", "device", "complex32")),
        *(f"torch.{name}" for name in ("qint8", "qint32", "quint8", "quint4x2", "quint2x4")),
        *(f"torch.per_{name}" for name in ("tensor_affine", "tensor_symmetric", "channel_affine", "channel_symmetric")),
        "torch.per_channel_affine_float_qparams",
        *(f"torch._utils._rebuild_{name}" for name in ("parameter", "parameter_with_state", "qtensor", "tensor")),
        *(f"torch._utils._rebuild_{name}" for name in ("tensor_v2", "tensor_v3", "sparse_tensor", "nested_tensor")),
        "torch._tensor._rebuild_from_type_v2",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
        _UNTYPED,
    }
)
"""Globals that `torch.load` allows with ``weights_only=True``."""

_NUMBERS = {0x4B: 1, 0x4D: 2, 0x4A: 4, 0x47: 8}  # BININT1, BININT2, BININT, BINFLOAT: how long they are
_TEXTS = {0x58: 4, 0x55: 1, 0x8A: 1}  # BINUNICODE, SHORT_BINSTRING, LONG1: how long their length is
_CONSTANTS = frozenset(b"N\x88\x89)]}\x8f")  # NONE, NEWTRUE, NEWFALSE, EMPTY_TUPLE, EMPTY_LIST, EMPTY_DICT, EMPTY_SET
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_DROPS = {0x62: 1, 0x61: 1, 0x73: 2}  # BUILD, APPEND, SETITEM: how many values they put into the one below
_GETS = {0x68: 1, 0x6A: 4}
_PUTS = {0x71: 1, 0x72: 4}


class Storage(NamedTuple):
    """A storage that a pickle names."""

    key: str
    nbytes: int


def read_storages(pickle: bytes) -> dict[str, tuple[str, int]]:
    """By key the dtype and size of each storage.

    Raises:
        FormatError: torch would not load it with ``weights_only=True``, or it contradicts itself.
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
        self._memo: dict[int, Any] = {}

    def run(self) -> None:
        while (opcode := self.take(1)[0]) != 0x2E:  # STOP
            if not (self._read_value(opcode) or self._read_memo(opcode)):
                self._build(opcode)

    def _read_value(self, opcode: int) -> bool:
        """Push a value that the opcode holds itself."""
        if opcode in _NUMBERS:
            self.stack.append(self.number(_NUMBERS[opcode]))
        elif opcode in _TEXTS:
            data = self.take(self.number(_TEXTS[opcode]))
            # A long text is no key; LONG1 is the only form of a number of elements from 2^31 on.
            self.stack.append(int.from_bytes(data, "little") if opcode == 0x8A else _key(data))
        elif opcode in _CONSTANTS:
            self.stack.append(None)
        elif opcode == 0x63:  # GLOBAL
            self.stack.append(_allowed(self.global_name()))
        elif opcode == 0x80:  # PROTO
            self.take(1)
        else:
            return False
        return True

    def _read_memo(self, opcode: int) -> bool:
        if opcode in _PUTS:
            self._memo[self.number(_PUTS[opcode])] = self.stack[-1]
        elif opcode in _GETS:
            self.stack.append(self._memo[self.number(_GETS[opcode])])
        else:
            return False
        return True

    def _build(self, opcode: int) -> None:
        """Do what takes values from the stack."""
        if opcode == 0x28:  # MARK
            self.mark()
        elif opcode == 0x74:  # TUPLE
            self._push_tuple(self.pop_mark())
        elif opcode in b"eu":  # APPENDS, SETITEMS
            self.pop_mark()
        elif opcode in _TUPLES:
            self._push_tuple(self.pop(_TUPLES[opcode]))
        elif opcode in _DROPS:
            self.pop(_DROPS[opcode])
        elif opcode == 0x51:  # BINPERSID
            self.stack.append(self._storage(self.stack.pop()))
        elif opcode in b"R\x81":  # REDUCE, NEWOBJ
            called, arguments = self.pop(2)
            self.stack.append(None)
            self._note_dtype(called, arguments)
        else:
            raise FormatError(f"its pickle has the opcode {opcode:#04x}, which torch.load(weights_only=True) refuses")

    def _push_tuple(self, values: list[Any]) -> None:
        """Only what names a storage or uses one is kept, and nothing that is nested: tuples in tuples take memory."""
        kept = len(values) > 4 and (values[0] == "storage" or isinstance(values[0], Storage))
        self.stack.append(tuple(None if type(value) is tuple else value for value in values) if kept else None)

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


def _key(data: bytes) -> str | None:
    """A text, if it may be the key of a storage or the word "storage". One wide character would take 80 bytes."""
    return data.decode("ascii") if len(data) <= 32 and data.isascii() else None


def _allowed(name: str) -> GlobalName:
    if name not in ALLOWED:
        raise FormatError(f"its pickle names {shown(name)}, which torch.load(weights_only=True) refuses")
    return GlobalName(name)
