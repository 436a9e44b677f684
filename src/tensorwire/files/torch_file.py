"""A file of ``torch.save``, looked at as a safetensors file whose tensors are its large storages.

Such a file is a zip archive with a pickle and a member for each storage, none of them packed. docs/pytorch-files.md
says which are looked into; of the others nothing is read but what shows that they are not.
"""

from __future__ import annotations

import io
import struct
import zipfile
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..codec import dtype_bits
from ..errors import FormatError
from ..storage.inputs import open_input
from ..storage.remote import RemotePath
from .beside import open_beside
from .foreign import PREFIX_NBYTES, TORCH_FILE, TORCH_PICKLE, recognise
from .header import Header, TensorEntry, build_header
from .names import shown
from .original_record import TORCH, Outline, torch_outline
from .reader import StoredFile, may_be_compressed
from .torch_pickle import BYTES, read_storages
from .writer import check_names

if TYPE_CHECKING:
    from ..storage.inputs import Opened
    from ..storage.locations import Location
    from ..storage.readable import Readable

MAX_PICKLE_NBYTES = 16 << 20
"""The most bytes of a pickle, of the list of members, and of the header of all storages. Objects for them take 25 times
as much, and the header of the compressed file five times, which is less than that may have."""

_MAX_REST_NBYTES = 32 << 20
_MIN_STORAGE_NBYTES = 257
"""A smaller storage is part of the rest: it would be stored plain, and its entries in a header would be longer."""

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_END_NBYTES = 98
"""What tells where the list of members is, at the end of a file without a comment."""
_AROUND_NBYTES = 64, 192
"""What is asked for before and behind the place of a local header, which torch makes 64 to 150 bytes long."""


class TorchFile:
    """A torch file as a `Readable`: that of a safetensors file with its storages, header and all.

    Attributes:
        outline: how the storages stand in the torch file.
        starts: where each of them begins there.
    """

    def __init__(self, file: Readable) -> None:
        """Raises FormatError with the reason if a file cannot be looked into."""
        self._file = file
        self.path, self.identity = file.path, file.identity
        try:
            storages, self.outline = _look_into(file)
        except FormatError as error:
            error.file = file.path
            raise
        self.starts = [storage.start for storage in storages]
        self._header = self.outline.header.prefix
        self._positions = [len(self._header) + entry.start for entry in self.outline.header.entries]
        self.nbytes = len(self._header) + self.outline.header.data_nbytes

    def read_into(self, offset: int, out: memoryview) -> None:
        if offset < len(self._header):
            part = self._header[offset : offset + len(out)]
            out[: len(part)] = part
            offset, out = offset + len(part), out[len(part) :]
        while len(out):
            index = bisect_right(self._positions, offset) - 1
            entry, begin = self.outline.header.entries[index], offset - self._positions[index]
            count = min(len(out), entry.nbytes - begin)
            self._file.read_into(self.starts[index] + begin, out[:count])
            offset, out = offset + count, out[count:]

    def read(self, offset: int, nbytes: int) -> bytes:
        data = bytearray(max(0, min(nbytes, self.nbytes - offset)))
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_ahead(self, offset: int, nbytes: int) -> None:
        """Storages are read in the order of the file, which the system reads ahead itself."""

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._file.expect([(self._place(start), self._place(stop - 1) + 1) for start, stop in ranges if start < stop])

    def _place(self, offset: int) -> int:
        """Where in the torch file a byte of the data is."""
        index = bisect_right(self._positions, offset) - 1
        return self.starts[index] + offset - self._positions[index]

    def check_size(self) -> None:
        self._file.check_size()

    def check_unchanged(self) -> None:
        self._file.check_unchanged()

    def close(self) -> None:
        self._file.close()


def open_stored(source: Location | Readable) -> StoredFile:
    """A safetensors file, plain or compressed, or a torch file as the one that `TorchFile` makes of it. What is open
    already is closed with this."""
    file: Readable = open_input(source) if isinstance(source, (Path, RemotePath)) else source
    if recognise(file.read(0, PREFIX_NBYTES)) is not TORCH_FILE:
        return open_beside(file)
    try:
        return StoredFile(TorchFile(file))
    except BaseException:
        file.close()
        raise


