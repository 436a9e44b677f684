"""Section "Kinds of relative frames": steps, classes by the base's exponent, and the kinds sparse and dense."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .bits import BitReader, BitWriter, best_g, best_k, gaps_of
from .errors import require
from .layouts import Layout
from .planes import U64, Reader
from .rans import read_symbols, write_symbols
from .words import from_ordinals, ordinals, split

_MOST_THRESHOLDS = 7
_COUNT_NBYTES = 4  # of num_changed
_LAST_SYMBOL = 126


@dataclass(frozen=True)
class Same:
    """The words of the base: no payload."""


@dataclass(frozen=True)
class Sparse:
    """Positions and steps of the changed words, for each class of `thresholds`."""

    thresholds: tuple[int, ...] = ()
    code: ClassVar[int] = 7
    extended: ClassVar[int] = 3


@dataclass(frozen=True)
class Dense:
    """The step of every word, coded by the table of its class."""

    thresholds: tuple[int, ...] = ()
    code: ClassVar[int] = 7
    extended: ClassVar[int] = 4


def decode(kind: str, params: bytes, reader: Reader, base: U64, layout: Layout) -> tuple[U64, str]:
    """The words of a block, given those of the base. Also returns the parameters in words."""
    num_thresholds = len(params) - (0 if kind == "sparse" else _COUNT_NBYTES)
    thresholds = list(params[-num_thresholds:]) if num_thresholds else []
    require(thresholds == sorted(set(thresholds)), f"{kind}: thresholds {thresholds} do not ascend")
    require(not thresholds or thresholds[-1] < 1 << layout.exponent_bits, f"{kind}: thresholds {thresholds}")
    classes = _classes(thresholds, base, layout)
    if kind == "sparse":
        sizes, negative = _read_sparse(reader, classes, len(thresholds) + 1)
    else:
        num_changed = int.from_bytes(params[:_COUNT_NBYTES], "little")
        sizes, negative = _read_dense(reader, classes, len(thresholds) + 1, num_changed)
    half = np.uint64(1 << layout.word_bits - 1)
    require(not (sizes > half).any(), f"{kind}: a step of {sizes.max()}")
    require(not ((sizes == half) & ~negative).any(), f"{kind}: a positive step of {half}")
    with np.errstate(over="ignore"):
        numbers = ordinals(base, layout) + np.where(negative, -sizes, sizes)
    return from_ordinals(numbers, layout), f"(thresholds={thresholds},changed={int((sizes > 0).sum())})"


def encode(kind: Sparse | Dense, words: U64, base: U64, layout: Layout) -> tuple[bytes, bytes]:
    """The streams and the parameters. Raises `UnfitError`."""
    thresholds = list(kind.thresholds)
    if thresholds and layout.split != "float":
        raise ValueError(f"{kind} needs floats, not split {layout.split}")
    ascend = thresholds == sorted(set(thresholds)) and all(t < 1 << layout.exponent_bits for t in thresholds)
    if not ascend or len(thresholds) > _MOST_THRESHOLDS:
        raise ValueError(f"thresholds {thresholds} of {layout.exponent_bits} bits")
    sizes, negative = _steps(words, base, layout)
    classes = _classes(thresholds, base, layout)
    if isinstance(kind, Sparse):
        return _write_sparse(sizes, negative, classes, len(thresholds) + 1), bytes(thresholds)
    num_changed = int((sizes > 0).sum()).to_bytes(_COUNT_NBYTES, "little")
    return _write_dense(sizes, negative, classes, len(thresholds) + 1), num_changed + bytes(thresholds)


def _classes(thresholds: list[int], base: U64, layout: Layout) -> U64:
    """The class of each word: how many thresholds are at most the exponent of its base."""
    if not thresholds:
        return np.zeros(len(base), np.uint64)
    exponents, _ = split(base, layout)
    return np.searchsorted(np.array(thresholds, np.uint64), exponents, side="right").astype(np.uint64)


def _steps(words: U64, base: U64, layout: Layout) -> tuple[U64, np.ndarray]:
    """The size of each word's step, and whether it is negative."""
    unused = np.uint64(64 - layout.word_bits)
    with np.errstate(over="ignore"):
        numbers = ordinals(words, layout) - ordinals(base, layout) << unused  # the sign is bit 63
        negative = numbers >> np.uint64(63) == 1
        return np.where(negative, -numbers, numbers) >> unused, negative


