"""Frames as FrameEncoder makes them, from the header to the padding."""

from __future__ import annotations

from typing import Any

from tensorwire import FrameEncoder


def encode(
    content: bytes,
    dtype: str,
    shape: tuple[int, ...],
    *,
    base: bytes | None = None,
    chunk: int = 1 << 40,
    **options: Any,
) -> bytes:
    """A frame of content that comes in chunks of this size."""
    encoder = FrameEncoder(dtype, shape, relative=base is not None, **options)
    blocks = b""
    for start in range(0, len(content), chunk):
        part = content[start : start + chunk]
        out = bytearray(encoder.data_bound(len(part)))
        written = encoder.encode(part, out, base=None if base is None else base[start : start + chunk])
        blocks += out[:written]
    header = encoder.finish()
    frame = header + blocks + bytes(encoder.info.padding_nbytes)
    assert len(frame) == encoder.info.frame_nbytes
    return frame
