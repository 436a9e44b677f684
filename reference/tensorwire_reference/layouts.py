"""Section "Dtypes": how elements become words, and which words are split."""

from dataclasses import dataclass

from .errors import CorruptDataError, require

CHARACTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
MAX_BITS = 1024


@dataclass(frozen=True)
class Dtype:
    """A row of the page's table. `exponent_bits` is 0 where words are not split."""

    name: str
    bits: int
    word_nbytes: int
    exponent_bits: int = 0
    split: str = "none"
    ordered: bool = False

    @property
    def word_bits(self) -> int:
        return 8 * self.word_nbytes

    @property
    def rest_bits(self) -> int:
        """R, where words are split."""
        return self.word_bits - self.exponent_bits if self.exponent_bits else 0


_KNOWN = {
    dtype.name: dtype
    for dtype in (
        Dtype("BF16", 16, 2, 8, "float", True),
        Dtype("F16", 16, 2, 5, "float", True),
        Dtype("F32", 32, 4, 8, "float", True),
        Dtype("F8_E4M3", 8, 1, 4, "float", True),
        Dtype("F8_E5M2", 8, 1, 5, "float", True),
        Dtype("F64", 64, 8, ordered=True),
        Dtype("I8", 8, 1, 4, "signed"),
        Dtype("U8", 8, 1, 4, "unsigned"),
        *(Dtype(name, 64, 8) for name in ("I64", "U64")),
        *(Dtype(name, 32, 4) for name in ("I32", "U32")),
        *(Dtype(name, 16, 2) for name in ("I16", "U16")),
        Dtype("BOOL", 8, 1),
    )
}


def dtype_of(name: str, bits: int | None = None) -> Dtype:
    """The table's row, or a row of byte words for any other name. Raises ValueError when `bits` is wrong or missing."""
    known = _KNOWN.get(name)
    if known is None and bits is None:
        raise ValueError(f"dtype {name!r} is not in the table: pass its bits per element")
    if known is not None and bits not in (None, known.bits):
        raise ValueError(f"dtype {name} has {known.bits} bits, not {bits}")
    return known or Dtype(name, bits or 0, 1)


def parse_dtype(name: bytes, bits: int) -> Dtype:
    """The dtype of a header: the name with its zeros, then the bits."""
    text = name.rstrip(b"\0")
    require(len(text) > 0 and CHARACTERS.issuperset(text), f"dtype {name!r}")
    require(1 <= bits <= MAX_BITS, f"{bits} bits per element")
    try:
        return dtype_of(text.decode("ascii"), bits)
    except ValueError as error:
        raise CorruptDataError(str(error)) from None
