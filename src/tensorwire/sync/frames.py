"""Tensors out of the files of versions: what a follower fetches and applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from ..codec import FrameReader, base_mismatch, content_hash, decompress, frame_info, new_buffer
from ..errors import CorruptDataError, ErrorContext, FormatError
from ..files.names import shown
from .versions import Tensor

if TYPE_CHECKING:
    from ..files.reader import StoredFile
    from .store import Store
    from .versions import Version


class Fetched(NamedTuple):
    """What makes a tensor, of the one before it or of nothing.

    Attributes:
        data: a frame, or with `compressed` False the content.
        tensor: what comes out.
        file: it is from, for errors.
    """

    data: memoryview
    compressed: bool
    tensor: Tensor
    file: object

    def make(self, name: str, out: memoryview, base: memoryview | None, threads: int) -> None:
        """Put the tensor into memory of ours, which may be that of `base` and is of no use after an error.

        The hash of the result is checked. No other base gives it, so that of the base need not be.

        Raises:
            BaseMismatchError: `base` is not what the frame is relative to.
            FormatError: it is damaged, or another tensor comes out.
        """
        with ErrorContext(file=self.file, tensor=name):
            reader = FrameReader(self.data) if self.compressed else None
            if reader is not None and reader.info.base_hash is not None and base is not None:
                self._decode(name, reader, out, base, threads)
            else:
                self.put(name, out, threads)

    def put(self, name: str, data: memoryview, threads: int) -> None:
        """Change memory in place. Nothing is written if it holds another base; other errors are those of `make`."""
        with ErrorContext(file=self.file, tensor=name):
            if not self.compressed:
                data[:] = self.data
            elif frame_info(self.data).base_hash is not None:
                decompress(self.data, base=data, out=data, threads=threads)
                return  # the result is checked
            else:
                decompress(self.data, out=data, threads=threads)
            found = content_hash(data, threads=threads)
            if found != self.tensor.hash:
                raise CorruptDataError(f"expected content with hash {self.tensor.hash}, got {found}")

    def _decode(self, name: str, reader: FrameReader, out: memoryview, base: memoryview, threads: int) -> None:
        info = reader.info
        blocks = self.data[info.header_nbytes : info.header_nbytes + info.data_nbytes]
        try:
            found, _ = reader.decode_and_hash(blocks, out, base=base, hash_base=False, threads=threads)
        except FormatError:
            reader.check_blocks(blocks)  # which are right if the base alone is to blame
            found = ""
        if found != self.tensor.hash:
            raise base_mismatch(info, "got another one", name=shown(name))


class Frames:
    """The files of versions, opened when they are needed. Use it in a ``with`` statement."""

    def __init__(self, store: Store, plan: Mapping[str, Sequence[Version]]) -> None:
        """`plan`: by name the versions that will be asked for."""
        self._store = store
        self._wanted: dict[tuple[int, str], list[str]] = {}
        for name, links in plan.items():
            for link in links:
                self._wanted.setdefault((link.number, link.homes[name]), []).append(name)
        self._files: dict[tuple[int, str], StoredFile] = {}
        self._stack = ExitStack()

    def fetch(self, name: str, version: Version) -> Fetched:
        """The bytes of a tensor in a version.

        Raises:
            CorruptDataError: the file is not the one that the index tells of.
        """
        expected, file = version.tensors[name], version.homes[name]
        stored = self._open(version, file)
        with ErrorContext(file=stored.path, tensor=name):
            tensor = stored.tensors.get(name)
            if tensor is None:
                raise CorruptDataError("the index says that the tensor is in this file, which does not hold it")
            data = new_buffer(tensor.entry.nbytes)
            stored.file.read_into(stored.header.data_start + tensor.entry.start, data)
            found = Tensor(tensor.entry.dtype, tensor.entry.shape, tensor.content_hash or "")
            if tensor.compressed:
                info = frame_info(data)
                found = Tensor(info.dtype, info.shape, info.content_hash)
            if found != expected:
                raise CorruptDataError(f"expected {expected}, as the index says, got {found}")
        return Fetched(data, tensor.compressed, expected, stored.path)

    def _open(self, version: Version, file: str) -> StoredFile:
        key = version.number, file
        if key not in self._files:
            stored = self._stack.enter_context(self._store.open(version, file))
            stored.expect([stored.tensors[name] for name in self._wanted[key] if name in stored.tensors])
            self._files[key] = stored
        return self._files[key]

    def __enter__(self) -> Frames:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
