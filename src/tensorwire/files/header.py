"""The header of a safetensors file: read strictly, written canonically.

A file is 8 bytes N (little-endian), N bytes of JSON, and the data. The JSON maps each name to dtype, shape and its
range of the data, and ``__metadata__`` to an object of strings, or to null. Further members of an entry are skipped, as
safetensors skips them. Ranges leave no hole, do not overlap and end with the file. What breaks a rule is refused before
anything is allocated for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple, TypeGuard

from ..codec import DTYPE_NAME, MAX_NDIM, dtype_bits
from ..errors import CorruptDataError, LimitExceededError, TruncatedDataError, UnsupportedTensorError
from .names import shown, shown_value

MAX_HEADER_NBYTES = 100_000_000
ALIGNMENT = 64
METADATA_KEY = "__metadata__"

_MAX_SIZE = 2**64
_SPACES = " \t\n\r"
_SPACE = re.compile(f"[{_SPACES}]*")
_START = re.compile(f"[{_SPACES}]*{{".encode())
# 64 sizes of 20 digits fit easily. Bounding an entry bounds what the JSON parser allocates.
_MAX_ENTRY_LENGTH = 8192
_ENTRY = re.compile(rf"\{{[^{{}}]{{0,{_MAX_ENTRY_LENGTH}}}\}}")
_MEMBERS = ("dtype", "shape", "data_offsets")
_DECODER = json.JSONDecoder()
_PAIRS_DECODER = json.JSONDecoder(object_pairs_hook=list)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class TensorEntry(NamedTuple):
    """One tensor of a file: bytes [start, stop) of the data. `shape` has the sizes of the dimensions."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


class Header(NamedTuple):
    """What the header of a file says.

    Attributes:
        raw: the JSON with its padding, without the 8 bytes of its length.
        metadata: ``__metadata__``; None where there is none.
        entries: in the order of their data.
    """

    raw: bytes
    metadata: dict[str, str] | None
    entries: tuple[TensorEntry, ...]

    @property
    def prefix(self) -> bytes:
        """The file up to its data."""
        return len(self.raw).to_bytes(8, "little") + self.raw

    @property
    def data_start(self) -> int:
        return 8 + len(self.raw)

    @property
    def data_nbytes(self) -> int:
        return self.entries[-1].stop if self.entries else 0


_ADVICE = "this is hardly a safetensors file: name another one, or download it again"


def checked_length(prefix: bytes, file_nbytes: int) -> int:
    """The length of the JSON, from the first 8 bytes of a file."""
    if len(prefix) < 8:
        raise TruncatedDataError(
            f"expected a safetensors file of at least 8 bytes, got {len(prefix)}", byte=len(prefix), advice=_ADVICE
        )
    length = int.from_bytes(prefix[:8], "little")
    if length > MAX_HEADER_NBYTES:
        raise LimitExceededError(
            f"expected a header of at most {MAX_HEADER_NBYTES} bytes, got {length}",
            byte=0,
            advice=_ADVICE,
        )
    if length > file_nbytes - 8:
        raise TruncatedDataError(f"expected a header of {length} bytes, got a file of {file_nbytes}", byte=file_nbytes)
    return length


def begins(raw: bytes) -> bool:
    """Whether a header begins as one does."""
    return bool(_START.match(raw))


def parse_header(raw: bytes, data_nbytes: int | None = None) -> Header:
    """Parse and check the JSON of a header; `data_nbytes` is what follows it in the file, None if that is not known.

    Raises:
        CorruptDataError: a rule is broken.
        TruncatedDataError: the data is shorter than the header says.
    """
    if not begins(raw):
        raise CorruptDataError("expected a safetensors header that begins with '{'", byte=8)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptDataError("expected a header in UTF-8", byte=8 + error.start) from None
    scanner = _Scanner(text)
    try:
        metadata, entries = _parse_members(scanner)
    except CorruptDataError as error:
        error.byte = scanner.byte
        raise
    header = Header(raw, metadata, _check_layout(entries, 8 + len(raw)))
    if data_nbytes is not None and header.data_nbytes != data_nbytes:
        kind = TruncatedDataError if data_nbytes < header.data_nbytes else CorruptDataError
        raise kind(
            f"expected {header.data_nbytes} bytes of data after the header, got {data_nbytes}",
            byte=header.data_start + min(header.data_nbytes, data_nbytes),
        )
    return header


