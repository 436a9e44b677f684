"""The core against docs/format.md: it and the reference, which share no code, decode each other's frames."""

from __future__ import annotations

import hashlib
import random
import struct
import zlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tensorwire
from reference.tensorwire_reference import decode, encode
from reference.tensorwire_reference.cascade import widths_of
from reference.tensorwire_reference.decoder import decode_blocks
from reference.tensorwire_reference.header import seal_header
from reference.tensorwire_reference.index import parse_header
from reference.tensorwire_reference.layouts import SPLITS
from reference.tensorwire_reference.planes import field_nbytes
from tensorwire.codec import content_hash
from tensorwire.codec.frame import core as _core
from tests.support import golden, registry
from tests.support.conformance import CASES, Case
from tests.support.families import each_of, name_of_family
from tests.support.frame_surgery import Surgery
from tests.support.frames import compress, decompress
from tests.support.golden import kind_of
from tests.support.malformed import MALFORMED, Malformed
from tests.support.registry import Input

if TYPE_CHECKING:
    from collections.abc import Callable


def check_reference_decodes(item: Input, profile: str, base: bytes | None = None) -> set[str]:
    """The kinds of blocks that were met."""
    ours = compress(item, profile, base=base)
    frame = decode(bytes(ours), base)
    assert frame.data == item.data
    header = frame.header
    assert (header.dtype, header.shape, header.profile) == (item.dtype, item.shape, profile)
    assert header.bits == tensorwire.frame_info(ours).bits
    return {kind_of(coding).split("/")[0] for coding in frame.codings}


def is_quick(case: Case) -> bool:
    """A quarter of the cases of the families that are large grids, drawn by their names."""
    return NUM_IN_FAMILY[name_of_family(case)] < 60 or zlib.crc32(case.name.encode()) % 4 == 0


NUM_IN_FAMILY = Counter(map(name_of_family, CASES))


@each_of([case for case in CASES if is_quick(case)])
def test_core_and_reference_decode_reference_frames(case: Case) -> None:
    check_reference_frame(case)


@pytest.mark.slow
@each_of([case for case in CASES if not is_quick(case)])
def test_core_and_reference_decode_the_other_reference_frames(case: Case) -> None:
    check_reference_frame(case)


def check_reference_frame(case: Case) -> None:
    frame = case.build()
    decoded = decode(frame, case.base)
    assert decoded.data == case.data
    header = decoded.header
    assert (header.dtype, header.shape, header.profile) == (case.dtype, case.shape, case.profile)
    start, end = case.coding
    assert not start or (decoded.codings[0].startswith(start) and decoded.codings[0].endswith(end))
    info = tensorwire.frame_info(frame)
    assert (info.dtype, info.shape, info.profile) == (case.dtype, case.shape, case.profile)
    assert info.uncompressed_nbytes == len(case.data)
    assert decompress(frame, case.base) == case.data
    assert decompress(frame, case.base, verify=False) == case.data
    if case.base is not None:
        memory = bytearray(case.base)
        tensorwire.decompress(frame, base=memory, out=memory, threads=1)
        assert memory == case.data, "in place"
    assert content_hash(case.data) == info.content_hash


def test_core_decodes_golden_frames() -> None:
    names = {case.name for case in CASES}
    entries = [entry for entry in golden.manifest("frames") if entry["name"] in names]
    assert len(entries) > 250
    for entry in entries:
        frame = golden.frame_of(entry)
        info = tensorwire.frame_info(frame)
        assert hashlib.sha256(decompress(frame, golden.base_of(entry))).hexdigest() == entry["sha256"], entry["name"]
        for key in (*golden.HEADER_KEYS, "content_hash"):
            actual = getattr(info, key)
            assert (list(actual) if key == "shape" else actual) == entry[key], (entry["name"], key)
        word, exponent, rest, split, ordered = info.layout
        assert [word, exponent, rest, SPLITS.index(split), ordered] == entry["layout"], entry["name"]


@each_of(MALFORMED)
def test_core_refuses_malformed_frames(malformed: Malformed) -> None:
    frame = malformed.build()
    if malformed.name == "header-content-hash":
        # Decoding checks blocks; the content hash is for those who ask whether the tensor is the one they mean.
        assert content_hash(decompress(frame)) != tensorwire.frame_info(frame).content_hash
        return
    with pytest.raises((tensorwire.FormatError, tensorwire.BaseMismatchError)) as raised:
        decompress(frame, malformed.base)
    assert type(raised.value).__name__ == malformed.error
    if "checksum" not in malformed.name and malformed.name != "relative-same-with-data":
        assert "checksum" not in str(raised.value), "refused for its checksum, not for what is wrong"


