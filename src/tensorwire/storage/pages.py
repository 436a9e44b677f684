"""Pages of mapped files, brought into memory in the background before they are touched."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from .._ground.copies import not_copied
from .._ground.memory import memory_nbytes

_POPULATE_READ = 22  # MADV_POPULATE_READ, from Linux 5.14 on
_STEP_NBYTES = 32 << 20
"""In one call. After it the thread may wait some milliseconds for the interpreter, which a loader keeps busy."""

_madvise = ctypes.CDLL(None).madvise  # that of `mmap` keeps the interpreter's lock
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class _MappedBytes(NamedTuple):
    """Bytes of a map, which may be gone."""

    map: weakref.ref[mmap.mmap]
    start: int
    nbytes: int


class PagesAhead:
    """Lets the system read pages of mapped files and enter them into the process's page table, in one thread.

    It stops at half of the memory that the process may have: what is read ahead must not push out what was read before
    it was used. The other pages come when they are touched, as all do where the system cannot do this. The thread ends
    when nothing is left, or what is left is not mapped any more. Thread-safe; does nothing in a forked child.
    """

    __reduce_ex__ = not_copied("a thread", "make another one")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: deque[_MappedBytes] = deque()
        self._left = memory_nbytes() // 2
        self._running = False
        self._process = os.getpid()

    def add(self, parts: Iterable[tuple[mmap.mmap, int, int]]) -> None:
        """Parts of maps, each by its first byte and its size, in the order in which they will be touched."""
        if os.getpid() != self._process:  # the thread may have held the lock when this process was forked
            return
        with self._lock:
            self._parts.extend(_MappedBytes(weakref.ref(map_), start, nbytes) for map_, start, nbytes in parts)
            if not self._parts or self._running:
                return
            self._running = True
        try:
            threading.Thread(target=self._run, name="tensorwire-pages", daemon=True).start()
        except RuntimeError:  # no more threads
            self._running = False

    def _run(self) -> None:
        while (part := self._next()) is not None:
            if not _populate(part):
                with self._lock:
                    self._left = 0

    def _next(self) -> _MappedBytes | None:
        """The next step; the thread ends if there is none."""
        with self._lock:
            if not self._parts or self._left <= 0:
                self._running = False
                return None
            part = self._parts.popleft()
            step = min(part.nbytes, _STEP_NBYTES)
            if part.nbytes > step:
                self._parts.appendleft(part._replace(start=part.start + step, nbytes=part.nbytes - step))
            self._left -= step
            return part._replace(nbytes=step)


def _populate(part: _MappedBytes) -> bool:
    """Whether the system does it: not if the file has got shorter."""
    map_ = part.map()
    if map_ is None:
        return True
    first = part.start // mmap.PAGESIZE * mmap.PAGESIZE
    held = ctypes.c_char.from_buffer(map_, first)
    return int(_madvise(ctypes.addressof(held), part.start + part.nbytes - first, _POPULATE_READ)) == 0
