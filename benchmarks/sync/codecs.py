"""What trainers send of a tensor, from arrays to arrays: our frames, and the two forms of slime, miles and SGLang.

These two are written anew from the published layout: zstd at level 1 of the XOR, or of a count, positions of bytes and
the new bytes; and a checksum, xxh3-128, of the whole new tensor, which the receiver compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import xxhash
import zstandard

from tensorwire import compress, decompress
from tensorwire.codec import FrameReader, compress_over, content_hash

if TYPE_CHECKING:
    from collections.abc import Mapping


class Codec(Protocol):
    def encode(self, old: np.ndarray, new: np.ndarray, old_hash: str) -> Any:
        """What is sent of words `new`; the receiver has `old`, whose content hash the sender knows."""

    def apply(self, sent: Any, held: np.ndarray) -> None:
        """Change the words that the receiver holds."""


class Dense:
    """All words as they are."""

    def encode(self, old: np.ndarray, new: np.ndarray, old_hash: str) -> Any:
        return _bytes(new)

    def apply(self, sent: Any, held: np.ndarray) -> None:
        held[:] = np.frombuffer(sent, np.uint16)


class Plain:
    """Our plain frame."""

    def encode(self, old: np.ndarray, new: np.ndarray, old_hash: str) -> Any:
        return compress(_bytes(new), dtype="BF16", threads=1)

    def apply(self, sent: Any, held: np.ndarray) -> None:
        decompress(sent, out=_bytes(held), threads=1)


class Relative:
    """Our relative frame. The hash of its base is known, since it is that of the frame before; and a follower compares
    that of the result alone, which no other base gives."""

    def __init__(self, profile: Any) -> None:
        self._profile = profile

    def encode(self, old: np.ndarray, new: np.ndarray, old_hash: str) -> Any:
        return compress(
            _bytes(new), dtype="BF16", base=_bytes(old), base_hash=old_hash, profile=self._profile, threads=1
        )

    def apply(self, sent: Any, held: np.ndarray) -> None:
        frame = FrameReader(sent)
        start, stop = frame.info.header_nbytes, frame.info.header_nbytes + frame.info.data_nbytes
        blocks, data = memoryview(sent)[start:stop], _bytes(held)
        found, _ = frame.decode_and_hash(blocks, data, base=data, hash_base=False, threads=1)
        if found != frame.info.content_hash:
            raise AssertionError("other words came out")


def encode_over(held: np.ndarray, new: np.ndarray, old_hash: str) -> bytes:
    """Our relative frame, whose base becomes the new words, as a publisher makes it."""
    return compress_over(
        _bytes(held), _bytes(new), dtype="BF16", shape=new.shape, profile="fast", base_hash=old_hash, threads=1
    )


class _Zstandard:
    def __init__(self) -> None:
        self._compressor, self._decompressor = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()

    def encode(self, old: np.ndarray, new: np.ndarray, old_hash: str) -> Any:
        form = self._form(old.view(np.uint8), new.view(np.uint8))
        return xxhash.xxh3_128_digest(new) + self._compressor.compress(form)

    def apply(self, sent: Any, held: np.ndarray) -> None:
        self._change(self._decompressor.decompress(memoryview(sent)[16:]), held.view(np.uint8))
        if xxhash.xxh3_128_digest(held) != bytes(sent[:16]):
            raise AssertionError("other words came out")

    def _form(self, old: np.ndarray, new: np.ndarray) -> Any:
        raise NotImplementedError

    def _change(self, form: bytes, held: np.ndarray) -> None:
        raise NotImplementedError


class Xor(_Zstandard):
    def _form(self, old: np.ndarray, new: np.ndarray) -> Any:
        return np.bitwise_xor(old, new)

    def _change(self, form: bytes, held: np.ndarray) -> None:
        np.bitwise_xor(held, np.frombuffer(form, np.uint8), out=held)


class Overwrite(_Zstandard):
    def _form(self, old: np.ndarray, new: np.ndarray) -> Any:
        positions = np.flatnonzero(old != new).astype("<u4")
        return len(positions).to_bytes(4, "little") + positions.tobytes() + new[positions].tobytes()

    def _change(self, form: bytes, held: np.ndarray) -> None:
        count = int.from_bytes(form[:4], "little")
        positions = np.frombuffer(form, "<u4", count, 4)
        held[positions] = np.frombuffer(form, np.uint8, count, 4 + 4 * count)


DENSE, PLAIN, FAST, COMPACT, XOR, OVERWRITE = (
    "dense", "dense, compressed", "tensorwire, fast", "tensorwire, compact", "xor, zstd 1", "overwrite, zstd 1",
)  # fmt: skip
CODECS: dict[str, Codec] = {
    DENSE: Dense(), PLAIN: Plain(), FAST: Relative("fast"), COMPACT: Relative("compact"), XOR: Xor(),
    OVERWRITE: Overwrite(),
}  # fmt: skip


def _bytes(words: np.ndarray) -> memoryview:
    return memoryview(words).cast("B")


def hashes(words: Mapping[str, np.ndarray]) -> dict[str, str]:
    """What a sender knows of what it has sent."""
    return {name: content_hash(each, threads=1) for name, each in words.items()}
