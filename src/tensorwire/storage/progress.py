"""Telling a caller how far an operation is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What an operation calls to tell how far it is: at the start and the end of each file, and in between.

    It is called from the thread that called the operation, which waits meanwhile. An exception that it raises ends the
    operation as Ctrl-C would. A result that goes into a store is counted once more while it is put there, from 0 on.
    """

    def __call__(self, done: int, total: int, path: str, /) -> None:
        """
        Args:
            done: bytes done; never falls, and is `total` at the end.
            total: bytes to be done in all files. The operation says which bytes it counts.
            path: the file at work, relative to the checkpoint; for `diff` the name of the tensor.
        """


class Meter:
    """Counts bytes over several files and reports them as ``progress(done, total, path)``."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._target = 0
        self._path = ""

    def begin(self, path: str, nbytes: int) -> None:
        """A file, which counts for `nbytes` bytes, is next."""
        self._path = path
        self._target = self._done + nbytes
        self._report()

    def advance(self, nbytes: int) -> None:
        """Count bytes of the file at work, up to what it counts for."""
        self._done = min(self._done + nbytes, self._target)
        self._report()

    def end(self) -> None:
        """The file at work is done, even if less of it was counted."""
        self._done = self._target
        self._report()

    def finish(self) -> None:
        """All is done, also what was not needed."""
        self._done = self._target = self._total
        self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total, self._path)
