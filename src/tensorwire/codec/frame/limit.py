"""The limit that a caller sets to what data may claim."""

from __future__ import annotations


def check_max_nbytes(max_nbytes: object) -> None:
    """Raise TypeError or ValueError for what is no number of bytes: NaN would be larger than every claim."""
    if max_nbytes is None:
        return
    if isinstance(max_nbytes, bool) or not hasattr(max_nbytes, "__index__"):
        raise TypeError(f"expected max_nbytes to be a number of bytes, as an int, or None, got {max_nbytes!r:.60}")
    if max_nbytes.__index__() < 0:
        raise ValueError(f"expected max_nbytes to be at least 0, got {max_nbytes}")
