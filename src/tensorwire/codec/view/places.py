"""Arrays that take content where they lie, in any order and byte order of their elements."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._ground.allocation import new_buffer
from ...errors import ErrorContext, UnsupportedTensorError
from .arrays import address_of, check_dense, plain_array, tensor_view

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

_MAX_WORK = 100_000
"""What NumPy may try to tell whether two arrays share a byte: some milliseconds."""


@contextmanager
def changed_in_place(array: Any) -> Iterator[memoryview]:
    """The content of an array, row-major and little-endian, to be changed in a ``with`` block.

    It is the memory of the array if that has this order. Otherwise it is a copy, which the array takes at the end; if
    the block ends with an error, the array stays as it was.

    Raises:
        UnsupportedTensorError: the array takes no content where it lies.
        BufferError: its memory was freed, moved or cut meanwhile.
    """
    import numpy

    view = tensor_view(array)
    if not view.data.readonly:
        yield view.data
        view.check_memory()
        return
    place = _Place.of(array)
    content = new_buffer(len(view.data))
    content[:] = view.data
    yield content
    numpy.copyto(place.memory, numpy.ndarray(place.memory.shape, place.memory.dtype.newbyteorder("="), content))


class _Place(NamedTuple):
    """The memory of an array: from its first byte to behind its last one, and as an array of NumPy."""

    start: int
    stop: int
    memory: Array

    @classmethod
    def of(cls, array: Any) -> _Place:
        """
        Raises:
            UnsupportedTensorError: content that is put there would be lost, or fall together.
        """
        memory = _memory_of(array)
        if not memory.flags.writeable:
            raise _refused("a read-only one", "give one that may be written to, such as a copy")
        start = stop = memory.__array_interface__["data"][0]
        if not memory.size:
            return cls(start, stop, memory)
        reach = memory.itemsize  # of the dimensions with smaller strides
        for stride, size in sorted(zip(memory.strides, memory.shape, strict=True), key=lambda each: abs(each[0])):
            if size > 1 and abs(stride) < reach:
                raise _refused("one with several elements in one place of the memory", "give a copy")
            reach += abs(stride) * (size - 1)
            start += min(stride, 0) * (size - 1)
            stop += max(stride, 0) * (size - 1)
        return cls(start, stop + memory.itemsize, memory)

    def is_tied(self, other: _Place) -> bool:
        """Whether both are the same elements in the same order."""
        a, b = self.memory, other.memory
        if self[:2] != other[:2]:
            return False
        return (a.shape, a.strides) == (b.shape, b.strides) or (a.flags.c_contiguous and b.flags.c_contiguous)

    def overlaps(self, other: _Place) -> bool:
        """Whether some bytes are in both, or it would take long to tell."""
        import numpy

        try:
            return numpy.shares_memory(self.memory, other.memory, _MAX_WORK)  # type: ignore[arg-type]
        except numpy.exceptions.TooHardError:
            return True


def tied_names(arrays: Mapping[str, Any]) -> dict[str, str]:
    """By the name of an array the first one that has the same memory, itself for most. All take content in place.

    Raises:
        UnsupportedTensorError: one takes none, or shares a part of its memory with another one.
    """
    places = []
    for name, array in arrays.items():
        with ErrorContext(tensor=name):
            places.append((*_Place.of(array), name))
    found = {name: name for name in arrays}
    reaching: list[tuple[_Place, str]] = []  # those that may reach into the next one
    for start, stop, memory, name in sorted(places, key=lambda each: each[:2]):
        if not memory.size:
            continue
        place, reaching = _Place(start, stop, memory), [each for each in reaching if each[0].stop > start]
        tied = next((other for each, other in reaching if each.is_tied(place)), None)
        if tied is not None:
            found[name] = tied
            continue
        for each, other in reaching:
            if each.overlaps(place):
                raise UnsupportedTensorError(
                    "expected an array that shares all of its memory with another one, or nothing, got one that shares "
                    f"a part of it with {other!r:.200}",
                    tensor=name,
                    advice="give one of the two, or copies of both",
                )
        reaching.append((place, name))
    return found


def _memory_of(array: Any) -> Array:
    import numpy

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        check_dense(torch, array)
        if array.is_conj() or array.is_neg():
            raise _refused("a conjugate or negative view of one", "give the tensor that it is a view of")
        last = sum((size - 1) * stride for size, stride in zip(array.shape, array.stride(), strict=True))
        nbytes = (array.storage_offset() + last + 1) * array.element_size()
        if array.numel() and nbytes > array.untyped_storage().nbytes():
            raise _refused("one whose memory was cut", "leave it its memory")
        return numpy.asarray(_MemoryOfTorch(array))
    if isinstance(array, numpy.generic):
        raise _refused("a scalar of NumPy", "give numpy.asarray(value)")
    if isinstance(array, numpy.ndarray):
        found: Array = plain_array(numpy, array)
        return found
    tensor_view(array)  # which says what is no buffer
    return numpy.asarray(memoryview(array))


class _MemoryOfTorch:
    """A tensor of torch as NumPy takes it: as numbers of the size of its elements."""

    def __init__(self, tensor: Any) -> None:
        nbytes = tensor.element_size()
        self.owner = tensor
        self.__array_interface__ = {
            "version": 3,
            "data": (address_of(tensor), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(nbytes * stride for stride in tensor.stride()),
            "typestr": f"<{'u' if nbytes <= 8 else 'c'}{nbytes}",
        }


def _refused(found: str, advice: str) -> UnsupportedTensorError:
    return UnsupportedTensorError(f"expected an array that takes content in place, got {found}", advice=advice)
