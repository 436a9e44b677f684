"""Cases of the kinds zeros and modal: masks in levels and in gaps, zeros of both signs, every kind of inner block."""

import itertools
import struct
from collections.abc import Iterator
from functools import partial

import numpy as np

from reference.tensorwire_reference import (
    Cascade,
    Constant,
    Enec,
    Entropy,
    InnerKind,
    Modal,
    Plain,
    Stored,
    Trimmed,
    Verbatim,
    Zeros,
)
from tests.support.cases import (
    FLOATS,
    INTEGERS,
    RESTS,
    SPLIT_INTEGERS,
    Case,
    case,
    floats,
    generator,
    integers,
    scatter_zeros,
    small_integers,
    to_bytes,
    words_of,
)
from tests.support.malforming import instead, level, one_block

GAPS = 6
_INNER: dict[str, InnerKind] = {
    "stored": Stored(),
    "plain": Plain(),
    "enec": Enec(),
    "cascade": Cascade(variant=0),
    "cascade2": Cascade(variant=1, table=2),
    "entropy": Entropy(),
    "modal": Modal(),
}


def _zeros() -> Iterator[Case]:
    for i, (dtype, variant) in enumerate(itertools.product(FLOATS, range(7))):
        inner = tuple(_INNER)[i % len(_INNER)]
        name = f"zeros-{dtype}-{variant}-{inner}"
        minus = (0.0, 1.0, 0.5)[i % 3]
        n = 1501 if inner == "entropy" else 777
        exponents = (1 << FLOATS[dtype][1]) * 3 // 4 - np.minimum(generator(f"{name} calm").geometric(0.6, n), 5)
        if inner == "modal":
            exponents[50:] = exponents.max()
        words = floats(dtype, n, name, exponents=exponents, zero_bits=int(inner == "plain"))
        data = scatter_zeros(words, dtype, name, 0.4, minus=minus, run=(1, 5, 64)[i // 3 % 3])
        rest = Trimmed() if inner == "plain" else Verbatim()
        profile = "compact" if variant == GAPS or inner == "entropy" else "fast"
        kind = Zeros(_INNER[inner], variant)
        coding = (f"zeros/{variant}(signs={(0, 1, 2)[i % 3]},{inner}", ")")
        options = {"profile": profile, "kind": kind, "rest": rest, "golden": i % 2 == 0}
        yield case(name, data, dtype, coding=coding, **options)
    for i, dtype in enumerate(INTEGERS):
        variant = (0, 2, GAPS)[i % 3]
        name = f"zeros-{dtype}"
        data = scatter_zeros(integers(dtype, 1001, name, 5), dtype, name, 0.8, run=3)
        coding = (f"zeros/{variant}(signs=0,plain+trimmed", ")")
        yield case(name, data, dtype, kind=Zeros(Plain(), variant), rest=Trimmed(), coding=coding)
    for dtype in SPLIT_INTEGERS:
        name = f"zeros-cascade-{dtype}"
        data = scatter_zeros(small_integers(dtype, 1900, name, mean=8, sigma=3), dtype, name, 0.3)
        kind, coding = Zeros(Cascade(variant=7), 1), ("zeros/1(signs=0,cascade/7", ")")
        yield case(name, data, dtype, profile="fast", kind=kind, rest=Verbatim(), coding=coding)


def _masks() -> Iterator[Case]:
    """Masks at their ends: lone words, all but one, groups that reach past the block, sizes around powers of four."""
    for variant, n in itertools.product(range(7), (2, 15, 16, 17, 257, 1023, 1024, 1025)):
        for keep in ("first", "last", "all-but-first", "all-but-last"):
            members = np.zeros(n, np.bool_)
            members[0 if keep.endswith("first") else -1] = True
            if keep.startswith("all"):
                members = ~members
            name = f"mask-{variant}-{n}-{keep}"
            words = generator(name).integers(1, 1 << 12, n, dtype=np.uint64)
            golden = (n, keep) in ((1025, "last"), (257, "all-but-first"))
            data = to_bytes(np.where(members, words, 0), "U32")
            coding = (f"zeros/{variant}(signs=0,", ")") if n >= 257 else ("", "")
            kind = Zeros(Plain(), variant)
            yield case(name, data, "U32", kind=kind, rest=Trimmed(), coding=coding, golden=golden)
    nothing_kept = scatter_zeros(bytes(2 * 900), "BF16", "nothing kept", 0.5, minus=0.5)
    coding = ("zeros/0(signs=2,none", ")")
    yield case("zeros-nothing-kept", nothing_kept, "BF16", profile="fast", kind=Zeros(Stored(), 0), coding=coding)
    # A group of the upper level has no word in the set: in the lower level its four bits are 0.
    words = floats("BF16", 4, "four words")
    data = words + bytes(2 * 296)
    streams = words.ljust(32, b"\0") + level("11" + "0" * 73) + level("1111" + "0000")
    edit = instead(streams, struct.pack("<IHB", 4, 1, 4), 6, 0, 1)
    of_no_word = case("mask-group-of-no-word", data, "BF16", coding=("zeros/1(signs=0,stored)", ""))
    yield of_no_word._replace(build=partial(one_block, data, edit))
    for signs in (0, 2):  # all words are kept: a bit string of signs has no bits
        coding = (f"zeros/2(signs={signs},cascade/", ")")
        kind = Zeros(Cascade(), 2, signs=signs)
        yield case(f"zeros-all-kept-{signs}", floats("BF16", 300, "all kept"), "BF16", kind=kind, coding=coding)
    plus = scatter_zeros(floats("F16", 900, "plus zeros"), "F16", "plus zeros", 0.6)
    coding = ("zeros/6(signs=2,cascade/1", ")")
    kind = Zeros(Cascade(variant=1), GAPS, signs=2)  # signs written though all are equal
    yield case("zeros-signs-of-plus-zeros", plus, "F16", kind=kind, rest=Verbatim(), coding=coding)
    equal = scatter_zeros(b"\x80\x3f" * 1000, "BF16", "equal", 0.5)
    yield case("zeros-constant", equal, "BF16", kind=Zeros(Constant(), 2), coding=("zeros/2(signs=0,constant", ")"))
    dense = scatter_zeros(floats("BF16", 3000, "few"), "BF16", "few", 0.01)
    kind, coding = Zeros(Entropy(k=1), GAPS), ("zeros/6(signs=0,entropy/1", ")")
    yield case("zeros-few", dense, "BF16", block_words=3072, kind=kind, coding=coding, golden=False)


def _modal() -> Iterator[Case]:
    for i, (dtype, variant) in enumerate(itertools.product((*FLOATS, *SPLIT_INTEGERS), range(7))):
        rest_name = tuple(RESTS)[i % 3]
        name = f"modal-{dtype}-{variant}"
        rng = generator(name)
        if dtype in FLOATS:
            top = (1 << FLOATS[dtype][1]) - 1
            exponents = np.where(rng.random(700) < 0.03, rng.integers(0, top + 1, 700), top * 2 // 3)
            exponents[[0, -1]] = 0, top
            data = floats(dtype, 700, name, exponents=exponents, zero_bits=int(rest_name != "verbatim"))
        else:
            data = small_integers(dtype, 700, name, sigma=4)
            words = words_of(data, dtype)
            data = to_bytes(np.where(rng.random(700) < 0.95, words % 8, words), dtype)
        profile = "compact" if variant == GAPS else "fast"
        kind, rest = Modal(variant), RESTS[rest_name]
        coding = (f"modal/{variant}(", f"+{rest_name}")
        golden = i % 3 == 0 and FLOATS.get(dtype, (1,))[0] < 4
        yield case(name, data, dtype, profile=profile, kind=kind, rest=rest, coding=coding, golden=golden)
    one = floats("BF16", 700, "modal-one", exponents=np.full(700, 120))
    coding = ("modal/5(mode=120,others=0)", "+verbatim")
    yield case("modal-one", one, "BF16", profile="fast", kind=Modal(5), rest=Verbatim(), coding=coding)
    other = ("modal/2(mode=7,others=700)", "+trimmed")  # the mode that no word has
    kind = Modal(2, mode=7)
    data = floats("F32", 700, "modal-other", zero_bits=20, exponents=np.full(700, 120))
    yield case("modal-other", data, "F32", profile="fast", kind=kind, rest=Trimmed(), coding=other)


ZEROS_CASES = (*_zeros(), *_masks(), *_modal())
