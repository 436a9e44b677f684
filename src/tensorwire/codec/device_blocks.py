"""What devices need of frames: a ctypes binding of what core/include/tensorwire.h has for them, and new headers."""

from __future__ import annotations

import ctypes
import struct

from .frame import core
from .frame.core import PROFILES, Error, Frame, function
from .frame.facts import frame_facts
from .frame.form import NO_HASH, new_form, new_frame
from .view.buffers import Pin
from .view.dtypes import SPLITS, dtype_bits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .frame.chunks import FrameReader
    from .frame.facts import FrameInfo, Profile

TAIL_NBYTES = 32
"""Bytes at the end of each block that say how it is coded."""
ROW_NBYTES, BLOCK_NBYTES = 32, 16
"""Sizes of tw_device_row and tw_device_block."""
_OFFSET_NBYTES = 8
_RUN = 256  # words
_MAGIC, _VERSION = b"\x93TWF\r\n\x1a\n", 1
_FIXED = struct.Struct("<8s4BI4xxBBx5BxH16sQ16xI52x")
"""The fixed part of a header; zeros for what depends on the content, and for what is 0 in all frames of devices."""
_frame, _address = ctypes.POINTER(Frame), ctypes.c_void_p

_block_offsets = function("tw_block_offsets", None, _frame, _address, _address)
_device_blocks = function(
    "tw_device_blocks", ctypes.c_int, _frame, _address, _address, ctypes.c_uint64, _address, _address,
    ctypes.POINTER(Error),
)  # fmt: skip


def block_offsets(reader: FrameReader, out: Buffer) -> None:
    """Where the blocks begin in the frame, and where the last one ends: numbers of 64 bits."""
    with Pin(out, writable=True) as target:
        _check_size("offsets", target, (reader.info.num_blocks + 1) * _OFFSET_NBYTES)
        _block_offsets(reader._frame, reader._header, target.address)


def device_blocks(reader: FrameReader, tails: Buffer, rows: Buffer, blocks: Buffer) -> None:
    """A tw_device_row and a tw_device_block for each block, by the last TAIL_NBYTES of all of them, for a plain frame.

    Raises:
        CorruptDataError, UnsupportedVersionError: the descriptor of a block is wrong.
        ValueError: the frame is relative, or a buffer has another size.
    """
    count = reader.info.num_blocks
    with Pin(tails) as source, Pin(rows, writable=True) as table, Pin(blocks, writable=True) as target:
        _check_size("rows", table, count * ROW_NBYTES)
        _check_size("blocks", target, count * BLOCK_NBYTES)
        _device_blocks(
            reader._frame, reader._header, source.address, source.nbytes, table.address, target.address, Error()
        )


def _check_size(name: str, target: Pin, nbytes: int) -> None:
    if target.nbytes != nbytes:
        raise ValueError(f"expected {nbytes} bytes for {name}, got {target.nbytes}")


def frame_to_encode(dtype: str, shape: tuple[int, ...], profile: Profile, *, block_words: int = 0) -> FrameInfo:
    """The frame of a tensor of a dtype of safetensors, as `compress` would begin it: what depends on the content is 0.

    Args:
        block_words: of a relative frame; 0 for a plain one.

    Raises:
        ValueError: there is no such profile.
        LimitExceededError: the tensor is larger than the format allows.
    """
    if not block_words:
        return frame_facts(new_frame(dtype, dtype_bits(dtype), shape, profile))
    form = new_form(None)
    form.block_words = block_words
    return frame_facts(new_frame(dtype, dtype_bits(dtype), shape, profile, form=form, base_hash=NO_HASH))


def header_to_encode(info: FrameInfo) -> bytes:
    """The fixed part and the shape of a frame. What depends on the content is 0: header_nbytes, data_nbytes,
    padding_nbytes, the hashes and the checksums."""
    fixed = _FIXED.pack(
        _MAGIC, _VERSION, PROFILES.index(info.profile), 0, len(info.shape),
        0 if info.base_hash is None else core.BASE_RELATIVE,
        info.block_alignment.bit_length() - 1, info.frame_alignment.bit_length() - 1,
        info.layout.word_nbytes, info.layout.exponent_bits, info.layout.rest_bits, SPLITS.index(info.layout.split),
        info.layout.ordered, info.bits, info.dtype.encode(), info.uncompressed_nbytes, info.block_words,
    )  # fmt: skip
    return fixed + struct.pack(f"<{len(info.shape)}Q", *info.shape)


def encode_page(content: Buffer, dtype: str, out: Buffer, frame_nbytes: int) -> int:
    """A frame of one dimension and one block, of profile resident, to the front of `out`; its size.

    Args:
        content: 1 to 2^18 words, contiguous.
        frame_nbytes: what zeros behind the block fill the frame up to, if it is smaller; a multiple of 32.

    Returns:
        Bytes of the frame; 0 if it is larger than `out`, which is left as it was then.
    """
    source, target = memoryview(content).cast("B"), memoryview(out).cast("B")
    bits, form = dtype_bits(dtype), new_form(None)
    num_words = source.nbytes * 8 // bits
    form.block_words = -(-num_words // _RUN) * _RUN
    frame = new_frame(dtype, bits, (num_words,), "resident", form=form)
    blocks, index = bytearray(core.data_bound(frame, source.nbytes)), bytearray(8)
    leaves = core.Leaves(source.nbytes)
    data_nbytes = core.encode_blocks(frame, 0, source, 0, blocks, index, leaves, 1, None, None)
    whole = frame.header_nbytes + data_nbytes
    if max(whole, frame_nbytes) > target.nbytes:
        return 0
    frame.padding_nbytes = max(frame_nbytes - whole, 0)
    header = bytearray(frame.header_nbytes)
    core.encode_header(frame, data_nbytes, index, leaves.hashes, b"", header)
    written = header + blocks[:data_nbytes] + bytes(frame.padding_nbytes)
    target[: len(written)] = written
    return len(written)
