"""A base's hash that the caller knows: the base is not hashed, and a wrong one gives a frame that nobody decodes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tensorwire
from tensorwire import BaseMismatchError, FrameEncoder, codec
from tensorwire.codec.frame import core, relative
from tests.support import registry
from tests.support.encoders import encode

NUMEL = 200_000
BASE = registry.weights("BF16", NUMEL, "base").tobytes()
CONTENT = bytes(b ^ (i % 1000 == 0) for i, b in enumerate(BASE))
HASH = codec.content_hash(BASE)
WRONG = codec.content_hash(b"another")
PROFILES = ["fast", "compact", "enec"]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_frame_is_that_of_a_hashed_base(profile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"dtype": "BF16", "base": BASE, "profile": profile}
    expected = tensorwire.compress(CONTENT, **options)

    def hashed(*_: object) -> None:
        pytest.fail("the base was hashed")

    monkeypatch.setattr(relative, "hash_of", hashed)
    assert tensorwire.compress(CONTENT, base_hash=HASH, **options) == expected


def test_the_core_hashes_no_base_whose_hash_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have found that the hash is wrong, or have replaced it."""
    frame = tensorwire.compress(CONTENT, dtype="BF16", base=BASE, base_hash=WRONG)
    assert tensorwire.frame_info(frame).base_hash == WRONG
    encode_blocks, leaves = core.encode_blocks, []

    def observed(*arguments: Any) -> int:
        leaves.append(arguments[-1])
        return encode_blocks(*arguments)

    monkeypatch.setattr(core, "encode_blocks", observed)
    assert encode(CONTENT, "BF16", (NUMEL,), base=BASE, base_hash=WRONG) == frame
    assert leaves == [None], "there is no room for its hash"
    encode(CONTENT, "BF16", (NUMEL,), base=BASE)
    assert isinstance(leaves[1], core.Leaves)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_wrong_hash_gives_a_frame_that_is_refused(profile: Any) -> None:
    frame = tensorwire.compress(CONTENT, dtype="BF16", base=BASE, base_hash=WRONG, profile=profile)
    memory = bytearray(BASE)
    for options in ({}, {"framework": "bytes"}, {"out": bytearray(len(CONTENT))}, {"out": memory, "base": memory}):
        with pytest.raises(BaseMismatchError, match=WRONG):
            tensorwire.decompress(frame, **{"base": BASE, **options})
    assert memory == BASE
    with pytest.raises(BaseMismatchError):
        tensorwire.compose(BASE, frame)


def test_a_wrong_hash_of_content_that_is_the_base_is_refused_too() -> None:
    with pytest.raises(ValueError, match="hash"):
        tensorwire.compress(BASE, dtype="BF16", base=BASE, base_hash=WRONG)


def test_a_hash_without_a_base_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected a base with base_hash"):
        tensorwire.compress(CONTENT, dtype="BF16", base_hash=HASH)
    with pytest.raises(ValueError, match="relative=True"):
        FrameEncoder("BF16", (NUMEL,), base_hash=HASH)


@pytest.mark.parametrize("wrong", ["", HASH[:-1], HASH + "0", "g" * 32, HASH[:30] + "  ", bytes.fromhex(HASH), 7])
def test_what_is_no_hash(wrong: Any) -> None:
    with pytest.raises(ValueError, match="content hash of 32 hexadecimal digits"):
        tensorwire.compress(CONTENT, dtype="BF16", base=BASE, base_hash=wrong)
    with pytest.raises(ValueError, match="content hash of 32 hexadecimal digits"):
        FrameEncoder("BF16", (NUMEL,), relative=True, base_hash=wrong)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("numel", [0, 1, 65_537, NUMEL])
def test_a_base_that_becomes_the_content(profile: Any, threads: int, numel: int) -> None:
    base, content = BASE[: 2 * numel], CONTENT[: 2 * numel]
    options: dict[str, Any] = {"profile": profile, "base_hash": codec.content_hash(base), "threads": threads}
    memory = memoryview(bytearray(base))
    frame = codec.compress_over(memory, memoryview(content), dtype="BF16", shape=(numel,), **options)
    assert frame == tensorwire.compress(content, dtype="BF16", base=base, **options)
    assert memory == content


def test_a_base_becomes_what_the_frame_holds_while_somebody_writes_to_the_content() -> None:
    content, stop = np.frombuffer(CONTENT, np.uint16).copy(), threading.Event()

    def write() -> None:
        while not stop.is_set():
            content[::3] ^= 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for threads in (1, 3):
            memory = memoryview(bytearray(BASE))
            frame = codec.compress_over(
                memory, memoryview(content).cast("B"), dtype="BF16", shape=(NUMEL,), profile="fast", base_hash=HASH,
                threads=threads,
            )  # fmt: skip
            assert memory == tensorwire.decompress(frame, base=BASE, framework="bytes")
    finally:
        stop.set()
        writer.join()


def test_a_base_that_cannot_become_the_content() -> None:
    options: dict[str, Any] = {"dtype": "BF16", "shape": (NUMEL,), "profile": "fast", "base_hash": HASH, "threads": 1}
    with pytest.raises(ValueError, match="writable"):
        codec.compress_over(memoryview(BASE), memoryview(CONTENT), **options)
    with pytest.raises(ValueError, match=f"a base of {len(CONTENT)} bytes"):
        codec.compress_over(memoryview(bytearray(BASE[2:])), memoryview(CONTENT), **options)
