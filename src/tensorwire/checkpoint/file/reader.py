"""A safetensors file, plain or compressed, as the tensors that it stands for."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, NamedTuple

from ...codec import FrameReader, content_hash, new_buffer
from ...errors import CorruptDataError, ErrorContext, FormatError, TruncatedDataError, UnsupportedVersionError
from ..storage.files import InputFile
from .foreign import PREFIX_NBYTES, recognise
from .header import Header, TensorEntry, checked_length, parse_header
from .names import METADATA_PREFIX, tensor_name
from .original_record import Record, unpack

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "0"
VERSION_KEY = METADATA_PREFIX + "version"
PROFILE_KEY = METADATA_PREFIX + "profile"
CHECKSUM_KEY = METADATA_PREFIX + "checksum"
HASH_PREFIX = METADATA_PREFIX + "hash:"
ORIGINAL_HEADER_KEY = METADATA_PREFIX + "original_header"
ORIGINAL_SHA256_KEY = METADATA_PREFIX + "original_sha256"


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


class StoredFile:
    """An open safetensors file. Reads are thread-safe.

    Attributes:
        path: where it is.
        file: the open file.
        header: as it stands in the file.
        tensors: by name, in the order of their data.
        metadata: ``__metadata__`` without our own entries.
        compressed: whether there is anything of ours in the file.
        profile: the profile it was compressed with, None if that is not recorded.
    """

    _header_guess = 1 << 14
    """How much of a frame is read at once in the hope that its header is not longer."""

    def __init__(self, path: Path) -> None:
        """Open and check the header.

        Raises:
            FormatError: the header is not valid; all classes.
            OSError: reading fails.
        """
        self._open(InputFile(path))

    def _open(self, file: InputFile) -> None:
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
                self.header = parse_header(raw, self._data_nbytes(length))
                self._interpret()
        except BaseException:
            file.close()
            raise
        self._frames: dict[str, FrameReader] = {}
        self._lock = threading.Lock()

    def _data_nbytes(self, header_nbytes: int) -> int | None:
        """The size of the data, None where only the header tells."""
        return self.file.nbytes - 8 - header_nbytes

    def _interpret(self) -> None:
        ours = {key: text for key, text in self.header.metadata.items() if key.startswith(METADATA_PREFIX)}
        self.metadata = {key: text for key, text in self.header.metadata.items() if key not in ours}
        self.profile = ours.get(PROFILE_KEY)
        if ours:
            version = ours.get(VERSION_KEY)
            if version != VERSION:
                raise UnsupportedVersionError(f"expected {VERSION_KEY} {VERSION!r}, got {version!r:.40}")
            if ours.get(CHECKSUM_KEY) != header_checksum(self.header):
                raise CorruptDataError("the checksum of the header does not match")
        markers = {e.name for e in self.header.entries if e.dtype == "U8" and e.shape == (0,)}
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
                self.tensors[entry.name] = StoredTensor(entry.name, entry, False, recorded)
        self.compressed = bool(ours or payloads)

    def record(self) -> Record | None:
        """What restores the original of this file, if it is kept in the file itself.

        Raises:
            CorruptDataError, LimitExceededError: the record is damaged.
        """
        packed = self.header.metadata.get(ORIGINAL_HEADER_KEY)
        sha256 = self.header.metadata.get(ORIGINAL_SHA256_KEY)
        if packed is None or sha256 is None:
            return None
        with ErrorContext(file=self.path):
            return Record(unpack(packed), sha256)

    def frame(self, tensor: StoredTensor) -> FrameReader:
        """The checked header of a compressed tensor's frame.

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
            self.check_hash(tensor, frame.info.content_hash)
        with self._lock:
            self._frames[tensor.name] = frame
        return frame

    def _frame_header(self, start: int, nbytes: int) -> bytes:
        """The header of a frame of `nbytes` bytes."""
        prefix = self.file.read(start, min(nbytes, self._header_guess))
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
            verify: check the checksums of blocks. Plain tensors are not checked: see `check_hash`.
        """
        base = self.header.data_start + tensor.entry.start
        if not tensor.compressed:
            self.file.read_into(base + start, out)
            return
        frame = self.frame(tensor)
        stop = start + len(out)
        lo, hi = frame.data_range(start, stop)
        data = scratch[: hi - lo] if scratch is not None and hi - lo <= len(scratch) else new_buffer(hi - lo)
        with ErrorContext(file=self.path, tensor=tensor.name):
            self._read_blocks(frame, base + frame.info.header_nbytes + lo, data)
            frame.decode(data, out, start=start, stop=stop, data_offset=lo, threads=threads, verify=verify)

    def _read_blocks(self, frame: FrameReader, position: int, out: memoryview) -> None:
        self.file.read_into(position, out)

    def check_hash(self, tensor: StoredTensor, found: str) -> None:
        """Raise CorruptDataError if a tensor's content hash is recorded and not the one found."""
        if tensor.content_hash is not None and tensor.content_hash != found:
            raise CorruptDataError(
                f"expected content with hash {tensor.content_hash}, got {found}", file=self.path, tensor=tensor.name
            )

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> StoredFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def header_checksum(header: Header) -> str:
    """Hash of what a compressed file's header says: names, dtypes, shapes, metadata; not of where the data lies."""
    metadata = sorted((key, text) for key, text in header.metadata.items() if key != CHECKSUM_KEY)
    tensors = sorted((entry.name, entry.dtype, entry.shape) for entry in header.entries)
    return content_hash(json.dumps([metadata, tensors], separators=(",", ":")).encode(), threads=1)
