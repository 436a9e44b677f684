"""Hostile relative frames and bases, and damage to frames of every kind: a named error or the right content."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tensorwire
from tensorwire import (
    BaseMismatchError,
    CorruptDataError,
    FormatError,
    TruncatedDataError,
    codec,
)
from tensorwire.checkpoint import diff, inspect, load_file, open_file, save_file, verify
from tensorwire.checkpoint.operations import delta_stats
from tests.support import golden, registry
from tests.support.frame_surgery import Surgery, content_hash
from tests.support.frames import BLOCK_ERRORS, MAGIC, decompress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_NBYTES = 1500


def is_small(entry: dict[str, Any]) -> bool:
    return len(golden.frame_of(entry)) <= MAX_NBYTES


GOLDENS = [entry for entry in golden.manifest("frames") if is_small(entry)]
GROUPS = sorted({entry["name"].split("-")[0] for entry in GOLDENS})


def of_group(group: str) -> Iterator[tuple[bytes, bytes | None]]:
    for entry in GOLDENS:
        if entry["name"].split("-")[0] == group:
            yield golden.frame_of(entry), golden.base_of(entry)


def check_decodes_or_is_refused(frame: bytes, base: bytes | None, nbytes: int) -> bytes | None:
    """What a frame with right checksums decodes to, within its bounds; None if it is refused."""
    out = bytearray(b"\xa5" * (nbytes + 64))
    try:
        tensorwire.decompress(frame, base=base, out=memoryview(out)[32:-32], threads=1, verify=base is None)
    except BLOCK_ERRORS:
        return None
    finally:
        assert out[:32] == out[-32:] == b"\xa5" * 32
    return bytes(out[32:-32])


# Damage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [16, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", GROUPS)
def test_truncation_of_every_kind(group: str, stride: int) -> None:
    """Every length of one frame, every sixteenth of the others; in the slow test every one."""
    for number, (frame, base) in enumerate(of_group(group)):
        for length in range(0, len(frame), stride if number else 1):
            with pytest.raises(TruncatedDataError):
                decompress(frame[:length], base)


@pytest.mark.parametrize("group", GROUPS)
def test_truncated_blocks_with_right_checksums(group: str) -> None:
    """The last block loses aligned parts, before its descriptor or behind, and the header says so."""
    for frame, base in of_group(group):
        surgery = Surgery(frame)
        if surgery.get("data_nbytes") == 0:
            continue
        start, stop = surgery.block_span(surgery.num_blocks - 1)
        alignment = 1 << surgery.get("frame_alignment")
        for cut in range(alignment, stop - start, alignment):
            for kept in (frame[start : stop - cut], frame[start + cut : stop]):
                shorter = Surgery(frame[:start] + kept + frame[stop:])
                shorter.set("data_nbytes", surgery.get("data_nbytes") - cut)
                shorter.rehash_block(surgery.num_blocks - 1)
                check_decodes_or_is_refused(shorter.close(), base, surgery.get("uncompressed_nbytes"))


@pytest.mark.parametrize("stride", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", GROUPS)
def test_bit_flips_with_right_checksums(group: str, stride: int) -> None:
    """All bits of each descriptor, and others at random. The hash of a relative frame's content is compared. The quick
    test flips each bit of the first frame's descriptors, and in each other frame another bit of each byte."""
    for number, (frame, base) in enumerate(of_group(group)):
        surgery = Surgery(frame)
        content = decompress(frame, base)
        generator = registry.rng(f"flips {group}")
        for block in range(surgery.num_blocks if surgery.get("data_nbytes") else 0):
            start, stop = surgery.block_span(block)
            bits = {*range(8 * max(start, stop - 12) + (number % stride), 8 * stop, stride if number else 1)}
            bits |= set(generator.integers(8 * start, 8 * stop, 40 // stride).tolist()) if stop > start else set()
            for bit in bits:
                flipped = Surgery(frame)
                flipped.bytes[bit // 8] ^= 1 << bit % 8
                flipped.rehash_block(block)
                found = check_decodes_or_is_refused(flipped.close(), base, len(content))
                if base is not None and found is not None and found != content:
                    with pytest.raises(CorruptDataError):
                        decompress(flipped.close(), base)


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("profile", ["enec", "fast", "compact"])
@pytest.mark.parametrize("dtype", [*registry.FLOATS, "F64", "I32", "U8", "F4"])
def test_every_bit_flip_of_a_delta_is_found(dtype: str, profile: Any, stride: int) -> None:
    """In the slow test each bit, else of each byte another one or two in turn."""
    old, new = pair(dtype)
    frame = bytearray(tensorwire.compress(new, dtype=dtype, base=old, profile=profile))
    for bit in range(0, 8 * len(frame), stride):
        frame[bit // 8] ^= 1 << bit % 8
        memory = bytearray(old)
        with pytest.raises((FormatError, BaseMismatchError)):
            tensorwire.decompress(frame, base=memory, out=memory, threads=1)
        assert memory == old, f"bit {bit} was flipped, and the base was written to"
        frame[bit // 8] ^= 1 << bit % 8
    assert decompress(bytes(frame), old) == new


# Claims -------------------------------------------------------------------------------------------------------------


def pair(dtype: str, count: int = 300) -> tuple[bytes, bytes]:
    """Words, and others of which a few are a step away."""
    words = registry.weights(dtype, count, "pair")
    changed = words.copy()
    changed[::29] ^= changed.dtype.type(1)
    return words.tobytes(), changed.tobytes()


def claim(numel: int, content: bytes, base: bytes | None) -> bytes:
    """A frame of a few bytes that says that it is a tensor of `numel` elements; relative to a base, if there is one."""
    surgery = Surgery(tensorwire.compress(content, dtype="BF16", base=base))
    surgery.set_shape(numel)
    surgery.set("uncompressed_nbytes", 2 * numel)
    return surgery.close()


HUGE = """
import io, resource, sys
import tensorwire
from tests.codec.test_hostile_deltas import claim, pair
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
old, new = pair("BF16")
for numel in (2**31, 2**36, 2**44, 2**46, 2**52, 2**60):
    plain = claim(numel, new, None)
    for content in (old, new):
        frame = claim(numel, content, old)
        for call in (
            lambda: tensorwire.decompress(frame, base=old),
            lambda: tensorwire.decompress(frame, base=old, verify=False),
            lambda: tensorwire.decompress(frame, base=old, framework="bytes"),
            lambda: tensorwire.decompress(frame),
            lambda: tensorwire.decompress_range(frame, 0, 2 * numel, base=old),
            lambda: tensorwire.compose(old, frame),
            lambda: tensorwire.decompress(plain),
            lambda: tensorwire.decompress(plain, framework="bytes", threads=1),
        ):
            try:
                call()
            except (tensorwire.FormatError, tensorwire.BaseMismatchError):
                continue
            sys.exit("decoded")
"""


def test_a_small_frame_of_a_huge_tensor_allocates_nothing() -> None:
    """In 2 GiB of memory no MemoryError comes: what a header or a base says of sizes is compared before."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run([sys.executable, "-c", HUGE], capture_output=True, text=True, env=environment, timeout=60)
    assert run.returncode == 0, run.stderr


def test_blocks_of_a_huge_tensor_are_not_gone_through() -> None:
    """160 bytes say that 2^32 blocks are the base's: to check them takes no time."""
    old, _ = pair("BF16")
    reader = codec.FrameReader(claim(2**46, old, old))
    started = time.monotonic()
    reader.check_blocks(b"")
    assert time.monotonic() - started < 5


# Bases --------------------------------------------------------------------------------------------------------------


def wrong_bases(old: bytes) -> Iterator[tuple[str, Any]]:
    flipped = bytearray(old)
    flipped[-1] ^= 1
    yield "missing", None
    yield "shorter", old[:-2]
    yield "longer", old + b"\0\0"
    yield "empty", b""
    yield "one bit", flipped
    yield "words swapped", np.frombuffer(old, np.uint16).byteswap()


@pytest.mark.parametrize("in_place", [False, True])
def test_wrong_bases_write_nothing(in_place: bool) -> None:
    old, new = pair("BF16")
    frame = tensorwire.compress(new, dtype="BF16", base=old)
    for name, base in wrong_bases(old):
        out = bytearray(base) if in_place and base is not None else bytearray(len(new))
        before = bytes(out)
        with pytest.raises(BaseMismatchError if not in_place or base is None or len(base) == len(new) else ValueError):
            tensorwire.decompress(frame, base=out if in_place and base is not None else base, out=out)
        assert out == before, name


def test_bases_of_every_kind_of_memory() -> None:
    """Another dtype, read-only memory, a part of other memory at an odd address; one that is not contiguous is none."""
    old, new = pair("BF16")
    frame = tensorwire.compress(new, dtype="BF16", base=old)
    words = np.frombuffer(old, np.uint16)
    assert decompress(frame, words.reshape(20, 15).view(np.int16)) == new
    assert decompress(frame, words.astype(np.uint16).view(np.uint8)) == new
    assert decompress(frame, memoryview(b"\0" + old + b"\0")[1:-1]) == new
    with pytest.raises(ValueError, match=r"read-only|writable"):
        tensorwire.decompress(frame, base=old, out=old)
    spread = np.repeat(words, 2)[::2]
    try:
        assert decompress(frame, spread) == new
    except ValueError as error:
        assert "contiguous" in str(error)  # noqa: PT017


def test_the_result_over_a_part_of_the_base() -> None:
    old, new = pair("BF16", 5000)
    frame = tensorwire.compress(new, dtype="BF16", base=old)
    for shift in (-len(old) + 1, -64, -2, -1, 1, 2, 64, len(old) - 1):
        memory = bytearray(3 * len(old))
        base, out = (memoryview(memory)[start : start + len(old)] for start in (len(old), len(old) + shift))
        base[:] = old
        with pytest.raises(ValueError, match="overlaps the base"):
            tensorwire.decompress(frame, base=base, out=out)
        assert base == old
    with pytest.raises(ValueError, match="overlaps the base"):
        tensorwire.decompress_range(frame, 0, 10, base=base, out=base[:5])


@pytest.mark.parametrize("threads", [1, 4])
def test_a_base_that_another_thread_writes_to(threads: int) -> None:
    """What comes back is right, or an error: never content that is neither."""
    old, new = pair("BF16", 400_000)
    frame = tensorwire.compress(new, dtype="BF16", base=old)
    base = np.frombuffer(old, np.uint16).copy()
    generator = registry.rng("race")
    stop = threading.Event()

    def write() -> None:
        for place in generator.integers(0, len(base), 100_000).tolist():
            base[place] ^= 0x40
            time.sleep(1e-4)
            base[place] ^= 0x40
            if stop.wait(1e-4):
                return

    writer = threading.Thread(target=write)
    writer.start()

    def outcome() -> object:
        try:
            result = bytes(tensorwire.decompress(frame, base=base, framework="bytes", threads=threads))
        except (BaseMismatchError, CorruptDataError) as error:
            return type(error)
        assert content_hash(result) == content_hash(new)
        return bytes

    try:
        results = {outcome() for _ in range(100)}
    finally:
        stop.set()
        writer.join()
    assert results & {BaseMismatchError, CorruptDataError}


def test_a_file_whose_delta_claims_a_huge_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader with the base sees that it is another; a reader without it goes through nothing that is not there."""
    old = np.frombuffer(pair("BF16")[0], np.uint16)
    base, path = tmp_path / "base.safetensors", tmp_path / "delta.safetensors"
    save_file({"weight": old}, base)
    save_file({"weight": old}, path, base=base)
    data = path.read_bytes()
    start = data.index(MAGIC)
    surgery = Surgery(data[start : start + 160])
    surgery.set_shape(2**46)
    surgery.set("uncompressed_nbytes", 2**47)
    path.write_bytes(data[:start] + surgery.close() + data[start + 160 :])
    monkeypatch.setattr(delta_stats, "FrameEncoder", None)  # an encoder has room for the index of all blocks
    started = time.monotonic()
    for known in (None, base):
        with pytest.raises(BaseMismatchError):
            load_file(path, base=known)
        with open_file(path, base=known) as reader, pytest.raises(BaseMismatchError):
            reader.get_slice("weight")[:]
        report = inspect(path, base=known)
        assert report.tensors[0].num_blocks == {"same": 2**46 // surgery.get("block_words")}
        with pytest.raises(BaseMismatchError):
            diff(base, path, base=known, stats=True)
    assert verify(path).num_unchecked == 1
    assert [problem.tensor for problem in verify(path, base=base).problems] == ["weight"]
    assert time.monotonic() - started < 20
