"""Work that is done again and again, but may take only a share of the time."""

from __future__ import annotations


class TimeShare:
    """Says how long to rest after each piece of work. A single piece that takes long changes nothing.

    Args:
        share: of the time that the work may take.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._before = 0.0

    def rest_after(self, seconds: float) -> float:
        """Seconds to rest after a piece of work that took so many."""
        usual, self._before = min(seconds, self._before), seconds
        return usual / self._share
