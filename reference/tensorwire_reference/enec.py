"""Section "Kind enec": exponents as small differences, their high bits only for groups that need them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from .errors import UnfitError, require
from .planes import U64, Reader, ones, pack_field


@dataclass(frozen=True)
class Enec:
    """Parameters of the kind; those that are None are chosen for each block. `group` is L: 4, 8, 16 or 32."""

    group: int = 16
    b: int | None = None
    m: int | None = None
    nb: int | None = None
    code: ClassVar[int] = 2

    @property
    def variant(self) -> int:
        return self.group.bit_length() - 1


def decode(params: bytes, variant: int, reader: Reader, n: int, exponent_bits: int) -> tuple[U64, str]:
    """Read `n` exponents. Also returns the parameters in words."""
    b, m, nb, num_high = params[0], params[1] >> 4, params[1] & 15, int.from_bytes(params[2:], "little")
    require(1 <= m < nb <= exponent_bits, f"enec: m {m}, nb {nb}, {exponent_bits} exponent bits")
    y = reader.field(n, m)
    mask = reader.field(-(-n >> variant), 1)
    high = np.repeat(mask, 1 << variant)[:n] == 1
    require(int(high.sum()) == num_high, f"enec: num_high {num_high}, but {int(high.sum())} words have a high part")
    y[high] |= reader.field(num_high, nb - m) << np.uint64(m)
    s = y.astype(np.int64) - (y >> np.uint64(nb - 1) << np.uint64(nb)).astype(np.int64)
    return ((b - s) % (1 << exponent_bits)).astype(np.uint64), f"(b={b},m={m},nb={nb})"


def encode(kind: Enec, x: U64, exponent_bits: int) -> tuple[bytes, bytes]:
    """The streams and the parameters. Raises `UnfitError` if an exponent is out of reach of b and nb."""
    if exponent_bits < 2:
        raise UnfitError("enec: no numbers of fewer bits than an exponent of one bit has")
    b = int(x.max()) if kind.b is None else kind.b
    nb = _choose_nb(x, b) if kind.nb is None else kind.nb
    nb = min(nb, exponent_bits)
    if kind.m is not None:
        return _encode(x, exponent_bits, kind.variant, b, kind.m, nb)
    y = (b - x.astype(np.int64)) % (1 << nb)
    sizes = {m: len(x) * m + int(_high_words(y >> m, kind.variant).sum()) * (nb - m) for m in range(1, nb)}
    return _encode(x, exponent_bits, kind.variant, b, min(sizes, key=sizes.__getitem__), nb)


def _choose_nb(x: U64, b: int) -> int:
    """The smallest width whose two's-complement numbers hold every b - x, at least 2."""
    s = b - x.astype(np.int64)
    return max(2, int(s.max()).bit_length() + 1, int(-s.min() - 1).bit_length() + 1)


def _high_words(high: npt.NDArray[np.integer], variant: int) -> npt.NDArray[np.bool_]:
    """For each word, whether a word of its group has a high part."""
    size = 1 << variant
    mask = np.logical_or.reduceat(high != 0, np.arange(0, len(high), size))
    return np.repeat(mask, size)[: len(high)]


def _encode(x: U64, exponent_bits: int, variant: int, b: int, m: int, nb: int) -> tuple[bytes, bytes]:
    if not 1 <= m < nb <= exponent_bits:
        raise ValueError(f"enec needs 1 <= m < nb <= {exponent_bits}, not m {m}, nb {nb}")
    y = ((b - x.astype(np.int64)) % (1 << nb)).astype(np.uint64)
    s = y.astype(np.int64) - (y >> np.uint64(nb - 1) << np.uint64(nb)).astype(np.int64)
    if ((b - s) % (1 << exponent_bits) != x).any():
        raise UnfitError(f"enec: {nb} bits do not hold b - x for b {b}")
    high = y >> np.uint64(m)
    in_mask = _high_words(high, variant)
    high = high[in_mask]
    if len(high) > 0xFFFF:
        raise UnfitError("enec: num_high does not fit two bytes")
    streams = (
        pack_field(y & ones(m), m)
        + pack_field(in_mask[:: 1 << variant].astype(np.uint64), 1)
        + pack_field(high, nb - m)
    )
    return streams, bytes([b, m << 4 | nb]) + len(high).to_bytes(2, "little")
