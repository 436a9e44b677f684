"""What `diff` returns: plain data, as what the other operations return (`results.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from .._ground.text import count, in_a_line, size


@dataclass(frozen=True)
class TensorDiff:
    """One tensor that differs.

    Attributes:
        name: of the tensor.
        status: "changed" (same dtype and shape, other bytes), "retyped" (other dtype or shape), "removed" (only in A)
            or "added" (only in B).
        dtype_a, shape_a, file_a, dtype_b, shape_b, file_b: None on the side where the tensor is missing; a file's path
            is relative.
        numel: elements of the tensor (of A, if there is one). For dtypes that are not known, elements are bytes.
        num_different: elements whose bits differ; `numel` for a status other than "changed".
        first_different: index of the first such element in row-major order; None for a status other than "changed".
    """

    name: str
    status: str
    numel: int
    num_different: int
    dtype_a: str | None = None
    shape_a: tuple[int, ...] | None = None
    dtype_b: str | None = None
    shape_b: tuple[int, ...] | None = None
    first_different: int | None = None
    file_a: str | None = None
    file_b: str | None = None


@dataclass(frozen=True)
class DtypeStats:
    """What a delta would take for all tensors of one dtype.

    Attributes:
        num_tensors, nbytes: of B.
        num_words: words of those of them that A has in the same dtype and size; an element of a dtype that is not whole
            bytes counts as its bytes.
        num_changed: words that differ.
        delta_nbytes: by profile, the size of their frames, relative to A where A has one that fits; or of the tensor
            itself where that is smaller.
    """

    dtype: str
    num_tensors: int
    nbytes: int
    num_words: int
    num_changed: int
    delta_nbytes: dict[str, int]

    @property
    def share(self) -> float:
        return self.num_changed / self.num_words if self.num_words else 0.0

    @property
    def bits_per_change(self) -> dict[str, float] | None:
        """Bits of the delta for each word that changed, framing included."""
        if not self.num_changed:
            return None
        return {profile: 8 * nbytes / self.num_changed for profile, nbytes in self.delta_nbytes.items()}


@dataclass(frozen=True)
class ChangedWords:
    """The words of one dtype whose base has one exponent.

    Attributes:
        exponent: of the base, as it is stored; None for a dtype whose words are not split.
        num_words, num_changed: how many there are, and how many differ.
        position_bits: the entropy of which of them changed, in bits for each that did; None if none did.
        step_bits: the entropy of the steps by which they changed (docs/format.md), likewise. Steps of 256 and
            more count by the entropy of their sign and highest bit, and the bits below as they are.
    """

    dtype: str
    exponent: int | None
    num_words: int
    num_changed: int
    position_bits: float | None
    step_bits: float | None

    @property
    def share(self) -> float:
        return self.num_changed / self.num_words if self.num_words else 0.0


@dataclass(frozen=True)
class DeltaStats:
    """What a delta from A to B would take, without headers of files.

    Attributes:
        dtypes: by dtype.
        words: by dtype and exponent of the base.
    """

    dtypes: tuple[DtypeStats, ...]
    words: tuple[ChangedWords, ...]

    def __repr__(self) -> str:
        return in_a_line(
            self, size(self.nbytes), *(f"{profile} {size(nbytes)}" for profile, nbytes in self.delta_nbytes.items())
        )

    @property
    def nbytes(self) -> int:
        """Size of all tensors of B."""
        return sum(row.nbytes for row in self.dtypes)

    @property
    def delta_nbytes(self) -> dict[str, int]:
        """Size of the delta by profile."""
        profiles = dict.fromkeys(profile for row in self.dtypes for profile in row.delta_nbytes)
        return {profile: sum(row.delta_nbytes[profile] for row in self.dtypes) for profile in profiles}


@dataclass(frozen=True)
class DiffReport:
    """What `diff` found. `equal` is True when no tensor and no other file differs.

    Attributes:
        num_equal: tensors with the same name, dtype, shape and bytes.
        by_file: a name stands in several files of a side, so tensors of the same name and the same relative path of
            their file were compared; else those of the same name.
        num_different_elements: sum over "changed" tensors.
        tensors: those that differ, sorted by name; if `by_file`, by file first.
        files: other files (neither safetensors nor index) whose original content differs or that one side lacks,
            sorted; always empty unless both sides are directories.
        stats: what a delta would take, if that was asked for.
    """

    a: str
    b: str
    num_equal: int
    num_different_elements: int
    tensors: tuple[TensorDiff, ...]
    files: tuple[str, ...]
    seconds: float
    by_file: bool = False
    stats: DeltaStats | None = None

    def __repr__(self) -> str:
        return in_a_line(
            self,
            f"{self.a} and {self.b}",
            f"{count(self.num_equal, 'tensor')} equal",
            f"{count(len(self.tensors), 'tensor')} and {count(len(self.files), 'file')} not",
        )

    @property
    def equal(self) -> bool:
        return not self.tensors and not self.files
