"""Section "Extended kind scaled": BF16 words that are products of scales and codes of 8 bits."""

import struct
from dataclasses import dataclass

import numpy as np

from .errors import UnfitError, require
from .header import LEAST_ALIGNMENT, ceil_to
from .layouts import TABLE
from .planes import U64, Reader

_PARAMS = struct.Struct("<IIH")
_STORED = 1 << 15  # of `length`
_LEAST_EXPONENT, _MOST_EXPONENT = 16, 239
_NO_NUMBER = 0x7F
LAYOUTS_OF_CODES = (TABLE["F8_E4M3"][1], TABLE["I8"][1])
"""By variant."""


@dataclass(frozen=True)
class Params:
    """The parameters of the kind."""

    width: int
    num_scales: int
    inner_nbytes: int
    inner_stored: bool


def parse(params: bytes, n: int) -> Params:
    """Check what can be checked without the streams."""
    width, num_scales, length = _PARAMS.unpack(params)
    found = Params(width, num_scales, LEAST_ALIGNMENT * (length & ~_STORED), bool(length & _STORED))
    require(width > 0 and 0 < num_scales <= -(-n // width), f"scaled: {num_scales} scales of width {width}")
    raw = ceil_to(n, LEAST_ALIGNMENT)
    legal = found.inner_nbytes == raw if found.inner_stored else 0 < found.inner_nbytes <= raw
    require(legal, f"scaled: {found.inner_nbytes} inner bytes of {raw}")
    return found


def decode(params: Params, variant: int, reader: Reader, codes: U64) -> U64:
    """Read the scales, and multiply."""
    bits = np.frombuffer(reader.take(4 * params.num_scales), "<u4").astype(np.int64)
    exponents = bits >> 23
    require(
        bool(((exponents >= _LEAST_EXPONENT) & (exponents <= _MOST_EXPONENT)).all()), "scaled: a scale out of range"
    )
    require(variant == 1 or not (codes & 0x7F == _NO_NUMBER).any(), "scaled: a code that is no number")
    number = np.arange(len(codes)) // params.width % params.num_scales
    return multiply(codes.astype(np.int64), variant, bits[number])


def multiply(codes: "np.ndarray", variant: int, scales: "np.ndarray") -> U64:
    """In integers: a scale is significand * 2^(exponent - 150), a code number * 2^unit."""
    if variant == 0:
        exponent, mantissa = codes >> 3 & 15, codes & 7
        number, unit = np.where(exponent > 0, mantissa + 8, mantissa), np.maximum(exponent, 1) - 10
        negative = codes >> 7 == 1
    else:
        signed = np.where(codes > 127, codes - 256, codes)
        number, unit, negative = np.abs(signed), np.zeros_like(codes), signed < 0
    product, power = number * (scales & 0x7FFFFF | 0x800000), (scales >> 23) - 150 + unit
    for significant in (24, 8):
        product, power = _rounded(product, power, significant)
    # The product has 8 significant bits now, if it is not 0.
    magnitude = np.where(number == 0, 0, (power + 134 << 7) + (product & 0x7F))
    words: U64 = (magnitude | negative.astype(np.int64) << 15).astype(np.uint64)
    return words


def _rounded(product: "np.ndarray", power: "np.ndarray", significant: int) -> "tuple[np.ndarray, np.ndarray]":
    """To so many bits, to the nearest, ties to even; exactly so many unless the product is 0."""
    length = np.frexp(product.astype(np.float64))[1]  # exact: products have at most 32 bits
    shift = length - significant
    up = np.maximum(shift, 0)
    low, half = product & ((1 << up) - 1), np.where(up > 0, 1 << np.maximum(up - 1, 0), 0)
    kept = product >> up
    kept += ((low > half) | ((low == half) & (kept & 1 == 1))) & (up > 0)
    carried = kept >> significant  # 1 where rounding made it a bit longer
    kept, power = kept >> carried, power + up + carried
    left = np.maximum(-shift, 0)
    return kept << left, power - left


def pack_params(params: Params) -> bytes:
    return _PARAMS.pack(
        params.width, params.num_scales, params.inner_nbytes // LEAST_ALIGNMENT | _STORED * params.inner_stored
    )


def encode(words: U64, variant: int, width: int, scales: "tuple[float, ...]") -> "tuple[U64, bytes]":
    """Codes, and the stream of scales. Raises `UnfitError` if words are none of these products."""
    if not 0 < len(scales) <= -(-len(words) // width):
        raise UnfitError("scaled: more scales than words have")
    bits = np.array(scales, np.float32).view(np.uint32).astype(np.int64)
    of_word = bits[np.arange(len(words)) // width % len(scales)]
    every = np.array([code for code in range(256) if variant == 1 or code & 0x7F != _NO_NUMBER], np.int64)
    codes = np.full(len(words), 256, np.uint64)
    for one in np.unique(of_word):
        places = np.flatnonzero(of_word == one)
        products = multiply(every, variant, np.full(len(every), one))
        order = np.argsort(products, kind="stable")
        found = np.minimum(products[order].searchsorted(words[places]), len(every) - 1)
        if (products[order][found] != words[places]).any():
            raise UnfitError("scaled: a word that is no product")
        codes[places] = every[order][found].astype(np.uint64)
    return codes, bits.astype("<u4").tobytes()