def _read_sparse(reader: Reader, classes: U64, num_classes: int) -> tuple[U64, np.ndarray]:
    bits = BitReader(reader)
    sizes, negative = np.zeros(len(classes), np.uint64), np.zeros(len(classes), np.bool_)
    changed = []
    for c in range(num_classes):
        words = np.flatnonzero(classes == c)
        m = bits.golomb(5)
        require(m <= len(words), f"sparse: {m} changed words of class {c}, which has {len(words)}")
        k = bits.bits(5) if m else 0
        rank, ranks = -1, []
        for _ in range(m):
            rank += 1 + bits.gap(k)
            require(rank < len(words), f"sparse: word {rank} of class {c}, which has {len(words)}")
            negative[words[rank]] = bits.bits(1)
            ranks.append(rank)
        changed.append(words[ranks])
    for words in changed:
        sizes[words] = 1
        for _ in range(3):
            words = words[bits.subset(len(words))]
            sizes[words] += np.uint64(1)
        g = bits.bits(6) if len(words) else 0
        for word in words:
            sizes[word] = _size(4 + bits.golomb(g))
    bits.finish()
    return sizes, negative


def _size(size: int) -> int:
    """A size as it was read, before it is compared with the largest one of the layout."""
    require(size <= 1 << 63, f"a step of size {size}")
    return size


def _write_sparse(sizes: U64, negative: np.ndarray, classes: U64, num_classes: int) -> bytes:
    bits = BitWriter()
    changed = []
    for c in range(num_classes):
        words = np.flatnonzero(classes == c)
        ranks = np.flatnonzero(sizes[words])
        bits.golomb(len(ranks), 5)
        gaps = gaps_of(ranks)
        if gaps:
            k = best_k(gaps)
            bits.bits(k, 5)
            for rank, gap in zip(ranks, gaps, strict=True):
                bits.gap(gap, k)
                bits.bits(int(negative[words[rank]]), 1)
        changed.append(words[ranks])
    for words in changed:
        for least in (2, 3, 4):
            larger = sizes[words] >= least
            bits.subset(larger)
            words = words[larger]
        if len(words):
            left = [int(size) - 4 for size in sizes[words]]
            g = best_g(left)
            bits.bits(g, 6)
            for value in left:
                bits.golomb(value, g)
    return bits.finish()


def _read_dense(reader: Reader, classes: U64, num_classes: int, num_changed: int) -> tuple[U64, np.ndarray]:
    symbols = read_symbols(reader, len(classes), classes, num_classes)
    sizes, negative = symbols.astype(np.uint64), np.zeros(len(classes), np.bool_)
    require(not (symbols > _LAST_SYMBOL).any(), f"dense: symbol {symbols.max()}")
    changed = np.flatnonzero(symbols)
    require(len(changed) == num_changed, f"dense: {len(changed)} changed words instead of {num_changed}")
    signs = BitReader(reader)
    negative[changed] = signs.array(num_changed)
    signs.finish()
    low = BitReader(reader)
    large = symbols > 3
    j, h = np.divmod(symbols[large] - np.uint64(4), 2)
    sizes[large] = (2 + h << j + 1) + low.each_of(j.astype(np.int64) + 1)
    low.finish()
    _size(int(sizes.max(initial=0)))
    return sizes, negative


def _write_dense(sizes: U64, negative: np.ndarray, classes: U64, num_classes: int) -> bytes:
    signs, low = BitWriter(), BitWriter()
    symbols = np.minimum(sizes, np.uint64(3))
    signs.array(negative[sizes > 0])
    for i in np.flatnonzero(sizes > 3):
        size = int(sizes[i])
        j = size.bit_length() - 3  # the size has j + 3 bits: a one, h, and j + 1 low bits
        symbols[i] = 4 + 2 * j + (size >> j + 1 & 1)
        low.bits(size, j + 1)
    return write_symbols(symbols, classes, num_classes) + signs.finish() + low.finish()