def places(stored: StoredFile) -> list[int]:
    """Where in its file the data of each tensor of a header begins."""
    if isinstance(stored.file, TorchFile):
        return stored.file.starts
    return [stored.header.data_start + entry.start for entry in stored.header.entries]


def torch_view(file: Opened) -> Readable | None:
    """A torch file with a large storage as the `TorchFile` of it, and one that was compressed as it is; None for any
    other file. `file` stays open.

    Raises:
        FormatError: it is a torch file that cannot be looked into, or a compressed file that is damaged.
    """
    kind = recognise(file.read(0, PREFIX_NBYTES))
    if kind is TORCH_FILE:
        view = TorchFile(file.duplicate())
        return view if StoredFile(view).tensors else None
    if kind is TORCH_PICKLE:
        StoredFile(file.duplicate())  # which says what to do with it
    return file if may_be_compressed(file) and StoredFile(file.duplicate()).kind == TORCH else None


def check_members(data: bytes) -> None:
    """Raise FormatError unless `data` is a torch file that has each byte of its members once, and none of them packed:
    torch unpacks a member before it looks at how much that is."""
    _members(_InMemory(data))


class _Archive(Protocol):
    """What of a `Readable` the members are found by."""

    nbytes: int

    def read(self, offset: int, nbytes: int) -> bytes: ...

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None: ...


class _InMemory:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.nbytes = len(data)

    def read(self, offset: int, nbytes: int) -> bytes:
        return self._data[offset : offset + nbytes]

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """It is there."""


class _Member(NamedTuple):
    """A member of the archive: bytes [start, stop) of the file."""

    name: str
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


def _look_into(file: Readable) -> tuple[list[_Member], Outline]:
    """The large storages of a torch file in their order, and how they stand in it."""
    members = _members(file)
    pickles = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise _refusal(f"it has {len(pickles)} pickles data.pkl where one is expected")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in members and _content(file, members[f"{root}byteorder"]) != b"little":
        raise _refusal("its byte order is not little-endian")
    found = {member.name[len(root) :]: member for member in members.values() if member.name.startswith(f"{root}data/")}
    storages = {name: member for name, member in found.items() if member.nbytes >= _MIN_STORAGE_NBYTES}
    named = _named_storages(_content(file, members[pickles[0]]), found) if storages else {}
    entries: list[TensorEntry] = []
    for name, member in storages.items():
        dtype, _ = named.get(name.removeprefix("data/"), (BYTES, 0))
        entries.append(_entry(name, dtype, entries[-1].stop if entries else 0, member.nbytes))
    return list(storages.values()), torch_outline(_header(entries), _between(file, list(storages.values())))


def _header(entries: list[TensorEntry]) -> Header:
    """The header of a safetensors file with these tensors, which can be compressed."""
    try:
        check_names(entries)
    except ValueError as error:
        raise _refusal(str(error)) from None
    header = build_header(None, entries)
    if len(header.raw) > MAX_PICKLE_NBYTES:
        raise _refusal(f"a header for its storages has {len(header.raw)} bytes, more than {MAX_PICKLE_NBYTES}")
    return header


