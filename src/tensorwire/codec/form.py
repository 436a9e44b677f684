"""What a frame may have besides what its tensor asks for: a layout, alignments, extensions."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import core
from .arrays import byte_view
from .dtypes import SPLITS, Layout

if TYPE_CHECKING:
    from typing_extensions import Buffer

DEFAULT_ALIGNMENT = 32
NO_HASH = bytes(16)  # of a base that will be hashed
_HASH = re.compile(r"[0-9a-fA-F]{32}")


def core_layout(layout: Layout) -> core.Layout:
    """The core's form of a layout, which it checks.

    Raises:
        ValueError: a number is none of a byte, or there is no such split.
        TypeError: it is no layout.
    """
    if not isinstance(layout, Layout):
        raise TypeError(f"expected a tensorwire.Layout, got {type(layout).__name__}")
    numbers = layout[:3]
    # The core takes words of no bytes for a layout that is not given.
    if layout.split not in SPLITS or any(not 0 <= number < 256 for number in numbers) or not layout.word_nbytes:
        raise ValueError(f"expected numbers of 0 to 255, words and a split of {', '.join(SPLITS)}, got {layout}")
    return core.Layout(*numbers, SPLITS.index(layout.split), bool(layout.ordered))


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
    form.block_alignment = _log2(block_alignment)
    form.frame_alignment = _log2(
        max(block_alignment, DEFAULT_ALIGNMENT) if frame_alignment is None else frame_alignment
    )
    if not 0 <= padding_nbytes < 2**32:
        raise ValueError(f"expected padding of 0 to 2 MiB, got {padding_nbytes}")
    form.padding_nbytes = padding_nbytes
    form.extensions_nbytes = extensions_nbytes
    return form


def _log2(alignment: int) -> int:
    if alignment < DEFAULT_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(f"expected an alignment of a power of two from {DEFAULT_ALIGNMENT} on, got {alignment}")
    return alignment.bit_length() - 1


def checked_hash(digits: str) -> bytes:
    """The bytes of a content hash, or ValueError."""
    if not isinstance(digits, str) or not _HASH.fullmatch(digits):
        raise ValueError(f"expected a content hash of 32 hexadecimal digits, got {digits!r}")
    return bytes.fromhex(digits)


def pack_extensions(extensions: Mapping[int, Buffer]) -> bytes:
    """The records of docs/format.md, "Extensions".

    Raises:
        ValueError: a tag is not 1 to 2**32 - 1, or an extension has 4 GiB or more.
    """
    records = b""
    for tag in sorted(extensions):
        view = byte_view(extensions[tag])  # which keeps the memory where it is
        content = bytes(view.data)
        if not 0 < tag < 2**32 or len(content) >= 2**32:
            raise ValueError(
                f"expected tags of 1 to 2**32 - 1 and less than 4 GiB, got tag {tag}, {len(content)} bytes"
            )
        records += struct.pack("<II", tag, len(content)) + content + bytes(-len(content) % 8)
    return records


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
    if profile not in core.PROFILES:
        raise ValueError(f"expected one of the profiles {', '.join(core.PROFILES)}, got {profile!r}")
    return core.frame_init(dtype, bits, shape, core.PROFILES.index(profile), form, base_hash)