def build_header(
    metadata: Mapping[str, str] | None, entries: Iterable[TensorEntry], nbytes: int = 0, *, alignment: int = ALIGNMENT
) -> Header:
    """The header of a file, padded with spaces so that the data begins at a multiple of `alignment`, and at `nbytes` or
    later.

    `entries` come in the order of their data.

    Raises:
        LimitExceededError: it would be longer than 100 MB.
    """
    ordered = tuple(entries)
    text = None if metadata is None else dict(metadata)
    members = [] if text is None else [f'"{METADATA_KEY}":{_ENCODER.encode(text)}']
    raw = f"{{{','.join([*members, *map(_member, ordered)])}}}".encode()
    length = _padded_length(max(len(raw), nbytes - 8), alignment)
    return Header(raw.ljust(length), text, ordered)


def packed(*groups: Iterable[tuple[str, str, tuple[int, ...], int]]) -> list[TensorEntry]:
    """Entries one behind the other. In each group the widest dtypes come first, so that all tensors are aligned.

    Args:
        groups: name, dtype, shape and size of each tensor.
    """
    entries: list[TensorEntry] = []
    start = 0
    for group in groups:
        for name, dtype, shape, nbytes in sorted(group, key=lambda tensor: -dtype_bits(tensor[1])):
            entries.append(TensorEntry(name, dtype, shape, start, start + nbytes))
            start += nbytes
    return entries


def _member(entry: TensorEntry) -> str:
    """JSON of a tensor's name and entry: a dict of all entries for JSON's own encoder would take twice as long."""
    shape = ",".join(map(str, entry.shape))
    return (
        f'{_ENCODER.encode(entry.name)}:{{"dtype":"{entry.dtype}","shape":[{shape}],'
        f'"data_offsets":[{entry.start},{entry.stop}]}}'
    )


def _padded_length(length: int, alignment: int) -> int:
    """`length` of a header's JSON rounded up so that the data behind it is aligned; LimitExceededError over 100 MB."""
    length += -(8 + length) % alignment
    if length > MAX_HEADER_NBYTES:
        raise LimitExceededError(
            f"expected a header of at most {MAX_HEADER_NBYTES} bytes, would need {length}",
            advice="spread the tensors over several files",
        )
    return length


def check_dtype(dtype: str) -> None:
    """Raise UnsupportedTensorError for the dtype that we have and safetensors lacks."""
    if dtype == "C128":
        raise UnsupportedTensorError(
            "expected a dtype that safetensors names, got C128",
            advice="store its parts: array.view(numpy.float64) or torch.view_as_real(tensor)",
        )


