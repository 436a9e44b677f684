"""Cases of relative frames: every kind of theirs, classes, steps of every size, and plain kinds beside them."""

import itertools
from collections.abc import Iterator

import numpy as np

from reference.tensorwire_reference import Cascade, Constant, Dense, Entropy, Parts, Plain, Same, Sparse, Stored, Zeros
from tests.support.cases import (
    FLOATS,
    INTEGERS,
    OPAQUE,
    PROFILES,
    Case,
    case,
    floats,
    generator,
    integers,
    to_bytes,
    words_nbytes,
    words_of,
)

DTYPES = (*FLOATS, *INTEGERS)


def base_of(dtype: str, n: int) -> bytes:
    """One base for all cases of a dtype and size: the goldens keep each but once."""
    return floats(dtype, n, "base") if dtype in FLOATS else integers(dtype, n, "base", 5)


def step(base: bytes, dtype: str, steps: np.ndarray) -> bytes:
    """The words that lie so many steps from those of the base, worked out here anew."""
    bits = np.uint64(8 * words_nbytes(dtype))
    half, mask = np.uint64(1) << bits - np.uint64(1), np.uint64(2**64 - 1) >> np.uint64(64) - bits
    words = words_of(base, dtype)
    with np.errstate(over="ignore"):
        if dtype not in (*FLOATS, "F64"):
            return to_bytes(words + steps.astype(np.uint64) & mask, dtype)
        numbers = np.where(words & half, half - np.uint64(1) - (words & ~half), words | half)
        numbers = numbers + steps.astype(np.uint64) & mask
        return to_bytes(np.where(numbers & half, numbers & ~half, half | half - np.uint64(1) - numbers), dtype)


def steps_of(n: int, name: str, share: float, *, largest: int = 3) -> np.ndarray:
    """A step for a share of the words; most steps have size 1."""
    rng = generator(f"{name} steps")
    sizes = np.minimum(rng.geometric(0.7, n), largest)
    return np.where(rng.random(n) < share, sizes * rng.choice([-1, 1], n), 0)


