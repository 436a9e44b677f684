"""How many threads a call takes."""

from __future__ import annotations

import operator
import os

_MAX_THREADS = 1024


def num_threads(threads: int | None) -> int:
    """`threads`, or all usable cores; ValueError if it is out of range."""
    if threads is None:
        return min(len(os.sched_getaffinity(0)), _MAX_THREADS)
    threads = operator.index(threads)
    if not 1 <= threads <= _MAX_THREADS:
        raise ValueError(f"expected 1 to {_MAX_THREADS} threads, got {threads}")
    return threads
