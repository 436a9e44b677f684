"""The facts about a rank that change now and then, as a list for a report. encoding.py has its members."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..model import EXIT_KINDS, SETUPS, Worker
from .integers import size_of

if TYPE_CHECKING:
    from ..model import Rank

_MAX_WORKERS = 64
_MAX_TEXT = 64
_OVERHEAD = 4  # of a state, in integers
_NONE = -1
_TYPES = (int, int, int, str, int, int, int, str, int, list)
_WORKER_TYPES = (int, str, str, str, int)

RankState = tuple[Any, ...]


def state_of(rank: Rank, since: Callable[[float | None], int]) -> RankState:
    """The state of a rank, without its number. `since` makes a time of an age."""
    process = rank.process
    return (
        EXIT_KINDS.index(process.exit_kind),
        since(process.exit_seconds),
        process.signal[:_MAX_TEXT],
        since(process.signal_seconds),
        SETUPS.index(rank.setup),
        since(rank.setup_seconds),
        rank.activity[:_MAX_TEXT],
        since(rank.activity_seconds),
        [
            [worker.pid, *(text[:_MAX_TEXT] for text in texts), round(10 * worker.cpu_seconds)]
            for worker in process.workers[:_MAX_WORKERS]
            for texts in [(worker.name, worker.state, worker.wait_channel)]
        ],
    )


NO_STATE: Final[RankState] = (0, _NONE, "", _NONE, 0, _NONE, "", _NONE, [])
SIGNAL, SIGNAL_SINCE, SETUP, SETUP_SINCE, ACTIVITY, ACTIVITY_SINCE, WORKERS = range(2, 9)  # places in a state


def check(row: Any, max_value: int) -> None:
    """Raise TypeError, ValueError or IndexError unless this is a rank's number and its state."""
    if type(row) is not list or tuple(map(type, row)) != _TYPES:
        raise TypeError
    if not (0 <= row[1] < len(EXIT_KINDS) and 0 <= row[5] < len(SETUPS) and len(row[-1]) <= _MAX_WORKERS):
        raise ValueError
    for worker in row[-1]:
        if type(worker) is not list or tuple(map(type, worker)) != _WORKER_TYPES:
            raise TypeError
    values = [*row, *(value for worker in row[-1] for value in worker)]
    if not all(_NONE <= value < max_value for value in values if type(value) is int):
        raise ValueError
    if not all(len(value) <= _MAX_TEXT for value in values if type(value) is str):
        raise ValueError


def num_values(state: RankState) -> int:
    """The numbers and texts of a state, for the limits of a node; () has none."""
    return _OVERHEAD + size_of(state) + sum(map(size_of, state[-1])) if state else 0


def signal_age(state: RankState, now: int) -> float:
    """Seconds since that signal; 0 where its time is not known."""
    return max(0, now - state[SIGNAL_SINCE]) / 1e6 if state[SIGNAL_SINCE] >= 0 else 0.0


def activity_of(state: RankState, now: int) -> tuple[str, float | None]:
    """What it is in as its stack shows, and since when."""
    since = state[ACTIVITY_SINCE]
    return state[ACTIVITY], None if since < 0 else max(0, now - since) / 1e6


def apply(rank: Rank, state: RankState, age: Callable[[int], float | None]) -> None:
    """Put a state into the rank. `age` is the inverse of `since`."""
    process = rank.process
    kind, exit_at, process.signal, signal_at, setup, setup_at, rank.activity, active_since, workers = state
    process.exit_kind, process.exit_seconds = EXIT_KINDS[kind], age(exit_at)
    process.signal_seconds = age(signal_at)
    rank.setup, rank.setup_seconds = SETUPS[setup], age(setup_at)
    rank.activity_seconds = age(active_since)
    process.workers = [
        Worker(pid, name, letter, channel, tenths / 10) for pid, name, letter, channel, tenths in workers
    ]
