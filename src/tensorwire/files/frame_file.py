"""A compressed safetensors file of frames that are there already, in memory. It is what the writer makes of their
tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..codec import dtype_bits
from .header import TensorEntry, build_header, check_dtype
from .names import MARKER_DTYPE, MARKER_SHAPE, payload_name
from .reader import CHECKSUM_KEY, HASH_PREFIX, PROFILE_KEY, VERSION, VERSION_KEY, header_checksum


class Stored(NamedTuple):
    """A tensor that is to be stored.

    Attributes:
        data: a frame, or with `compressed` False the content.
        content_hash: of the content.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes
    compressed: bool
    content_hash: str


def frame_file(tensors: Sequence[Stored], profile: str) -> bytes:
    """The bytes of the file. Frames come first, then plain tensors, widest dtypes first: all are aligned."""
    metadata = {VERSION_KEY: VERSION, PROFILE_KEY: profile, CHECKSUM_KEY: ""}
    ordered = sorted(tensors, key=lambda tensor: 0 if tensor.compressed else 1 / dtype_bits(tensor.dtype))
    markers, entries, position = [], [], 0
    for tensor in ordered:
        check_dtype(tensor.dtype)
        metadata[HASH_PREFIX + tensor.name] = tensor.content_hash
        stop = position + len(tensor.data)
        if tensor.compressed:
            markers.append(TensorEntry(tensor.name, MARKER_DTYPE, MARKER_SHAPE, 0, 0))
            entries.append(TensorEntry(payload_name(tensor.name), "U8", (len(tensor.data),), position, stop))
        else:
            entries.append(TensorEntry(tensor.name, tensor.dtype, tensor.shape, position, stop))
        position = stop
    metadata[CHECKSUM_KEY] = header_checksum(metadata, [*markers, *entries])
    header = build_header(metadata, [*sorted(markers), *entries])
    return b"".join([header.prefix, *(tensor.data for tensor in ordered)])
