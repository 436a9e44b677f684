"""Cases of kind scaled: both dtypes of codes, all kinds of inner blocks, widths that end amid runs, extreme scales."""

import itertools
from collections.abc import Iterator

import numpy as np

from reference.tensorwire_reference import (
    Cascade,
    Constant,
    Enec,
    Entropy,
    Modal,
    Parts,
    Plain,
    Scaled,
    Stored,
    Trimmed,
)
from reference.tensorwire_reference.kinds import InnerKind
from reference.tensorwire_reference.scaled import multiply
from tests.support.cases import Case, case, generator

CODES = ("F8_E4M3", "I8")
_INNER: dict[str, InnerKind] = {
    "stored": Stored(),
    "enec": Enec(),
    "cascade": Cascade(),
    "entropy": Entropy(),
    "modal": Modal(6),
    "plain": Plain(),
}
_SHARED = ((5000, 1), (128, 8), (128, 3), (7, 143), (1, 5), (2**32 - 1, 1))  # width, scales
_ENDS = (2.0**-111, 2.0**112 * (2 - 2.0**-23))


def numbers(variant: int, n: int, name: str) -> np.ndarray:
    """Codes of normal weights; the smallest and largest numbers among them, and both zeros where there are two."""
    drawn = generator(name).normal(0, 30, n)
    signed = np.clip(np.rint(drawn), -127, 127).astype(np.int64)
    codes = np.where(signed < 0, 128 - signed, signed) if variant == 0 else signed % 256
    codes[codes % 128 == 127] -= variant == 0
    special = (0, 0x80, 1, 0x7E, 0xFE, 0x81) if variant == 0 else (0, 1, 127, 128, 129, 255)
    codes[: len(special)] = special[:n]
    return codes


def products(variant: int, codes: np.ndarray, width: int, scales: tuple[float, ...]) -> bytes:
    bits = np.array(scales, np.float32).view(np.uint32).astype(np.int64)
    return multiply(codes, variant, bits[np.arange(len(codes)) // width % len(scales)]).astype("<u2").tobytes()


def drawn_scales(count: int, name: str) -> tuple[float, ...]:
    return tuple(np.exp(generator(name).normal(-6, 1, count)).astype(np.float32).tolist())


def _coding(variant: int) -> tuple[str, str]:
    return f"scaled/{variant}(", ")"


def _inner_blocks() -> Iterator[Case]:
    for variant, (name, inner) in itertools.product((0, 1), _INNER.items()):
        codes, scales = numbers(variant, 1000, f"scaled {name}"), drawn_scales(8, name)
        if name == "plain":
            codes &= 0x47
        if name == "modal":
            codes = 0x40 + codes % 8 if variant == 0 else codes % 16
            codes[9] = 0x11
        kind = Scaled(inner, variant, 128, scales)
        data = products(variant, codes, 128, scales)
        yield case(f"scaled-{CODES[variant]}-{name}", data, "BF16", kind=kind, rest=Trimmed(), coding=_coding(variant))


def _widths() -> Iterator[Case]:
    for variant, (width, count) in itertools.product((0, 1), _SHARED):
        name = f"scaled-{CODES[variant]}-{count}-of-{width}"
        scales = drawn_scales(count, name)
        data = products(variant, numbers(variant, 1000, name), width, scales)
        kind = Scaled(Cascade(), variant, width, scales)
        yield case(name, data, "BF16", kind=kind, coding=_coding(variant), golden=count in (1, 143))


def _ends() -> Iterator[Case]:
    """The smallest and the largest scale, all codes; a block of one constant code; one in a part."""
    for variant in (0, 1):
        codes = np.array([code for code in range(256) if variant == 1 or code % 128 != 127])
        data = products(variant, np.tile(codes, 2), len(codes), _ENDS)
        kind = Scaled(Stored(), variant, len(codes), _ENDS)
        yield case(f"scaled-{CODES[variant]}-ends", data, "BF16", kind=kind, coding=_coding(variant))
    scales = drawn_scales(4, "scaled constant")
    data = products(1, np.full(512, 5), 128, scales)
    yield case("scaled-constant", data, "BF16", kind=Scaled(Constant(), 1, 128, scales), coding=_coding(1))
    parts = Parts((Scaled(Constant(), 1, 128, scales[:2]), Scaled(Constant(), 1, 128, scales[2:])))
    yield case("scaled-in-parts", data, "BF16", kind=parts, coding=("parts(", ")"))


SCALED_CASES = (*_inner_blocks(), *_widths(), *_ends())
