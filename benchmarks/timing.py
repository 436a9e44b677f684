"""Timing: interleaved rounds, medians with spread, and the core that a thread runs on."""

from __future__ import annotations

import math
import os
import statistics
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_Name = TypeVar("_Name")
Seconds = list[float | None]
"""Times of one operation, round by round; None for a round that left it out."""


def interleave(
    operations: Mapping[_Name, Callable[[], float]], warm_up: Mapping[_Name, float], rounds: int, budget: float
) -> dict[_Name, Seconds]:
    """Run every operation once in each round, so that a disturbance hits all of them: A B C, A B C, ...

    Args:
        operations: each runs once, may prepare as it likes, and returns the seconds that count.
        warm_up: the seconds that each has taken before; they count only where nothing else does.
        rounds: how many.
        budget: an operation that has taken more than this many seconds, in the rounds or in the warm-up alone, is left
            out from then on.

    Returns:
        The seconds of each operation, one number for each round.
    """
    seconds: dict[_Name, Seconds] = {name: [] for name in operations}
    spent = {name: over(took, budget) for name, took in warm_up.items()}
    for _ in range(rounds):
        for name, operation in operations.items():
            if spent[name] > budget:
                seconds[name].append(None)
                continue
            took = operation()
            spent[name] += took
            seconds[name].append(took)
    for name, values in seconds.items():
        if all(value is None for value in values):
            values[0] = warm_up[name]
    return seconds


def cpu_by_turns(calls: Mapping[_Name, Callable[[], object]], rounds: int) -> dict[_Name, Seconds]:
    """The CPU seconds that each call takes of this thread, interleaved."""

    def operation(call: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            start = time.thread_time()
            call()
            return time.thread_time() - start

        return run

    operations = {name: operation(call) for name, call in calls.items()}
    return interleave(operations, dict.fromkeys(calls, 0.0), rounds, math.inf)


def over(seconds: float, budget: float) -> float:
    """What a warm-up takes from the budget: nothing, or all of it."""
    return seconds if seconds > budget else 0.0


def timed(function: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    """(seconds, result) of a call."""
    start = time.perf_counter()
    result = function(*args)
    return time.perf_counter() - start, result


def microseconds(call: Callable[[], object], batches: int, calls: int) -> float:
    """CPU time of a call, the median over batches of calls."""
    found = []
    for _ in range(batches):
        start = time.thread_time()
        for _ in range(calls):
            call()
        found.append((time.thread_time() - start) / calls)
    return 1e6 * statistics.median(found)


def speed(seconds: Seconds, nbytes: int) -> dict[str, float]:
    """Median and quartiles in GB/s, and how often it was measured."""
    return spread([nbytes / value / 1e9 for value in seconds if value is not None])


def relative(seconds: Seconds, other: Seconds) -> dict[str, float] | None:
    """How many times as fast as `other`, round by round; None where no round has both."""
    ratios = [b / a for a, b in zip(seconds, other, strict=True) if a is not None and b is not None]
    return spread(ratios) if ratios else None


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles (of a single value: itself) and number of values."""
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"low": quartiles[0], "median": quartiles[1], "high": quartiles[2], "runs": len(values)}


class Spent:
    def __init__(self, own: Callable[..., Any]) -> None:
        self._own, self.calls, self.seconds = own, 0, 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        began = time.process_time()
        try:
            return self._own(*arguments, **options)
        finally:
            self.calls += 1
            self.seconds += time.process_time() - began


@contextmanager
def spent(functions: dict[str, tuple[Any, str]]) -> Iterator[dict[str, Spent]]:
    """Calls of functions, given as modules and names, and their CPU seconds meanwhile."""
    with ExitStack() as stack:
        found = {name: Spent(getattr(*place)) for name, place in functions.items()}
        for name, (module, attribute) in functions.items():
            stack.enter_context(mock.patch.object(module, attribute, found[name]))
        yield found


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Keep this thread on the last usable core if it is to be the only one; on all of them otherwise."""
    if threads != 1:
        yield
        return
    cores = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
