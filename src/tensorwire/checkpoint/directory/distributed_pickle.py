"""What torch's pickle of a distributed checkpoint says. It is read as text: nothing in it is looked up, made or called.

Each value counts what is nested in it, so that no pickle makes more of itself by naming a part of it again and again:
what is walked through, hashed or compared is never more than a fixed multiple of the pickle.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from ...errors import CorruptDataError, FormatError
from ...files.names import shown
from ...files.pickle_stack import OPCODES, GlobalName, Opcode, PickleStack, index_of

PLACE = "tensorwire.torch.dcp.metadata.Place"
_PLACE_OF_TORCH = "torch.distributed.checkpoint.filesystem._StorageInfo"
"""The classes of the values of `storage_data`, of our writer and of torch's FileSystemWriter."""

_MAX_DEPTH = 32
"""How many values may be nested. Metadata has 11 levels, and a planner's paths two more."""
_MAX_AGAIN = 2
"""How many values may be named again for each byte of the pickle, each with all that is in it. Picklers stay below a
half: what they name again are names, layouts, enumerations and sizes."""
_TEXT_LENGTH = 32
"""So many characters of a text count as a value."""
_MAX_NAME_LENGTH = 100
"""How long the name of a global may be: it is put together from texts that may be named again."""
_MAX_STACK = 100_000
"""How many values may wait above a mark: a pickler puts 1,000 into a list or dict at once."""
_MAX_INT_NBYTES = 16

_METADATA = "torch.distributed.checkpoint.metadata."
_GETATTR, _ORDERED_DICT, _SIZE = "builtins.getattr", "collections.OrderedDict", "torch.Size"
_LAYOUT = "torch.serialization._get_layout"
_PATHS = {"pathlib.PosixPath", "pathlib._local.PosixPath"}  # of Python before and from 3.13 on
_KNOWN = {PLACE, _PLACE_OF_TORCH, _GETATTR, _ORDERED_DICT, _LAYOUT, *_PATHS}

_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}  # NONE, NEWTRUE, NEWFALSE
_INTEGERS, _SIGNED = frozenset(b"KMJ\x8a"), frozenset(b"J\x8a")  # BININT1, BININT2, BININT, LONG1
_TEXTS, _BYTES = frozenset(b"X\x8c"), frozenset(b"BC")
_EMPTY = {0x29: "tuple", 0x5D: "list", 0x7D: "dict"}
_TUPLES, _GETS = frozenset(b"t\x85\x86\x87"), frozenset(b"hj")
_ADDS = {0x61: "list", 0x65: "list", 0x73: "dict", 0x75: "dict"}  # APPEND, APPENDS, SETITEM, SETITEMS
_BINFLOAT, _GLOBAL, _STACK_GLOBAL, _REDUCE, _NEWOBJ, _BUILD = b"Gc\x93R\x81b"


class _Followed(dict[int, Opcode]):
    """What stands in metadata, of protocols 2 to 4. PROTO and FRAME say nothing: a frame only how much may be read at
    once."""

    def __missing__(self, code: int) -> Opcode:
        raise FormatError(f"the opcode {code:#04x}")


_FOLLOWED = _Followed(
    (code, OPCODES[code])
    for code in (
        *_CONSTANTS,
        *_INTEGERS,
        *_TEXTS,
        *_BYTES,
        *_EMPTY,
        *_TUPLES,
        *_GETS,
        *_ADDS,
        *b"Gc\x93R\x81b(qr\x94\x80\x95",
    )
)

_MEMORY_FORMATS = {
    "TORCH_CONTIGUOUS_FORMAT": "contiguous_format",
    "TORCH_CHANNELS_LAST": "channels_last",
    "TORCH_PRESERVE_FORMAT": "preserve_format",
}


def read_pickle(data: bytes) -> dict[str, Any]:
    """The same as `tensorwire-dcp.json` says, checked no further. If torch's FileSystemWriter has made the checkpoint,
    `files` is None, and a place has the first byte and the size of a part where ours has an entry.

    Raises:
        CorruptDataError: it is no pickle of metadata, or names anything else.
    """
    try:
        reader = _MetadataReader(data)
        reader.run()
        return _body(reader.stack.pop())
    except CorruptDataError:
        raise
    except FormatError as error:
        raise _refusal(error.message) from None
    except (IndexError, KeyError, ValueError):
        raise _refusal("a damaged one") from None


def _refusal(found: str) -> CorruptDataError:
    return CorruptDataError(f"expected a pickle of metadata alone, got {found}")


