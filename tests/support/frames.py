"""Frames as the tests make them of the registry's inputs, and what damage to one may look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorwire
from tensorwire import CorruptDataError, FrameReader, UnsupportedVersionError
from tensorwire.codec import check_frame_size

if TYPE_CHECKING:
    from tests.support.registry import Input

MAGIC = bytes.fromhex("93545746 0D0A1A0A")
BLOCK_ERRORS = (CorruptDataError, UnsupportedVersionError)
"""What a damaged block may look like: damage can make it one of a kind that a later version may have."""


def compress(item: Input, profile: str = "fast", **options: Any) -> bytes:
    """A frame of the item; a `base` may be None."""
    return bytes(tensorwire.compress(item.data, dtype=item.dtype, shape=item.shape, profile=profile, **options))


def decompress(frame: bytes | memoryview, base: Any = None, **options: Any) -> bytes:
    """The content of exactly one frame, as a file's payload is; `tensorwire.decompress` allows bytes behind it."""
    info = FrameReader(frame).info
    check_frame_size(info, max(len(frame), info.frame_nbytes))
    return bytes(tensorwire.decompress(frame, base=base, framework="bytes", **options))