def _entry(name: str, dtype: str, start: int, nbytes: int) -> TensorEntry:
    """A storage as a tensor of one dimension; of bytes, if it has no whole number of elements."""
    bits = dtype_bits(dtype)
    if not bits or nbytes * 8 % bits:
        dtype, bits = BYTES, 8
    return TensorEntry(name, dtype, (nbytes * 8 // bits,), start, start + nbytes)


def _named_storages(pickle: bytes, members: Mapping[str, _Member]) -> dict[str, tuple[str, int]]:
    """What the pickle says of the storages, which the members bear out."""
    try:
        named = read_storages(pickle)
    except FormatError as error:
        raise _refusal(error.message) from None
    for key, (_, nbytes) in named.items():
        if f"data/{key}" not in members or members[f"data/{key}"].nbytes != nbytes:
            raise _refusal(f"storage {shown(key)} has not the {nbytes} bytes that its pickle says")
    return named


def _between(file: Readable, storages: list[_Member]) -> list[bytes]:
    """What stands before each storage and behind the last one."""
    starts = [0, *(member.stop for member in storages)]
    stops = [*(member.start for member in storages), file.nbytes]
    if file.nbytes - sum(member.nbytes for member in storages) > _MAX_REST_NBYTES:
        raise _refusal(f"it has more than {_MAX_REST_NBYTES} bytes besides large storages")
    return [file.read(start, stop - start) for start, stop in zip(starts, stops, strict=True)]


def _content(file: Readable, member: _Member) -> bytes:
    if member.nbytes > MAX_PICKLE_NBYTES:
        raise _refusal(f"{shown(member.name)} has {member.nbytes} bytes, more than {MAX_PICKLE_NBYTES}")
    return file.read(member.start, member.nbytes)


def _members(file: _Archive) -> dict[str, _Member]:
    """The members of a zip archive by name, in the order of their data."""
    file.expect([(max(0, file.nbytes - _END_NBYTES), file.nbytes)])
    try:
        with zipfile.ZipFile(_Seekable(file)) as archive:
            infos, end = sorted(archive.infolist(), key=lambda info: info.header_offset), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, OverflowError, EOFError) as error:
        raise error if isinstance(error, FormatError) else _refusal(f"its zip archive is damaged: {error}") from None
    if infos and infos[0].header_offset:  # as where archives stand one behind the other, which the list knows one of
        raise _refusal(f"{infos[0].header_offset} bytes stand before its zip archive")
    file.expect([_around(info, file.nbytes) for info in infos])
    members: dict[str, _Member] = {}
    position = 0
    for info in infos:
        if info.flag_bits & 1:
            raise _refusal("it is encrypted")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise _refusal(f"its member {shown(info.filename)} is packed already")
        if info.header_offset < position:
            raise _refusal(f"its member {shown(info.filename)} overlaps with another one")
        member = _place(file, info)
        if member.stop > end:
            raise _refusal(f"its member {shown(info.filename)} overlaps with the list of members")
        if info.filename in members:
            raise _refusal(f"it has two members {shown(info.filename)}")
        members[info.filename] = member
        position = member.stop
    return members


def _around(info: zipfile.ZipInfo, file_nbytes: int) -> tuple[int, int]:
    """What of a member is read to look into a file: of a storage what stands around it, and not what is in it."""
    before, behind = _AROUND_NBYTES
    content = 0 if "/data/" in info.filename else info.file_size
    return max(0, info.header_offset - before), min(info.header_offset + behind + content, file_nbytes)


def _place(file: _Archive, info: zipfile.ZipInfo) -> _Member:
    header = file.read(info.header_offset, _LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\3\4"):
        raise _refusal(f"its member {shown(info.filename)} is not where the list of members says")
    _, name_nbytes, extra_nbytes = _LOCAL_HEADER.unpack(header)
    start = info.header_offset + len(header) + name_nbytes + extra_nbytes
    return _Member(info.filename, start, start + info.file_size)


def _refusal(reason: str) -> FormatError:
    return FormatError(
        f"expected a torch file that can be looked into, but {reason}",
        advice="in a directory such a file is copied as it is (docs/pytorch-files.md)",
    )


class _Seekable(io.RawIOBase):
    """A file as the zipfile module wants it, which gives no more bytes at once than a list of members may have."""

    def __init__(self, file: _Archive) -> None:
        self._file = file
        self._position = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.nbytes}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, nbytes: int = -1) -> bytes:
        left = max(0, self._file.nbytes - self._position)
        nbytes = left if nbytes < 0 else min(nbytes, left)
        if nbytes > MAX_PICKLE_NBYTES:
            raise _refusal(f"its list of members has {nbytes} bytes, more than {MAX_PICKLE_NBYTES}")
        data = self._file.read(self._position, nbytes)
        self._position += len(data)
        return data
