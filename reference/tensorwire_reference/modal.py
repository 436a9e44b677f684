"""Section "Kind modal": one exponent for nearly all words, a mask and a field for the others."""

import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .errors import require
from .masks import read_mask, write_mask
from .planes import U64, Reader, pack_field

_PARAMS = struct.Struct("<BI")


@dataclass(frozen=True)
class Modal:
    """`variant` is that of the mask; `mode` None is the most frequent exponent."""

    variant: int = 2
    mode: int | None = None
    code: ClassVar[int] = 7
    extended: ClassVar[int] = 2


def decode(params: bytes, variant: int, reader: Reader, n: int, exponent_bits: int) -> tuple[U64, str]:
    """Read `n` exponents. Also returns the parameters in words."""
    mode, num_others = _PARAMS.unpack(params)
    mask = read_mask(variant, reader, n)
    require(int(mask.sum()) == num_others, f"modal: num_others {num_others}, the mask says {int(mask.sum())}")
    x = np.full(n, mode, np.uint64)
    x[mask] = reader.field(num_others, exponent_bits)
    require(mode < 1 << exponent_bits, f"modal: a mode of more than {exponent_bits} bits")
    return x, f"(mode={mode},others={num_others})"


def encode(kind: Modal, x: U64, exponent_bits: int) -> tuple[bytes, bytes]:
    """The streams and the parameters."""
    mode = int(np.bincount(x.astype(np.int64)).argmax()) if kind.mode is None else kind.mode
    others = x != mode
    return write_mask(kind.variant, others) + pack_field(x[others], exponent_bits), _PARAMS.pack(
        mode, int(others.sum())
    )
