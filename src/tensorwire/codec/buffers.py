"""Buffers of Python as the C ABI takes them: by address and size, for as long as a call lasts."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from typing_extensions import Buffer


class _PyBuffer(ctypes.Structure):
    """Py_buffer, the same in every CPython that we support."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


# Indexing, unlike attribute access, gives function objects of our own: prototypes on shared ones would be seen by all.
_get_buffer = ctypes.pythonapi["PyObject_GetBuffer"]
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi["PyBuffer_Release"]
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None
_view_of_memory = ctypes.pythonapi["PyMemoryView_FromMemory"]
_view_of_memory.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_view_of_memory.restype = ctypes.py_object

_PYBUF_SIMPLE = 0
_PYBUF_WRITABLE = 1
_PYBUF_READ = 0x100
_PYBUF_WRITE = 0x200


class Pin:
    """The address and size of a C-contiguous buffer, which stays in place for the length of a ``with`` block.

    Entering raises TypeError without the buffer protocol, BufferError if the buffer is not contiguous, or read-only and
    `writable` is asked for.
    """

    __slots__ = ("_buffer", "_flags", "_view", "address", "nbytes")

    def __init__(self, buffer: Buffer, *, writable: bool = False) -> None:
        self._buffer = buffer
        self._flags = _PYBUF_WRITABLE if writable else _PYBUF_SIMPLE

    def __enter__(self) -> Pin:
        self._view = _PyBuffer()
        _get_buffer(self._buffer, ctypes.byref(self._view), self._flags)
        self.address: int = self._view.buf or 0
        self.nbytes: int = self._view.len
        return self

    def __exit__(self, *_: object) -> None:
        _release_buffer(ctypes.byref(self._view))

    def overlaps(self, other: Pin) -> bool:
        """Whether some bytes are in both."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


# To pin anything, even b"", takes longer than to decode a small frame.
_NOTHING = nullcontext(Pin(b""))
_NOTHING.enter_result.address = _NOTHING.enter_result.nbytes = 0


def pin_if_given(buffer: Buffer | None) -> AbstractContextManager[Pin]:
    """`Pin(buffer)`; at address 0 without a buffer."""
    return _NOTHING if buffer is None else Pin(buffer)


def view_of_memory(address: int, nbytes: int, *, writable: bool) -> memoryview:
    """A view of memory that somebody else must keep alive."""
    if nbytes == 0:
        return memoryview(bytearray() if writable else b"")
    view: memoryview = _view_of_memory(address, nbytes, _PYBUF_WRITE if writable else _PYBUF_READ)
    return view
