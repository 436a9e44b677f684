"""Tensors out of the files of versions: what a follower fetches and applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from ..codec import content_hash, decompress, frame_info, new_buffer
from ..errors import CorruptDataError, ErrorContext
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

    def apply(self, name: str, out: memoryview, base: memoryview | None, threads: int) -> None:
        """Put the tensor into `out`, which may be the memory of `base`.

        Raises:
            BaseMismatchError: `base` is not what the frame is relative to.
            FormatError: it is damaged, or another tensor comes out.
        """
        with ErrorContext(file=self.file, tensor=name):
            if not self.compressed:
                out[:] = self.data
            else:
                is_relative = frame_info(self.data).base_hash is not None
                decompress(self.data, base=base if is_relative else None, out=out, threads=threads)
                if is_relative:
                    return  # whose result is checked
            found = content_hash(out, threads=threads)
            if found != self.tensor.hash:
                raise CorruptDataError(f"expected content with hash {self.tensor.hash}, got {found}")


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
