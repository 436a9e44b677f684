"""Calls to a server that may go well the next time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
