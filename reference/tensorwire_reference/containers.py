"""Safetensors files, as section "A compressed file" of docs/checkpoints.md wants them read, and JSON."""

import json
import re
from math import prod
from typing import Any, NamedTuple, Protocol

from .errors import CorruptDataError, LimitExceededError, TruncatedDataError, require
from .layouts import TABLE

MAX_HEADER_NBYTES = 100_000_000
MAX_NDIM = 64
MAX_SIZE = 2**64 - 1
_DTYPE = re.compile(r"[A-Z0-9_]{1,16}")
_BITS = {**{dtype: bits for dtype, (bits, _) in TABLE.items()}, "F6_E2M3": 6, "F6_E3M2": 6}


class Content(Protocol):
    """The bytes of a file, of which slices are read."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: slice, /) -> bytes: ...


class Tensor(NamedTuple):
    """A tensor of a file as it stands there, or as an original has it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Entry(NamedTuple):
    """What a header says of a tensor; `data` says which bytes behind the header are its own."""

    dtype: str
    shape: tuple[int, ...]
    data: slice

    @property
    def nbytes(self) -> int:
        nbytes: int = self.data.stop - self.data.start
        return nbytes


class Header(NamedTuple):
    """A header: its JSON as it stands, and the entries by name in the order of their data."""

    text: bytes
    metadata: dict[str, str]
    entries: dict[str, Entry]


class Container(NamedTuple):
    """What is in a safetensors file. `header` is its JSON as it stands."""

    header: bytes
    metadata: dict[str, str]
    tensors: list[Tensor]


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """An object in which no key stands twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        require(len(members) == len(pairs), f"a key stands twice in {what}")
        return members

    try:
        value = json.loads(data.decode(), object_pairs_hook=unique)
    except CorruptDataError:
        raise
    except (ValueError, RecursionError):
        raise CorruptDataError(f"{what} is no JSON that can be read") from None
    require(isinstance(value, dict), f"{what} is no object")
    members: dict[str, Any] = value
    return members


def read_header(data: Content) -> Header:
    """The header of a safetensors file, whose entries lie in the file, one behind the other."""
    if len(data) < 8:
        raise TruncatedDataError(f"a safetensors file has at least 8 bytes, this one has {len(data)}")
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER_NBYTES:
        raise LimitExceededError(f"{length} bytes of header; at most {MAX_HEADER_NBYTES}")
    if len(data) < 8 + length:
        raise TruncatedDataError(f"the file ends inside its header: {len(data)} of {8 + length} bytes")
    header = parse_header(data[8 : 8 + length])
    end = 8 + length + sum(entry.nbytes for entry in header.entries.values())
    if len(data) < end:
        raise TruncatedDataError(f"the file has {end} bytes, of which {len(data)} are here")
    require(len(data) == end, f"{len(data) - end} bytes follow the last tensor")
    return header


def parse_header(text: bytes) -> Header:
    """A header without its file."""
    members = parse_json(text, "the header")
    metadata = members.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata
    legal = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    require(legal, "the metadata is no object of texts")
    parsed = {name: _parse_entry(name, entry) for name, entry in members.items()}
    entries = dict(sorted(parsed.items(), key=lambda item: (item[1].data.start, item[1].data.stop)))
    position = 0
    for name, entry in entries.items():
        require(entry.data.start == position, f"{name} begins at byte {entry.data.start}, not at {position}")
        position = entry.data.stop
    return Header(text, metadata, entries)


def _parse_entry(name: str, entry: Any) -> Entry:
    require(not any("\ud800" <= character <= "\udfff" for character in name), f"{name!r} is no valid Unicode")
    require(isinstance(entry, dict), f"the entry of {name} is no object")
    dtype, shape, offsets = (entry.get(member) for member in ("dtype", "shape", "data_offsets"))
    require(isinstance(dtype, str) and bool(_DTYPE.fullmatch(dtype)), f"the dtype of {name}")
    for numbers in (shape, offsets):
        sizes = numbers if isinstance(numbers, list) else [None]
        legal = all(type(size) is int and 0 <= size <= MAX_SIZE for size in sizes)
        require(legal, f"shape or offsets of {name}")
    require(len(shape) <= MAX_NDIM, f"{name} has {len(shape)} dimensions")
    require(len(offsets) == 2 and offsets[0] <= offsets[1], f"the offsets of {name}")
    found = Entry(dtype, tuple(shape), slice(*offsets))
    bits = _BITS.get(dtype)
    require(bits is None or prod(shape) * bits == 8 * found.nbytes, f"{name} has another size than its shape says")
    return found


def read_tensor(data: Content, header: Header, name: str) -> Tensor:
    """One tensor of a file."""
    dtype, shape, place = header.entries[name]
    start = 8 + len(header.text)
    return Tensor(name, dtype, shape, data[start + place.start : start + place.stop])


def read_container(data: bytes) -> Container:
    """A whole file, with the tensors in the order of their data."""
    header = read_header(data)
    return Container(header.text, header.metadata, [read_tensor(data, header, name) for name in header.entries])
