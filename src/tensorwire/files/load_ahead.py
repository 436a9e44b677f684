"""Tensors that are asked for one after the other, loaded before they are: on all cores, while the disk reads on."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ..codec import new_buffer
from .loader import check_tasks, content_tasks, new_scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .loader import Task
    from .reader import StoredFile, StoredTensor

_LEAD_NBYTES = 128 << 20
"""How much of the files is loaded, at most, of what nobody has asked for yet; one tensor may be larger."""

_READ_LEAD_NBYTES = 32 << 20
"""How far the kernel is asked to read before the place where the threads are."""

_ADVICE_NBYTES = 1 << 20
"""In one call: of a longer range Linux reads as much as one request to the disk may have, and forgets the rest."""


class Loaded(NamedTuple):
    """A tensor that was asked for.

    Attributes:
        data: its content in memory of its own, or its frame in a memory map of the file.
        is_frame: which of both.
    """

    data: memoryview
    is_frame: bool


class _Entry:
    """A tensor on its way.

    Attributes:
        index: its place in the order that is expected.
        begun: a thread has taken it in hand.
        left: how many tasks are not finished; None as long as they are not known.
        taken: the caller has got it.
        error: what the first of them that failed has raised.
    """

    def __init__(self, index: int, stored: StoredFile, tensor: StoredTensor) -> None:
        self.index = index
        self.stored = stored
        self.tensor = tensor
        self.begun = False
        self.left: int | None = None
        self.taken = False
        self.error: BaseException | None = None
        self.loaded: Loaded | None = None

    @property
    def nbytes(self) -> int:
        return self.tensor.entry.nbytes

    def anew(self) -> _Entry:
        return _Entry(self.index, self.stored, self.tensor)


class LoadAhead:
    """Loads tensors in the order in which they will probably be asked for. If one is asked for that was not begun, the
    guess was wrong: what was passed over is dropped, and those behind that one come next.

    All data is checked. `take` is for one thread. The threads end when this is closed or forgotten.
    """

    def __init__(
        self,
        tensors: Sequence[tuple[StoredFile, StoredTensor]],
        as_frame: Callable[[StoredFile, StoredTensor], bool],
        threads: int,
    ) -> None:
        """
        Args:
            tensors: of open files without a base, in the order that is expected.
            as_frame: of a compressed tensor, whether its frame is wanted as it is. Called in any thread.
            threads: how many work, the one that waits in `take` among them.
        """
        self._work = _Work(tensors, as_frame)
        self._scratch = new_scratch()
        self.close = weakref.finalize(self, self._work.close)
        """End the threads, once they have done what they are at."""
        for _ in range(threads - 1):
            with suppress(RuntimeError):  # no more threads: those that are there do all
                threading.Thread(target=self._work.run, name="tensorwire-load", daemon=True).start()

    def take(self, stored: StoredFile, tensor: StoredTensor) -> Loaded:
        """One of the tensors. It is no longer kept here: who asks again waits until it is loaded anew.

        Raises:
            FormatError: the data is damaged.
            OSError: reading fails.
        """
        return self._work.take(stored, tensor, self._scratch)


class _Work:
    """What the threads share. It does not refer to the `LoadAhead`, which would live as long as they do."""

    def __init__(
        self, tensors: Sequence[tuple[StoredFile, StoredTensor]], as_frame: Callable[[StoredFile, StoredTensor], bool]
    ) -> None:
        self._as_frame = as_frame
        self._changed = threading.Condition()
        self._order = [_Entry(index, *pair) for index, pair in enumerate(tensors)]
        self._indexes = {(id(entry.stored), entry.tensor.name): entry.index for entry in self._order}
        self._position = 0
        self._tasks: deque[Task] = deque()
        self._held: dict[int, _Entry] = {}
        self._closed = False
        self._advising = threading.Lock()
        self._expect(0)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def run(self) -> None:
        """What a thread does until the end."""
        try:
            scratch = new_scratch()
        except MemoryError:  # those that have some do all
            return
        while (task := self._wait(lambda: self._closed)) is not None:
            task(scratch)

    def take(self, stored: StoredFile, tensor: StoredTensor, scratch: memoryview) -> Loaded:
        with self._changed:
            entry = self._asked_for(self._indexes[id(stored), tensor.name])
        while (task := self._wait(lambda: entry.left == 0)) is not None:
            task(scratch)
        with self._changed:
            entry.taken = True
            self._held.pop(entry.index, None)
            self._changed.notify_all()
        loaded, error, entry.loaded, entry.error = entry.loaded, entry.error, None, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # whose traceback leads here: nothing would be forgotten
        assert loaded is not None
        return loaded

    def _wait(self, over: Callable[[], bool]) -> Task | None:
        """What is to be done next, as soon as there is anything; None once it is over."""
        with self._changed:
            while not over():
                task = self._next()
                if task is not None:
                    return task
                self._changed.wait()
        return None

    # Up to _begin all is called with the lock held.

    def _asked_for(self, index: int) -> _Entry:
        entry = self._order[index]
        if entry.taken or not entry.begun:
            for passed in self._held.values():
                self._order[passed.index] = passed.anew()
            self._held.clear()
            self._tasks.clear()
            entry = self._order[index] = entry.anew()
            if index != self._first_not_begun():
                self._expect(index)
            self._changed.notify_all()
        return entry

    def _first_not_begun(self) -> int:
        while self._position < len(self._order) and self._order[self._position].begun:
            self._position += 1
        return self._position

    def _expect(self, index: int) -> None:
        self._position = index
        self._pieces = _pieces(self._order[index:])
        self._begun_nbytes = self._advised_nbytes = 0

    def _next(self) -> Task | None:
        """What is to be done next, if there is anything."""
        if self._tasks:
            return self._tasks.popleft()
        if self._first_not_begun() == len(self._order):
            return None
        entry = self._order[self._position]
        if self._held and entry.nbytes + sum(held.nbytes for held in self._held.values()) > _LEAD_NBYTES:
            return None
        entry.begun = True
        self._held[entry.index] = entry
        self._begun_nbytes += entry.nbytes
        return partial(self._begin, entry)

    def _begin(self, entry: _Entry, scratch: memoryview) -> None:
        """Read its header, allocate its memory, and leave the rest to all threads."""
        self._read_ahead()
        tasks: list[Task] = []
        try:
            stored, tensor = entry.stored, entry.tensor
            if stored.is_relative(tensor):
                stored.base_of(tensor)  # which is an error, before memory is taken for what it claims
            is_frame = tensor.compressed and self._as_frame(stored, tensor)
            data = stored.mapped_frame(tensor) if is_frame else new_buffer(stored.layout(tensor.name)[2])
            entry.loaded = Loaded(data, is_frame)
            parts = check_tasks(stored, tensor, data) if is_frame else content_tasks(stored, tensor, data, verify=True)
            tasks = [partial(self._make, entry, part) for part in parts]
        except BaseException as error:
            entry.error = error
        finally:
            with self._changed:
                entry.left = len(tasks)
                if self._order[entry.index] is entry:
                    self._tasks.extend(tasks)
                self._changed.notify_all()

    def _make(self, entry: _Entry, part: Task, scratch: memoryview) -> None:
        try:
            if entry.error is None:
                part(scratch)
        except BaseException as error:
            entry.error = error
        finally:
            with self._changed:
                assert entry.left is not None
                entry.left -= 1
                if entry.left == 0:
                    self._changed.notify_all()

    def _read_ahead(self) -> None:
        """Let the kernel read what comes next; one thread at a time."""
        if self._advising.acquire(blocking=False):
            try:
                while self._advised_nbytes < self._begun_nbytes + _READ_LEAD_NBYTES:
                    stored, start, nbytes = next(self._pieces)
                    self._advised_nbytes += nbytes
                    stored.file.read_ahead(start, nbytes)
            except (StopIteration, ValueError):  # all was asked for, or the file is closed
                pass
            finally:
                self._advising.release()


def _pieces(entries: Sequence[_Entry]) -> Iterator[tuple[StoredFile, int, int]]:
    """The files' bytes, in the order of the tensors."""
    for entry in entries:
        begin = entry.stored.header.data_start + entry.tensor.entry.start
        for start in range(0, entry.nbytes, _ADVICE_NBYTES):
            yield entry.stored, begin + start, min(_ADVICE_NBYTES, entry.nbytes - start)
