"""ctypes binding of the products of core/include/tensorwire.h, which documents the calls; and of calls so short that
the checks of buffers would take longer.
"""

from __future__ import annotations

import ctypes

from .core import Error, Frame, Pin, decode_at, find_dtype, function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Buffer

_VERIFY = 1
_u32, _u64, _address, _text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p
_frame, _error = ctypes.POINTER(Frame), ctypes.POINTER(Error)

_linear = function(
    "tw_linear", ctypes.c_int, _frame, _address, _address, _u64, _address, _u64, _address, _u32, _address, _u32, _error,
)  # fmt: skip
_linear_dense = function(
    "tw_linear_dense", ctypes.c_int, _text, _address, _u64, _u64, _address, _u64, _address, _u32, _address, _error,
)  # fmt: skip


def _check_product(inputs: Pin, outputs: Pin, rows: int, columns: int) -> int:
    """How many inputs there are: float32, `columns` each, for `rows` outputs each."""
    count = inputs.nbytes // (4 * columns) if columns else outputs.nbytes // max(4 * rows, 1)
    if inputs.nbytes != 4 * count * columns or outputs.nbytes != 4 * count * rows:
        raise ValueError(
            f"expected inputs of {columns} and outputs of {rows} float32 each, got {inputs.nbytes} and "
            f"{outputs.nbytes} bytes"
        )
    return count


class PlacedFrame:
    """A plain frame whose blocks all lie in memory, in one place. Where outputs and inputs are is taken on trust: they
    are addresses, of as many bytes as the call needs.
    """

    def __init__(self, frame: Frame, header: bytes, data: Buffer) -> None:
        self._frame, self._header, self._data = frame, header, data  # which keeps them where they are
        with Pin(header) as head, Pin(data) as source:
            self._header_address, self._address, self._nbytes = head.address, source.address, source.nbytes

    def decode(self, start: int, stop: int, out: int, threads: int, parallel: int | None, verify: bool) -> None:
        """Content bytes [start, stop) to the address `out`."""
        decode_at(
            self._frame, self._header_address, self._address, 0, self._nbytes, None, 0, 0, start, stop, out, threads,
            parallel, _VERIFY if verify else 0, Error(),
        )  # fmt: skip

    def linear(self, inputs: int, count: int, outputs: int, threads: int, parallel: int | None, verify: bool) -> None:
        """`count` inputs at one address, float32 and contiguous, to outputs at another."""
        _linear(
            self._frame, self._header_address, self._address, self._nbytes, inputs, count, outputs, threads, parallel,
            _VERIFY if verify else 0, Error(),
        )  # fmt: skip


def linear_dense(
    dtype: str, weights: Buffer, rows: int, columns: int, inputs: Buffer, outputs: Buffer, threads: int,
    parallel: int | None,
) -> None:  # fmt: skip
    """The same with weights that are not compressed."""
    with Pin(weights) as source, Pin(inputs) as given, Pin(outputs, writable=True) as target:
        row = find_dtype(dtype)
        if row is None or source.nbytes != rows * columns * row.word_nbytes:
            raise ValueError(f"expected {rows} x {columns} weights of {dtype}, got {source.nbytes} bytes")
        count = _check_product(given, target, rows, columns)
        _linear_dense(
            dtype.encode(), source.address, rows, columns, given.address, count, target.address, threads, parallel,
            Error(),
        )  # fmt: skip
