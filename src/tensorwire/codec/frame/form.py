"""What a frame may have besides what its tensor asks for: a layout, alignments, extensions."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from ...errors import UnsupportedTensorError
from ..view.arrays import byte_view
from . import core
from .layouts import core_layout

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..view.dtypes import Layout

DEFAULT_ALIGNMENT = 32
MAX_BLOCK_ALIGNMENT = 4096
MAX_FRAME_ALIGNMENT = 2**21
_ENCODER_TAG = 1
_FIRST_PRIVATE_TAG = 2**31
_OWNER_NBYTES = 8
"""By so many bytes, which are drawn at random, an owner knows a private extension."""
NO_HASH = bytes(16)  # of a base that will be hashed
_HASH = re.compile(r"[0-9a-fA-F]{32}")


def new_form(
    layout: Layout | None,
    block_alignment: int = DEFAULT_ALIGNMENT,
    frame_alignment: int | None = None,
    padding_nbytes: int = 0,
    extensions_nbytes: int = 0,
) -> core.Form:
    """The form of a frame; the core checks what belongs together.

    Raises:
        ValueError: an alignment is no power of two, or a number is too large.
    """
    form = core.Form()
    if layout is not None:
        form.layout = core_layout(layout)
    form.block_alignment = _log2("block_alignment", block_alignment, DEFAULT_ALIGNMENT, MAX_BLOCK_ALIGNMENT)
    frame_alignment = block_alignment if frame_alignment is None else frame_alignment
    form.frame_alignment = _log2("frame_alignment", frame_alignment, block_alignment, MAX_FRAME_ALIGNMENT)
    if not 0 <= padding_nbytes < 2**32:
        raise ValueError(f"expected padding of 0 to 2 MiB, got {padding_nbytes}")
    form.padding_nbytes = padding_nbytes
    form.extensions_nbytes = extensions_nbytes
    return form


def _log2(name: str, alignment: int, least: int, most: int) -> int:
    if not least <= alignment <= most or alignment & (alignment - 1):
        raise ValueError(f"expected {name} to be a power of two from {least} to {most}, got {alignment}")
    return alignment.bit_length() - 1


def checked_hash(digits: str) -> bytes:
    """The bytes of a content hash, or ValueError."""
    if not isinstance(digits, str) or not _HASH.fullmatch(digits):
        raise ValueError(f"expected a content hash of 32 hexadecimal digits, got {digits!r}")
    return bytes.fromhex(digits)


def pack_extensions(extensions: Mapping[int, Buffer]) -> bytes:
    """The records of docs/format.md, "Extensions".

    Raises:
        ValueError: a tag is not for writers, or its content is none that it allows.
        TypeError: it is no mapping of tags to bytes.
    """
    if not isinstance(extensions, Mapping) or any(not isinstance(tag, int) for tag in extensions):
        raise TypeError(f"expected extensions as a mapping of tags, which are numbers, to bytes, got {extensions!r}")
    return b"".join(_record(tag, extensions[tag]) for tag in sorted(extensions))


def _record(tag: int, extension: Buffer) -> bytes:
    if tag != _ENCODER_TAG and not _FIRST_PRIVATE_TAG <= tag < 2**32:
        raise ValueError(
            f"expected tags of your own, from 2**31 to 2**32 - 1, or {_ENCODER_TAG}, the encoder's number, got {tag}"
        )
    try:
        view = byte_view(extension)
    except UnsupportedTensorError:
        raise TypeError(f"expected bytes for the extension with tag {tag}, got {type(extension).__name__}") from None
    content = bytes(view.data)
    if tag == _ENCODER_TAG and len(content) != 4:
        raise ValueError(f"expected 4 bytes for the extension with tag {tag}, the encoder's number, got {len(content)}")
    if tag >= _FIRST_PRIVATE_TAG and len(content) < _OWNER_NBYTES:
        raise ValueError(
            f"expected {_OWNER_NBYTES} bytes or more for the extension with tag {tag}, of which the first "
            f"{_OWNER_NBYTES} are drawn at random once and say that it is yours, got {len(content)}"
        )
    if len(content) >= 2**32:
        raise ValueError(f"expected less than 4 GiB for the extension with tag {tag}, got {len(content)} bytes")
    return struct.pack("<II", tag, len(content)) + content + bytes(-len(content) % 8)


def parse_extensions(records: bytes) -> dict[int, bytes]:
    """The extensions of records that the core has checked."""
    found = {}
    at = 0
    while at < len(records):
        tag, length = struct.unpack_from("<II", records, at)
        if tag == 0:
            break
        found[tag] = records[at + 8 : at + 8 + length]
        at += 8 + length + -length % 8
    return found


def new_frame(
    dtype: str,
    bits: int,
    shape: tuple[int, ...],
    profile: str,
    *,
    form: core.Form | None = None,
    base_hash: bytes | None = None,
) -> core.Frame:
    """The frame of a tensor that is still to be encoded; a relative one gets the hash of its base, or NO_HASH.

    Raises:
        ValueError: one of the arguments is invalid.
    """
    if form is None and base_hash is None:
        return core.Frame.from_buffer_copy(_plain_frame(dtype, bits, shape, profile))
    return core.frame_init(dtype, bits, shape, _number_of(profile), form, base_hash)


@lru_cache(256)  # engines compress many tensors that are alike, and small ones
def _plain_frame(dtype: str, bits: int, shape: tuple[int, ...], profile: str) -> core.Frame:
    return core.frame_init(dtype, bits, shape, _number_of(profile))


def _number_of(profile: str) -> int:
    if profile not in core.PROFILES:
        raise ValueError(f"expected one of the profiles {', '.join(core.PROFILES)}, got {profile!r}")
    return core.PROFILES.index(profile)
