"""Section "Layouts": how long words are, how they are split, and which layout writers take for a dtype."""

from dataclasses import dataclass

from .errors import require

SPLITS = ("none", "float", "unsigned", "signed")
_WORD_NBYTES = (1, 2, 4, 8)
_MOST_EXPONENT_BITS = 8


@dataclass(frozen=True)
class Layout:
    """The five numbers of a header by which a decoder goes. `rest_bits` is 0 where words are not split."""

    word_nbytes: int
    exponent_bits: int
    rest_bits: int
    split: str
    ordered: bool

    @property
    def word_bits(self) -> int:
        return 8 * self.word_nbytes


def check_layout(layout: Layout) -> None:
    """Raise `CorruptDataError` for a layout that the page does not allow."""
    e, r = layout.exponent_bits, layout.rest_bits
    require(layout.word_nbytes in _WORD_NBYTES, f"words of {layout.word_nbytes} bytes")
    require(e <= _MOST_EXPONENT_BITS, f"{e} exponent bits; at most {_MOST_EXPONENT_BITS}")
    require(r == (layout.word_bits - e if e else 0), f"{r} rest bits beside {e} exponent bits of {layout.word_bits}")
    require((layout.split == "none") == (e == 0), f"split {layout.split} with {e} exponent bits")
    require(layout.split != "float" or r >= 1, "a float without a sign")


_UNSPLIT_BYTES = Layout(1, 0, 0, "none", False)
_FLOAT_8 = {e: (8, Layout(1, e, 8 - e, "float", True)) for e in (4, 5)}
_FLOAT_32, _FLOAT_64 = (Layout(nbytes, 8, 8 * nbytes - 8, "float", True) for nbytes in (4, 8))
# By the dtype's name: bits per element, layout.
TABLE = {
    "BF16": (16, Layout(2, 8, 8, "float", True)),
    "F16": (16, Layout(2, 5, 11, "float", True)),
    "F32": (32, _FLOAT_32),
    "C64": (64, _FLOAT_32),
    "F8_E4M3": _FLOAT_8[4],
    "F8_E4M3FNUZ": _FLOAT_8[4],
    "F8_E5M2": _FLOAT_8[5],
    "F8_E5M2FNUZ": _FLOAT_8[5],
    "F8_E8M0": (8, Layout(1, 8, 0, "unsigned", False)),
    "F64": (64, _FLOAT_64),
    "C128": (128, _FLOAT_64),
    "I8": (8, Layout(1, 4, 4, "signed", False)),
    "U8": (8, Layout(1, 4, 4, "unsigned", False)),
    "F4": (4, Layout(1, 4, 4, "unsigned", False)),
    **{f"{sign}{bits}": (bits, Layout(bits // 8, 0, 0, "none", False)) for sign in "IU" for bits in (64, 32, 16)},
    "BOOL": (8, _UNSPLIT_BYTES),
}


def label_of(dtype: str, bits: int | None = None, layout: Layout | None = None) -> tuple[int, Layout]:
    """Bits per element and layout: those given, else those of the page's table. Raises ValueError without bits."""
    known_bits, known_layout = TABLE.get(dtype, (None, _UNSPLIT_BYTES))
    bits = known_bits if bits is None else bits
    if bits is None:
        raise ValueError(f"dtype {dtype!r} is not in the table: pass its bits per element")
    if layout is None and known_bits not in (None, bits):
        raise ValueError(f"dtype {dtype} has {known_bits} bits, not {bits}")
    return bits, known_layout if layout is None else layout
