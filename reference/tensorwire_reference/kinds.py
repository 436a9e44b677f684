"""What the encoder can be asked for: the kinds that have no module of their own, and all of them together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .cascade import Cascade
from .enec import Enec
from .entropy import Entropy
from .modal import Modal
from .relative import Dense, Same, Sparse


@dataclass(frozen=True)
class Stored:
    """Words as they are."""


@dataclass(frozen=True)
class Constant:
    """One word, for blocks of equal words."""

    code: ClassVar[int] = 1


@dataclass(frozen=True)
class Plain:
    """Words without an exponent: the rest is all."""

    code: ClassVar[int] = 5


InnerKind = Stored | Constant | Enec | Cascade | Entropy | Plain | Modal


@dataclass(frozen=True)
class Zeros:
    """Zeros of either sign are left out; `inner` codes the other words, if there are any.

    `variant` is that of the mask. `signs` None is the smallest that applies; 2 always does for floats.
    """

    inner: InnerKind
    variant: int = 2
    signs: int | None = None
    code: ClassVar[int] = 6


@dataclass(frozen=True)
class Scaled:
    """Words that are products of scales and codes: of F8_E4M3 in variant 0, of I8 in variant 1. `inner` codes these."""

    inner: InnerKind
    variant: int
    width: int
    scales: tuple[float, ...]
    code: ClassVar[int] = 7
    extended: ClassVar[int] = 6


PartKind = InnerKind | Zeros | Scaled | Sparse | Dense | Same


@dataclass(frozen=True)
class Parts:
    """A row of smaller blocks, each but the last one of `256 * part_runs` words, with a kind for each."""

    kinds: Sequence[PartKind]
    part_runs: int = 1
    code: ClassVar[int] = 7
    extended: ClassVar[int] = 5


CodedKind = InnerKind | Zeros | Scaled | Sparse | Dense | Parts
Kind = CodedKind | Same
