"""Which elements of a tensor differ from those of a base, one by one; a ctypes binding of core/include/tensorwire.h."""

from __future__ import annotations

import ctypes

from .._ground.allocation import new_buffer
from .frame.core import Error, function
from .view.buffers import Pin, pin_if_given
from .view.dtypes import dtype_bits

_MOST_IN_4_BYTES = 2**31 - 1
_SLICE_NBYTES = 128 << 10  # little, as there is room for all of its elements

_u32, _u64, _address = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_changes = function(
    "tw_changes", ctypes.c_int, _u32, _address, _address, _u64, _u64, _u32, _address, _address, ctypes.POINTER(_u64),
    ctypes.POINTER(Error),
)  # fmt: skip


class ChangedElements:
    """The elements of a tensor whose bits are not those of a base. Both come in chunks, in order. One thread at a time.

    Elements are those of arrays: what has less than a byte each counts as bytes.

    Attributes:
        index_dtype: "I32", or "I64" where the tensor has more than 2**31 - 1 elements.
        indices: the bytes of their numbers in the flat tensor, ascending, each of `index_dtype`.
        values: the bytes that they have in the tensor.
    """

    def __init__(self, dtype: str, nbytes: int) -> None:
        """`nbytes`: of the tensor."""
        self._nbytes_each = max(dtype_bits(dtype) // 8, 1)
        self.index_dtype = "I32" if nbytes // self._nbytes_each <= _MOST_IN_4_BYTES else "I64"
        self.indices, self.values = bytearray(), bytearray()
        self._first = 0
        self._room = new_buffer(0), new_buffer(0)  # for all elements of a slice

    def add(self, content: memoryview, base: memoryview | None) -> None:
        """The next chunk, of whole elements, and as many bytes of the base. Without a base all elements differ."""
        each = self._nbytes_each
        if len(content) % each or (base is not None and len(base) != len(content)):
            raise ValueError(f"expected whole elements of {each} bytes, and as many bytes of the base")
        for start in range(0, len(content), _SLICE_NBYTES):
            part = slice(start, start + _SLICE_NBYTES)
            self._add(content[part], None if base is None else base[part])

    def _add(self, content: memoryview, base: memoryview | None) -> None:
        each, index_nbytes = self._nbytes_each, dtype_bits(self.index_dtype) // 8
        count, found = len(content) // each, _u64()
        if len(self._room[1]) < len(content):
            self._room = new_buffer(count * index_nbytes), new_buffer(len(content))
        indices, values = self._room
        with (
            Pin(content) as source,
            pin_if_given(base) as origin,
            Pin(indices, writable=True) as numbers,
            Pin(values, writable=True) as target,
        ):
            _changes(
                each, source.address, origin.address, count, self._first, index_nbytes, numbers.address, target.address,
                found, Error(),
            )  # fmt: skip
        self.indices += indices[: found.value * index_nbytes]
        self.values += values[: found.value * each]
        self._first += count
