"""Section "Hashes": XXH3-128 of padded messages, and the content hash.

A padded message has 256 bytes or more and nothing but whole stripes of 64, so one of the paths of XXH3 is all there is.
It is computed for many messages of one length at once: the leaves of a content hash.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .planes import U64

LEAF_NBYTES = 131072
_UNIT = 256
_STRIPES_OF_BLOCK = 16
_LEAVES_AT_ONCE = 32
_MASK = (1 << 64) - 1
_PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME64_1, _PRIME64_2, _PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME64_4, _PRIME64_5, _PRIME_MX = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5, 0x165667919E3779F9
_FIRST = np.array(
    [_PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1], np.uint64
)
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d"
    "8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc"
    "8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def _secret(start: int) -> U64:
    """Eight numbers of it, from a byte on."""
    return np.frombuffer(_SECRET[start : start + 64], "<u8").astype(np.uint64)


_SECRETS_OF_STRIPES = np.stack([_secret(8 * n) for n in range(_STRIPES_OF_BLOCK)])
_SECRET_OF_LAST_STRIPE = _secret(121)
_SECRET_BETWEEN_BLOCKS = _secret(128)
_NEIGHBORS = np.array([1, 0, 3, 2, 5, 4, 7, 6])
_LOW_HALF, _HALF, _SHIFT, _FACTOR = map(np.uint64, (0xFFFFFFFF, 32, 47, _PRIME32_1))
_LOW, _HIGH = _secret(11).tolist(), _secret(117).tolist()


def h128(message: bytes) -> bytes:
    """`H(message)`: 16 bytes, the low 64-bit half first."""
    padding = _UNIT if not message else -len(message) % _UNIT
    return next(_hashes(np.frombuffer(bytes(message) + bytes(padding), "<u8").reshape(1, -1, 8)))


def content_hash(data: bytes) -> bytes:
    """The 16-byte hash tree over the uncompressed bytes of a frame."""
    whole = len(data) // LEAF_NBYTES
    hashes: list[bytes] = []
    for start in range(0, whole, _LEAVES_AT_ONCE):
        count = min(_LEAVES_AT_ONCE, whole - start)
        words = np.frombuffer(data, "<u8", count * LEAF_NBYTES // 8, start * LEAF_NBYTES)
        hashes += _hashes(words.reshape(count, -1, 8))
    if len(data) % LEAF_NBYTES:
        hashes.append(h128(data[whole * LEAF_NBYTES :]))
    return h128(len(data).to_bytes(8, "little") + b"".join(hashes))


@lru_cache(maxsize=16)
def _plan(num_stripes: int) -> tuple[U64, npt.NDArray[np.int64]]:
    """The secret of each stripe of a message, and the first stripe of each block."""
    secrets = np.resize(_SECRETS_OF_STRIPES, (num_stripes, 8))
    secrets[-1] = _SECRET_OF_LAST_STRIPE
    return secrets, np.arange(0, num_stripes, _STRIPES_OF_BLOCK)


def _hashes(words: U64) -> Iterator[bytes]:
    """The hash of each message, given as stripes of eight words."""
    num_stripes = words.shape[1]
    secrets, starts = _plan(num_stripes)
    keyed = words ^ secrets
    added = (keyed & _LOW_HALF) * (keyed >> _HALF)
    added += words[..., _NEIGHBORS]
    sums = np.add.reduceat(added, starts, axis=1)
    lanes = _FIRST + sums[:, 0]
    for block in range(1, sums.shape[1]):
        lanes ^= lanes >> _SHIFT
        lanes ^= _SECRET_BETWEEN_BLOCKS
        lanes *= _FACTOR
        lanes += sums[:, block]
    nbytes = 64 * num_stripes
    for message in lanes.tolist():
        low = _merge(message, _LOW, nbytes * _PRIME64_1)
        high = _merge(message, _HIGH, ~(nbytes * _PRIME64_2))
        yield (high << 64 | low).to_bytes(16, "little")


def _merge(lanes: list[int], secret: list[int], start: int) -> int:
    for i in range(0, 8, 2):
        product = (lanes[i] ^ secret[i]) * (lanes[i + 1] ^ secret[i + 1])
        start += product ^ product >> 64
    x = start & _MASK
    x = (x ^ x >> 37) * _PRIME_MX & _MASK
    return x ^ x >> 32
