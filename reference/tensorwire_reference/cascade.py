"""Section "Kind cascade": exponents in tiers of short digits, the last digit of each tier an escape to the next."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import numpy as np

from .errors import UnfitError, require
from .planes import U64, Reader, pack_field

TIER_WIDTHS = ((2, 2, 3), (2, 2, 2, 3), (2, 1, 2, 2, 2), (2, 1, 1, 2, 3), (1, 2, 3), (1, 1, 1, 3), (3, 3), (1,))
SECOND_TIER_WIDTHS = ((4,), (3,), (4, 3, 3, 3), (3, 2, 2, 2), (1, 1, 1, 2, 2), (2, 1, 1, 1, 2))
_MOST_TIERS = 5


def widths_of(table: int) -> tuple[tuple[int, ...], ...]:
    """The tier shapes of table 1 (kind 3) or 2 (extended kind 1)."""
    return (TIER_WIDTHS, SECOND_TIER_WIDTHS)[table - 1]


@dataclass(frozen=True)
class Cascade:
    """Parameters of the kind; those that are None are chosen for each block.

    `below` is (a2, a3, ...), one number for each coded tier behind the first. `table` says whose rows `variant` counts.
    """

    variant: int | None = None
    lo: int | None = None
    below: tuple[int, ...] | None = None
    table: int = 1
    code: ClassVar[int] = 3


def _names(widths: tuple[int, ...], lo: int, below: tuple[int, ...]) -> list[list[int]]:
    """For each tier, the exponents that its digits 0, 1, ... name, in range or not."""
    start = end = lo
    names = []
    for w, a in zip(widths, (0, *below), strict=True):
        c = (1 << w) - 1
        names.append([*range(start - a, start), *range(end, end + c - a)])
        start, end = start - a, end + c - a
    return names


def _in_range(names: list[list[int]], exponent_bits: int) -> bool:
    return all(0 <= e < 1 << exponent_bits for tier in names for e in tier)


def decode(params: bytes, widths: tuple[int, ...], reader: Reader, n: int, exponent_bits: int) -> tuple[U64, str]:
    """Read `n` exponents. Also returns the parameters in words."""
    lo, packed, *counts = struct.unpack("<B6H", params)
    below = tuple(packed >> shift & 15 for shift in (0, 4, 8, 12))
    for tier, a in enumerate(below, 2):
        most = (1 << widths[tier - 1]) - 1 if tier <= len(widths) else 0
        require(a <= most, f"cascade: a{tier} is {a}, at most {most}")
    require(not any(counts[len(widths) :]), f"cascade: counts {counts} of tiers that {widths} lacks")
    names_of_tiers = _names(widths, lo, below[: len(widths) - 1])
    require(_in_range(names_of_tiers, exponent_bits), f"cascade: tiers name more than 0..{(1 << exponent_bits) - 1}")

    x = np.empty(n, np.uint64)
    waiting = np.arange(n)  # the words whose exponents the next tier holds
    for w, names, escapes in zip(widths, names_of_tiers, counts, strict=False):
        digits = reader.field(len(waiting), w)
        escaped = digits == len(names)
        x[waiting[~escaped]] = np.array(names, np.uint64)[digits[~escaped]]
        waiting = waiting[escaped]
        require(len(waiting) == escapes, f"cascade: {len(waiting)} escapes, but a count of {escapes}")
    x[waiting] = reader.field(len(waiting), 8)
    require(bool((x < 1 << exponent_bits).all()), f"cascade: an exponent has more than {exponent_bits} bits")
    return x, f"(lo={lo},a={','.join(map(str, below))},escapes={','.join(map(str, counts))})"


def encode(kind: Cascade, x: U64, exponent_bits: int) -> tuple[bytes, bytes, int]:
    """The streams, the parameters and the variant. Raises `UnfitError` if a count does not fit."""
    rows = widths_of(kind.table)
    variants = [i for i, row in enumerate(rows) if sum((1 << w) - 1 for w in row) <= 1 << exponent_bits]
    variants = variants if kind.variant is None else [kind.variant]
    coded = [_encode(x, variant, kind, exponent_bits) for variant in variants]
    fitting = [(streams, params, v) for (streams, params, fits), v in zip(coded, variants, strict=True) if fits]
    if not fitting:
        raise UnfitError("cascade: a count does not fit two bytes")
    return min(fitting, key=lambda item: len(item[0]))


def _encode(x: U64, variant: int, kind: Cascade, exponent_bits: int) -> tuple[bytes, bytes, bool]:
    widths = widths_of(kind.table)[variant]
    lo, below = _choose(x, widths, kind.lo, kind.below, 1 << exponent_bits)
    names_of_tiers = _names(widths, lo, below)
    if not _in_range(names_of_tiers, exponent_bits):
        raise ValueError(f"cascade: the tiers of {kind} name more than 0..{(1 << exponent_bits) - 1}")
    streams, counts = [], []
    left = x
    for w, names in zip(widths, names_of_tiers, strict=True):
        digit_of = np.full(256, len(names), np.uint64)
        digit_of[names] = np.arange(len(names), dtype=np.uint64)
        digits = digit_of[left]
        streams.append(pack_field(digits, w))
        left = left[digits == len(names)]
        counts.append(len(left))
    streams.append(pack_field(left, 8))
    counts += [0] * (_MOST_TIERS - len(counts))
    fits = max(counts) <= 0xFFFF
    packed = sum(a << 4 * i for i, a in enumerate(below))
    return b"".join(streams), struct.pack("<B6H", lo, packed, *(c & 0xFFFF for c in counts)), fits


def _choose(
    x: U64, widths: tuple[int, ...], lo: int | None, below: tuple[int, ...] | None, end_of_range: int
) -> tuple[int, tuple[int, ...]]:
    """Greedy: the interval of each tier is the one in 0 .. end_of_range - 1 that holds the most words."""
    up_to = [0, *accumulate(np.bincount(x.astype(np.int64), minlength=end_of_range).tolist())]

    def best(candidates: range, covered: Callable[[int], range]) -> int:
        return max(candidates, key=lambda i: (up_to[covered(i).stop] - up_to[covered(i).start], -i))

    c = (1 << widths[0]) - 1
    start = best(range(end_of_range - c + 1), lambda i: range(i, i + c)) if lo is None else lo
    if below is not None:
        return start, below
    chosen: list[int] = []
    first, end = start, start + c
    for w in widths[1:]:
        c = (1 << w) - 1
        candidates = range(max(0, end + c - end_of_range), min(c, first) + 1)
        a = best(candidates, lambda i, u=first, v=end, c=c: range(u - i, v + c - i))  # type: ignore[misc]
        first, end = first - a, end + c - a
        chosen.append(a)
    return start, tuple(chosen)
