"""Section "Kind entropy": exponents, with up to three bits below them, as symbols of an entropy stream."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .errors import UnfitError, require
from .planes import U64, Reader, pack_field
from .rans import read_symbols, write_symbols

ESCAPE = 255


@dataclass(frozen=True)
class Entropy:
    """`k` bits of the word go with the exponent; `lo` None is chosen for each block.

    Escaped is what lies outside the window of 255 values from lo on, and what occurs at most `rare` times in a block.
    """

    k: int = 0
    lo: int | None = None
    rare: int = 0
    code: ClassVar[int] = 4


def decode(params: bytes, reader: Reader, n: int, x_bits: int) -> tuple[U64, str]:
    """Read `n` values x of `x_bits` bits. Also returns the parameters in words."""
    lo, num_escapes = int.from_bytes(params[:2], "little"), int.from_bytes(params[2:], "little")
    most = max((1 << x_bits) - ESCAPE, 0)
    require(lo <= most, f"entropy: lo {lo}, at most {most}")
    symbols = read_symbols(reader, n)
    escaped = symbols == ESCAPE
    require(int(escaped.sum()) == num_escapes, f"entropy: {int(escaped.sum())} escapes, but a count of {num_escapes}")
    x = symbols + np.uint64(lo)
    x[escaped] = reader.field(num_escapes, x_bits)
    require(bool((x < 1 << x_bits).all()), f"entropy: an x has more than {x_bits} bits")
    return x, f"(lo={lo},escapes={num_escapes})"


def encode(kind: Entropy, x: U64, x_bits: int) -> tuple[bytes, bytes]:
    """The streams and the parameters. Raises `UnfitError` if the count of escapes does not fit."""
    lo = _choose_lo(x) if kind.lo is None else kind.lo
    common = np.bincount(x.astype(np.int64))[x] > kind.rare
    direct = (x >= lo) & (x < lo + ESCAPE) & common
    escaped = x[~direct]
    if len(escaped) > 0xFFFF:
        raise UnfitError("entropy: num_escapes does not fit two bytes")
    symbols = np.where(direct, x - np.uint64(lo), np.uint64(ESCAPE))
    params = lo.to_bytes(2, "little") + len(escaped).to_bytes(2, "little")
    return write_symbols(symbols) + pack_field(escaped, x_bits), params


def _choose_lo(x: U64) -> int:
    """The window of 255 values that holds the most words."""
    below = np.concatenate([[0], np.cumsum(np.bincount(x.astype(np.int64), minlength=ESCAPE))])
    return int(np.argmax(below[ESCAPE:] - below[:-ESCAPE]))
