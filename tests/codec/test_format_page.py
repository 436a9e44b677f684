"""The worked examples of docs/format.md: the bytes that stand there mean what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tensorwire
from reference.tensorwire_reference import cascade, decode, encode, rans
from reference.tensorwire_reference.decoder import decode_block
from reference.tensorwire_reference.hashes import content_hash, h128
from reference.tensorwire_reference.layouts import TABLE
from reference.tensorwire_reference.planes import Reader

PAGE = Path(__file__).resolve().parents[2] / "docs" / "format.md"
_, LAYOUT = TABLE["BF16"]


def section(title: str) -> str:
    return PAGE.read_text().split(f"### {title}\n")[1].split("\n### ")[0]


def example(title: str) -> bytes:
    """The bytes of a section's indented lines, up to the remark that three spaces set off; `(bytes) * n` repeats."""
    lines = [line.strip().split("   ")[0] for line in section(title).splitlines() if line.startswith("    ")]
    assert lines
    return bytes.fromhex(re.sub(r"\(([0-9a-f ]+)\) \* (\d+)", lambda m: m[1] * int(m[2]), " ".join(lines)))


def test_hashes() -> None:
    text = section("Hashes by hand")
    found = dict(re.findall(r"^\| `?([^|`]+?)`? \| `(\w{32})` \|$", text, re.MULTILINE))
    counting = bytes(i % 251 for i in range(131_073))
    longer = h128(counting[:2000]).hex()
    assert found == {"none": h128(b"").hex(), "abc": h128(b"abc").hex(), "2,000 bytes, byte i is i mod 251": longer}
    assert re.findall(r"content hash of 131,073 bytes .* is `(\w{32})`", text) == [content_hash(counting).hex()]
    assert tensorwire.codec.content_hash(counting) == content_hash(counting).hex()


def of_the_annex(message: bytes) -> bytes:
    """H as the annex has it, with its secret and its constants."""
    text = PAGE.read_text().split("## Annex: H\n")[1].split("\n## ")[0]
    secret = bytes.fromhex("".join(re.findall(r"^    ([0-9a-f ]{71})$", text, re.MULTILINE)))
    one = {name: int(digits, 16) for name, digits in re.findall(r"\b([A-U]) = ([0-9A-F]{8,16})\b", text)}
    assert (len(secret), len(one)) == (192, 9)
    word, padded = (1 << 64) - 1, message + bytes(-len(message) % 256 if message else 256)

    def le64(data: bytes, at: int) -> int:
        return int.from_bytes(data[at : at + 8], "little")

    def merge(sums: list[int], at: int, h: int) -> int:
        for j in range(0, 8, 2):
            x = (sums[j] ^ le64(secret, at + 8 * j)) * (sums[j + 1] ^ le64(secret, at + 8 * j + 8))
            h += x & word ^ x >> 64
        h = ((h & word) ^ (h & word) >> 37) * one["U"] & word
        return h ^ h >> 32

    sums = [one[name] for name in "CPQRSBTA"]
    stripes = len(padded) // 64
    for i in range(stripes):
        at = 121 if i == stripes - 1 else 8 * (i % 16)
        for j in range(8):
            d = le64(padded, 64 * i + 8 * j)
            k = d ^ le64(secret, at + 8 * j)
            sums[j ^ 1] += d
            sums[j] += (k & 0xFFFFFFFF) * (k >> 32)
        sums = [each & word for each in sums]
        if i % 16 == 15 and i < stripes - 1:
            sums = [(a ^ a >> 47 ^ le64(secret, 128 + 8 * j)) * one["A"] & word for j, a in enumerate(sums)]
    low = merge(sums, 11, len(padded) * one["P"])
    high = merge(sums, 117, ~(len(padded) * one["Q"]) & word)
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


@pytest.mark.parametrize("nbytes", [0, 1, 256, 257, 1024, 1025, 2048, 2049, 5000])
def test_the_annex(nbytes: int) -> None:
    message = bytes(i * i % 251 for i in range(nbytes))
    assert of_the_annex(message) == h128(message)


def test_frame() -> None:
    frame = example("A frame")
    assert len(frame) == 192
    words = bytes.fromhex("803f") * 100
    decoded = decode(frame)
    header = decoded.header
    assert (decoded.data, header.dtype, header.shape, decoded.codings) == (words, "BF16", (4, 25), ("constant",))
    assert header.layout == LAYOUT
    assert bytes(tensorwire.decompress(frame, framework="bytes")) == words
    assert encode(words, "BF16", (4, 25), profile="fast", block_words=256) == frame


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
    decoded, coding = decode_block(block, 40, LAYOUT, "fast")
    assert decoded.tolist() == words.tolist()
    assert coding == "zeros/1(signs=2,stored)"


def test_modal() -> None:
    i = np.arange(24)
    words = 0x3C00 + 16 * (i % 8)
    words[[6, 20]] += 2 << 7, -1 << 7
    decoded, coding = decode_block(example("A block of kind modal"), 24, LAYOUT, "compact")
    assert decoded.tolist() == words.tolist()
    assert coding == "modal/6(mode=120,others=2)+trimmed"


def test_parts() -> None:
    decoded, coding = decode_block(example("A block of kind parts"), 512, LAYOUT, "compact")
    assert decoded.tolist() == [0x3F80] * 256 + [0x3F80, 0x4000] * 128
    assert coding == "parts(constant;stored)"


def test_scaled() -> None:
    """The products by floats of NumPy: the reference has them in integers."""
    i = np.arange(32)
    numbers = np.where(i % 3 == 2, -1, 1) * (1 + i % 8 / 8).astype(np.float32)
    words = (numbers * np.float32([0.3, 0.1])[i // 8 % 2]).astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    decoded, coding = decode_block(example("A block of kind scaled"), 32, LAYOUT, "compact")
    assert decoded.tolist() == words.tolist()
    assert coding == "scaled/0(width=8,num_scales=2,stored)"
    said = re.findall(r"\b[3B][0-9A-E][0-9A-F]{2}\b", section("A block of kind scaled"))
    assert said == [f"{words[k]:04X}" for k in (*range(4), *range(8, 12))]


def test_sparse() -> None:
    block = example("A block of kind sparse")
    i = np.arange(20)
    base = np.concatenate([0x3B00 + i, 0x3D00 + i]).astype(np.uint64)
    words = base.copy()
    words[[3, 4, 25]] += np.array([1, 6, -2]).astype(np.uint64)
    decoded, coding = decode_block(block, 40, LAYOUT, "fast", base)
    assert decoded.tolist() == words.tolist()
    assert coding == "sparse(thresholds=[120],changed=3)"
    bits = (
        "".join(re.findall(r"^\| ([01 ,]+) \|", section("A block of kind sparse"), re.MULTILINE))
        .replace(" ", "")
        .replace(",", "")
    )
    assert np.packbits([int(bit) for bit in bits], bitorder="little").tobytes() == block[:8]


def test_dense() -> None:
    i = np.arange(96)
    base = np.where(i < 32, 0x3B00 + i, 0x3D00 + i - 32)
    words = base.copy()
    words[[6, 70]] += 1, -7
    block = example("A block of kind dense")
    decoded, coding = decode_block(block, 96, LAYOUT, "enec", base.astype(np.uint64))
    assert decoded.tolist() == words.tolist()
    assert coding == "dense(thresholds=[120],changed=2)"


@pytest.mark.parametrize(
    "name", re.findall(r"^### (.*)$", PAGE.read_text().split("## Worked examples")[1], re.MULTILINE)
)
def test_every_example_is_checked(name: str) -> None:
    assert f'("{name}")' in Path(__file__).read_text()