def _refusal(decoder: Callable[..., object], *arguments: object) -> str:
    """The class of the error that a decoder raises, "" if it raises none."""
    try:
        decoder(*arguments)
    except Exception as error:
        return type(error).__name__
    return ""


@each_of(MALFORMED)
def test_core_and_reference_refuse_every_prefix_alike(malformed: Malformed) -> None:
    """Where a frame is wrong and also ends too early, the order of checks in docs/format.md says which error comes."""
    frame = malformed.build()
    # Magic, the fixed fields, the shape, the index; one length stands for the blocks behind.
    lengths = [*range(0, 128, 8), *range(128, min(len(frame), 200), 3), len(frame) - 1]
    base = malformed.base
    found = {n: (_refusal(decompress, frame[:n], base), _refusal(decode, frame[:n], base)) for n in lengths}
    assert {n: errors for n, errors in found.items() if errors[0] != errors[1]} == {}
    assert all(errors[1] for errors in found.values())


# Offset and size of every field of a header, of shape, index and extensions; values at the edge of some field.
_FIELDS = ((8, 1), (9, 1), (10, 1), (11, 1), (12, 4), (16, 4), *((offset, 1) for offset in range(20, 30)), (30, 2),
           (32, 16), (48, 8), (56, 8), (64, 8), (72, 4), (76, 4), (80, 16), (96, 16), (112, 8), (120, 8),
           *((offset, 8) for offset in range(128, 192, 8)), *((offset, 4) for offset in range(136, 160, 4)),
           (139, 1))  # fmt: skip
_EDGES = [
    *(0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 18, 19, 21, 22, 24, 32, 64, 65, 128, 160, 192, 256, 1024, 1025),
    *(2**16 - 1, 2**64 - 1),
    *(2**power + more for power in (22, 31, 32, 36, 37, 42, 52, 53, 63) for more in (0, 1, 32)),
    *(int.from_bytes(name, "little") for name in (b"X1", b"F32")),
]


def test_core_and_reference_refuse_headers_with_several_faults_alike() -> None:
    rng = random.Random(9)
    content = registry.weights("BF16", 300).tobytes()
    plain = tensorwire.compress(content, dtype="BF16", shape=(3, 100))
    relative = encode(content, "BF16", (3, 100), block_words=256, base=content[::-1])
    extended = encode(content, "BF16", (3, 100), block_words=256, extensions={1: b"\1\0\0\0", 9: b"abc"})
    different = {}
    for _ in range(5000):
        base = rng.choice((plain, relative, extended))
        frame = bytearray(base)
        for offset, size in rng.sample(_FIELDS, rng.randint(1, 3)):
            frame[offset : offset + size] = (rng.choice(_EDGES) % 256**size).to_bytes(size, "little")
        header_nbytes = tensorwire.frame_info(base).header_nbytes
        sealed = seal_header(bytes(frame[:header_nbytes])) if rng.random() < 0.5 else bytes(frame[:header_nbytes])
        cut = rng.choice([128, 130, 136, 143, 144, header_nbytes - 1, header_nbytes])
        errors = _refusal(_core.decode_header, sealed[:cut]), _refusal(parse_header, sealed[:cut])
        if errors[0] != errors[1]:
            different[sealed[:cut].hex()] = errors
    assert different == {}


def _small_cases() -> list[Case]:
    """One case of each coding, of one block and few words."""
    by_coding: dict[tuple[str, str], Case] = {}
    for case in CASES:
        if case.coding[0] and len(case.data) <= 2048:
            by_coding.setdefault((kind_of(case.coding[0]), case.coding[1][:8]), case)
    return list(by_coding.values())


@pytest.mark.parametrize("rounds", [8, pytest.param(30, marks=pytest.mark.slow)])
def test_core_and_reference_refuse_blocks_with_several_faults_alike(rounds: int) -> None:
    """Bytes of blocks changed at random, most of them near the descriptor, with all checksums right."""
    rng = random.Random(10)
    different, refused, decoded = {}, 0, 0
    for case in _small_cases():
        frame = case.build()
        for _ in range(rounds):
            surgery = Surgery(frame)
            if surgery.get("data_nbytes") == 0:
                break  # all blocks are same
            block = rng.randrange(surgery.num_blocks)
            start, stop = surgery.block_span(block)
            for _ in range(rng.randint(1, 3)):
                position = max(start, stop - 1 - int(rng.expovariate(0.1))) if rng.random() < 0.7 else start
                position = position if rng.random() < 0.8 else rng.randrange(start, stop)
                surgery.bytes[position] = rng.choice([surgery.bytes[position] ^ 1 << rng.randrange(8), 0, 255])
            surgery.rehash_block(block)
            damaged = surgery.close()
            core = partial(decompress, verify=case.base is None)  # else it compares the content hash of what came out
            errors = _refusal(core, damaged, case.base), _refusal(_decode_blocks_alone, damaged, case.base)
            refused, decoded = refused + bool(errors[1]), decoded + (not errors[1])
            if errors[0] != errors[1]:
                different[damaged.hex()] = (case.name, *errors)
            elif not errors[1]:
                assert core(damaged, case.base) == _decode_blocks_alone(damaged, case.base)
    assert different == {}
    assert refused > 16 * rounds
    assert decoded > 1.6 * rounds


