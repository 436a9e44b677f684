"""Tensors by name out of an open file, or out of all shards of a directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..._ground.copies import not_copied
from ..._ground.text import count, in_a_line
from ...codec import num_threads
from ...errors import ErrorContext
from ...files.loader import check_room, claim, load_contents
from ...files.names import shown
from .tensor_slice import Array, TensorSlice

if TYPE_CHECKING:
    from ...files.base import Base
    from ...files.loader import Verify
    from ...files.reader import StoredFile, StoredTensor
    from .target import Target

Slice = TypeVar("Slice", bound=TensorSlice[Any])

_TRANSFER_NBYTES = 256 << 20
"""On their way to a device tensors take about this much memory of the CPU, or that of the largest."""


class TensorReader(Generic[Array]):
    """Tensors by name: what `open_file` returns. Thread-safe until it is closed.

    The interface is that of ``safetensors.safe_open``; ``name in reader``, ``len(reader)`` and iteration over the names
    come on top.

    Attributes:
        files: the open files.
    """

    __reduce_ex__ = not_copied("open files", "call open_file with the path again, in another process too")

    def __repr__(self) -> str:
        path = self.files[0].path
        return in_a_line(
            self,
            path if len(self.files) == 1 else f"{path.parent}, {count(len(self.files), 'file')}",
            count(len(self), "tensor"),
            f"framework {self._target.framework!r}",
        )

    def __init__(
        self,
        files: Sequence[StoredFile],
        places: Mapping[str, tuple[StoredFile, StoredTensor]],
        target: Target,
        threads: int,
        *,
        base: Base | None,
        verify: Verify,
        max_nbytes: int | None,
    ) -> None:
        """`places`: where the tensor of each name is. `base` is closed with the files."""
        self.files = files
        self._places = places
        self._target = target
        self._threads = threads
        self._base = base
        self._verify = verify
        self._max_nbytes = max_nbytes
        if target.compressed is not None:
            target.compressed.plan(files)

    def __enter__(self) -> TensorReader[Array]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. What has been read stays."""
        for file in self.files:
            file.close()
        if self._base is not None:
            self._base.close()

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._places)

    def keys(self) -> list[str]:
        """The original names, sorted."""
        return sorted(self._places)

    def offset_keys(self) -> list[str]:
        """The original names, in the order of their data: to read everything, read in this order."""
        return list(self._places)

    def metadata(self) -> dict[str, str] | None:
        """``__metadata__`` of the headers, without our own entries; the first file wins. None if no file has it."""
        found = [file.metadata for file in reversed(self.files) if file.metadata is not None]
        return {key: text for each in found for key, text in each.items()} if found else None

    def get_tensor(self, name: str) -> Array:
        """One whole tensor, checked unless the reader was opened without `verify`: a trusting reader of plain frames, a
        checking reader of all else.

        Raises:
            KeyError: there is no tensor of this name.
            BaseMismatchError: it is relative, and there is no base, or one with another content.
            FormatError: its data is damaged.
            LimitExceededError: it is larger than `max_nbytes` of the reader.
            UnsupportedTensorError: the framework lacks its dtype.
            OSError: reading fails.
            ValueError: the reader is closed.
        """
        stored, tensor = self._place(name)
        check_room([claim(stored, tensor)], self._max_nbytes)
        array: Array = load(stored, [tensor], self._target, self._threads, verify=self._verify)[tensor.name]
        return array

    def get_tensors(self, *, verify: bool = True) -> dict[str, Array]:
        """All tensors by name, in the order of their data.

        Args:
            verify: check the checksums of the data, unless the reader was opened without. The checksums of headers
                are always checked.

        Raises:
            LimitExceededError: together they are larger than `max_nbytes` of the reader.
        """
        check_room((claim(stored, tensor) for stored, tensor in self._places.values()), self._max_nbytes)
        arrays: dict[str, Array] = {}
        for stored in self.files:
            tensors = [tensor for file, tensor in self._places.values() if file is stored]
            arrays |= load(stored, tensors, self._target, self._threads, verify=verify and self._verify)
        return {name: arrays[name] for name in self._places}

    def expect(self, names: Iterable[str]) -> None:
        """Say that these tensors will be read. What is far away is fetched ahead, all that was named before is not.

        Raises:
            KeyError: there is no tensor of one of the names.
        """
        wanted: dict[int, list[StoredTensor]] = {}
        for name in names:
            stored, tensor = self._place(name)
            wanted.setdefault(id(stored), []).append(tensor)
        for stored in self.files:
            stored.expect(wanted.get(id(stored), ()))

    def get_slice(self, name: str) -> TensorSlice[Array]:
        """One tensor to be indexed: ``reader.get_slice(name)[100:200]`` decodes the blocks that these rows touch.

        For a relative tensor the same blocks of the base are read. Before its first use all of the base's tensor is
        read and hashed, once for each tensor of a reader, unless the base is compressed, so that its header tells the
        hash, or the reader was opened without `verify`.

        Each block that is decoded is checked, and after each slice that the file of the base was not written to. The
        rows that come out are not hashed, because a content hash is of the whole tensor: this is a trusting reader. So
        of a plain tensor nothing is checked, unless it is empty.

        Raises:
            KeyError, UnsupportedTensorError: as for `get_tensor`; indexing raises its other errors.
        """
        return self._sliced(TensorSlice[Array], name)

    def _sliced(self, kind: type[Slice], name: str) -> Slice:
        return kind(
            *self._place(name),
            self._target,
            self._threads,
            verify=self._verify is not False,
            max_nbytes=self._max_nbytes,
        )

    def _place(self, name: str) -> tuple[StoredFile, StoredTensor]:
        place = self._places.get(name)
        if place is None:
            files = f"{self.files[0].path}" if len(self.files) == 1 else f"the {len(self.files)} files"
            raise KeyError(f"there is no tensor {shown(name)} in {files}")
        return place


def load(
    stored: StoredFile, tensors: Sequence[StoredTensor], target: Target, threads: int | None, *, verify: Verify
) -> dict[str, Any]:
    """Whole tensors of a file by name. Nothing is read before it is clear that the framework has all of them."""
    count = num_threads(threads)
    stored.expect(tensors)
    arrays: dict[str, Any] = {}
    if target.compressed is not None:
        arrays = target.compressed.load(stored, tensors, count, verify)
        tensors = [tensor for tensor in tensors if tensor.name not in arrays]
    layouts = []
    for tensor in tensors:
        dtype, shape, nbytes = stored.layout(tensor.name)
        with ErrorContext(file=stored.path, tensor=tensor.name):
            target.check(stored, tensor)
        layouts.append((tensor, dtype, shape, nbytes))
    for batch in _batches(layouts, _TRANSFER_NBYTES if target.device is not None else None):
        batch_tensors, sizes = [layout[0] for layout in batch], [layout[3] for layout in batch]
        datas = load_contents(stored, batch_tensors, sizes, count, verify is not False)
        for (tensor, dtype, shape, _), data in zip(batch, datas, strict=True):
            arrays[tensor.name] = target.array(data, dtype, shape)
    return arrays


def _batches(layouts: list[Any], max_nbytes: int | None) -> Iterator[list[Any]]:
    """Tensors in order, together at most so many bytes unless it is one."""
    batch: list[Any] = []
    total = 0
    for layout in layouts:
        if batch and max_nbytes is not None and total + layout[3] > max_nbytes:
            yield batch
            batch, total = [], 0
        batch.append(layout)
        total += layout[3]
    if batch:
        yield batch