class _Object:
    """What has values in it.

    Attributes:
        kind: "tuple", "list", "dict", or what was called or made.
        values: those in it; of a dict keys and values in turn; of what was called or made the arguments.
        state: what it was given by BUILD.
        may_change: whether values can come to it.
        depth, count: how deep values are nested, and how many there are where each is counted as often as it stands
            there.
    """

    __slots__ = ("count", "depth", "kind", "may_change", "state", "values")

    def __init__(self, kind: str, values: list[Any], *, may_change: bool = False) -> None:
        self.kind = kind
        self.values: list[Any] = []
        self.state: _Object | None = None
        self.may_change = may_change
        self.depth, self.count = 1, 1
        self.add(values)

    def add(self, values: list[Any]) -> None:
        self.values += values
        self.note(values)

    def note(self, values: list[Any]) -> None:
        """Count values that come to it."""
        for value in values:
            if isinstance(value, _Object):
                self.depth = max(self.depth, value.depth + 1)
            self.count += _count(value)
        if self.depth > _MAX_DEPTH:
            raise FormatError(f"one that is nested more than {_MAX_DEPTH} levels deep")


def _count(value: Any) -> int:
    """How many values one stands for."""
    if isinstance(value, _Object):
        return value.count
    return 1 + len(value) // _TEXT_LENGTH if isinstance(value, (str, bytes)) else 1


class _MetadataReader(PickleStack):
    """A pickler names the same object twice where a program does; here only what is whole may be named twice, and not
    more of it than the pickle has room for."""

    opcodes = _FOLLOWED

    def __init__(self, pickle: bytes) -> None:
        super().__init__(pickle)
        self._memo: dict[str, Any] = {}
        self._room = _MAX_AGAIN * len(pickle)

    def keep(self, index: str | None, value: Any) -> None:
        self._memo[str(len(self._memo)) if index is None else index] = value

    def value(self, code: int, argument: bytes, taken: list[Any]) -> Any:
        if len(self.stack) >= _MAX_STACK:
            raise FormatError(f"one with more than {_MAX_STACK} values that are put into nothing")
        if code in _GETS:
            return self._kept(index_of(code, argument))
        if code in _TEXTS:
            return argument.decode("utf-8", "surrogatepass")
        if code in _INTEGERS:
            if len(argument) > _MAX_INT_NBYTES:
                raise FormatError(f"an integer of {len(argument)} bytes")
            return int.from_bytes(argument, "little", signed=code in _SIGNED)
        if code in _TUPLES:
            return _Object("tuple", taken)
        if code in _ADDS:
            _is(taken[0], _ADDS[code]).add(taken[1:])
            return taken[0]
        if code in _EMPTY:
            return _Object(_EMPTY[code], [], may_change=_EMPTY[code] != "tuple")
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _BYTES:
            return argument
        if code == _BINFLOAT:
            return struct.unpack(">d", argument)[0]
        return self._made(code, argument, taken)

    def _made(self, code: int, argument: bytes, taken: list[Any]) -> Any:
        """A global, or what is made by one."""
        if code == _GLOBAL:
            return _known(argument.decode("utf-8"))
        if code == _STACK_GLOBAL:
            if not all(isinstance(each, str) for each in taken):
                raise IndexError
            return _known(".".join(taken))
        if code in (_REDUCE, _NEWOBJ):
            called, arguments = taken
            if not isinstance(called, GlobalName):
                raise FormatError("one that calls something else")
            return _called(called, _is(arguments, "tuple").values, may_change=code == _NEWOBJ)
        if code == _BUILD:
            _give_state(*taken)
            return taken[0]
        return None

    def _kept(self, index: str) -> Any:
        found = self._memo[index]
        self._room -= _count(found)
        if self._room < 0 or (isinstance(found, _Object) and found.may_change):
            raise FormatError(f"one that names a {_what(found)} again, which may have more in it than the pickle")
        return found


def _give_state(made: Any, state: Any) -> None:
    """Attributes come once, to what NEWOBJ has made: from then on it can be named again."""
    if not (isinstance(made, _Object) and made.may_change and isinstance(made.kind, GlobalName)):
        raise FormatError("attributes of something else")
    made.state, made.may_change = state, False
    made.note([state])


def _known(name: str) -> GlobalName:
    """A global of metadata, by its own name: with a dot in it one would reach all that its module imports."""
    module, _, last = name.rpartition(".")
    is_known = name in _KNOWN or f"{module}." == _METADATA or (module == "torch" and last)
    if len(name) > _MAX_NAME_LENGTH or not is_known:
        raise FormatError(shown(name))
    return GlobalName(name)


def _called(name: GlobalName, arguments: list[Any], *, may_change: bool) -> _Object:
    if name == _ORDERED_DICT and not arguments:
        return _Object("dict", [], may_change=True)
    if name == _GETATTR and len(arguments) == 2 and _is_enumeration(arguments[0]):
        return _Object(arguments[0], arguments[1:])  # as some versions of Python write a member of it
    if name == _GETATTR:
        raise FormatError(shown(name))
    return _Object(name, arguments, may_change=may_change)


def _is_enumeration(value: Any) -> bool:
    return isinstance(value, GlobalName) and value == f"{_METADATA}_MEM_FORMAT_ENCODING"


