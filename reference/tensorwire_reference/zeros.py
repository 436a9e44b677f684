"""Section "Kind zeros": zeros of either sign by a mask, the other words in an inner block."""

import struct
from dataclasses import dataclass

import numpy as np

from .bits import BitReader, BitWriter
from .errors import UnfitError, require
from .header import LEAST_ALIGNMENT, ceil_to
from .layouts import Layout
from .masks import read_mask, write_mask
from .planes import U64, Reader
from .words import is_zero

_PARAMS = struct.Struct("<IHB")
PLUS, MINUS, MIXED = range(3)
_SIGNS, _INNER_STORED, _KNOWN_FLAGS = 3, 4, 7  # bits of `flags`


@dataclass(frozen=True)
class Params:
    """The parameters of the kind."""

    num_kept: int
    inner_nbytes: int
    inner_stored: bool
    signs: int


def parse(params: bytes, n: int, layout: Layout) -> Params:
    """Check what can be checked without the streams."""
    num_kept, inner_units, flags = _PARAMS.unpack(params)
    inner_nbytes, inner_stored, signs = LEAST_ALIGNMENT * inner_units, bool(flags & _INNER_STORED), flags & _SIGNS
    require(flags <= _KNOWN_FLAGS, f"zeros: flags {flags:#x}")
    require(num_kept <= n, f"zeros: {num_kept} words are kept of {n}")
    require((num_kept > 0) == (inner_units > 0), f"zeros: inner_units {inner_units} for {num_kept} words")
    require(num_kept > 0 or not inner_stored, "zeros: no inner block, but it is stored")
    raw = ceil_to(num_kept * layout.word_nbytes, LEAST_ALIGNMENT)
    require(inner_nbytes == raw if inner_stored else inner_nbytes <= raw, f"zeros: {inner_nbytes} inner bytes of {raw}")
    require(signs <= (MIXED if layout.split == "float" else PLUS), f"zeros: signs {signs}")
    return Params(num_kept, inner_nbytes, inner_stored, signs)


def decode(params: Params, variant: int, reader: Reader, n: int, kept_words: U64, layout: Layout) -> U64:
    """Read mask and signs, and put the words together."""
    kept = read_mask(variant, reader, n)
    require(int(kept.sum()) == params.num_kept, f"zeros: the mask keeps {int(kept.sum())}, not {params.num_kept}")
    signs = np.full(n - len(kept_words), params.signs, np.uint64)
    if params.signs == MIXED:
        bits = BitReader(reader)
        signs = bits.array(len(signs)).astype(np.uint64)
        bits.finish()
    words = np.empty(n, np.uint64)
    words[kept] = kept_words
    words[~kept] = signs << np.uint64(layout.word_bits - 1)
    return words


def encode(words: U64, variant: int, signs: int | None, layout: Layout) -> tuple[U64, bytes, int]:
    """The kept words, the streams behind the inner block, and signs (chosen if None)."""
    zero = is_zero(words, layout)
    bits_of_signs = words[zero] >> np.uint64(layout.word_bits - 1)
    found = set(bits_of_signs.tolist())
    least = MIXED if len(found) == 2 else sum(found)
    signs = least if signs is None else signs
    if signs not in (least, MIXED) or (signs == MIXED and layout.split != "float"):
        raise UnfitError(f"zeros: signs {signs}")
    streams = write_mask(variant, ~zero)
    if signs == MIXED:
        bits = BitWriter()
        bits.array(bits_of_signs)
        streams += bits.finish()
    return words[~zero], streams, signs


def pack_params(params: Params) -> bytes:
    """Raises `UnfitError` if the inner block is too long."""
    if params.inner_nbytes > 0xFFFF * LEAST_ALIGNMENT:
        raise UnfitError("zeros: inner_units does not fit two bytes")
    flags = params.signs | (_INNER_STORED if params.inner_stored else 0)
    return _PARAMS.pack(params.num_kept, params.inner_nbytes // LEAST_ALIGNMENT, flags)
