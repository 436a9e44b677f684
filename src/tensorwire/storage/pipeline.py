"""Threads that overlap reading, hashing, coding and writing in bounded memory.

Data moves in windows: a reused, page-aligned buffer with a contiguous range of a file's data, read ahead by one thread.
A consumer that still needs the buffer holds a share of it; when the last share is returned it is read into again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from .._ground.allocation import new_buffer
from .._ground.copies import not_copied

if TYPE_CHECKING:
    from typing import Any

WINDOW_NBYTES = 8 << 20
"""Size of a window: large enough for all cores to code in it, small enough to stay in their caches."""

_NUM_WINDOWS = 6


class Chunk(NamedTuple):
    """Content bytes [start, stop) of a tensor, by its index."""

    tensor: int
    start: int
    stop: int


def one_byte(tensor: int) -> int:
    return 1


def plan_windows(sizes: Sequence[int], unit: Callable[[int], int] = one_byte) -> Iterator[list[Chunk]]:
    """Cut tensors of these sizes, in order, into windows.

    A window holds a chunk of one large tensor, or several small tensors. Empty tensors come along as empty chunks. All
    chunks but the last of a tensor that is larger than a window are multiples of ``unit(tensor)``, which is asked for
    when all windows before have been taken.
    """
    chunks: list[Chunk] = []
    room = WINDOW_NBYTES
    for tensor, size in enumerate(sizes):
        if size > room and chunks:
            yield chunks
            chunks, room = [], WINDOW_NBYTES
        start = 0
        step = WINDOW_NBYTES - (WINDOW_NBYTES % unit(tensor) if size > WINDOW_NBYTES else 0)
        while size - start > step:
            yield [Chunk(tensor, start, start + step)]
            start += step
        chunks.append(Chunk(tensor, start, size))
        room -= size - start
    if chunks:
        yield chunks


class Window:
    """A buffer and what is in it.

    Attributes:
        chunks: in order, one behind the other in `data`.
        data: their bytes.
    """

    __reduce_ex__ = not_copied("a share of a buffer", "copy the bytes in it")

    def __init__(self, chunks: list[Chunk], buffer: memoryview, give_back: Callable[[memoryview], None]) -> None:
        self.chunks = chunks
        self.data = buffer[: sum(chunk.stop - chunk.start for chunk in chunks)]
        self._buffer = buffer
        self._give_back = give_back
        self._shares = 1
        self._lock = threading.Lock()

    def split(self) -> Iterator[tuple[Chunk, memoryview]]:
        """Each chunk with its bytes."""
        position = 0
        for chunk in self.chunks:
            end = position + chunk.stop - chunk.start
            yield chunk, self.data[position:end]
            position = end

    def share(self) -> Window:
        with self._lock:
            self._shares += 1
        return self

    def release(self) -> None:
        with self._lock:
            self._shares -= 1
            last = self._shares == 0
        if last:
            self._give_back(self._buffer)


class Worker:
    """Runs calls in order on a thread of its own. What a call raises is raised by the next `submit`, or at the end.

    Use it in a ``with`` statement, which waits for all calls. After an error the remaining calls are dropped.
    """

    __reduce_ex__ = not_copied("a thread", "make another one")

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], Callable[[], None]] | None]
        self._calls = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"tensorwire-{name}", daemon=True)

    def submit(self, call: Callable[..., Any], *arguments: Any, done: Callable[[], None] = lambda: None) -> None:
        """Run ``call(*arguments)``, then ``done()`` in any case: it gives the arguments' memory back."""
        self._calls.put((call, arguments, done))
        self.check()

    def check(self) -> None:
        """Raise what a call has raised."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._calls.put(None)
        self._thread.join()
        if kind is None:
            self.check()

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            call, arguments, done = item
            try:
                if self._error is None:
                    call(*arguments)
            except BaseException as raised:
                self._error = raised
            finally:
                done()


@contextmanager
def read_windows(
    sizes: Sequence[int],
    fill: Callable[[Chunk, memoryview], None],
    unit: Callable[[int], int] = one_byte,
) -> Iterator[Iterator[Window]]:
    """Windows over tensors of the given sizes, filled ahead by a thread. Every window must be released.

    ``fill(chunk, out)`` puts the bytes of a chunk into `out`; it is called in order, on the thread, and what it raises
    is raised to the consumer. `unit` is that of `plan_windows`.
    """
    free: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
    filled: queue.SimpleQueue[Window | None] = queue.SimpleQueue()
    over = False
    for _ in range(min(_NUM_WINDOWS, 1 + sum(sizes) // WINDOW_NBYTES)):
        free.put(new_buffer(min(WINDOW_NBYTES, max(1, sum(sizes)))))

    def read() -> None:
        for chunks in plan_windows(sizes, unit):
            buffer = free.get()
            if buffer is None or over:
                return
            window = Window(chunks, buffer, free.put)
            for chunk, out in window.split():
                fill(chunk, out)
            filled.put(window)

    def windows() -> Iterator[Window]:
        yield from iter(filled.get, None)
        reader.check()

    with Worker("read") as reader:
        try:  # an interrupt behind `submit` must end the thread too
            reader.submit(read, done=lambda: filled.put(None))
            yield windows()
        finally:
            over = True
            free.put(None)
