"""Memory in huge pages: the page table of a process is small then, and the process is forked soon."""

from __future__ import annotations

import ctypes
from pathlib import Path

_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1; older kernels refuse it
_NBYTES = 2 << 20


def collapse_memory() -> None:
    """Have the kernel move what this process has written so far into huge pages, as far as it can."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, access, _, _, _, *name = line.split()
        start, end = (int(each, 16) for each in place.split("-"))
        first, last = -(-start // _NBYTES) * _NBYTES, end // _NBYTES * _NBYTES
        if access == "rw-p" and name in ([], ["[heap]"]) and first < last:
            madvise(first, last - first, _COLLAPSE)
