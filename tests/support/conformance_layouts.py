"""Cases of layouts: dtypes that share one with another, and layouts that no dtype of the page's table has."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference.tensorwire_reference import (
    Bytes,
    Cascade,
    Constant,
    Dense,
    Enec,
    Entropy,
    Kind,
    Layout,
    Modal,
    Plain,
    Rest,
    Sparse,
    Stored,
    Trimmed,
    Verbatim,
    Zeros,
)
from reference.tensorwire_reference.layouts import TABLE
from tests.support.cases import ALL_PROFILES, PROFILES, Case, case, generator

TWINS = ("C64", "C128", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F4")
# Every word size with exponents of 1 and of 8 bits, every split, rests of 0, 1 and 63 bits, ordered and not.
ODD = (
    Layout(1, 1, 7, "float", True),
    Layout(1, 1, 7, "unsigned", True),
    Layout(1, 2, 6, "signed", False),
    Layout(1, 3, 5, "signed", True),
    Layout(1, 7, 1, "float", False),
    Layout(1, 7, 1, "signed", True),
    Layout(1, 8, 0, "unsigned", True),
    Layout(1, 8, 0, "signed", False),
    Layout(2, 1, 15, "float", True),
    Layout(2, 3, 13, "signed", True),
    Layout(2, 5, 11, "float", False),
    Layout(2, 6, 10, "float", True),
    Layout(2, 8, 8, "unsigned", False),
    Layout(2, 8, 8, "signed", False),
    Layout(4, 1, 31, "signed", False),
    Layout(4, 6, 26, "float", True),
    Layout(4, 7, 25, "unsigned", True),
    Layout(4, 8, 24, "unsigned", False),
    Layout(4, 8, 24, "signed", True),
    Layout(8, 1, 63, "float", True),
    Layout(8, 5, 59, "unsigned", True),
    Layout(8, 8, 56, "float", True),
    Layout(8, 8, 56, "float", False),
    Layout(8, 8, 56, "signed", False),
    *(Layout(w, 0, 0, "none", True) for w in (1, 2, 4, 8)),
)


def name_of(layout: Layout) -> str:
    """A legal dtype that tells the layout, such as X2_E6R10_FLOAT_O."""
    ordered = "O" if layout.ordered else "N"
    return f"X{layout.word_nbytes}_E{layout.exponent_bits}R{layout.rest_bits}_{layout.split[0].upper()}_{ordered}"


def words_of_layout(layout: Layout, n: int, name: str, *, rare: float = 0.05) -> np.ndarray:
    """`n` words of few exponents, with two zero bits below them where there is room; put together here anew."""
    rng = generator(name)
    if not layout.exponent_bits:
        return rng.integers(0, 1 << 6, n).astype(np.uint64)
    top = (1 << layout.exponent_bits) - 1
    common = np.maximum(top * 3 // 4 - np.minimum(rng.geometric(0.75, n), 4) + 1, 0)
    exponents = np.where(rng.random(n) < rare, rng.integers(0, top, n, endpoint=True), common).astype(np.uint64)
    is_float = layout.split == "float"
    low = layout.word_bits - layout.exponent_bits - is_float
    words = exponents << np.uint64(low) | rng.integers(0, 1 << low, n, dtype=np.uint64) >> np.uint64(2) << np.uint64(2)
    highest = np.uint64(1 << layout.word_bits - 1)
    if layout.split == "signed":
        words ^= highest
    return words | rng.integers(0, 2, n).astype(np.uint64) * highest if is_float else words


def in_bytes(words: np.ndarray, layout: Layout) -> bytes:
    return words.astype(f"<u{layout.word_nbytes}").tobytes()


def _kinds(layout: Layout) -> Iterator[tuple[str, Kind]]:
    if layout.exponent_bits > 1:
        yield "enec/8", Enec(group=8)
    if layout.exponent_bits:
        yield "cascade/", Cascade()
        yield "modal/1", Modal(1)
        yield "modal/6", Modal(6)
        yield "entropy/0", Entropy()
    if layout.exponent_bits > 3:
        yield "cascade2/", Cascade(table=2)
    if layout.rest_bits > 1:
        k = min(3, layout.rest_bits - 1)
        yield f"entropy/{k}", Entropy(k=k)
    yield "plain", Plain()
    yield "zeros/2", Zeros(Cascade() if layout.exponent_bits else Plain(), 2)
    yield "zeros/6", Zeros(Stored(), 6)


def _rest_for(layout: Layout, kind: Kind, i: int) -> Rest:
    """In turn; without exponents, or with those of few bits, only trimming the two zero bits makes a block shorter."""
    rests: tuple[Rest, ...] = (Trimmed(), Trimmed(per_run=True))
    if layout.exponent_bits > 3 and not isinstance(kind, Plain):
        rests = (*rests, Bytes(), Verbatim())
    return rests[i % len(rests)]


def _odd_plain() -> Iterator[Case]:
    for i, layout in enumerate(ODD):
        for j, (coding, kind) in enumerate(_kinds(layout)):
            name = f"layout-{name_of(layout)}-{coding.replace('/', '-').rstrip('-')}"
            words = words_of_layout(layout, 420, name, rare=0.01 if coding.startswith("modal") else 0.05)
            if coding.startswith("zeros"):
                highest = np.uint64((1 << layout.word_bits - 1) * (layout.split == "float"))
                words[::3] = generator(f"{name} signs").integers(0, 2, len(words[::3])).astype(np.uint64) * highest
            yield _odd(name, words, layout, coding, kind, rest=_rest_for(layout, kind, i + j), golden=(i + j) % 8 == 0)
        noise = generator(f"noise {i}").bytes(70 * layout.word_nbytes)
        yield _odd(f"layout-{name_of(layout)}-stored", noise, layout, "stored", Stored(), golden=False)
        same = words_of_layout(layout, 1, f"same {i}").repeat(300)
        yield _odd(
            f"layout-{name_of(layout)}-constant",
            same,
            layout,
            "constant",
            Constant(),
            golden=i % 4 == 0 or not layout.exponent_bits,
        )
        chosen = words_of_layout(layout, 500, f"chosen {i}")
        profile = ALL_PROFILES[i % 4]
        yield _odd(f"layout-{name_of(layout)}-{profile}", chosen, layout, "", None, profile=profile, golden=False)


def _odd(name: str, words: np.ndarray | bytes, layout: Layout, coding: str, kind: Kind | None, **options: Any) -> Case:
    data = words if isinstance(words, bytes) else in_bytes(words, layout)
    shape, bits = (len(data) // layout.word_nbytes,), layout.word_bits
    return case(
        name, data, name_of(layout), shape=shape, bits=bits, layout=layout, kind=kind, coding=(coding, ""), **options
    )


def _odd_relative() -> Iterator[Case]:
    """Small steps of the word, and a few words that have nothing in common with the base."""
    for i, (layout, kind) in enumerate(itertools.product(ODD, (Sparse, Dense))):
        rng = generator(f"odd relative {i}")
        base = words_of_layout(layout, 300, f"odd base {i // 2}")
        mask = np.uint64((1 << layout.word_bits) - 1)
        changed = rng.random(300) < (0.05 if kind is Sparse else 0.5)
        with np.errstate(over="ignore"):
            words = base + np.where(changed, rng.choice([-2, -1, 1, 3], 300), 0).astype(np.uint64) & mask
        words[[3, 77, 299]] = rng.integers(0, mask, 3, dtype=np.uint64, endpoint=True)
        top = (1 << layout.exponent_bits) - 1
        thresholds = (top * 3 // 4, top) if layout.split == "float" and top > 1 else ()
        coding = kind.__name__.lower()
        options = {"base": in_bytes(base, layout), "profile": PROFILES[i % 3], "golden": i % 7 == 0}
        yield _odd(f"layout-{name_of(layout)}-{coding}", words, layout, coding, kind(thresholds), **options)


def _twins() -> Iterator[Case]:
    """Dtypes of the table whose layout is that of another: every profile, and a relative frame."""
    for dtype in TWINS:
        bits, layout = TABLE[dtype]
        n = 256 * max(1, bits // layout.word_bits)  # complex numbers are two words
        shape = (n * layout.word_bits // bits,)
        for profile in ALL_PROFILES:
            name = f"twin-{dtype}-{profile}"
            data = in_bytes(words_of_layout(layout, n, name), layout)
            yield case(name, data, dtype, shape=shape, profile=profile, golden=profile == "fast")
        base = words_of_layout(layout, n, f"twin base {dtype}")
        new = base.copy()
        new[::40] ^= np.uint64(1)
        yield case(
            f"twin-{dtype}-relative",
            in_bytes(new, layout),
            dtype,
            shape=shape,
            base=in_bytes(base, layout),
            kind=Sparse(),
            coding=("sparse(", ")"),
        )


LAYOUT_CASES = (*_odd_plain(), *_odd_relative(), *_twins())
