"""Calls that go on in the background."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

_Result = TypeVar("_Result")


def begin(call: Callable[[], _Result], name: str) -> Future[_Result]:
    """Call it in a thread of that name, for which neither an interrupt nor the end of Python has to wait."""
    from concurrent.futures import Future

    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return future
