"""An object of a store, read by ranges: those that its reader told of before are fetched ahead, in pieces."""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

from .._ground.copies import not_copied, twin_of
from ..errors import TruncatedDataError
from .background import begin
from .store_errors import CHANGED

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from .remote import RemotePath

BEGINNING_NBYTES, _MAX_BEGINNING_NBYTES = 7 << 10, 256 << 10
"""What is read of an object at first: the header of a compressed file with twenty tensors or so. What is read behind it
is kept too, up to so much: a larger header."""

PIECE_NBYTES, GAP_NBYTES, BATCH = 16 << 20, 64 << 10, 4
"""Ranges less than a gap apart are one piece, as long as it is no larger; so many pieces are asked for at once."""


class RemoteFile:
    """An object as a `Readable`. `nbytes` and `identity` are those of when it was opened.

    Attributes:
        beginning: as much as is kept of it.
    """

    __reduce_ex__ = not_copied("an open object of a store", "open it again by its URL")

    def __init__(self, path: RemotePath) -> None:
        self.path = path
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        self.nbytes, self.identity, _ = path.stat()
        self.beginning = b""
        self._pieces: Pieces | None = None
        self._closed = False
        self._num_fetched, self._num_checked = 0, -1
        self._lock = Lock()

    def duplicate(self) -> RemoteFile:
        """The same object once more, which is closed on its own."""
        return twin_of(self)

    def _fetch(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = self.path.fetch(ranges)
        with self._lock:
            self._num_fetched += len(found)
        return found

    def read_into(self, offset: int, out: memoryview) -> None:
        if self._closed:
            raise ValueError(f"{self.path} is closed: read from it inside its with statement")
        self.path.check_process()
        stop = offset + len(out)
        if stop > self.nbytes:
            raise TruncatedDataError(
                f"expected {len(out)} bytes from {offset} on, got {max(0, self.nbytes - offset)}",
                file=self.path,
                byte=max(offset, self.nbytes),
            )
        done = 0
        while done < len(out):
            part = self._part(offset + done, stop)
            out[done : done + len(part)] = part
            done += len(part)

    def _part(self, start: int, stop: int) -> bytes | memoryview:
        """The bytes from `start` on; those that are here already, else up to `stop`."""
        pieces = self._pieces  # another thread may close the file
        ahead = None if pieces is None else pieces.part(start, stop)
        if ahead is not None:
            return ahead
        held = self.beginning
        if stop > (_MAX_BEGINNING_NBYTES if start <= len(held) else BEGINNING_NBYTES):
            return self._fetch([(start, stop)])[0]
        if stop > len(held):
            held += self._fetch([(len(held), max(stop, min(self.nbytes, BEGINNING_NBYTES)))])[0]
            self.beginning = held
        return held[start:stop]

    def read(self, offset: int, nbytes: int) -> bytes:
        data = bytearray(max(0, min(nbytes, self.nbytes - offset)))
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_ahead(self, offset: int, nbytes: int) -> None:
        """`expect` says it for all."""

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        ranges = [each for each in ranges if each[1] > len(self.beginning)]
        if self._pieces is not None:
            if self._pieces.cover(ranges):
                return
            self._pieces.stop()
        self._pieces = Pieces(self._fetch, self.check_unchanged, ranges)

    def check_size(self) -> None:
        if self._num_fetched != self._num_checked:  # what came has been checked behind the last piece
            self.check_unchanged()

    def check_unchanged(self) -> None:
        fetched = self._num_fetched
        if self.path.again().stat().identity != self.identity:
            raise OSError(errno.EBUSY, CHANGED, str(self.path))
        self._num_checked = fetched

    def close(self) -> None:
        self._closed = True
        if self._pieces is not None:
            self._pieces.stop()
            self._pieces = None

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Pieces:
    """Ranges of an object that will be read about in the order of their offsets, fetched ahead.

    The batch after the one that was read last is under way, and the one before it is kept. So three batches are in
    memory at most. Behind the last one the object is looked at once more: it must be the same.
    """

    __reduce_ex__ = not_copied("bytes that are on their way", "ask for them anew")

    def __init__(
        self,
        fetch: Callable[[Sequence[tuple[int, int]]], list[bytes]],
        check: Callable[[], None],
        ranges: Sequence[tuple[int, int]],
    ) -> None:
        self._fetch, self._check = fetch, check
        self._ranges = merged(ranges)
        self._starts = [start for start, _ in self._ranges]
        self._batches: dict[int, Future[list[bytes]]] = {}
        self._lock = Lock()

    def cover(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Whether all of them are expected already."""
        with self._lock:
            return all(self._covers(start, stop) for start, stop in ranges)

    def _covers(self, start: int, stop: int) -> bool:
        """The caller holds the lock."""
        while start < stop:
            index = bisect_right(self._starts, start) - 1
            if index < 0 or start >= self._ranges[index][1]:
                return False
            start = self._ranges[index][1]
        return True

    def part(self, start: int, stop: int) -> memoryview | None:
        """Bytes from `start` on, up to `stop` or the end of their piece; None if they are in no piece."""
        with self._lock:
            index = bisect_right(self._starts, start) - 1
            if index < 0 or start >= self._ranges[index][1]:
                return None
            first, last = self._ranges[index]
            batch = self._batch(index // BATCH)
        return memoryview(batch.result()[index % BATCH])[start - first : min(stop, last) - first]

    def _batch(self, number: int) -> Future[list[bytes]]:
        """A batch under way or here, and its neighbours alone beside it. The caller holds the lock."""
        self._batches = {each: batch for each, batch in self._batches.items() if abs(each - number) <= 1}
        for each in (number, number + 1):
            if each not in self._batches and each * BATCH < len(self._ranges):
                self._batches[each] = self._begin(each)
        return self._batches[number]

    def _begin(self, number: int) -> Future[list[bytes]]:
        ranges = self._ranges[number * BATCH : (number + 1) * BATCH]
        is_last = (number + 1) * BATCH >= len(self._ranges)

        def fetch() -> list[bytes]:
            found = self._fetch(ranges)
            if is_last:
                self._check()
            return found

        return begin(fetch, "tensorwire-fetch")

    def stop(self) -> None:
        """Forget what is here and what is under way."""
        with self._lock:
            self._ranges, self._starts = [], []
            self._batches.clear()


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pieces that hold these ranges: in order, cut at the size of a piece, small gaps read through."""
    whole: list[list[int]] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if whole and start - whole[-1][1] < GAP_NBYTES:
            whole[-1][1] = max(whole[-1][1], stop)
        else:
            whole.append([start, stop])
    return [
        (begin, min(begin + PIECE_NBYTES, stop)) for start, stop in whole for begin in range(start, stop, PIECE_NBYTES)
    ]
