"""ctypes binding of the products of core/include/tensorwire.h, which documents the calls; and of calls so short that
the checks of buffers would take longer.
"""

from __future__ import annotations

import ctypes
import enum

from .._ground.copies import not_copied
from .frame.core import VERIFY, Error, Frame, decode_at, function
from .view.buffers import Pin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .frame.chunks import FrameReader

_u32, _u64, _address, _text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p
_frame, _error = ctypes.POINTER(Frame), ctypes.POINTER(Error)

_linear = function(
    "tw_linear", ctypes.c_int, _frame, _address, _address, _u64, ctypes.c_int, _address, _u64, _address,
    ctypes.POINTER(_u32), _u32, _address, _u32, _address, _error,
)  # fmt: skip
_linear_dense = function(
    "tw_linear_dense", ctypes.c_int, _text, _address, _u64, _u64, ctypes.c_int, _address, _u64, _address, _u32,
    _address, _error,
)  # fmt: skip
_linear_orders = function("tw_linear_orders", _u32, _text)


class Order(enum.IntEnum):
    """In which products sum their terms; core/include/tensorwire.h says how."""

    SUMS_32 = 0
    SUMS_64 = 1
    PAIRS_512 = 2
    PAIRS_1024 = 3
    GEMV_16 = 4
    GEMM_768 = 5


def linear_orders(dtype: str) -> list[Order]:
    """Orders in which this machine multiplies weights of `dtype` faster than by decoding them first."""
    orders = _linear_orders(dtype.encode())
    return [order for order in Order if orders >> order & 1]


class PlacedFrame:
    """A plain frame whose blocks all lie in memory, in one place. Where outputs and inputs are is taken on trust: they
    are addresses, of as many bytes as the call needs. Thread-safe.
    """

    __reduce_ex__ = not_copied("the address of a frame", "make one where the frame is")

    def __init__(self, reader: FrameReader, data: Buffer, *, verify: bool) -> None:
        """
        Args:
            data: all blocks, which stay where they are.
            verify: check the checksum of each block when it is first decoded.
        """
        self._frame, self._header, self._data = reader._frame, reader._header, data  # which keeps them where they are
        self._flags = VERIFY if verify else 0
        self._checked = ctypes.create_string_buffer(-(-reader.info.num_blocks // 8)) if verify else None
        with Pin(self._header) as head, Pin(data) as source:
            self._header_address, self._address, self._nbytes = head.address, source.address, source.nbytes

    def decode(self, start: int, stop: int, out: int, threads: int, parallel: int | None) -> None:
        """Content bytes [start, stop) to the address `out`."""
        decode_at(
            self._frame, self._header_address, self._address, 0, self._nbytes, None, 0, 0, start, stop, out, threads,
            parallel, self._flags, self._checked, Error(),
        )  # fmt: skip

    def linear(self, order: Order, inputs: int, count: int, outputs: int, threads: int, parallel: int | None) -> bool:
        """`count` inputs at one address, float32 and contiguous, to outputs at another. False where tw_linear's `plain`
        is 0: other bits than those of the same order elsewhere may come out then."""
        plain = _u32()
        _linear(
            self._frame, self._header_address, self._address, self._nbytes, order, inputs, count, outputs,
            ctypes.byref(plain), threads, parallel, self._flags, self._checked, Error(),
        )  # fmt: skip
        return plain.value != 0


def linear_dense(
    dtype: str, weights: int, rows: int, columns: int, order: Order, inputs: int, count: int, outputs: int,
    threads: int, parallel: int | None,
) -> None:  # fmt: skip
    """The same with `rows` times `columns` weights that are not compressed; all three are addresses."""
    _linear_dense(dtype.encode(), weights, rows, columns, order, inputs, count, outputs, threads, parallel, Error())
