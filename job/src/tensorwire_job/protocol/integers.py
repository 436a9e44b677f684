"""Rows of 64-bit integers, little-endian, as reports have them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

LENGTH: Final = struct.Struct("<q")
NBYTES: Final = LENGTH.size
MAX_VALUE: Final = 1 << 62  # a larger integer is damage
_HIGHEST_BYTES: Final = bytes([*range(MAX_VALUE >> 56), 0xFF])  # the last is that of small negatives

Row = tuple[int, ...]


def pack(rows: Sequence[Sequence[int]]) -> bytes:
    values = [value for row in rows for value in row]
    return struct.pack(f"<{len(values)}q", *values)


def checked(data: bytes) -> bytes:
    """The same rows. Raises ValueError or TypeError where they are no integers, or larger ones than an agent sends."""
    if type(data) is not bytes:
        raise TypeError
    if len(data) % NBYTES or data[NBYTES - 1 :: NBYTES].translate(None, _HIGHEST_BYTES):
        raise ValueError
    return data


def integers(data: bytes) -> Row:
    return struct.unpack(f"<{len(data) // NBYTES}q", data)


def in_rows(values: Row, length: int) -> Iterator[Row]:
    if len(values) % length:
        raise ValueError
    return (values[start : start + length] for start in range(0, len(values), length))


def size_of(values: Sequence[Any]) -> int:
    """The number of integers: a text counts as two, and as one more for every 12 characters."""
    return len(values) + sum(1 + len(value) // 12 for value in values if type(value) is str)


def within(values: Sequence[int], low: int, high: int) -> bool:
    return not values or (min(values) >= low and max(values) < high)
