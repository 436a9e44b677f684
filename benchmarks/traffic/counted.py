"""How many bytes codecs have made of the messages so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorwire.torch import traffic

if TYPE_CHECKING:
    from collections.abc import Callable


def counted(attached: Any, is_wanted: Callable[[Any], bool] = lambda row: True) -> tuple[int, int]:
    """In a rank: bytes that it would have sent without a codec, and those that it has sent, in the rows that are wanted
    of the counters of a model or a group."""
    try:
        rows = [row for row in traffic.counters(attached) if is_wanted(row)]
    except ValueError:
        rows = []  # nothing has travelled yet
    return sum(row.raw_nbytes for row in rows), sum(row.sent_nbytes for row in rows)
