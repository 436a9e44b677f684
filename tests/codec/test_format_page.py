"""The worked examples of docs/format.md: the bytes that stand there mean what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tensorwire
from reference.tensorwire_reference import cascade, decode, rans
from reference.tensorwire_reference.decoder import decode_block
from reference.tensorwire_reference.hashes import h128
from reference.tensorwire_reference.layouts import dtype_of
from reference.tensorwire_reference.planes import Reader

PAGE = Path(__file__).resolve().parents[2] / "docs" / "format.md"


def section(title: str) -> str:
    return PAGE.read_text().split(f"### {title}\n")[1].split("\n### ")[0]


def example(title: str) -> bytes:
    """The bytes of the indented lines of a section, up to the remark that three spaces set off."""
    lines = [line.strip().split("   ")[0] for line in section(title).splitlines() if line.startswith("    ")]
    assert lines
    return bytes.fromhex("".join(lines))


def test_hashes() -> None:
    found = dict(re.findall(r"^\| `?(\w+)`? \| `(\w{32})` \|$", section("Hashes by hand"), re.MULTILINE))
    assert found == {"none": h128(b"").hex(), "abc": h128(b"abc").hex()}


def test_frame() -> None:
    frame = example("A frame")
    assert len(frame) == 192
    words = bytes.fromhex("803f") * 100
    decoded = decode(frame)
    assert (decoded.data, decoded.dtype, decoded.shape, decoded.codings) == (words, "BF16", (4, 25), ("constant",))
    assert bytes(tensorwire.decompress(frame, framework="bytes")) == words


def test_cascade() -> None:
    content = example("Eight exponents in a cascade")
    streams, params = content[:20], content[20:]
    x, _ = cascade.decode(params, cascade.TIER_WIDTHS[0], Reader(streams), 8, 8)
    exponents = re.search(r"The exponents ([0-9, ]+) become", section("Eight exponents in a cascade"))
    assert exponents
    assert x.tolist() == [int(number) for number in exponents[1].split(",")]


def test_table_of_frequencies() -> None:
    frequencies = rans.read_frequencies(Reader(example("A table of frequencies")))
    assert {s: f for s, f in enumerate(frequencies) if f} == {5: 24, 7: 4071, 8: 1}


def test_zeros() -> None:
    words = np.zeros(40, np.uint64)
    words[[3, 17, 5, 20]] = 0x3F80, 0xC020, 0x8000, 0x8000
    block = example("A block of kind zeros")
    decoded, coding = decode_block(block, 40, dtype_of("BF16"), "fast")
    assert decoded.tolist() == words.tolist()
    assert coding == "zeros/1(signs=2,stored)"


def test_sparse() -> None:
    block = example("A block of kind sparse")
    i = np.arange(20)
    base = np.concatenate([0x3B00 + i, 0x3D00 + i]).astype(np.uint64)
    words = base.copy()
    words[[3, 4, 25]] += np.array([1, 6, -2]).astype(np.uint64)
    decoded, coding = decode_block(block, 40, dtype_of("BF16"), "fast", base)
    assert decoded.tolist() == words.tolist()
    assert coding == "sparse(thresholds=[120],changed=3)"
    bits = (
        "".join(re.findall(r"^\| ([01 ,]+) \|", section("A block of kind sparse"), re.MULTILINE))
        .replace(" ", "")
        .replace(",", "")
    )
    assert np.packbits([int(bit) for bit in bits], bitorder="little").tobytes() == block[:8]


@pytest.mark.parametrize(
    "name", re.findall(r"^### (.*)$", PAGE.read_text().split("## Worked examples")[1], re.MULTILINE)
)
def test_every_example_is_checked(name: str) -> None:
    assert f'("{name}")' in Path(__file__).read_text()
