"""The content hash of a tensor whose bytes come in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .frame import core
from .frame.threads import num_threads
from .view.arrays import byte_view

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ContentHasher:
    """The content hash of bytes that come in chunks of any size. One thread at a time."""

    def __init__(self, *, threads: int | None = None) -> None:
        self._threads = num_threads(threads)
        self._leaves = bytearray()
        self._kept = b""  # of a leaf that has not ended
        self._nbytes = 0

    def update(self, data: Buffer) -> None:
        """Add a chunk. Chunks of multiples of 131,072 bytes are not copied."""
        source = byte_view(data)
        view = source.data
        self._nbytes += len(view)
        if self._kept:
            rest = core.LEAF_NBYTES - len(self._kept)
            self._kept += view[:rest]
            view = view[rest:]
            if len(self._kept) < core.LEAF_NBYTES:
                return
            self._leaves += core.hash_leaves(self._kept, 1)
        whole = len(view) // core.LEAF_NBYTES * core.LEAF_NBYTES
        if whole:
            self._leaves += core.hash_leaves(view[:whole], self._threads)
        self._kept = bytes(view[whole:])

    def hexdigest(self) -> str:
        """The content hash of everything so far, 32 hexadecimal digits."""
        return core.hash_root(self._nbytes, bytes(self._leaves) + core.hash_leaves(self._kept, 1).raw).hex()
