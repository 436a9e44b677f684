"""A reference decoder and a plain encoder of the tensorwire frame format, version 1. See docs/format.md."""

from .cascade import Cascade
from .decoder import Frame, decode
from .encoder import encode
from .enec import Enec
from .entropy import Entropy
from .errors import (
    BaseMismatchError,
    CorruptDataError,
    FormatError,
    LimitExceededError,
    TruncatedDataError,
    UnsupportedVersionError,
)
from .kinds import Constant, InnerKind, Kind, Parts, Plain, Scaled, Stored, Zeros
from .layouts import Layout
from .modal import Modal
from .relative import Dense, Same, Sparse
from .rests import Bytes, Rest, Trimmed, Verbatim

__all__ = [
    "BaseMismatchError",
    "Bytes",
    "Cascade",
    "Constant",
    "CorruptDataError",
    "Dense",
    "Enec",
    "Entropy",
    "FormatError",
    "Frame",
    "InnerKind",
    "Kind",
    "Layout",
    "LimitExceededError",
    "Modal",
    "Parts",
    "Plain",
    "Rest",
    "Same",
    "Scaled",
    "Sparse",
    "Stored",
    "Trimmed",
    "TruncatedDataError",
    "UnsupportedVersionError",
    "Verbatim",
    "Zeros",
    "decode",
    "encode",
]
