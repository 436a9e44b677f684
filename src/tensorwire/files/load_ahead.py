"""Tensors that are asked for one after the other, loaded before they are: on all cores, while the disk reads on."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from .._ground.allocation import new_buffer
from .._ground.copies import not_copied
from ..storage.ahead import Ahead
from .loader import TASK_NBYTES, Scratch, check_tasks, content_tasks

if TYPE_CHECKING:
    from .loader import Task
    from .reader import StoredFile, StoredTensor

_LEAD_NBYTES = 128 << 20
"""How much of the files is loaded, at most, of what was not asked for yet; one tensor may be larger."""

_READ_LEAD_NBYTES = 32 << 20
"""How far the kernel is asked to read before the place where the threads are."""

_ADVICE_NBYTES = 1 << 20
"""In one call: Linux reads as much of a longer range as one request to the disk may have, and forgets the rest."""


class Loaded(NamedTuple):
    """A tensor that was asked for.

    Attributes:
        data: its content in memory of its own, or its frame in a memory map of the file.
        is_frame: which of both.
    """

    data: memoryview
    is_frame: bool


class LoadAhead:
    """Loads tensors in the order in which they will probably be asked for. If one is asked for that was not begun, the
    guess was wrong: what was passed over is dropped, and those behind that one come next.

    `take` is for one thread. The threads end when this is closed or forgotten.
    """

    __reduce_ex__ = not_copied("threads and open files", "open the files again by their paths, and load those")

    def __init__(
        self,
        tensors: Sequence[tuple[StoredFile, StoredTensor]],
        as_frame: Callable[[StoredFile, StoredTensor], bool],
        threads: int,
        *,
        verify: bool = True,
    ) -> None:
        """
        Args:
            tensors: they are in open files without a base; in the order that is expected.
            as_frame: whether the frame of a compressed tensor is wanted as it is. Called in any thread.
            threads: how many work, the one that waits in `take` among them.
            verify: check the checksums of what is decoded; all blocks of frames are checked in any case.
        """
        self._work = _Loads(tensors, as_frame, verify)
        self._indexes = {(id(stored), tensor.name): index for index, (stored, tensor) in enumerate(tensors)}
        self._ahead = Ahead(self._work, _LEAD_NBYTES, order=range(len(tensors)), threads=threads - 1)
        self.close = weakref.finalize(self, self._ahead.forget)
        """End the threads, once they have done what they are at."""

    def take(self, stored: StoredFile, tensor: StoredTensor) -> Loaded:
        """One of the tensors. It is no longer kept here: a caller that asks again waits until it is loaded anew.

        Raises:
            FormatError: the data is damaged.
            OSError: reading fails.
        """
        index = self._indexes[id(stored), tensor.name]
        lease = self._ahead.take(index)
        if lease is not None:
            with lease as loading:
                loaded: Loaded = loading.begun()[0]
                return loaded
        loading = self._work.memory(index)
        self._work.make(index, loading, 0, self._work.nbytes(index), ahead=False)
        return loading.begun()[0]


class _Loading:
    """A tensor on its way. Its memory is made by the first thread that is at it."""

    __reduce_ex__ = not_copied("memory that threads write to", "load the tensor again")

    def __init__(self, stored: StoredFile, tensor: StoredTensor, as_frame: Callable[..., bool], verify: bool) -> None:
        self._verify = verify
        self._stored = stored
        self._tensor = tensor
        self._as_frame = as_frame
        self._lock = threading.Lock()
        self._begun: tuple[Loaded, list[Task]] | None = None

    def begun(self) -> tuple[Loaded, list[Task]]:
        """The tensor, and what puts its content there."""
        with self._lock:
            if self._begun is None:
                self._begun = self._begin()
            return self._begun

    def _begin(self) -> tuple[Loaded, list[Task]]:
        stored, tensor = self._stored, self._tensor
        if stored.is_relative(tensor):
            stored.base_of(tensor)  # which is an error, before memory is taken for what it claims
        if tensor.compressed and self._as_frame(stored, tensor):
            frame = stored.mapped_frame(tensor)
            return Loaded(frame, True), check_tasks(stored, tensor, frame)
        data = new_buffer(stored.layout(tensor.name)[2])
        tasks = content_tasks(stored, tensor, data, self._verify)
        if not len(data):  # no thread is asked for a part of it, and its hash is to be checked
            for task in tasks:
                task(data)
        return Loaded(data, False), tasks


class _Loads:
    """The work of loading tensors, by their place in the order. Their size is that in the files."""

    __reduce_ex__ = not_copied("open files", "open them again by their paths")

    def __init__(
        self, tensors: Sequence[tuple[StoredFile, StoredTensor]], as_frame: Callable[..., bool], verify: bool
    ) -> None:
        self._tensors = tensors
        self._verify = verify
        self._as_frame = as_frame
        self._scratch = Scratch()
        self._starts = list(accumulate((tensor.entry.nbytes for _, tensor in tensors), initial=0))
        self._advising = threading.Lock()
        self._first = self._advised = 0  # from where on the kernel was asked to read, and up to where

    def nbytes(self, index: int) -> int:
        return self._tensors[index][1].entry.nbytes

    def step(self, index: int) -> int:
        return TASK_NBYTES >> 1  # which is a task or less

    def memory(self, index: int) -> _Loading:
        return _Loading(*self._tensors[index], self._as_frame, self._verify)

    def make(self, index: int, memory: _Loading, start: int, stop: int, ahead: bool) -> None:
        if start == 0:
            self._read_ahead(index)
        tasks, nbytes = memory.begun()[1], max(1, self.nbytes(index))
        for task in tasks[-(-start * len(tasks) // nbytes) : -(-stop * len(tasks) // nbytes)]:
            task(self._scratch.memory)

    def _read_ahead(self, index: int) -> None:
        """Let the kernel read what comes next, once: up to a tensor that begins far enough behind this one."""
        if not self._advising.acquire(blocking=False):
            return  # another thread is at it
        try:
            if not self._first <= index <= self._advised:
                self._first = self._advised = index
            end = self._starts[index] + _READ_LEAD_NBYTES
            while self._advised < len(self._tensors) and self._starts[self._advised] <= end:
                stored, tensor = self._tensors[self._advised]
                self._advised += 1
                begin, nbytes = stored.header.data_start + tensor.entry.start, tensor.entry.nbytes
                for start in range(0, nbytes, _ADVICE_NBYTES):
                    stored.file.read_ahead(begin + start, min(_ADVICE_NBYTES, nbytes - start))
        except ValueError:  # a file is closed: the caller that needs it is told
            pass
        finally:
            self._advising.release()