def _decode_blocks_alone(frame: bytes, base: bytes | None) -> bytes:
    """As the core does it: without the content hash."""
    header, index = parse_header(frame)
    return decode_blocks(frame[header.header_nbytes :], header, index, base)[0]


@pytest.mark.parametrize("profile", registry.PROFILES)
@pytest.mark.parametrize("dtype", registry.DTYPES)
def test_reference_decodes_core_frames(dtype: str, profile: str) -> None:
    kinds = set()
    for item in registry.small_inputs():
        if item.dtype == dtype:
            kinds |= check_reference_decodes(item, profile)
    expected = {
        "enec": {"constant", "enec", "stored"},
        "fast": {"constant", "cascade", "zeros", "stored"},
        "compact": {"constant", "entropy", "zeros", "stored"},
        "resident": {"constant", "cascade2", "stored"},
    }
    if dtype in registry.FLOATS:
        assert kinds >= expected[profile]


@pytest.mark.parametrize("profile", registry.PROFILES)
@pytest.mark.parametrize("dtype", registry.FLOATS)
def test_reference_decodes_core_frames_of_many_blocks(dtype: str, profile: str) -> None:
    patterns = registry.every_pattern(dtype)
    weights = registry.weights(dtype, 150_001, "many blocks")
    words = np.concatenate([weights, patterns, np.zeros(70_000, weights.dtype), weights[:70_000]])
    check_reference_decodes(Input("", dtype, words.shape, words.tobytes()), profile)


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("profile", ["enec", "fast", "compact"])
@pytest.mark.parametrize("dtype", registry.DTYPES)
def test_reference_decodes_relative_core_frames(dtype: str, profile: str, stride: int) -> None:
    """Inputs relative to themselves, without changes, with a few, with many, or to other bytes of their size. The quick
    tests take another one of these for each of many inputs in turn, and for every second one of floats, and with each
    profile another one."""
    kinds, shares = set(), (0.0, 0.02, 0.5, None)
    every = min(stride, 4 if dtype in registry.FLOATS else 2 if dtype in registry.PLAIN else 1)
    items = [item for item in registry.small_inputs() if item.dtype == dtype and len(item.data) < 50_000]
    first, part = ["enec", "fast", "compact"].index(profile), every // 2 if every > 2 else 1
    for number, item in enumerate(items[first % part :: part], first):
        rng = registry.rng(f"base {item}")
        words = np.frombuffer(item.data, registry.word_type(dtype))
        for share in shares[number % every :: every]:
            change = (rng.random(len(words)) < (share or 0)) * rng.integers(1, 4, len(words))
            base = item.data[::-1] if share is None else (words + change.astype(words.dtype)).tobytes()
            kinds |= check_reference_decodes(item, profile, base)
    assert kinds >= ({"same", "sparse", "dense"} if dtype in registry.FLOATS else {"same", "sparse"})


def test_overhead_of_full_blocks() -> None:
    """Index, parameters and padding of a full BF16 block."""
    n = 32768
    words = registry.weights("BF16", 8 * n, "overhead")
    surgery = Surgery(tensorwire.compress(words.tobytes(), dtype="BF16", shape=words.shape))
    assert surgery.num_blocks == 8
    for index in range(surgery.num_blocks):
        start, stop = surgery.block_span(index)
        block = bytes(surgery.bytes[start:stop])
        kind, rest, widths = block[-1] & 7, block[-1] >> 3 & 3, widths_of(1)[block[-1] >> 5]
        assert (kind, rest) == (3, 0), "cascade, verbatim"
        counts = (n, *struct.unpack("<5H", block[-11:-1]))
        tiers = sum(field_nbytes(count, width) for count, width in zip(counts, widths, strict=False))
        streams = field_nbytes(n, 8) + tiers + field_nbytes(counts[len(widths)], 8)
        assert 0 <= 8 + len(block) - streams - 11 <= 48
