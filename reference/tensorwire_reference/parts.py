"""Section "Kind parts": a block that is a row of smaller blocks."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import UnfitError, require
from .header import LEAST_ALIGNMENT, ceil_to
from .layouts import Layout

_STORED = 1 << 15  # of a length
_RUN = 256
_PART_RUNS_NBYTES = 2
_LEAST, _MOST = 2, 16


@dataclass(frozen=True)
class Part:
    """What a length says of a part, and which words of the block it has."""

    words: slice
    nbytes: int
    stored: bool


def split_words(n: int, part_runs: int) -> list[slice]:
    """The words of each part; none if there may not be so many parts."""
    size = _RUN * part_runs
    if not (_LEAST - 1) * size < n <= _MOST * size:
        return []
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def params_nbytes(before_extended: bytes, n: int) -> int:
    """Size of the parameters, of which part_runs comes last."""
    return 2 * len(_split_params(before_extended, n)) + _PART_RUNS_NBYTES


def _split_params(params: bytes, n: int) -> list[slice]:
    part_runs = int.from_bytes(params[-_PART_RUNS_NBYTES:], "little")
    words = split_words(n, part_runs)
    require(bool(words), f"parts: part_runs {part_runs} for {n} words")
    return words


def parse(params: bytes, n: int, streams_nbytes: int, layout: Layout, *, relative: bool) -> list[Part]:
    """Check what can be checked without the streams."""
    words = _split_params(params, n)
    lengths = struct.unpack(f"<{len(words)}H", params[:-_PART_RUNS_NBYTES])
    parts = [
        Part(of_part, LEAST_ALIGNMENT * (length & ~_STORED), bool(length & _STORED))
        for of_part, length in zip(words, lengths, strict=True)
    ]
    for i, part in enumerate(parts):
        raw = ceil_to((part.words.stop - part.words.start) * layout.word_nbytes, LEAST_ALIGNMENT)
        legal = part.nbytes == raw if part.stored else part.nbytes <= raw and (relative or part.nbytes > 0)
        require(legal, f"parts: part {i} has {part.nbytes} bytes of {raw}{', stored' * part.stored}")
    nbytes = sum(part.nbytes for part in parts)
    require(nbytes <= streams_nbytes, f"parts: {nbytes} bytes in streams of {streams_nbytes}")
    return parts


def pack_params(parts: Sequence[Part], part_runs: int) -> bytes:
    """Raises `UnfitError` if a part is too long."""
    units = [part.nbytes // LEAST_ALIGNMENT for part in parts]
    if max(units) >= _STORED:
        raise UnfitError("parts: a length does not fit 15 bits")
    lengths = [unit | _STORED * part.stored for unit, part in zip(units, parts, strict=True)]
    return struct.pack(f"<{len(parts) + 1}H", *lengths, part_runs)
