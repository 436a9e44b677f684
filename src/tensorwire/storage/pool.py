"""Work on several threads: in order, as it ends, or all at once with memory of each thread's own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from .background import begin

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Scratch = TypeVar("_Scratch")


def mapped(
    work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int, name: str
) -> Generator[_Result, None, None]:
    """The results of `work`, in the order of `items`. So many threads make them, one result more than that ahead."""
    from concurrent.futures import ThreadPoolExecutor

    running = deque[Any]()
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        for item in items:
            if len(running) > threads:
                yield running.popleft().result()
            running.append(pool.submit(work, item))
        while running:
            yield running.popleft().result()


def as_ended(calls: Mapping[str, Callable[[], _Result]], threads: int, name: str) -> Iterator[tuple[str, _Result]]:
    """What calls return, as they end, so many at once; neither an interrupt nor the end of Python waits for one.

    After an error none is begun, and those under way are told of before it is raised.
    """
    from concurrent.futures import FIRST_COMPLETED, wait

    left, under_way = iter(calls.items()), dict[Any, str]()
    failed: BaseException | None = None
    while True:
        for path, call in islice(left, 0 if failed else threads - len(under_way)):
            under_way[begin(call, name)] = path
        if not under_way:
            break
        for future in wait(under_way, return_when=FIRST_COMPLETED).done:
            path, error = under_way.pop(future), future.exception()
            if error is None:
                yield path, future.result()
            failed = failed or error
    if failed is not None:
        raise failed


def run_all(
    tasks: Sequence[Callable[[_Scratch], object]], threads: int, scratch: Callable[[], _Scratch], name: str
) -> None:
    """Run tasks on this thread and others, each with its own `scratch`; raise the first error."""
    remaining = iter(tasks)
    lock = threading.Lock()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            own = scratch()
            while not errors:
                with lock:
                    task = next(remaining, None)
                if task is None:
                    return
                task(own)
        except BaseException as error:
            errors.append(error)

    helpers: list[threading.Thread] = []
    with suppress(RuntimeError):  # no more threads: those that are there do all
        for _ in range(threads - 1):
            helper = threading.Thread(target=work, name=name, daemon=True)
            helper.start()
            helpers.append(helper)
    work()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
