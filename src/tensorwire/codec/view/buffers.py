"""Buffers of Python as the C ABI takes them: by address and size, for as long as a call lasts."""

from __future__ import annotations

import ctypes
import sys
from contextlib import nullcontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

    from typing_extensions import Buffer


# Indexing, unlike attribute access, gives function objects of our own: prototypes on shared ones would be seen by all.
_get_buffer = ctypes.pythonapi["PyObject_GetBuffer"]
_release_buffer = ctypes.pythonapi["PyBuffer_Release"]

_PYBUF_SIMPLE = 0
_PYBUF_WRITABLE = 1


class Pin(ctypes.Structure):
    """The address and size of a C-contiguous buffer, which stays in place to the end of a ``with`` block.

    Raises TypeError without the buffer protocol, ValueError if the buffer is not contiguous, or read-only and
    `writable` is asked for.
    """

    # The fields of Py_buffer, the same in every CPython that we support. A second object around them would cost small
    # calls, each of which makes several pins.
    _fields_ = [
        ("address", ctypes.c_size_t),
        ("_object", ctypes.c_void_p),
        ("nbytes", ctypes.c_ssize_t),
        ("_itemsize", ctypes.c_ssize_t),
        ("_readonly", ctypes.c_int),
        ("_ndim", ctypes.c_int),
        ("_pointers", 5 * ctypes.c_void_p),  # format, shape, strides, suboffsets, internal
    ]
    address: int
    nbytes: int

    def __init__(self, buffer: Buffer, *, writable: bool = False) -> None:
        try:
            _get_buffer(buffer, self, _PYBUF_WRITABLE if writable else _PYBUF_SIMPLE)
        except (BufferError, ValueError) as error:  # bytes raise the one, NumPy the other
            wanted = "writable, C-contiguous" if writable else "C-contiguous"
            raise ValueError(f"expected a {wanted} buffer, got one that is not: {error}") from None

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *_: object) -> None:
        _release_buffer(self)

    def overlaps(self, other: Pin) -> bool:
        """Whether some bytes are in both."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(Pin), ctypes.c_int]
_release_buffer.argtypes = [ctypes.POINTER(Pin)]
_release_buffer.restype = None

# To pin anything, even b"", takes longer than to decode a small frame.
_NOTHING = nullcontext(Pin.__new__(Pin))


def pin_if_given(buffer: Buffer | None, *, writable: bool = False) -> AbstractContextManager[Pin]:
    """`Pin(buffer)`; at address 0 without a buffer."""
    return _NOTHING if buffer is None else Pin(buffer, writable=writable)


class _Byte(ctypes.Union):
    """The buffer of a union, unlike that of any number of ctypes, has the format "B"."""

    _fields_ = [("value", ctypes.c_ubyte)]


class _Memory(_Byte * sys.maxsize):  # type: ignore[misc]
    """All memory from an address on, of which views take a part: one type, since ctypes makes one for each length."""

    owner: Any


def view_of_memory(address: int, nbytes: int, owner: object, *, writable: bool) -> memoryview:
    """A view of memory that lives as long as `owner`. The view, and what is made of it, keep that alive."""
    if nbytes == 0:
        return memoryview(bytearray() if writable else b"")
    memory = _Memory.from_address(address)
    memory.owner = owner
    view = memoryview(memory)[:nbytes]
    return view if writable else view.toreadonly()
