"""Section "Bit strings": single bits, and the codes that describe what they hold."""

from collections.abc import Iterable

import numpy as np

from .errors import UnfitError, require
from .planes import Reader

MAX_GOLOMB_BITS = 63
_K = range(32)  # what `bits(5)` can say


class BitReader:
    """Reads one bit string from a block's reader. `finish` checks the padding and leaves the reader behind it."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._bits = np.unpackbits(np.frombuffer(reader.rest(), np.uint8), bitorder="little")
        self._ones = np.flatnonzero(self._bits)
        self._position = 0

    def array(self, n: int) -> np.ndarray:
        """The next `n` bits."""
        end = self._position + n
        require(end <= len(self._bits), "a bit string goes on behind the streams of its block")
        start, self._position = self._position, end
        return self._bits[start:end]

    def bits(self, w: int) -> int:
        return sum(int(bit) << i for i, bit in enumerate(self.array(w)))

    def each_of(self, widths: np.ndarray) -> np.ndarray:
        """A number of each of these widths, which are at most 64."""
        ends = np.cumsum(widths)
        bits = self.array(int(ends[-1]) if len(ends) else 0).astype(np.uint64)
        numbers = np.zeros(len(widths), np.uint64)
        for i in range(int(widths.max(initial=0))):
            wide = widths > i
            numbers[wide] |= bits[(ends - widths)[wide] + i] << np.uint64(i)
        return numbers

    def unary(self) -> int:
        i = int(np.searchsorted(self._ones, self._position))
        require(i < len(self._ones), "a bit string ends within a number in unary")
        zeros = int(self._ones[i]) - self._position
        self._position += zeros + 1
        return zeros

    def golomb(self, g: int) -> int:
        q = self.unary()
        require(q + g <= MAX_GOLOMB_BITS, f"golomb: {q} + {g} bits")
        return ((1 << q) - 1 << g) + self.bits(q + g)

    def gap(self, k: int) -> int:
        """A gap in Rice's code."""
        return (self.unary() << k) + self.bits(k)

    def subset(self, n: int) -> np.ndarray:
        """`set(n)`: for each of the numbers 0 to n - 1, whether it belongs to the set."""
        members = np.zeros(n, np.bool_)
        if n == 0:
            return members
        inverted, m = self.bits(1), self.golomb(0)
        require(m <= n, f"set: {m} members of {n}")
        k = self.bits(5) if m else 0
        position = -1
        for _ in range(m):
            position += 1 + self.gap(k)
            require(position < n, f"set: member {position} of {n}")
            members[position] = True
        return ~members if inverted else members

    def finish(self) -> None:
        used = 4 * -(-self._position // 32)
        require(not any(self.array(8 * used - self._position)), "the padding of a bit string is set")
        self._reader.take(used)


class BitWriter:
    """Makes one bit string."""

    def __init__(self) -> None:
        self._bits: list[int] = []

    def array(self, values: Iterable[int]) -> None:
        self._bits += [int(value) for value in values]

    def bits(self, value: int, w: int) -> None:
        self._bits += [value >> i & 1 for i in range(w)]

    def unary(self, zeros: int) -> None:
        self._bits += [0] * zeros + [1]

    def golomb(self, value: int, g: int) -> None:
        q = ((value >> g) + 1).bit_length() - 1
        if q + g > MAX_GOLOMB_BITS:
            raise UnfitError(f"golomb: {value} of order {g}")
        self.unary(q)
        self.bits(value - ((1 << q) - 1 << g), q + g)

    def gap(self, gap: int, k: int) -> None:
        self.unary(gap >> k)
        self.bits(gap, k)

    def subset(self, members: np.ndarray) -> None:
        """`set(len(members))`, inverted if most numbers belong to the set."""
        if len(members) == 0:
            return
        inverted = 2 * int(members.sum()) > len(members)
        gaps = gaps_of(np.flatnonzero(members != inverted))
        self.bits(int(inverted), 1)
        self.golomb(len(gaps), 0)
        if gaps:
            k = best_k(gaps)
            self.bits(k, 5)
            for gap in gaps:
                self.gap(gap, k)

    def finish(self) -> bytes:
        packed = np.packbits(np.array(self._bits, np.uint8), bitorder="little").tobytes()
        return packed + bytes(-len(packed) % 4)


def gaps_of(positions: np.ndarray) -> list[int]:
    """How many numbers lie between each of the ascending `positions` and the one before."""
    return [int(gap) - 1 for gap in np.diff(positions, prepend=-1)]


def best_k(gaps: list[int]) -> int:
    """The k by which Rice's code of `gaps` is shortest."""
    return min(_K, key=lambda k: sum((gap >> k) + 1 + k for gap in gaps))


def best_g(values: list[int]) -> int:
    """The order, of six bits, by which the exponential Golomb code of `values` is shortest."""
    return min(range(64), key=lambda g: sum(2 * ((value >> g) + 1).bit_length() - 1 + g for value in values))