def _thresholds(dtype: str, count: int) -> tuple[int, ...]:
    """Thresholds among the common exponents of `floats`."""
    common = (1 << FLOATS[dtype][1]) - 1
    return tuple(range(common * 3 // 4 - count, common * 3 // 4))


def _sparse_and_dense() -> Iterator[Case]:
    for i, (dtype, kind) in enumerate(itertools.product(DTYPES, (Sparse, Dense))):
        for count in range(8) if dtype in FLOATS else (0,):
            name = f"{kind.__name__.lower()}-{dtype}-{count}"
            n = 700
            base = base_of(dtype, n)
            data = step(base, dtype, steps_of(n, name, 0.06 if kind is Sparse else 0.4, largest=2 + 3 * count))
            thresholds = _thresholds(dtype, count) if count else ()
            coding = (f"{kind.__name__.lower()}(thresholds={list(thresholds)},", ")")
            options = {"profile": PROFILES[(i + count) % 3], "kind": kind(thresholds), "coding": coding}
            golden = dtype not in FLOATS or count % 4 == i % 4 or count == 7
            yield case(name, data, dtype, base=base, golden=golden, **options)
    for dtype, bits in OPAQUE.items():
        base = generator(f"opaque {dtype}").bytes(384)
        data = step(base, dtype, steps_of(384, f"opaque {dtype}", 0.05))
        shape = (384 * 8 // bits,)
        yield case(f"sparse-{dtype}", data, dtype, shape=shape, base=base, kind=Sparse(), coding=("sparse(", ")"))


def _sizes_of_steps() -> Iterator[Case]:
    """Every power of two that a step can have, more and less by one; the largest and the smallest step."""
    for dtype, kind in itertools.product(DTYPES, (Sparse, Dense)):
        bits = 8 * words_nbytes(dtype)
        edges = [(1 << power) + more for power in range(bits) for more in (-1, 0, 1)]
        limit = 1 << bits - 1
        steps = sorted({s * sign for s in edges for sign in (1, -1) if -limit <= s * sign < limit})
        n = 700
        spread = np.zeros(n, np.int64)
        spread[np.arange(len(steps)) * (n // len(steps)) + 3] = np.array(steps)
        name = f"steps-{dtype}-{kind.__name__.lower()}"
        base = base_of(dtype, n)
        data = step(base, dtype, spread)
        options = {"kind": kind(), "coding": (f"{kind.__name__.lower()}(", ")")}
        yield case(name, data, dtype, base=base, golden=dtype in ("BF16", "I64"), **options)


def _special_words() -> Iterator[Case]:
    """Steps between the zeros, around infinities, within NaNs, and around the ends of the ordinals."""
    for dtype, (nbytes, e_bits, m_bits) in FLOATS.items():
        infinity, sign = ((1 << e_bits) - 1) << m_bits, 1 << 8 * nbytes - 1
        specials = [0, sign, 1, sign | 1, infinity, infinity - 1, infinity + 1, sign | infinity, sign - 1, 2 * sign - 1]
        words = np.array([word for word in specials for _ in specials], np.uint64)
        others = np.array(specials * len(specials), np.uint64)
        n = len(words) * 5
        base, data = to_bytes(np.resize(words, n), dtype), to_bytes(np.resize(others, n), dtype)
        yield case(f"special-{dtype}", data, dtype, base=base, kind=Dense(), golden=dtype != "F32")


def _mixed() -> Iterator[Case]:
    """Blocks of several kinds in one frame, or parts in one block; same ones among them, at begin and end too."""
    sparse, dense = Sparse((90, 186)), Dense((187,))
    sets = {
        "same-ends": [Same(), sparse, Same(), dense, Same()],
        "same-inside": [sparse, Same(), Same(), Plain(), sparse],
        "rewritten": [Cascade(variant=0), Stored(), Entropy(), Zeros(Stored(), 2), sparse],
        "constant": [Constant(), Same(), sparse, Same(), Constant()],
        "all-same": [Same()] * 5,
    }
    for name, kinds in sets.items():
        base = floats("BF16", 1100, "mixed", zero_bits=2)
        words = words_of(base, "BF16")
        changed = step(base, "BF16", steps_of(1100, name, 0.05))
        new = words_of(changed, "BF16")
        for block, kind in enumerate(kinds):
            part = slice(256 * block, 256 * block + 256)
            if isinstance(kind, Same):
                new[part] = words[part]
            elif isinstance(kind, Constant):
                new[part] = words[part][:1]
            elif isinstance(kind, Plain):
                new[part] = words[part] & np.uint64(0xFFC0)
            elif isinstance(kind, Zeros):
                new[part][::2] = 0
            elif isinstance(kind, Dense):
                new[part] = words_of(step(base, "BF16", np.resize([1, 0, -1], 1100)), "BF16")[part]
        data = to_bytes(new, "BF16")
        yield case(f"mixed-{name}", data, "BF16", base=base, block_words=256, kind=kinds)
        options = {"kind": Parts(kinds), "coding": ("parts(", ")"), "golden": name != "same-inside"}
        yield case(f"parts-mixed-{name}", data, "BF16", base=base, **options)
    same = base_of("F32", 700)
    yield case("same-F32", same, "F32", shape=(7, 2, 50), base=same, block_words=256, profile="fast")
    yield case("same-empty", b"", "BF16", shape=(3, 0), base=b"")
    yield case("same-scalar", b"\1\2\3\4", "F32", shape=(), base=b"\1\2\3\4", profile="enec")
    base = base_of("BF16", 700)
    # A threshold of 0, below which no exponent is: class 0 has no word.
    for kind in (Sparse((0, 200)), Dense((0,))):
        name = f"{type(kind).__name__.lower()}-threshold-0"
        data = step(base, "BF16", steps_of(700, name, 0.05))
        yield case(name, data, "BF16", base=base, kind=kind, coding=(f"{name.split('-')[0]}(thresholds=[0", ")"))
    for kind in (Sparse(), Dense()):
        name = type(kind).__name__.lower()
        coding = (f"{name}(thresholds=[],changed=0)", "")
        yield case(f"{name}-of-no-change", base, "BF16", base=base, kind=kind, coding=coding)
    data = step(base, "BF16", steps_of(700, "other shape", 0.02))
    yield case("relative-3d", data, "BF16", shape=(7, 10, 10), base=base)


RELATIVE_CASES = (*_sparse_and_dense(), *_sizes_of_steps(), *_special_words(), *_mixed())
