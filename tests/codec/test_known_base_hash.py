"""A base's hash that the caller knows: the base is not hashed, and a wrong one gives a frame that nobody decodes."""

from __future__ import annotations

from typing import Any

import pytest

import tensorwire
from tensorwire import BaseMismatchError, FrameEncoder, codec
from tensorwire.codec import core, relative
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
