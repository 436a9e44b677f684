"""One tensor of an open file, of which an index reads a part."""

from __future__ import annotations

import operator
from math import prod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..._ground.copies import not_copied
from ..._ground.text import in_a_line
from ...codec import array_shape, as_array, dtype_bits
from ...errors import ErrorContext, UnsupportedTensorError
from ...files.loader import check_room, load_range

if TYPE_CHECKING:
    from ...files.reader import StoredFile, StoredTensor
    from .target import Target

Array = TypeVar("Array")


class TensorSlice(Generic[Array]):
    """A tensor in an open file: index it as the array it is.

    An integer or a slice as the first index selects rows, and only the blocks that hold these are read and decoded;
    further indexes are applied to the decoded rows. Every other first index (an ellipsis, None, a list, a mask)
    decodes the whole tensor. Framework "bytes" takes one index, a row or rows without a step.

    What is returned has memory of its own.
    """

    __reduce_ex__ = not_copied("an open file", "copy what an index gives, or call open_file with the path again")

    def __repr__(self) -> str:
        return in_a_line(self, repr(self._tensor.name), self._dtype, self._shape, self._stored.path)

    def __init__(
        self,
        stored: StoredFile,
        tensor: StoredTensor,
        target: Target,
        threads: int,
        *,
        verify: bool,
        max_nbytes: int | None,
    ) -> None:
        self._dtype, self._shape, self._nbytes = stored.layout(tensor.name)
        with ErrorContext(file=stored.path, tensor=tensor.name):
            target.check(stored, tensor)
        self._array_shape = array_shape(self._dtype, self._shape, target.framework)
        self._stored = stored
        self._tensor = tensor
        self._target = target
        self._threads = threads
        self._verify = verify
        self._max_nbytes = max_nbytes

    def get_shape(self) -> list[int]:
        """Sizes of the dimensions."""
        return list(self._shape)

    def get_dtype(self) -> str:
        """Name of the dtype as in safetensors."""
        return self._dtype

    def __getitem__(self, index: Any) -> Array:
        found: Array = self._indexed(index)
        return found

    def _indexed(self, index: Any) -> Any:
        items = list(index) if isinstance(index, tuple) else [index]
        if self._target.framework == "bytes":
            return self._bytes(items)
        if not items or not self._array_shape or (rows := _rows(items[0], self._array_shape[0])) is None:
            return self._cut(self._decode(0, self._array_shape[0] if self._array_shape else 1), items)
        if not rows:
            return self._cut(self._decode(0, 0), [slice(None), *items[1:]])
        first, last = min(rows[0], rows[-1]), max(rows[0], rows[-1])
        decoded = self._decode(first, last + 1)
        if not isinstance(items[0], slice):
            return self._cut(decoded, [0, *items[1:]])
        stop = rows[-1] - first + rows.step
        return self._cut(decoded, [slice(rows[0] - first, stop if stop >= 0 else None, rows.step), *items[1:]])

    def _decode(self, start: int, stop: int) -> Any:
        """Rows [start, stop), on the CPU."""
        shape = (stop - start, *self._shape[1:]) if self._shape else ()
        if self._target.framework == "pt" and self._dtype == "F4" and len(shape) == 1:
            shape = (2 * shape[0],)  # a row of torch's holds two
        size = self._array_shape[0] if self._array_shape else 1
        row_nbytes = self._nbytes // size if size else 0
        return as_array(self._read(start * row_nbytes, stop * row_nbytes), self._dtype, shape, self._target.framework)

    def _cut(self, decoded: Any, items: list[Any]) -> Any:
        """The indexed part of decoded rows, without memory that it does not need."""
        found = decoded[tuple(items)]
        if self._target.framework == "np":
            import numpy

            found = numpy.asarray(found)
            return found if found.size == decoded.size else found.copy()
        if found.numel() != decoded.numel():
            found = found.clone()
        return found if self._target.device is None else found.to(self._target.device)

    def _bytes(self, items: list[Any]) -> Any:
        size = self._shape[0] if self._shape else 1
        rows: range | None = range(size)
        if self._shape and items and items != [...]:
            rows = _rows(items[0], size) if len(items) == 1 else None
        if rows is None or rows.step != 1 or (not self._shape and items not in ([], [...])):
            raise IndexError(
                'framework "bytes" takes one index, a row or rows without a step; "np" and "pt" take all of theirs'
            )
        bits = dtype_bits(self._dtype) or 8 * self._nbytes // (prod(self._shape) or 1)
        row_bits = prod(self._shape[1:]) * bits
        if rows.start * row_bits % 8 or (rows.stop * row_bits % 8 and rows.stop != size):
            raise UnsupportedTensorError(
                f"rows {rows.start} to {rows.stop} of {row_bits} bits each are not whole bytes",
                file=self._stored.path,
                tensor=self._tensor.name,
                advice="read more rows",
            )
        return bytes(self._read(rows.start * row_bits // 8, -(-max(rows.stop, rows.start) * row_bits // 8)))

    def _read(self, start: int, stop: int) -> memoryview:
        check_room([(self._stored.path, self._tensor.name, stop - start)], self._max_nbytes)
        with ErrorContext(file=self._stored.path, tensor=self._tensor.name):
            return load_range(self._stored, self._tensor, start, stop, self._threads, self._verify)


def _rows(item: Any, size: int) -> range | None:
    """The rows that a first index selects; None if only the framework can say which."""
    if isinstance(item, slice):
        return range(size)[item]
    if isinstance(item, bool) or getattr(item, "ndim", None):
        return None
    try:
        row = operator.index(item)
    except TypeError:
        return None
    if not -size <= row < size:
        raise IndexError(f"expected a row from {-size} to {size - 1}, got {row}")
    return range(size)[row : row + 1 or size]
