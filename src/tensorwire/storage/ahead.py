"""What is needed next is made while what is needed now is in use, by one thread in the background."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..codec import new_buffer

if TYPE_CHECKING:
    from collections.abc import Iterable

Key = TypeVar("Key")
WorkKey = TypeVar("WorkKey", contravariant=True)

ALIGNMENT = 4096
"""Of all memory that is handed out: a page, as reads past the page cache want it."""

_MAX_ENTRIES = 16
_LINGER_SECONDS = 0.5
"""How long the thread waits for more before it ends. So nobody has to end it, and it keeps nothing alive for long."""

_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0
"""How long a caller waits for others that finish nothing. One that was interrupted may have left a part behind."""


class Work(Protocol[WorkKey]):
    """What is made."""

    def nbytes(self, key: WorkKey) -> int:
        """The size of a thing."""

    def step(self, key: WorkKey) -> int:
        """The size of the parts that it is made in."""

    def make(self, key: WorkKey, memory: memoryview, start: int, stop: int, ahead: bool) -> None:
        """Put bytes [start, stop) of a thing where they belong in memory of its size; `ahead` in the background."""


class _Part:
    """A range of an entry that a thread is at. Nobody is once nobody refers to this, whatever has ended the thread."""

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self.thread = threading.get_ident()


class _Entry(Generic[Key]):
    """A range of the memory and what is made in it.

    Attributes:
        next: where the next part begins.
        done_nbytes: size of all parts that are finished.
        parts: those that are not.
        over: of no use any more. Its memory is free when nobody is at a part of it, or reads it.
        used: somebody has taken it.
    """

    def __init__(self, key: Key, start: int, memory: memoryview, step: int) -> None:
        self.key = key
        self.start = start
        self.memory = memory
        self.step = step
        self.next = 0
        self.done_nbytes = 0
        self.over = False
        self.used = False
        self.parts: weakref.WeakSet[_Part] = weakref.WeakSet()
        self.leases: weakref.WeakSet[Lease] = weakref.WeakSet()

    @property
    def ready(self) -> bool:
        return self.done_nbytes == len(self.memory)

    @property
    def stop(self) -> int:
        return self.start + len(self.memory)

    def claim(self, nbytes: int) -> _Part:
        """The next part, of at most this size; empty if there is none."""
        part = _Part(self.next, min(self.next + nbytes, len(self.memory)))
        if part.start < part.stop:
            self.parts.add(part)
            self.next = part.stop
        return part


class Lease:
    """Memory that stays as it is until the end of a ``with`` block, or until nobody refers to the lease: an interrupt
    may come between the two, and must not keep memory for ever."""

    def __init__(self, entry: _Entry[Any]) -> None:
        self._memory = entry.memory
        self._leases = entry.leases
        entry.leases.add(self)

    def __enter__(self) -> memoryview:
        return self._memory

    def __exit__(self, *error: object) -> None:
        self._leases.discard(self)


class Ahead(Generic[Key]):
    """Learns in which order things are used, and makes them in this order before they are asked for.

    The last pass tells what follows what. All that is alive, in use or ahead, lies in one piece of memory, which is
    used over and over. Who needs a thing that is half made makes the rest, so that he never waits long for a thread
    that gets no time. Where a guess was wrong, or the thread failed, or there is no room, `take` gives None, and the
    caller makes the thing in his own way. So a failure is met by the one who needs the thing, in his own thread.

    Thread-safe. A forked child begins anew, with what was learned.
    """

    def __init__(self, work: Work[Key], capacity: int, *, niceness: int = 0, least: float = 0.0) -> None:
        """
        Args:
            capacity: size of the memory, which is allocated when it is first needed.
            niceness: of the thread, from 0 to 19: how much it gives way to others.
            least: a thing of which not more than this share has been begun is left to the caller's own way, which may
                be better than to make the rest.
        """
        self._work = work
        self._least = least
        self._capacity = aligned(capacity)
        self._niceness = niceness
        self._memory: memoryview | None = None
        self._next: dict[Key, Key] = {}
        self._closed = False
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        # The lock is the one of C: an interrupt cannot come between taking it and the block that gives it back.
        self._lock = threading.RLock()
        self._taker: int | None = None  # a thread that is there already, when the handler of a signal comes in between
        self._changed = threading.Condition(self._lock)
        self._entries: deque[_Entry[Key]] = deque()
        self._thread: int | None = None
        self._asked_for_thread = -_POLL_SECONDS
        self._last = threading.local()

    def take(self, key: Key) -> Lease | None:
        """What was made ahead for `key`; None if the caller has to make it.

        Raises:
            Exception: what `Work.make` raises for a part that the caller has made here.
        """
        if self._taker == threading.get_ident():
            return None
        with self._lock:
            if self._closed:
                return None
            try:
                self._taker = threading.get_ident()
                entry = self._chosen(key)
                lease = None
                if entry is not None:
                    lease, rest = Lease(entry), entry.claim(len(entry.memory))
                    entry.used = True
                self._plan(key)
            finally:
                self._taker = None
        if entry is None:
            return None
        self._make(entry, rest, ahead=False)
        return lease if self._finished(entry) else None

    def close(self) -> None:
        """End the thread and free the memory. What is in use stays as it is."""
        with self._lock:
            self._closed = True
            self._next.clear()
            self._drop([])
            self._memory = None
            self._changed.notify_all()
            while self._thread not in (None, threading.get_ident()) and not sys.is_finalizing():
                self._changed.wait(_POLL_SECONDS)

    def _make(self, entry: _Entry[Key], part: _Part, *, ahead: bool) -> None:
        if part.start == part.stop:
            return
        made = False
        try:
            self._work.make(entry.key, entry.memory, part.start, part.stop, ahead)
            made = True
        finally:
            with self._lock:
                entry.parts.discard(part)
                if made:
                    entry.done_nbytes += part.stop - part.start
                else:
                    entry.over = True
                self._changed.notify_all()

    def _finished(self, entry: _Entry[Key]) -> bool:
        """Wait for other threads that are at parts of it. Whether all is there then.

        A part of the calling thread is not waited for: it was interrupted, and who keeps the exception keeps the part;
        or it is at work below, and a signal handler has come in between.
        """
        own = threading.get_ident()
        with self._lock:
            done, deadline = entry.done_nbytes, time.monotonic() + _PATIENCE_SECONDS
            while not entry.ready and any(part.thread != own for part in entry.parts) and not sys.is_finalizing():
                self._changed.wait(_POLL_SECONDS)
                if entry.done_nbytes != done:
                    done, deadline = entry.done_nbytes, time.monotonic() + _PATIENCE_SECONDS
                elif time.monotonic() > deadline:
                    break
            entry.over |= not entry.ready
            return entry.ready

    # All up to _run is called with the lock held.

    def _chosen(self, key: Key) -> _Entry[Key] | None:
        """What is made for `key`, if enough of it is; else it is the caller's."""
        self._learn(key)
        entry = self._find(key)
        if entry is not None and entry.next <= self._least * len(entry.memory):
            entry.over = True
            entry = None
        return entry

    def _learn(self, key: Key) -> None:
        last = getattr(self._last, "key", None)
        if last is not None:
            self._next[last] = key
        self._last.key = key

    def _find(self, key: Key) -> _Entry[Key] | None:
        return next((entry for entry in self._entries if entry.key == key and not entry.over), None)

    def _plan(self, key: Key) -> None:
        """Give memory to what will be used after `key`, as far as it reaches."""
        wanted: list[Key] = []
        following = self._next.get(key)
        while following is not None and following not in wanted and len(wanted) < _MAX_ENTRIES:
            wanted.append(following)
            following = self._next.get(following)
        self._drop(wanted)
        for other in wanted:
            if self._find(other) is None and not self._place(other):
                break
        if self._unfinished() is not None:
            self._start()

    def _drop(self, wanted: Iterable[Key]) -> None:
        """Free what was used, and what nobody is expected to ask for any more."""
        for entry in self._entries:
            if not entry.leases and (entry.used or entry.key not in wanted):
                entry.over = True
        while self._entries and self._entries[0].over and not self._entries[0].leases and not self._entries[0].parts:
            self._entries.popleft()

    def _place(self, key: Key) -> bool:
        nbytes = self._work.nbytes(key)
        start = self._room(aligned(nbytes))
        if start is None or len(self._entries) >= _MAX_ENTRIES:
            return False
        if self._memory is None:
            try:
                self._memory = new_buffer(self._capacity)
            except MemoryError:
                return False
        self._entries.append(_Entry(key, start, self._memory[start : start + nbytes], self._work.step(key)))
        return True

    def _room(self, nbytes: int) -> int | None:
        """Where the next entry fits: entries lie one behind the other, and begin again at the front of the memory."""
        if not self._entries:
            return 0 if nbytes <= self._capacity else None
        first, last = self._entries[0].start, self._entries[-1].start
        end = aligned(self._entries[-1].stop)
        if last < first:
            return end if end + nbytes <= first else None
        if end + nbytes <= self._capacity:
            return end
        return 0 if nbytes <= first else None

    def _unfinished(self) -> _Entry[Key] | None:
        return next((entry for entry in self._entries if not entry.over and entry.next < len(entry.memory)), None)

    def _start(self) -> None:
        """A thread of the lower module: `threading.Thread.start` waits for ever for one that lacks memory to begin."""
        now = time.monotonic()
        if self._thread is not None:
            self._changed.notify_all()
        elif now - self._asked_for_thread >= _POLL_SECONDS:
            self._asked_for_thread = now
            with suppress(RuntimeError):  # no more threads, or the interpreter is about to end: callers make all
                _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        if self._niceness:
            with suppress(OSError):  # Linux has it for each thread
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        own = threading.get_ident()
        try:
            with self._lock:
                self._thread = own
            while self._make_next():
                pass
        finally:
            with self._lock:
                if self._thread == own:
                    self._thread, self._asked_for_thread = None, -_POLL_SECONDS
                self._changed.notify_all()

    def _make_next(self) -> bool:
        """Make one part, in the thread; False if there is nothing to do, for a while."""
        with self._lock:
            if self._unfinished() is None:
                self._changed.wait(_LINGER_SECONDS)
            entry = None if self._closed else self._unfinished()
            if entry is None:
                return False
            part = entry.claim(entry.step)
        with suppress(BaseException):  # met again, and told, by whoever needs the thing
            self._make(entry, part, ahead=True)
        return True


def aligned(nbytes: int) -> int:
    """The size of what `nbytes` take in the memory."""
    return max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT


_all: weakref.WeakSet[Ahead[Any]] = weakref.WeakSet()


def _begin_anew() -> None:
    """In a forked child, which has none of the threads: one may have held a lock, or have been at work."""
    for ahead in list(_all):
        ahead._begin()


os.register_at_fork(after_in_child=_begin_anew)
