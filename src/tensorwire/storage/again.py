"""Calls in the loop of a store, which may go well the next time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

_Result = TypeVar("_Result")

PAUSE_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""Between one try and the next. So there is one try more than pauses."""

MAX_PAUSE_SECONDS = 30.0
"""A server that asks for a longer pause is asked after this one."""

_MAX_SILENCES = 2
_sleep = asyncio.sleep


class Again(Exception):  # noqa: N818 - it is no error yet
    """A try that failed.

    Attributes:
        error: what the caller gets if no later try goes well.
        seconds: the pause that the server has asked for.
        was_silent: whether the server said nothing for as long as it may.
    """

    def __init__(self, error: OSError, *, seconds: float = 0.0, was_silent: bool = False) -> None:
        super().__init__(error)
        self.error, self.seconds, self.was_silent = error, seconds, was_silent


async def patiently(ask: Callable[[], Awaitable[_Result]]) -> _Result:
    """What `ask` returns, called anew as long as it raises `Again` and tries are left. After two silences none is."""
    silences = 0
    for pause in (*PAUSE_SECONDS, None):
        try:
            return await ask()
        except Again as failed:
            silences += failed.was_silent
            if pause is None or silences == _MAX_SILENCES:
                raise failed.error from None
            seconds = max(pause, min(failed.seconds, MAX_PAUSE_SECONDS))
        await _sleep(seconds)
    raise AssertionError("the last try returns or raises")


async def all_of(asks: Sequence[Callable[[], Awaitable[_Result]]]) -> list[_Result]:
    """What calls return, made patiently and at once; after an error the others are ended."""
    tasks = [asyncio.ensure_future(patiently(ask)) for ask in asks]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def wait_for(store: Any, work: Coroutine[Any, Any, _Result]) -> _Result:
    """What a coroutine returns in the loop of a store. An interrupt ends both."""
    future = asyncio.run_coroutine_threadsafe(work, store.loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
