"""The operations of a frozen rank: its probe sends no heartbeat while a thread keeps the GIL.

The page of such a rank is as old as its last heartbeat. Only the Flight Recorder, which is C++ and still answers, knows
the operations that the rank has entered since.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..model import Operation
from ..page import native, worker_server
from ..page.recorder_entries import operation_info, shown_name

if TYPE_CHECKING:
    from ..model import ProcessGroup, Rank

_STILL_SECONDS: Final = 3.0
_ASK_AGAIN_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 0.5
_MAX_NUMBER = 1 << 62


@dataclass(frozen=True, slots=True)
class _Counts:
    """Collectives of a group, as the recorder has them."""

    enqueued: int
    completed: int
    operation: Operation  # the oldest open one, else the last
    created: float  # when that was entered, on the monotonic clock


class FrozenRanks:
    """Remembers the answers of the recorders of frozen ranks. For one thread."""

    def __init__(self) -> None:
        self._asked = float("-inf")
        self._known: dict[Path, tuple[float, dict[str, _Counts]]] = {}  # when, and by name of the group

    def complete(self, page: Path, rank: Rank, now: float) -> None:
        """Put into `rank` the operations since its last heartbeat. Takes up to half a second, now and then."""
        if rank.heartbeat_seconds < _STILL_SECONDS or rank.process.life != "running" or rank.timed:
            self._known.pop(page, None)
            return
        asked, counts = self._known.get(page, (float("-inf"), {}))
        if now - asked >= _ASK_AGAIN_SECONDS and now > self._asked:  # one rank a poll, lest many hold up all
            self._asked = now
            counts = _ask(page) or counts
            self._known[page] = now, counts
        names = [group.name for group in rank.process_groups]
        for index, group in enumerate(rank.process_groups):
            known = counts.get(group.name)
            if known is not None and names.count(group.name) == 1 and known.enqueued >= group.enqueued:
                rank.process_groups[index] = _completed(group, known, rank.heartbeat_seconds, now)


def _completed(group: ProcessGroup, known: _Counts, heartbeat_seconds: float, now: float) -> ProcessGroup:
    if (known.enqueued, known.completed) == (group.enqueued, group.completed):
        return group
    age = group.open_seconds
    if age is None or group.operation is None or group.operation.sequence != known.operation.sequence:
        age = min(max(now - known.created, 0.0), heartbeat_seconds)  # it was not there at the last heartbeat
    return replace(
        group,
        enqueued=known.enqueued,
        completed=known.completed,
        open_seconds=age if known.completed < known.enqueued else None,
        operation=known.operation,
    )


def _ask(page: Path) -> dict[str, _Counts]:
    """The counts of each group; none where it does not answer, or not as torch does."""
    try:
        entries = json.loads(worker_server.flight_recorder(page, timeout=_ANSWER_SECONDS))["entries"]
        groups: dict[str, list[dict[str, Any]]] = {}
        for entry in entries:
            if not entry["is_p2p"]:
                groups.setdefault(shown_name(*entry["process_group"]), []).append(entry)
        return {name: _counts(of_group) for name, of_group in groups.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        return {}


def _counts(entries: list[dict[str, Any]]) -> _Counts:
    opened = [entry for entry in entries if not entry["retired"] and entry["state"] != "completed"]
    described = opened[0] if opened else entries[-1]
    info = operation_info(described)
    enqueued = int(entries[-1]["collective_seq_id"])
    completed = info.sequence - 1 if opened else enqueued
    if not 0 <= completed <= enqueued < _MAX_NUMBER:
        raise ValueError("no numbers of collectives")
    # Without a signature: ranks that are timed by now have signatures of another kind.
    operation = Operation(info.sequence, native.OPERATIONS[info.operation], native.DTYPES[info.dtype], info.numel)
    created = time.monotonic() - max(time.time_ns() - int(described["time_created_ns"]), 0) / 1e9  # a wall clock's
    return _Counts(enqueued, completed, operation, created)
