"""ctypes binding of what core/include/tensorwire.h has for devices."""

from __future__ import annotations

import ctypes

from .frame.core import Error, Frame, function
from .view.buffers import Pin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .frame.chunks import FrameReader

TAIL_NBYTES = 32
"""Bytes at the end of each block that say how it is coded."""
ROW_NBYTES, BLOCK_NBYTES = 32, 16
"""Sizes of tw_device_row and tw_device_block."""
_OFFSET_NBYTES = 8
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
