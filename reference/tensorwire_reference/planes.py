"""Section "Planes, fields, runs". Numbers are one-dimensional uint64 arrays."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .errors import require

U64 = npt.NDArray[np.uint64]

RUN = 256


def runs_of(n: int) -> Iterator[slice]:
    """The runs of `n` numbers: slices of 256, the last one shorter."""
    return (slice(start, min(start + RUN, n)) for start in range(0, n, RUN))


def plane_nbytes(n: int, p: int) -> int:
    """Size of a plane of `n` numbers of `p` bits. A full run fills its 32-bit words, so only the last one rounds up."""
    return 4 * -(-n * p // 32)


def pack_plane(numbers: U64, p: int) -> bytes:
    """Store numbers below `2**p`."""
    if p >= 8:
        return numbers.astype(f"<u{p // 8}").tobytes().ljust(plane_nbytes(len(numbers), p), b"\0")
    shifts = np.arange(0, 8, p, dtype=np.uint8)[:, None]
    full = len(numbers) // RUN * RUN
    runs = numbers[:full].astype(np.uint8).reshape(-1, 8 // p, RUN * p // 8)
    part = numbers[full:]
    lanes = np.zeros((8 // p, plane_nbytes(len(part), p)), np.uint8)
    lanes.reshape(-1)[: len(part)] = part  # number i: row i // S, byte i % S
    return b"".join(np.bitwise_or.reduce(of << shifts, axis=-2).tobytes() for of in (runs, lanes))


def unpack_plane(data: bytes, n: int, p: int) -> U64:
    """Inverse of `pack_plane`; `data` has exactly `plane_nbytes(n, p)` bytes.

    Raises `CorruptDataError` if a bit of no number is set.
    """
    if p >= 8:
        end = n * p // 8
        require(not any(data[end:]), f"a plane of {n} numbers of {p} bits has bytes set behind its last number")
        return np.frombuffer(data[:end], f"<u{p // 8}").astype(np.uint64)
    raw = np.frombuffer(data, np.uint8)
    shifts = np.arange(0, 8, p, dtype=np.uint8)[:, None]
    mask = np.uint8((1 << p) - 1)
    numbers: U64 = np.empty(n, np.uint64)
    full = n // RUN
    body = raw[: full * 32 * p].reshape(full, 1, 32 * p)
    numbers[: full * RUN] = ((body >> shifts) & mask).reshape(-1)
    tail = ((raw[full * 32 * p :] >> shifts) & mask).reshape(-1)
    count = n - full * RUN
    numbers[full * RUN :] = tail[:count]
    require(not tail[count:].any(), f"a plane of {n} numbers of {p} bits has bits set behind its last number")
    return numbers


def plane_widths(w: int) -> list[int]:
    """Widths of the planes of a `w`-bit field, in stored order: largest first."""
    return [p for p in (64, 32, 16, 8, 4, 2, 1) if w & p]


def field_nbytes(n: int, w: int) -> int:
    """Size of a field of `n` numbers of `w` bits."""
    return sum(plane_nbytes(n, p) for p in plane_widths(w))


def pack_field(numbers: U64, w: int) -> bytes:
    """Store numbers below `2**w`, 0 <= w <= 64."""
    out, shift = [], 0
    for p in plane_widths(w):
        out.append(pack_plane((numbers >> np.uint64(shift)) & ones(p), p))
        shift += p
    return b"".join(out)


def unpack_field(data: bytes, n: int, w: int) -> U64:
    """Inverse of `pack_field`; `data` has exactly `field_nbytes(n, w)` bytes."""
    numbers = np.zeros(n, np.uint64)
    shift = start = 0
    for p in plane_widths(w):
        end = start + plane_nbytes(n, p)
        numbers |= unpack_plane(data[start:end], n, p) << np.uint64(shift)
        start, shift = end, shift + p
    return numbers


def ones(bits: int) -> np.uint64:
    """The number with the lowest `bits` bits set, 0 <= bits <= 64."""
    mask: np.uint64 = np.uint64((1 << bits) - 1)
    return mask


class Reader:
    """Hands out the streams of a block in order and raises `CorruptDataError` when one reaches past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def take(self, nbytes: int) -> bytes:
        """The next `nbytes` bytes."""
        end = self.position + nbytes
        require(end <= len(self._data), f"a stream ends at byte {end} of a block's {len(self._data)} stream bytes")
        start, self.position = self.position, end
        return self._data[start:end]

    def field(self, n: int, w: int) -> U64:
        """The next field: `n` numbers of `w` bits."""
        return unpack_field(self.take(field_nbytes(n, w)), n, w)

    def rest(self) -> bytes:
        """All bytes that were not taken, which stay."""
        return self._data[self.position :]
