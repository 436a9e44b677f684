"""Cases of what a header says beside the tensor: alignments, padding, extensions, optional features, labels."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from reference.tensorwire_reference import Cascade, Constant, Kind, Layout, Plain, Same, Sparse, Stored, Zeros
from reference.tensorwire_reference.header import seal_header
from tests.support.cases import Case, case, floats, generator, scatter_zeros

_MOST_FRAME = 1 << 21
_UNSPLIT_8, _BF16 = Layout(8, 0, 0, "none", False), Layout(2, 8, 8, "float", True)


def _changed(base: bytes) -> bytes:
    """A few words moved by one step."""
    words = np.frombuffer(base, "<u2").copy()
    words[5::97] ^= 1
    return words.tobytes()


def _alignments() -> Iterator[Case]:
    for block, frame in (
        *((32, 1 << log2) for log2 in range(5, 13)),
        *((1 << log2, 1 << log2) for log2 in range(6, 13)),
        (128, 4096),
        (32, _MOST_FRAME),
        (4096, _MOST_FRAME),
    ):
        aligned: dict[str, Any] = {"block_alignment": block, "frame_alignment": frame}
        small = frame <= 512
        name = f"aligned-{block}-{frame}"
        # Blocks that are shorter than stored ones in spite of their alignment; the last one has few words.
        aligned["block_words"] = 512 if small else 8192
        data = floats("BF16", aligned["block_words"] + 200, f"aligned {small}")
        coding = ("cascade/", "")
        yield case(name, data, "BF16", kind=Cascade(), coding=coding, golden=small, **aligned)
        yield case(f"{name}-stored", data, "BF16", kind=Stored(), coding=("stored", ""), golden=False, **aligned)
        new = _changed(data)
        options = {**aligned, "golden": small and block == 128}
        yield case(f"{name}-relative", new, "BF16", base=data, kind=[Sparse(), Same()], **options)
        yield case(f"{name}-same", data, "BF16", base=data, **{**aligned, "golden": (block, frame) == (32, 512)})
        yield case(f"{name}-empty", b"", "BF16", **{**aligned, "golden": (block, frame) == (32, 64)})
    # One golden with 4,096 for both: a coded block, and blocks of zeros with inner blocks of either sort.
    for inner, kind in (("cascade", Zeros(Cascade())), ("stored", Zeros(Stored()))):
        for alignment in (64, 4096):
            n = 600 if alignment == 64 else 4096
            name = f"aligned-{alignment}-zeros-{inner}"
            data = scatter_zeros(floats("BF16", n, name), "BF16", name, 0.6)
            coding = (f"zeros/2(signs=0,{inner}", "")
            golden = alignment == 64 or inner == "cascade"
            options = {"block_words": 4096, "block_alignment": alignment, "golden": golden}
            yield case(name, data, "BF16", kind=kind, coding=coding, **options)


def _padding() -> Iterator[Case]:
    data = floats("F16", 300, "padding")
    for nbytes in (32, 100, 1024, 1 << 22):
        yield case(f"padding-{nbytes}", data, "F16", padding_nbytes=nbytes, golden=nbytes <= 1024)
    yield case("padding-of-same", data, "F16", base=data, padding_nbytes=64)
    yield case("padding-of-nothing", b"", "F16", padding_nbytes=32)
    for nbytes in (32, 4096):  # zeros behind the index that no alignment asks for
        wide = case(f"header-wider-by-{nbytes}", data, "F16", golden=nbytes == 32)
        yield wide._replace(build=partial(_widened, wide.build, nbytes))
    same = case("header-wider-of-same", data, "F16", base=data)
    yield same._replace(build=partial(_widened, same.build, 96))


def _widened(build: Callable[[], bytes], nbytes: int) -> bytes:
    frame = build()
    header_nbytes = int.from_bytes(frame[56:64], "little")
    fixed = frame[:56] + (header_nbytes + nbytes).to_bytes(8, "little") + frame[64:header_nbytes]
    return seal_header(fixed + bytes(nbytes)) + frame[header_nbytes:]


def _extensions() -> Iterator[Case]:
    """Goldens have tags and bits that no later version gives a meaning: it must decode them, too."""
    rng = generator("extensions")
    test, private, other_encoder = 1 << 30, 1 << 31, bytes(4)
    sets: dict[str, dict[int, bytes]] = {
        "encoder": {1: other_encoder},
        "later-encoder": {1: b"\2\0\0\0"},
        "reserved": {tag: rng.bytes(10 * tag) for tag in range(2, 8)},
        "unknown": {test: rng.bytes(31), test + 1000: b"", 2 * test - 1: rng.bytes(8)},
        "unknown-low": {8: rng.bytes(31), 1 << 20: b"", test - 1: rng.bytes(8)},
        "private": {private: rng.bytes(13), 2 * private - 1: rng.bytes(8) + b"end"},
        "all": {
            1: other_encoder,
            test + 4: rng.bytes(16),
            test + 5: rng.bytes(3),
            private + 7: rng.bytes(8) + bytes(9),
        },
        "lengths": {test + length: rng.bytes(length) for length in range(18)},
        "long": {9: rng.bytes(100_000)},
        "many": {10 + i: b"x" for i in range(3000)},
    }
    base = floats("BF16", 600, "extended")
    new = _changed(base)
    for name, extensions in sets.items():
        golden = name in ("encoder", "unknown", "private", "all", "lengths")
        options: dict[str, Any] = {"extensions": extensions, "block_words": 256}
        yield case(f"extension-{name}", base, "BF16", golden=golden, **options)
        golden = name == "all"
        yield case(f"extension-{name}-relative", new, "BF16", base=base, golden=golden, **options)
        yield case(f"extension-{name}-same", base, "BF16", base=base, golden=golden, **options)
        yield case(f"extension-{name}-empty", b"", "BF16", shape=(0, 3), golden=golden, **options)
        options |= {"frame_alignment": 4096, "optional_features": 1 << 31}
        yield case(f"extension-{name}-aligned", base, "BF16", golden=False, **options)
    # A header that ends exactly where the last record does: no tag 0 follows.
    filled = {1: other_encoder, test + 70: rng.bytes(16)}
    yield case("extension-to-the-end", b"\1\2\3\4", "F32", shape=(), extensions=filled)


def _optional_features() -> Iterator[Case]:
    rng = generator("optional features")
    data = floats("BF16", 300, "optional")
    of_tests = [0x10000000, 0x80000000, 0xF0000000]
    others = [*(1 << bit for bit in range(0, 28, 5)), *rng.integers(0, 1 << 32, 8), (1 << 32) - 1]
    for bits in map(int, (*of_tests, *others)):
        golden = bits in of_tests
        yield case(f"optional-features-{bits:08x}", data, "BF16", optional_features=bits, golden=golden)
    yield case("optional-features-of-same", data, "BF16", base=data, optional_features=of_tests[-1])


def _labels() -> Iterator[Case]:
    """A decoder goes by the layout: names and bits of elements that are at odds with it are labels all the same."""
    rng = generator("labels")
    words = floats("BF16", 320, "labels")
    table: list[tuple[str, str, int, Layout, bytes]] = [
        ("f64-of-16-bits", "F64", 16, _BF16, words),
        ("u8-as-floats", "U8", 16, _BF16, words),
        ("bf16-unsplit", "BF16", 16, Layout(2, 0, 0, "none", False), words),
        ("quads", "QUAD_BF16", 64, _BF16, words),
        ("tiles", "TILE_64", 1024, _BF16, words),
        ("wide-words", "TILE_16", 1024, _UNSPLIT_8, words),
        ("three-bits", "F3_E2M0", 3, Layout(1, 4, 4, "unsigned", False), words[:639]),
        ("one-bit", "B1", 1, Layout(1, 8, 0, "signed", True), words[:450]),
        ("sixteen-characters", "A_NAME_OF_16_LET", 8, Layout(1, 4, 4, "float", True), rng.bytes(300)),
    ]
    for name, dtype, bits, layout, data in table:
        yield case(f"label-{name}", data, dtype, shape=(len(data) * 8 // bits,), bits=bits, layout=layout)


def _as_long_as_stored() -> Iterator[Case]:
    """Coded blocks that have exactly the bytes of stored ones: bit 31 says what they are."""
    kinds: tuple[tuple[str, Kind, bytes], ...] = (
        ("constant", Constant(), b"\x80\x3f" * 9),
        ("plain+trimmed", Plain(), np.arange(12, dtype="<u2").tobytes()),
    )
    for (coding, kind, data), alignment in itertools.product(kinds, (32, 64)):
        name = f"coded-as-long-as-stored-{coding}-{alignment}"
        yield case(name, data, "BF16", kind=kind, coding=(coding, ""), block_alignment=alignment)
    noise = generator("ends like a constant").bytes(63) + b"\1"
    yield case("stored-and-ends-like-a-constant", noise, "U8", kind=Stored(), coding=("stored", ""))


HEADER_CASES = (
    *_alignments(),
    *_padding(),
    *_extensions(),
    *_optional_features(),
    *_labels(),
    *_as_long_as_stored(),
)
