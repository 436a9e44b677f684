"""The dtypes of safetensors, and C128: their names, their sizes, how frames split them, and what others call them."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

DTYPE_NAME = re.compile(r"[A-Z0-9_]{1,16}")

# name: (bits per element, NumPy or ml_dtypes name, torch name)
_DTYPES: dict[str, tuple[int, str | None, str | None]] = {
    "BOOL": (8, "bool", "bool"),
    "U8": (8, "uint8", "uint8"),
    "I8": (8, "int8", "int8"),
    "U16": (16, "uint16", "uint16"),
    "I16": (16, "int16", "int16"),
    "U32": (32, "uint32", "uint32"),
    "I32": (32, "int32", "int32"),
    "U64": (64, "uint64", "uint64"),
    "I64": (64, "int64", "int64"),
    "F16": (16, "float16", "float16"),
    "BF16": (16, "bfloat16", "bfloat16"),
    "F32": (32, "float32", "float32"),
    "F64": (64, "float64", "float64"),
    "C64": (64, "complex64", "complex64"),
    "C128": (128, "complex128", "complex128"),
    "F8_E4M3": (8, "float8_e4m3fn", "float8_e4m3fn"),
    "F8_E5M2": (8, "float8_e5m2", "float8_e5m2"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz", "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz", "float8_e5m2fnuz"),
    "F8_E8M0": (8, "float8_e8m0fnu", "float8_e8m0fnu"),
    # Narrower than a byte: packed, as safetensors has them. An element of torch's holds two; NumPy has none of these.
    "F6_E2M3": (6, None, None),
    "F6_E3M2": (6, None, None),
    "F4": (4, None, "float4_e2m1fn_x2"),
}
FROM_NUMPY = {numpy_name: name for name, (_, numpy_name, _) in _DTYPES.items() if numpy_name}
FROM_TORCH = {torch_name: name for name, (_, _, torch_name) in _DTYPES.items() if torch_name}

_OTHER_WORDS = {
    "half": "F16",
    "float": "F32",
    "double": "F64",
    "fp4": "F4",
    "fp8e4m3": "F8_E4M3",
    "fp8e5m2": "F8_E5M2",
    **{f"fp{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "short": "I16",
    "int": "I32",
    "long": "I64",
    "byte": "U8",
    "f8e4m3fn": "F8_E4M3",
    "fp8e4m3fn": "F8_E4M3",
    **{name[3:].replace("_", "").lower(): name for name in _DTYPES if re.match("F[68]_", name)},
    "f4e2m1": "F4",
    "fp4e2m1": "F4",
    "float4e2m1": "F4",
}
_BUFFER_FORMATS = {"?": "BOOL", "c": "U8", "e": "F16", "f": "F32", "d": "F64", "Zf": "C64", "Zd": "C128"}


def dtype_bits(dtype: str) -> int:
    """Bits per element of a dtype of safetensors, or of C128; 0 for any other."""
    return _DTYPES[dtype][0] if dtype in _DTYPES else 0


Split = Literal["none", "float", "unsigned", "signed"]
SPLITS: tuple[Split, ...] = ("none", "float", "unsigned", "signed")


class Layout(NamedTuple):
    """How long the words of a tensor are, and how a frame splits them (docs/format.md, "Layouts").

    Attributes:
        word_nbytes: 1, 2, 4 or 8. An element has one word or more; or it has less than a byte, and the word is a byte.
        exponent_bits: 0 to 8; 0 for words that are not split.
        rest_bits: the other bits of a word that is split, else 0.
        split: "float" (sign, exponent, mantissa), "unsigned" or "signed" integers, whose highest bits are the
            exponent, or "none".
        ordered: whether words are ordered as floats are, by sign and magnitude; relative frames count their steps so.
    """

    word_nbytes: int
    exponent_bits: int
    rest_bits: int
    split: Split
    ordered: bool


def numpy_name(dtype: str) -> str | None:
    """The name of a dtype in NumPy or ml_dtypes; None if they lack it."""
    return _DTYPES[dtype][1] if dtype in _DTYPES else None


def torch_name(dtype: str) -> str | None:
    """The name of a dtype in torch; None if it lacks it."""
    return _DTYPES[dtype][2] if dtype in _DTYPES else None


def check_dtype_name(dtype: object) -> str:
    """`dtype`, if it is a name of safetensors or one of its own that is no name of another library.

    Raises:
        ValueError: it cannot be a name, or is what others call a dtype of safetensors; the message has the near ones.
        TypeError: it is not a string, e.g. a dtype of torch.
    """
    if isinstance(dtype, str) and dtype in _DTYPES:
        return dtype
    near = _near_names(str(getattr(dtype, "__name__", dtype)))
    if isinstance(dtype, str) and DTYPE_NAME.fullmatch(dtype.upper()) and _plain(dtype) not in _aliases():
        near = [f'"{dtype.upper()}"', *near]  # a name of its own, in capitals
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if not isinstance(dtype, str):
        raise TypeError(f"expected the name of a dtype as safetensors writes it, got {dtype!r}{hint}")
    if not DTYPE_NAME.fullmatch(dtype):
        raise ValueError(f"expected a dtype name of 1 to 16 characters A-Z, 0-9 and _, got {dtype!r}{hint}")
    if _plain(dtype) in _aliases():
        raise ValueError(f"expected a dtype name as safetensors writes it, got {dtype!r}{hint}")
    return dtype


def buffer_dtype(view: memoryview) -> str | None:
    """The dtype that the format of a buffer says; None if it says none of safetensors, or says big-endian."""
    kind = view.format.lstrip("@=<|")
    if kind and view.itemsize == 1:
        kind = kind.lstrip(">!")
    if kind in _BUFFER_FORMATS:
        return _BUFFER_FORMATS[kind]
    if len(kind) == 1 and kind in "BHILQN":
        return f"U{8 * view.itemsize}"
    if len(kind) == 1 and kind in "bhilqn":
        return f"I{8 * view.itemsize}"
    return None


def _near_names(text: str) -> list[str]:
    from difflib import get_close_matches

    aliases = _aliases()
    plain = _plain(text)
    found = [plain] if plain in aliases else get_close_matches(plain, aliases, n=3, cutoff=0.75)
    return [f'"{name}"' for name in dict.fromkeys(aliases[alias] for alias in found)]


def _aliases() -> dict[str, str]:
    """Other names of the dtypes of safetensors, in lower case and without underscores."""
    named = [(name, name) for name in _DTYPES] + [*FROM_NUMPY.items(), *FROM_TORCH.items()]
    return {_plain(alias): name for alias, name in named} | _OTHER_WORDS


def _plain(text: str) -> str:
    return text.rpartition(".")[2].lower().replace("_", "").replace("-", "").removeprefix("torch")
