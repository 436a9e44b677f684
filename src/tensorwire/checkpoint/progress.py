"""Telling a caller how far an operation is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Progress = Callable[[int, int, str], None]


class Meter:
    """Counts bytes over several files and reports them as ``progress(done, total, path)``."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._finished = 0
        self._path = ""

    def begin(self, path: str) -> None:
        self._path = path
        self._report()

    def advance(self, nbytes: int) -> None:
        """Count bytes of the file at work."""
        self._done += nbytes
        self._report()

    def end(self, nbytes: int) -> None:
        """The file at work, of `nbytes` bytes in all, is done."""
        self._finished += nbytes
        self._done = self._finished
        self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total, self._path)
