"""How a compressed safetensors file is laid out; and one of frames that are there already, in memory, which is what the
writer makes of their tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..codec import frame_info
from .header import ALIGNMENT, Header, TensorEntry, build_header, check_dtype, packed
from .names import MARKER_DTYPE, MARKER_SHAPE, payload_name
from .reader import CHECKSUM_KEY, HASH_PREFIX, PROFILE_KEY, VERSION, VERSION_KEY, header_checksum

NO_HASH = "0" * 32


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


def compressed_metadata(profile: str, hashes: Mapping[str, str]) -> dict[str, str]:
    """What is ours in the metadata of a file whose tensors have these content hashes; the checksum comes later."""
    ours = {VERSION_KEY: VERSION, PROFILE_KEY: profile, CHECKSUM_KEY: NO_HASH}
    return ours | {HASH_PREFIX + name: found for name, found in hashes.items()}


def compressed_entries(
    frames: Mapping[str, int], plain: Iterable[tuple[str, str, tuple[int, ...], int]]
) -> list[TensorEntry]:
    """Frames, by name and size, then the plain tensors, as `packed` takes them. All are aligned, if no frame has a
    larger `frame_alignment` than the one before it."""
    return packed(((payload_name(name), "U8", (nbytes,), nbytes) for name, nbytes in frames.items()), plain)


def compressed_header(
    metadata: Mapping[str, str],
    frames: Iterable[str],
    entries: Sequence[TensorEntry],
    nbytes: int = 0,
    *,
    alignment: int = ALIGNMENT,
) -> Header:
    """The header with its checksum, and with markers for the tensors that are `frames`; `nbytes` and `alignment` as for
    `build_header`."""
    everything = [*(TensorEntry(name, MARKER_DTYPE, MARKER_SHAPE, 0, 0) for name in sorted(frames)), *entries]
    checksum = header_checksum(metadata, everything)
    return build_header({**metadata, CHECKSUM_KEY: checksum}, everything, nbytes, alignment=alignment)


def frame_file(tensors: Sequence[Stored], profile: str) -> bytes:
    """The bytes of the file. Each frame begins at a multiple of its `frame_alignment`: the largest come first, and each
    ends at a multiple of its own."""
    for tensor in tensors:
        check_dtype(tensor.dtype)
    metadata = compressed_metadata(profile, {tensor.name: tensor.content_hash for tensor in tensors})
    infos = {tensor.name: frame_info(tensor.data) for tensor in tensors if tensor.compressed}
    frames = {
        name: info.frame_nbytes for name, info in sorted(infos.items(), key=lambda item: -item[1].frame_alignment)
    }
    alignment = max([ALIGNMENT, *(info.frame_alignment for info in infos.values())])
    plain = (tensor for tensor in tensors if not tensor.compressed)
    entries = compressed_entries(frames, ((each.name, each.dtype, each.shape, len(each.data)) for each in plain))
    data = {payload_name(each.name) if each.compressed else each.name: each.data for each in tensors}
    header = compressed_header(metadata, frames, entries, alignment=alignment)
    return b"".join([header.prefix, *(data[entry.name] for entry in entries)])
