"""A safetensors file, plain or compressed, as the tensors that it stands for."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .._ground.allocation import new_buffer
from .._ground.copies import not_copied
from ..codec import ContentHasher, FrameReader, base_mismatch, check_label, check_padding, content_hash
from ..errors import (
    CorruptDataError,
    ErrorContext,
    FormatError,
    TruncatedDataError,
    UnsupportedTensorError,
    UnsupportedVersionError,
)
from ..storage.inputs import open_input
from ..storage.local import InputFile
from ..storage.pipeline import WINDOW_NBYTES
from ..storage.remote import RemotePath
from .base_content import Link
from .foreign import PREFIX_NBYTES, recognise
from .header import TensorEntry, begins, checked_length, parse_header
from .json_object import canonical
from .names import (
    BESIDE,
    EMPTY_METADATA_KEY,
    FRAME_DTYPE,
    GIVE_BASE,
    MARKER_DTYPE,
    MARKER_SHAPE,
    METADATA_PREFIX,
    OUR_NAME,
    REQUIRED_KEY,
    check_required,
    payload_name,
    shown,
    shown_value,
    tensor_name,
)
from .original_record import SAFETENSORS, TORCH, Record, unpack

if TYPE_CHECKING:
    from mmap import mmap

    from ..storage.locations import Location
    from ..storage.readable import Readable
    from .base_content import BaseContent, Bases, BasesBeside

VERSION = "1"
VERSION_KEY = METADATA_PREFIX + "version"
PROFILE_KEY = METADATA_PREFIX + "profile"
CHECKSUM_KEY = METADATA_PREFIX + "checksum"
HASH_PREFIX = METADATA_PREFIX + "hash:"
BASE_NAME_KEY = METADATA_PREFIX + "base_name"
BASE_HASH_KEY = METADATA_PREFIX + "base_hash"
BASE_PREFIX = METADATA_PREFIX + "base:"
PATH_KEY = METADATA_PREFIX + "path"
BESIDE_PREFIX = METADATA_PREFIX + "beside:"
FRAMES_KEY = METADATA_PREFIX + "frames"
ORIGINAL_KEYS = {SAFETENSORS: METADATA_PREFIX + "original_header", TORCH: METADATA_PREFIX + "original_torch"}
ORIGINAL_SHA256_KEY = METADATA_PREFIX + "original_sha256"

_NEAR_GUESS_NBYTES, _FAR_GUESS_NBYTES = 1 << 10, 1 << 14
"""How much of a frame is read at once in the hope that its header is not longer: on this machine, where another read
costs little, and from a store."""


class StoredTensor(NamedTuple):
    """A tensor of a file.

    Attributes:
        name: its original name.
        entry: its payload if it is compressed, else itself.
        compressed: whether the data is a frame.
        content_hash: recorded hash of the content, None if there is no record.
    """

    name: str
    entry: TensorEntry
    compressed: bool
    content_hash: str | None


def may_be_compressed(file: Readable) -> bool:
    """False if nothing in the header of a file is ours, which costs no look at its entries."""
    with suppress(FormatError):
        return may_be_header(file.read(8, checked_length(file.read(0, 8), file.nbytes)))
    return False


def may_be_header(raw: bytes) -> bool:
    """The same of the header itself. In other files a length that fits may be followed by anything."""
    return begins(raw) and (OUR_NAME in raw or b"\\u" in raw)  # names may be escaped


class StoredFile:
    """An open safetensors file. Reads are thread-safe.

    Attributes:
        path: where it is.
        file: the open file.
        header: as it stands in the file.
        tensors: by name, in the order of their data.
        metadata: ``__metadata__`` of its original, that is without our own entries; None if that has none.
        compressed: whether there is anything of ours in the file.
        checksum: of the header, the hashes of all tensors among what it covers; None if that is not recorded.
        kind: of its original, as far as the file says.
        profile: the profile it was compressed with, None if that is not recorded.
        relative: the names of the tensors that were found to be relative, as far as their frames have been opened.
        base_name: what the base that it is relative to was called, None if that is not recorded.
        base_hash: the recorded hash of all tensors of that base, None likewise.
        base, base_file: what `use_base` was given.
        place: where it stands in its directory, if tensors of it are relative to other files there; else None.
        beside: where the bases of these tensors are found; None if what has opened the file does not look.
    """

    __reduce_ex__ = not_copied("an open file", "open it again by its path")

    def __init__(self, source: Location | Readable) -> None:
        """Open a file, and check the header. What is open already is closed with this.

        Raises:
            FormatError: the header is not valid; all classes.
            OSError: reading fails.
        """
        file: Readable = open_input(source) if isinstance(source, (Path, RemotePath)) else source
        self.path = file.path
        self.file = file
        try:
            with ErrorContext(file=file.path):
                prefix = file.read(0, PREFIX_NBYTES)
                foreign = recognise(prefix)
                if foreign is not None:
                    raise FormatError(f"expected a safetensors file, got {foreign.name}", advice=foreign.advice)
                length = checked_length(prefix[:8], file.nbytes)
                raw = file.read(8, length)
                if len(raw) < length:
                    raise TruncatedDataError(f"expected a header of {length} bytes, got {len(raw)}", byte=8 + len(raw))
                self.header = parse_header(raw, file.nbytes - 8 - length)
                self._interpret()
        except BaseException:
            file.close()
            raise
        self._frames: dict[str, FrameReader] = {}
        self.relative: set[str] = set()
        self.base: Bases | None = None
        self.base_file = ""
        self.beside: BasesBeside | None = None
        self._bases: dict[str, BaseContent] = {}
        self._counted: set[str] = set()
        self._lock = threading.Lock()

    def _interpret(self) -> None:
        texts = self.header.metadata or {}
        self._ours = ours = {key: text for key, text in texts.items() if key.startswith(METADATA_PREFIX)}
        self.metadata = self.header.metadata
        if ours:
            others = {key: text for key, text in texts.items() if key not in ours}
            self.metadata = others if others or EMPTY_METADATA_KEY in ours else None
        self.profile = ours.get(PROFILE_KEY)
        self.base_name, self.base_hash = ours.get(BASE_NAME_KEY), ours.get(BASE_HASH_KEY)
        check_required(ours.get(REQUIRED_KEY, ""), REQUIRED_KEY, frozenset({TORCH, BESIDE}))
        features = ours.get(REQUIRED_KEY, "").split()
        self.kind = TORCH if TORCH in features else SAFETENSORS
        self.place = ours.get(PATH_KEY) if BESIDE in features else None
        own_names = ours.get(FRAMES_KEY)
        if own_names not in (None, FRAME_DTYPE):
            raise UnsupportedVersionError(f"expected {FRAMES_KEY} {FRAME_DTYPE!r}, got {shown_value(own_names)}")
        if VERSION_KEY in ours or (ours and own_names is None):
            version = ours.get(VERSION_KEY)
            if version != VERSION:
                raise UnsupportedVersionError(f"expected {VERSION_KEY} {VERSION!r}, got {shown_value(version)}")
            if ours.get(CHECKSUM_KEY) != header_checksum(texts, self.header.entries):
                raise CorruptDataError("the checksum of the header does not match")
        if BESIDE in features and self.place is None:
            raise CorruptDataError(f"expected {PATH_KEY} in a file that requires {BESIDE!r}")
        markers = {e.name for e in self.header.entries if (e.dtype, e.shape) == (MARKER_DTYPE, MARKER_SHAPE)}
        self.tensors: dict[str, StoredTensor] = {}
        for entry in self.header.entries:
            name = tensor_name(entry.name)
            if name is not None and name in markers and entry.dtype == "U8" and len(entry.shape) == 1 and entry.nbytes:
                self.tensors[name] = StoredTensor(name, entry, True, ours.get(HASH_PREFIX + name))
                markers.discard(name)
        payloads = {tensor.entry.name for tensor in self.tensors.values()}
        for entry in self.header.entries:
            if entry.name not in payloads and entry.name not in self.tensors:
                recorded = ours.get(HASH_PREFIX + entry.name)
                is_frame = own_names is not None and entry.dtype == FRAME_DTYPE and len(entry.shape) == 1
                self.tensors[entry.name] = StoredTensor(entry.name, entry, is_frame, recorded)
        self.compressed = bool(ours or payloads)
        self.checksum = ours.get(CHECKSUM_KEY)

    @property
    def local(self) -> InputFile:
        """The file on the disk; not for what is read from elsewhere."""
        assert isinstance(self.file, InputFile)
        return self.file

    def record(self) -> Record | None:
        """What restores the original of this file, if it is kept in the file itself."""
        packed, sha256 = self._ours.get(ORIGINAL_KEYS[self.kind]), self._ours.get(ORIGINAL_SHA256_KEY)
        if packed is None or sha256 is None:
            return None
        with ErrorContext(file=self.path):
            return Record(self.kind, unpack(packed), sha256)

    def frame(self, tensor: StoredTensor) -> FrameReader:
        """The checked header of a compressed tensor's frame. Padding is read too.

        Raises:
            FormatError: it is damaged, or does not fill the payload.
        """
        with self._lock:
            frame = self._frames.get(tensor.name)
        if frame is not None:
            return frame
        start, nbytes = self.header.data_start + tensor.entry.start, tensor.entry.nbytes
        with ErrorContext(file=self.path, tensor=tensor.name):
            frame = FrameReader(self._frame_header(start, nbytes))
            expected = frame.info.frame_nbytes
            if expected != nbytes:
                kind = TruncatedDataError if expected > nbytes else CorruptDataError
                message = f"expected a frame of {expected} bytes, got a payload of {nbytes}"
                raise kind(message, byte=min(expected, nbytes))
            padding = memoryview(bytearray(frame.info.padding_nbytes))
            self.file.read_into(start + nbytes - len(padding), padding)
            check_padding(frame.info, padding)
            self.check_hash(tensor, tensor.content_hash, frame.info.content_hash)
        with self._lock:
            self._frames[tensor.name] = frame
            if frame.info.base_hash is not None:
                self.relative.add(tensor.name)
        return frame

    def _frame_header(self, start: int, nbytes: int) -> bytes:
        """The header of a frame of `nbytes` bytes."""
        guess = _NEAR_GUESS_NBYTES if isinstance(self.file.path, Path) else _FAR_GUESS_NBYTES
        prefix = self.file.read(start, min(nbytes, guess))
        length = FrameReader.header_size(prefix)
        if length > nbytes:
            raise TruncatedDataError(
                f"expected a frame header of {length} bytes, got a payload of {nbytes}", byte=nbytes
            )
        if length <= len(prefix):
            return prefix
        return prefix + self.file.read(start + len(prefix), length - len(prefix))

    def forget(self, tensor: StoredTensor) -> None:
        """Free the header of a frame that has been read."""
        with self._lock:
            self._frames.pop(tensor.name, None)

    def expect(self, tensors: Iterable[StoredTensor]) -> None:
        """Say that all of these tensors will be read."""
        begin = self.header.data_start
        self.file.expect([(begin + tensor.entry.start, begin + tensor.entry.stop) for tensor in tensors])

    def use_base(self, base: Bases | None, file: str) -> None:
        """Read relative frames with this base; `file` is the relative path by which it may know this file."""
        self.base = base
        self.base_file = file
        self._counted.clear()

    def is_relative(self, tensor: StoredTensor) -> bool:
        """Whether a tensor can be read only with a base."""
        return tensor.compressed and self.frame(tensor).info.base_hash is not None

    def needs_base(self, tensor: StoredTensor) -> bool:
        """Whether that base has to be given: it is in no other file of the directory."""
        return self.is_relative(tensor) and self.file_beside(tensor) is None

    def file_beside(self, tensor: StoredTensor) -> str | None:
        """The path, in the directory, of the file that holds what a relative tensor is relative to; None if the base
        is none of the directory."""
        return None if self.place is None else self._ours.get(BESIDE_PREFIX + tensor.name)

    def link(self, tensor: StoredTensor) -> Link:
        """A tensor that is relative to one of another file of the directory, and which that is."""
        file = self.file_beside(tensor)
        assert self.place is not None
        assert file is not None
        return Link((self.place, tensor.name), (file, self.name_in_base(tensor)), self.frame(tensor).info)

    def name_in_base(self, tensor: StoredTensor) -> str:
        """What the base calls the tensor that this one is relative to."""
        return self._ours.get(BASE_PREFIX + tensor.name, tensor.name)

    def base_of(self, tensor: StoredTensor, *, threads: int | None = None, verify: bool = True) -> BaseContent:
        """The base of a relative frame. It is looked for, and with `verify` checked, when it is first asked for.

        Raises:
            BaseMismatchError: there is no base, or it has another content.
            LimitExceededError: with this tensor more is relative to the base than a file may claim.
        """
        with self._lock:
            found = self._bases.get(tensor.name)
        if found is None:
            with ErrorContext(file=self.path, tensor=tensor.name):
                if self.beside is not None and self.file_beside(tensor) is not None:
                    found = self.beside.find(self.link(tensor), threads=threads, verify=verify)
                else:
                    found = self._find_given(tensor, threads, verify)
            if verify:
                with self._lock:
                    self._bases[tensor.name] = found
        return found

    def _find_given(self, tensor: StoredTensor, threads: int | None, verify: bool) -> BaseContent:
        """The base of a relative frame in the base that was given."""
        info, name = self.frame(tensor).info, self.name_in_base(tensor)
        if self.base is None:
            called = self.file_beside(tensor) or self.base_name
            raise base_mismatch(
                info,
                "got none",
                name=shown(name) + (f" in {shown(called)}" if called else ""),
                advice=GIVE_BASE,
            )
        found = self.base.find(self.base_file, name, info, called=self.base_name, threads=threads, verify=verify)
        with self._lock:
            if tensor.name not in self._counted:
                self.base.count_read(info.uncompressed_nbytes)
                self._counted.add(tensor.name)
        return found

    def check_label(self, tensor: StoredTensor) -> None:
        """Raise UnsupportedTensorError if the dtype of a frame contradicts the bits of its elements: no array and no
        plain file can hold it then."""
        if tensor.compressed:
            info = self.frame(tensor).info
            with ErrorContext(file=self.path, tensor=tensor.name):
                check_label(info.dtype, info.bits)

    def check_loadable(self, tensor: StoredTensor) -> None:
        """Raise UnsupportedTensorError if no array may be made of a tensor: as `check_label`, or it is a marker whose
        payload is gone. A framework that gets the dtype of markers changes nothing."""
        if (tensor.entry.dtype, tensor.entry.shape) == (MARKER_DTYPE, MARKER_SHAPE):
            raise UnsupportedTensorError(
                f"expected a weight, got the marker of one ({MARKER_DTYPE}, shape [0]), and the file has no payload "
                f"{shown(payload_name(tensor.name))}",
                file=self.path,
                tensor=tensor.name,
                advice='fetch the file again; framework="bytes" reads it as it is',
            )
        self.check_label(tensor)

    def layout(self, name: str) -> tuple[str, tuple[int, ...], int]:
        """Original dtype, shape and size in bytes of a tensor."""
        tensor = self.tensors[name]
        if tensor.compressed:
            info = self.frame(tensor).info
            return info.dtype, info.shape, info.uncompressed_nbytes
        return tensor.entry.dtype, tensor.entry.shape, tensor.entry.nbytes

    def read(
        self,
        tensor: StoredTensor,
        start: int,
        out: memoryview,
        *,
        threads: int | None = None,
        verify: bool = True,
        scratch: memoryview | None = None,
    ) -> None:
        """Put content bytes from `start` on into `out`.

        Args:
            scratch: memory to read compressed data into; what does not fit is given memory of its own.
            verify: check the checksums of blocks, and the base of a relative frame once. Plain tensors are not
                checked, nor is the content that a base gives: see `check_hash`.
        """
        begin = self.header.data_start + tensor.entry.start
        if not tensor.compressed:
            self.file.read_into(begin + start, out)
            return
        frame = self.frame(tensor)
        stop = start + len(out)
        lo, hi = frame.data_range(start, stop)
        base, base_start = None, 0
        if frame.info.base_hash is not None:
            base_start, base_stop = frame.base_range(start, stop)
            whole = (base_start, base_stop) == (start, stop)  # blocks, which are decoded in place
            base = out if whole else new_buffer(base_stop - base_start)
            self.base_of(tensor, threads=threads, verify=verify).read(base_start, base, threads=threads)
        # Taken only now: the base may have taken memory for its own base.
        data = scratch[: hi - lo] if scratch is not None and hi - lo <= len(scratch) else new_buffer(hi - lo)
        with ErrorContext(file=self.path, tensor=tensor.name):
            self.file.read_into(begin + frame.info.header_nbytes + lo, data)
            frame.decode(
                data,
                out,
                start=start,
                stop=stop,
                data_offset=lo,
                base=base,
                base_offset=base_start,
                threads=threads,
                verify=verify,
            )

    def hash_content(self, tensor: StoredTensor, threads: int | None) -> str:
        """The content hash. A frame's header tells it; that of a plain tensor takes a read of all of it."""
        if tensor.compressed:
            return self.frame(tensor).info.content_hash
        hasher = ContentHasher(threads=threads)
        nbytes = tensor.entry.nbytes
        buffer = new_buffer(min(WINDOW_NBYTES, nbytes))
        with ErrorContext(file=self.path, tensor=tensor.name):
            for start in range(0, nbytes, WINDOW_NBYTES):
                chunk = buffer[: min(WINDOW_NBYTES, nbytes - start)]
                self.read(tensor, start, chunk)
                hasher.update(chunk)
        return hasher.hexdigest()

    def block_ranges(self, tensor: StoredTensor) -> Iterator[tuple[int, int, int, memoryview]]:
        """All blocks of a frame in order, some at a time: the first, how many, and where in the data their bytes begin,
        which come last. None of a frame without data, whose blocks are all the base's: it may claim 2^32."""
        frame = self.frame(tensor)
        info = frame.info
        if info.data_nbytes == 0:
            return
        begin = self.header.data_start + tensor.entry.start + info.header_nbytes
        step = max(1, WINDOW_NBYTES // frame.block_nbytes)
        for first in range(0, info.num_blocks, step):
            count = min(step, info.num_blocks - first)
            start = first * frame.block_nbytes
            lo, hi = frame.data_range(start, min(start + count * frame.block_nbytes, info.uncompressed_nbytes))
            data = new_buffer(hi - lo)
            self.file.read_into(begin + lo, data)
            yield first, count, lo, data

    def check_blocks(self, tensor: StoredTensor) -> None:
        """Raise CorruptDataError if a block of a frame is damaged. This takes no base."""
        with ErrorContext(file=self.path, tensor=tensor.name):
            for first, count, offset, data in self.block_ranges(tensor):
                self.frame(tensor).check_blocks(data, data_offset=offset, first=first, count=count)

    def mapped_frame(self, tensor: StoredTensor) -> memoryview:
        """The frame of a compressed tensor in a memory map of the file, which outlives this.

        Nothing is copied, and nothing is read before it is touched. To touch a page that the file has lost since
        kills the process.
        """
        map_, begin, nbytes = self.place_in_map(tensor)
        return memoryview(map_)[begin : begin + nbytes]

    def place_in_map(self, tensor: StoredTensor) -> tuple[mmap, int, int]:
        """The memory map of the file, and where the data of a tensor begin in it, and their size."""
        return self.local.map, self.header.data_start + tensor.entry.start, tensor.entry.nbytes

    def check_mapped(self, tensor: StoredTensor, data: memoryview, first: int, count: int) -> None:
        """`check_blocks` of `count` blocks from `first` on, of a frame all of which is `data`."""
        frame = self.frame(tensor)
        start, stop = first * frame.block_nbytes, (first + count) * frame.block_nbytes
        lo, hi = frame.data_range(start, min(stop, frame.info.uncompressed_nbytes))
        header = frame.info.header_nbytes
        with ErrorContext(file=self.path, tensor=tensor.name):
            frame.check_blocks(data[header + lo : header + hi], data_offset=lo, first=first, count=count)

    def recorded_hash(self, tensor: StoredTensor) -> str | None:
        """The content hash that the file has of a tensor, if it has one."""
        return self.frame(tensor).info.content_hash if tensor.compressed else tensor.content_hash

    def check_hash(self, tensor: StoredTensor, expected: str | None, found: str) -> None:
        """Raise CorruptDataError if a tensor's content hash is known and not the one found."""
        if expected is None or expected == found:
            return
        advice = None
        if tensor.compressed and tensor.name in self._bases:
            advice = "the base changed while it was read, or the file is damaged: try again, then fetch both again"
        raise CorruptDataError(
            f"expected content with hash {expected}, got {found}", file=self.path, tensor=tensor.name, advice=advice
        )

    def close(self) -> None:
        self.file.close()
        if self.beside is not None:
            self.beside.close()

    def __enter__(self) -> StoredFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def header_checksum(header_metadata: Mapping[str, str], entries: Iterable[TensorEntry]) -> str:
    """Hash of what a compressed file's header says: names, dtypes, shapes, metadata; not of where the data lies."""
    metadata = sorted((key, text) for key, text in header_metadata.items() if key != CHECKSUM_KEY)
    tensors = sorted((entry.name, entry.dtype, entry.shape) for entry in entries)
    return content_hash(canonical([metadata, tensors]), threads=1)
