"""The memory that we allocate: for arrays, and for bytes objects that are filled before a caller sees them."""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress

from ..._ground.copies import not_copied
from .buffers import view_of_memory

PAGE_NBYTES = mmap.PAGESIZE
_HUGE_PAGE_NBYTES = 2 << 20
_SMALL_NBYTES = 64 << 10  # below this, pages that the kernel maps and clears cost more than the work on them

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


def new_buffer(nbytes: int) -> memoryview:
    """New writable memory, page-aligned from one page on. Its content is unspecified."""
    if nbytes < PAGE_NBYTES:
        return memoryview(bytearray(nbytes))
    if nbytes < _SMALL_NBYTES:
        room = bytearray(nbytes + PAGE_NBYTES)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(room)) % PAGE_NBYTES
        return memoryview(room)[start : start + nbytes]
    try:
        # Private: the default of the mmap module is shared memory, which has no huge pages and is shared after a fork.
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for {nbytes} bytes") from error
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)  # twice as fast to touch for the first time
    return memoryview(pages)


class BytesBuilder:
    """A bytes object that is filled in place and cut to size, without a copy if it is large: what C extensions do.

    Attributes:
        data: the memory to be filled; not to be used once `finish` has been called.
    """

    __reduce_ex__ = not_copied("memory that becomes one bytes object", "copy what finish returns")

    def __init__(self, nbytes: int) -> None:
        self._object = ctypes.c_void_p()
        if nbytes < _SMALL_NBYTES:  # a copy is cheaper
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
