"""Pages whose last two dimensions change places before they are coded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..codec import FrameReader

MARK = b"\x93TWKV\r\n\x1a" + bytes(24)
"""What stands before the frame of a transposed page. Without it the frame would decode to other bits in silence where a
reader does not know what was done to the page. No frame begins like this; 32 bytes keep the frame aligned."""
_ROWS = 32
"""What is copied at once: in each column a line of the cache of 2-byte elements."""


def swapped(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with its last two sizes in each other's place."""
    return (*sizes[:-2], sizes[-1], sizes[-2])


def transpose(page: memoryview, element_nbytes: int, sizes: tuple[int, ...]) -> memoryview:
    """A copy of a page with this shape, with its last two dimensions in each other's place."""
    content = _room(len(page))
    _copy(page, content, element_nbytes, sizes)
    return content


def read_transposed(reader: FrameReader, blocks: memoryview, out: memoryview, threads: int) -> None:
    """Decode a frame, and put its content into `out` with the last two dimensions in each other's place."""
    content = _room(len(out))
    reader.decode(blocks, content, threads=threads)
    _copy(content, out, reader.info.bits // 8, reader.info.shape)


def _room(nbytes: int) -> memoryview:
    """Memory that the allocator keeps for the next page: new pages of the kernel would cost more than the copy."""
    import numpy

    return numpy.empty(nbytes, numpy.uint8).data


def _copy(source: memoryview, target: memoryview, element_nbytes: int, sizes: tuple[int, ...]) -> None:
    import numpy

    if not len(source):
        return
    view: Any = numpy.frombuffer(source, f"{'u' if element_nbytes in (1, 2, 4, 8) else 'V'}{element_nbytes}")
    into: Any = numpy.frombuffer(target, view.dtype)
    rows, columns = view.reshape(sizes), into.reshape(swapped(sizes))
    for start in range(0, sizes[-2], _ROWS):
        part = slice(start, start + _ROWS)
        columns[..., part] = rows[..., part, :].swapaxes(-1, -2)
