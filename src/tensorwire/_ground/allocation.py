"""New memory for tensors and files."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

PAGE_NBYTES = mmap.PAGESIZE
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # that of Linux, for a Python without the name
SMALL_NBYTES = 64 << 10
"""Below this, pages that the kernel maps and clears cost more than the work on them."""


def new_buffer(nbytes: int) -> memoryview:
    """New writable memory, page-aligned from one page on. Its content is unspecified."""
    if nbytes < PAGE_NBYTES:
        return memoryview(bytearray(nbytes))
    if nbytes < SMALL_NBYTES:
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
