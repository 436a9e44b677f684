"""Cases of kind parts in plain frames: parts of every kind, of every word size, of one word; two to sixteen of them.

conformance_relative.py has those of relative frames.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference.tensorwire_reference import (
    Cascade,
    Constant,
    Enec,
    Entropy,
    Modal,
    Parts,
    Plain,
    Stored,
    Trimmed,
    Zeros,
)
from reference.tensorwire_reference.kinds import PartKind
from reference.tensorwire_reference.layouts import TABLE
from tests.support.cases import Case, case, floats, generator, scatter_zeros
from tests.support.conformance_layouts import in_bytes, words_of_layout

RUN = 256
_ONES = b"\x80\x3f" * RUN
_DTYPES = ("U8", "BF16", "F32", "I64")
_COUNTS = ((2, 1), (2, RUN), (16, 1), (16, RUN))  # parts, words of the last one
_KINDS: dict[str, PartKind] = {
    "constant": Constant(),
    "enec": Enec(),
    "cascade": Cascade(),
    "cascade2": Cascade(table=2),
    "entropy": Entropy(),
    "plain": Plain(),
    "modal": Modal(6),
    "zeros-of-stored": Zeros(Stored(), 1),
    "zeros-of-modal": Zeros(Modal(0), 6),
    "zeros-of-plain": Zeros(Plain(), 2),
    "stored": Stored(),
}


def _run_of(name: str) -> bytes:
    """A run of BF16 that suits a kind."""
    if name == "constant":
        return _ONES
    if name == "stored":
        return generator("a stored part").bytes(2 * RUN)
    exponents = 120 - np.minimum(generator(f"part {name}").geometric(0.8, RUN), 5)
    if "modal" in name:
        exponents[7:] = 119
    words = floats("BF16", RUN, f"part {name}", exponents=exponents, zero_bits=2)
    return scatter_zeros(words, "BF16", f"part {name}", 0.4, minus=0.5) if "zeros" in name else words


def _coding(start: str) -> tuple[str, str]:
    return f"parts({start}", ")"


def _plain_frames() -> Iterator[Case]:
    """Every kind, in one row with all others and before a constant part."""
    options: dict[str, Any] = {"rest": Trimmed(), "block_words": 4096}
    every = b"".join(map(_run_of, _KINDS))
    kind = Parts(tuple(_KINDS.values()))
    yield case("parts-of-every-kind", every, "BF16", kind=kind, coding=_coding("constant;enec"), **options)
    for name, kind_of_part in _KINDS.items():
        kind, coding = Parts((kind_of_part, Constant())), _coding(name.split("-")[0])
        yield case(f"parts-{name}", _run_of(name) + _ONES, "BF16", kind=kind, coding=coding, golden=False, **options)


def _sizes() -> Iterator[Case]:
    """Word sizes, numbers of parts, parts of several runs, last parts of one word; all parts but the first constant."""
    for dtype, (count, last), part_runs in itertools.product(_DTYPES, _COUNTS, (1, 3)):
        name = f"parts-{dtype}-{count}-of-{part_runs}-{last}"
        _, layout = TABLE[dtype]
        words = words_of_layout(layout, (count - 1) * RUN * part_runs + last, name)
        words[RUN * part_runs :] = words[0]
        first, coding = (Cascade(), "cascade") if layout.exponent_bits else (Plain(), "plain")
        kind = Parts((first, *[Constant()] * (count - 1)), part_runs)
        golden = part_runs == 1 and last == 1 and (count == 2 or dtype == "BF16")
        options: dict[str, Any] = {"block_words": 16384, "rest": Trimmed(), "kind": kind, "coding": _coding(coding)}
        yield case(name, in_bytes(words, layout), dtype, golden=golden, **options)


def _alignments() -> Iterator[Case]:
    for alignment in (64, 4096):
        kind, data = Parts((Constant(), Stored())), (_ONES + _run_of("stored")) * 2
        options: dict[str, Any] = {"kind": kind, "block_alignment": alignment, "golden": alignment == 64}
        yield case(f"parts-aligned-{alignment}", data, "BF16", block_words=512, coding=_coding("constant"), **options)


PARTS_CASES = (*_plain_frames(), *_sizes(), *_alignments())