def _is(value: Any, kind: str) -> _Object:
    """`value`, if it is of this kind."""
    if not isinstance(value, _Object) or value.kind != kind:
        raise _refusal(f"{_what(value)} in the place of a {kind.removeprefix(_METADATA)}")
    return value


def _what(value: Any) -> str:
    """A value by what it is: it may have anything in it."""
    if isinstance(value, _Object):
        return shown(value.kind)
    return type(value).__name__


def _of_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise _refusal(f"{_what(value)} in the place of {kind.__name__}")
    return value


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Keys and values of a dict."""
    values = _is(value, "dict").values
    return zip(values[::2], values[1::2], strict=True)


def _attributes(value: Any, name: str) -> dict[str, Any]:
    """What an object of a class of metadata has, by name."""
    return _state(_is(value, _METADATA + name))


def _state(made: _Object) -> dict[str, Any]:
    """The attributes that BUILD has given to an object, by name."""
    return {} if made.state is None else {_of_type(key, str): each for key, each in _items(made.state)}


def _body(found: Any) -> dict[str, Any]:
    metadata = _attributes(found, "Metadata")
    places = [(_attributes(index, "MetadataIndex"), place) for index, place in _items(metadata["storage_data"])]
    is_torchs = any(isinstance(place, _Object) and place.kind == _PLACE_OF_TORCH for _, place in places)
    storage: list[Any] = []
    files: dict[str, str] = {}
    for key, place in places:
        offset = key.get("offset")
        if is_torchs:
            file, part = _place_of_torch(place)
        else:
            file, part, checksum = (_of_type(each, str) for each in _is(place, PLACE).values)
            if files.setdefault(file, checksum) != checksum:
                raise _refusal(f"two checksums of {shown(file)}")
        storage.append([_of_type(key["fqn"], str), None if offset is None else _sizes(offset), file, part])
    return {
        "state_dict": {_of_type(name, str): _tensor(each) for name, each in _items(metadata["state_dict_metadata"])},
        "storage": storage,
        "files": None if is_torchs else files,
        "planner": _plain(metadata.get("planner_data")),
    }


def _place_of_torch(place: Any) -> tuple[str, tuple[int, int]]:
    """A file, and where in it a part begins and how long it is."""
    found = _state(_is(place, _PLACE_OF_TORCH))
    if found.get("transform_descriptors") is not None:
        raise CorruptDataError(
            "a transform of torch's FileSystemWriter has changed the parts, and only torch knows how to undo it",
            advice="load the checkpoint with torch's FileSystemReader, and save it with TensorwireWriter",
        )
    return _of_type(found["relative_path"], str), (_of_type(found["offset"], int), _of_type(found["length"], int))


def _tensor(value: Any) -> dict[str, Any] | None:
    if isinstance(value, _Object) and value.kind == f"{_METADATA}BytesStorageMetadata":
        return None
    tensor = _attributes(value, "TensorStorageMetadata")
    state = _is(_is(tensor["properties"], f"{_METADATA}TensorProperties").state, "tuple")
    if len(state.values) != 5:
        raise IndexError
    dtype, layout, requires_grad, memory_format, pin_memory = state.values
    chunks = [_attributes(each, "ChunkStorageMetadata") for each in _is(tensor["chunks"], "list").values]
    return {
        "dtype": _of_type(dtype, GlobalName).removeprefix("torch."),
        "layout": _layout(layout).removeprefix("torch."),
        "memory_format": _memory_format(memory_format),
        "requires_grad": _of_type(requires_grad, bool),
        "pin_memory": _of_type(pin_memory, bool),
        "size": _sizes(tensor["size"]),
        "chunks": [[_sizes(chunk["offsets"]), _sizes(chunk["sizes"])] for chunk in chunks],
    }


def _layout(value: Any) -> str:
    if isinstance(value, GlobalName):
        return value
    (name,) = _only(_is(value, _LAYOUT))
    return str(_of_type(name, str))


def _memory_format(value: Any) -> str:
    """A member of an enumeration, by its name or its number."""
    (member,) = _only(_is(value, f"{_METADATA}_MEM_FORMAT_ENCODING"))
    if type(member) is int:
        member = list(_MEMORY_FORMATS)[member]
    return _MEMORY_FORMATS[_of_type(member, str)]


def _sizes(value: Any) -> list[int]:
    (values,) = _only(_is(value, _SIZE))
    return [_of_type(each, int) for each in _is(values, "tuple").values]


def _only(value: _Object) -> list[Any]:
    """The one argument."""
    if len(value.values) != 1:
        raise IndexError
    return value.values


def _plain(value: Any) -> Any:
    """What a planner keeps: values that no class of its own is needed for."""
    if not isinstance(value, _Object):
        return str(value) if isinstance(value, GlobalName) else value
    if value.kind == "list":
        return [_plain(each) for each in value.values]
    if value.kind == "tuple":
        return tuple(_plain(each) for each in value.values)
    return {_of_type(key, str): _plain(each) for key, each in _items(value)}