def check_name(name: str) -> None:
    """Raise CorruptDataError for a name that no safetensors file can hold."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise CorruptDataError(f"expected a name that is valid Unicode, got {shown(name)}") from None


def check_given_name(name: object) -> None:
    """Raise TypeError or ValueError for what a caller gives as the name of a tensor and is none."""
    if not isinstance(name, str):
        raise TypeError(f"expected names that are str, got {type(name).__name__}")
    if name == METADATA_KEY:
        raise ValueError(f"no tensor can be called {METADATA_KEY}: in a safetensors file that is the metadata")
    check_name(name)


def _parse_members(scanner: _Scanner) -> tuple[dict[str, str] | None, list[TensorEntry]]:
    metadata: dict[str, str] | None = None
    has_metadata = False
    entries: list[TensorEntry] = []
    names: set[str] = set()
    for name in scanner.members():
        if name == METADATA_KEY:
            if has_metadata:
                raise CorruptDataError(f"expected one {METADATA_KEY} in the header, got two")
            has_metadata = True
            if scanner.null():
                continue
            metadata = {}
            for key in scanner.members():
                if key in metadata:
                    raise CorruptDataError(f"expected unique keys in {METADATA_KEY}, got {shown(key)} twice")
                metadata[key] = scanner.string()
            continue
        if name in names:
            raise CorruptDataError(f"expected unique names in the header, got {shown(name)} twice")
        check_name(name)
        names.add(name)
        entries.append(_checked_entry(name, scanner.entry(name)))
    scanner.end()
    return metadata, entries


class _Scanner:
    """Walks the JSON of a header. JSON's own parser sees single strings and entries, never the whole."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._start = 0

    @property
    def byte(self) -> int:
        """Offset in the file of the string or entry that was taken last, or of what is not as it was expected."""
        return 8 + len(self._text[: self._start].encode("utf-8", "surrogatepass"))

    def members(self) -> Iterable[str]:
        """The keys of the object at hand; the caller takes the value after each key."""
        self._take("{")
        if self._peek() == "}":
            self._take("}")
            return
        while True:
            key = self.string()
            self._take(":")
            yield key
            if self._peek() == "}":
                self._take("}")
                return
            self._take(",")

    def string(self) -> str:
        if self._peek() != '"':
            raise self._error("a string")
        self._start = self._position
        try:
            value, self._position = _DECODER.raw_decode(self._text, self._position)
        except ValueError:
            raise self._error("a string") from None
        return str(value)

    def null(self) -> bool:
        """Whether null is at hand, which is taken then."""
        self._peek()
        found = self._text.startswith("null", self._position)
        self._position += 4 * found
        return found

    def entry(self, name: str) -> list[tuple[str, Any]]:
        """The members of the entry of a tensor."""
        self._peek()
        self._start = begin = self._position
        if self._text[begin : begin + 1] != "{":
            raise self._error("an object with dtype, shape and data_offsets")
        match = _ENTRY.match(self._text, begin)
        found = None if match is None else _decoded(match.group())
        # There may be braces inside: a further member is an object, or a text that has one.
        found = found or _decoded(self._text[begin : begin + _MAX_ENTRY_LENGTH])
        if found is None:
            raise CorruptDataError(
                f"expected valid JSON of at most {_MAX_ENTRY_LENGTH} characters in the entry of a tensor", tensor=name
            )
        self._position += found[1]
        return found[0]

    def end(self) -> None:
        if self._peek():
            raise self._error("the end of the header")

    def _peek(self) -> str:
        char = self._text[self._position : self._position + 1]
        if char and char in _SPACES:
            match = _SPACE.match(self._text, self._position)
            assert match is not None
            self._position = match.end()
            char = self._text[self._position : self._position + 1]
        return char

    def _take(self, char: str) -> None:
        if self._peek() != char:
            raise self._error(repr(char))
        self._position += 1

    def _error(self, expected: str) -> CorruptDataError:
        self._start = self._position
        found = self._text[self._position : self._position + 20]
        return CorruptDataError(f"expected {expected} in the JSON of the header, got {found!r}")


def _decoded(text: str) -> tuple[list[tuple[str, Any]], int] | None:
    """The members of the object that a text begins with, and its length; None if there is none."""
    try:
        pairs, length = _PAIRS_DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return pairs, length


def _checked_entry(name: str, pairs: list[tuple[str, Any]]) -> TensorEntry:
    entry = dict(pairs)
    if len(pairs) != 3:  # with members that count for nothing
        pairs = [pair for pair in pairs if pair[0] in _MEMBERS]
    if len(pairs) != 3 or not all(member in entry for member in _MEMBERS):
        raise CorruptDataError("expected dtype, shape and data_offsets, each once, in an entry", tensor=name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not DTYPE_NAME.fullmatch(dtype):
        raise CorruptDataError(
            f"expected a dtype of 1 to 16 characters A-Z 0-9 _, got {shown_value(dtype)}", tensor=name
        )
    if not is_shape(shape):
        raise CorruptDataError(f"expected a shape of at most {MAX_NDIM} sizes below 2**64", tensor=name)
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CorruptDataError(f"expected two ascending data_offsets, got {offsets!r:.100}", tensor=name)
    start, stop = offsets
    bits = dtype_bits(dtype)
    if bits and prod(shape) * bits != (stop - start) * 8:
        raise CorruptDataError(
            f"expected {prod(shape) * bits / 8:g} bytes for {dtype} {tuple(shape)}, got {stop - start}", tensor=name
        )
    return TensorEntry(name, dtype, tuple(shape), start, stop)


def is_shape(value: object) -> TypeGuard[list[int]]:
    """Whether a value out of JSON is a shape."""
    return _are_sizes(value) and len(value) <= MAX_NDIM


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    if not isinstance(value, list):
        return False
    for size in value:  # noqa: SIM110 - a generator takes longer, and a large index has a million shapes
        if type(size) is not int or not 0 <= size < _MAX_SIZE:
            return False
    return True


def _check_layout(entries: list[TensorEntry], data_start: int) -> tuple[TensorEntry, ...]:
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    position = 0
    for entry in entries:
        if entry.start != position:
            raise CorruptDataError(
                f"expected the data of the next tensor at {position}, got {entry.start}: "
                + ("a hole" if entry.start > position else "an overlap"),
                tensor=entry.name,
                byte=data_start + min(position, entry.start),
            )
        position = entry.stop
    return tuple(entries)
