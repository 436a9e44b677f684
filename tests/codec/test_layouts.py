"""Layouts that a caller gives, and dtypes that have the layout of another: they compress like it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorwire
from reference.tensorwire_reference import Layout as ReferenceLayout
from reference.tensorwire_reference import decode
from tensorwire import FrameEncoder, Layout
from tests.support import registry
from tests.support.conformance_layouts import words_of_layout
from tests.support.encoders import encode
from tests.support.families import each_of
from tests.support.frame_surgery import Surgery
from tests.support.frames import decompress


def legal_layouts() -> list[Layout]:
    """All that docs/format.md allows."""
    found = []
    for word_nbytes in (1, 2, 4, 8):
        for ordered in (False, True):
            found.append(Layout(word_nbytes, 0, 0, "none", ordered))
            for exponent_bits in range(1, 9):
                rest_bits = 8 * word_nbytes - exponent_bits
                splits = ["unsigned", "signed", *(["float"] if rest_bits else [])]
                found += [Layout(word_nbytes, exponent_bits, rest_bits, split, ordered) for split in splits]  # type: ignore[arg-type]
    return found


LAYOUTS = legal_layouts()


def words_of(layout: Layout, count: int = 700) -> bytes:
    """Words of few exponents, some zeros, and some of any bits."""
    words = words_of_layout(ReferenceLayout(*layout), count, f"words {layout}")
    words[::10] = 0
    return words.astype(f"<u{layout.word_nbytes}").tobytes()


def test_so_many_are_legal() -> None:
    assert len(set(LAYOUTS)) == len(LAYOUTS) == 4 * 2 * (1 + 3 * 8) - 2, "but floats of a byte without a sign"


@each_of(LAYOUTS, family=lambda layout: f"{layout.word_nbytes}-{layout.split}", name=str)
def test_every_legal_layout_round_trips(layout: Layout) -> None:
    content = words_of(layout)
    for profile in registry.PROFILES:
        options: dict[str, Any] = {"dtype": "OWN", "shape": (700,), "layout": layout, "profile": profile}
        frame = tensorwire.compress(content, **options)
        info = tensorwire.frame_info(frame)
        assert (info.layout, info.dtype, info.bits) == (layout, "OWN", 8 * layout.word_nbytes)
        assert len(frame) <= tensorwire.compress_bound(content, **options)
        assert decompress(frame) == content
        if profile == "resident":
            continue
        base = bytearray(content)
        base[::97] = bytes(b ^ 1 for b in base[::97])
        delta = tensorwire.compress(content, base=bytes(base), **options)
        assert tensorwire.frame_info(delta).layout == layout
        assert decompress(delta, bytes(base)) == content
        if profile == "compact":
            assert decode(frame).data == decode(delta, bytes(base)).data == content


def test_a_layout_is_kept_by_what_is_made_of_the_frame() -> None:
    layout = Layout(2, 6, 10, "float", True)
    first = words_of(layout)
    second, third = first[2:] + first[:2], first[4:] + first[:4]
    options: dict[str, Any] = {"dtype": "OWN", "shape": (700,), "layout": layout}
    deltas = [tensorwire.compress(second, base=first, **options), tensorwire.compress(third, base=second, **options)]
    composed = tensorwire.compose(first, *deltas)
    assert composed == tensorwire.compress(third, base=first, **options)
    assert encode(third, "OWN", (700,), base=first, bits=16, layout=layout) == composed


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        ("F32", Layout(8, 0, 0, "none", False)),  # a word longer than an element
        ("BF16", Layout(4, 8, 24, "float", True)),
        ("F4", Layout(2, 8, 8, "float", True)),
    ],
)
def test_a_layout_that_does_not_go_with_the_dtype(dtype: str, layout: Layout) -> None:
    for call in (tensorwire.compress, tensorwire.compress_bound):
        with pytest.raises(ValueError, match=r"expected|fit"):
            call(bytes(64), dtype=dtype, layout=layout)
    with pytest.raises(ValueError, match=r"expected|fit"):
        FrameEncoder(dtype, (16,), bits=16, layout=layout)


@pytest.mark.parametrize(
    ("layout", "rule"),
    [
        (Layout(2, 0, 16, "none", False), "0 rest bits, since there are no exponent bits"),
        (Layout(2, 0, 0, "float", True), "split none, since there are no exponent bits"),
        (Layout(2, 6, 10, "none", True), "split float, unsigned or signed, since there are exponent bits"),
        *[
            (Layout(2, 6, rest, "signed", True), "exponent bits and rest bits that together fill the word")
            for rest in (0, 9, 11)
        ],
        (Layout(1, 8, 0, "float", True), "1 rest bit or more for the sign of a float"),
        *[(Layout(4, e, 32 - e, "unsigned", True), "0 to 8 exponent bits") for e in (9, 32)],
        *[(Layout(nbytes, 0, 0, "none", True), "word_nbytes 1, 2, 4 or 8") for nbytes in (0, 3, 16)],
        *[(Layout(2, e, 10, "float", True), "numbers of 0 to 255") for e in ("6", 300, -8)],  # type: ignore[arg-type]
        (Layout(2, 6, 10, "double", True), "split none, float, unsigned or signed"),  # type: ignore[arg-type]
    ],
)
def test_the_rule_that_is_broken_is_named(layout: Layout, rule: str) -> None:
    """And the split by its name, as it was given."""
    content = bytes(64)
    for call in (
        lambda: tensorwire.compress(content, dtype="OWN", layout=layout),
        lambda: tensorwire.compress_bound(content, dtype="OWN", layout=layout),
        lambda: owned(layout),
    ):
        with pytest.raises(ValueError, match=rf"expected (a layout of )?{rule}, got .*split(=| )'?{layout.split}"):
            call()


def owned(layout: Layout) -> FrameEncoder:
    return FrameEncoder("OWN", (16,), bits=8 * layout.word_nbytes, layout=layout)


def test_a_header_with_a_split_that_nobody_knows() -> None:
    surgery = Surgery(tensorwire.compress(bytes(64), dtype="BF16"))
    surgery.bytes[27] = 4
    with pytest.raises(tensorwire.CorruptDataError, match=r"expected a layout of split .*, split unknown, ordered 1"):
        tensorwire.frame_info(surgery.close())


@pytest.mark.parametrize(("nbytes", "numel"), [(0, 0), (2, 1), (200, 100)])
def test_an_element_is_one_word_where_nothing_else_is_said(nbytes: int, numel: int) -> None:
    layout = Layout(2, 6, 10, "float", True)
    frame = tensorwire.compress(bytes(nbytes), dtype="F16_E6", layout=layout)
    info = tensorwire.frame_info(frame)
    assert (info.bits, info.shape) == (16, (numel,))
    assert tensorwire.compress_bound(bytes(nbytes), dtype="F16_E6", layout=layout) >= len(frame)
    encoder = FrameEncoder("F16_E6", (numel,), layout=layout)
    assert encoder.uncompressed_nbytes == nbytes
    with pytest.raises(ValueError, match="do not fit"):
        tensorwire.compress(bytes(nbytes + 1), dtype="F16_E6", layout=layout)


def test_an_element_may_have_two_words() -> None:
    frame = tensorwire.compress(bytes(400), dtype="C32_E6", shape=(100,), layout=Layout(2, 6, 10, "float", True))
    assert tensorwire.frame_info(frame).bits == 32


def test_five_numbers_are_no_layout() -> None:
    with pytest.raises(TypeError, match=r"expected a tensorwire\.Layout, got tuple"):
        tensorwire.compress(bytes(64), dtype="F32", layout=(4, 8, 24, "float", True))  # type: ignore[arg-type]


# Twins --------------------------------------------------------------------------------------------------------------

TWINS = {
    "C64": ("F32", 2),
    "C128": ("F64", 2),
    "F8_E4M3FNUZ": ("F8_E4M3", 1),
    "F8_E5M2FNUZ": ("F8_E5M2", 1),
    "F4": ("U8", 0.5),
}


@pytest.mark.parametrize("relative", [False, True], ids=["plain", "relative"])
@pytest.mark.parametrize("dtype", TWINS)
def test_twins_have_the_same_blocks(dtype: str, relative: bool) -> None:
    twin, parts = TWINS[dtype]
    content = registry.weights(twin, 40_000, "twins").tobytes()
    base = content[: len(content) // 2] + content[::-1][len(content) // 2 :] if relative else None
    count = len(content) * 8 // tensorwire.codec.dtype_bits(twin)
    for profile in ("fast", "compact", "enec"):
        options: dict[str, Any] = {"profile": profile, "base": base}
        frame = tensorwire.compress(content, dtype=dtype, shape=(int(count / parts),), **options)
        expected = tensorwire.compress(content, dtype=twin, shape=(count,), **options)
        start = tensorwire.frame_info(frame).header_nbytes
        assert frame[start:] == expected[start:]
        assert len(frame) == len(expected)
        assert decompress(frame, base) == content


def test_scales_that_are_exponents_compress_like_exponents() -> None:
    """F8_E8M0: no more than the entropy of the words and 5 % more."""
    scales = np.frexp(registry.rng("scales").normal(0, 0.02, 100_000))[1].astype(np.int16) + 127
    content = scales.astype(np.uint8).tobytes()
    share = np.unique(scales, return_counts=True)[1] / len(scales)
    entropy_nbytes = -(share * np.log2(share)).sum() * len(scales) / 8
    assert len(tensorwire.compress(content, dtype="F8_E8M0", profile="compact")) < 1.05 * entropy_nbytes
