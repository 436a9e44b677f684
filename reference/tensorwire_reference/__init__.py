"""A reference decoder and a plain encoder of the tensorwire frame format, version 0. See docs/format.md."""

from .cascade import Cascade
from .decoder import Frame, decode
from .encoder import Constant, Kind, Plain, Stored, ZeroGroups, encode
from .enec import Enec
from .entropy import Entropy
from .errors import CorruptDataError, FormatError, LimitExceededError, TruncatedDataError, UnsupportedVersionError
from .rests import Bytes, Rest, Trimmed, Verbatim

__all__ = [
    "Bytes",
    "Cascade",
    "Constant",
    "CorruptDataError",
    "Enec",
    "Entropy",
    "FormatError",
    "Frame",
    "Kind",
    "LimitExceededError",
    "Plain",
    "Rest",
    "Stored",
    "Trimmed",
    "TruncatedDataError",
    "UnsupportedVersionError",
    "Verbatim",
    "ZeroGroups",
    "decode",
    "encode",
]
