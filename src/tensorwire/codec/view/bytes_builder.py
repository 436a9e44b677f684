"""Bytes objects that are filled before a caller sees them."""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress

from ..._ground.allocation import PAGE_NBYTES, SMALL_NBYTES
from ..._ground.copies import not_copied
from .buffers import view_of_memory

_HUGE_PAGE_NBYTES = 2 << 20

_new_bytes = ctypes.pythonapi["PyBytes_FromStringAndSize"]
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
_new_bytes.restype = ctypes.c_void_p
_content_of_bytes = ctypes.pythonapi["PyBytes_AsString"]
_content_of_bytes.argtypes = [ctypes.c_void_p]
_content_of_bytes.restype = ctypes.c_void_p
_resize_bytes = ctypes.pythonapi["_PyBytes_Resize"]
_resize_bytes.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_ssize_t]
_release = ctypes.pythonapi["Py_DecRef"]
_release.argtypes = [ctypes.c_void_p]
_release.restype = None
_madvise = ctypes.CDLL(None)["madvise"]
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class BytesBuilder:
    """A bytes object that is filled in place and cut to size, without a copy if it is large: what C extensions do.

    Attributes:
        data: the memory to be filled; not to be used once `finish` has been called.
    """

    __reduce_ex__ = not_copied("memory that becomes one bytes object", "copy what finish returns")

    def __init__(self, nbytes: int) -> None:
        self._object = ctypes.c_void_p()
        if nbytes < SMALL_NBYTES:  # a copy is cheaper
            self.data = memoryview(bytearray(nbytes))
            return
        with suppress(MemoryError):  # of CPython, which does not say how much
            self._object.value = _new_bytes(None, nbytes) if nbytes < sys.maxsize - PAGE_NBYTES else None
        if not self._object:
            raise MemoryError(f"no memory for {nbytes} bytes")
        address = _content_of_bytes(self._object)
        first = -(-address // _HUGE_PAGE_NBYTES) * _HUGE_PAGE_NBYTES
        last = (address + nbytes) // _HUGE_PAGE_NBYTES * _HUGE_PAGE_NBYTES
        if first < last:
            _madvise(first, last - first, mmap.MADV_HUGEPAGE)  # a kernel without huge pages refuses, and that is fine
        self.data = view_of_memory(address, nbytes, None, writable=True)  # it is ours until `finish`

    def finish(self, nbytes: int) -> bytes:
        """The object, of the first `nbytes` bytes."""
        if not self._object:
            return bytes(self.data[:nbytes])
        self.data.release()
        _resize_bytes(ctypes.byref(self._object), nbytes)
        finished: bytes = ctypes.cast(self._object, ctypes.py_object).value
        return finished  # our own reference goes with the builder

    def __del__(self) -> None:
        if self._object:
            _release(self._object)
