"""What is needed next is made while what is needed now is in use, by threads in the background."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from .._ground.allocation import new_buffer
from .._ground.copies import not_copied

Key = TypeVar("Key")
WorkKey = TypeVar("WorkKey", contravariant=True)

ALIGNMENT = 4096
"""The alignment of all memory that is lent: a page, as reads past the page cache want it."""

_MAX_ENTRIES = 16
_LINGER_SECONDS = 0.5
"""How long a thread waits for work before it ends. So it keeps nothing alive for long, also after an interrupt."""

_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0
"""How long a caller waits for others that finish nothing. One that was interrupted may have left a part behind."""


class Work(Protocol[WorkKey]):
    """What is made. If the order is given, things have memory of their own: the work is `OwnMemory` then."""

    def nbytes(self, key: WorkKey) -> int:
        """The size of a thing."""

    def step(self, key: WorkKey) -> int:
        """The size of the parts that it is made in."""

    def make(self, key: WorkKey, memory: Any, start: int, stop: int, ahead: bool) -> None:
        """Make bytes [start, stop) of a thing where they belong in its memory; `ahead` in the background."""


class OwnMemory(Work[WorkKey], Protocol[WorkKey]):
    """Work whose things have memory of their own, which is the caller's once it has taken it."""

    def memory(self, key: WorkKey) -> Any:
        """What `make` gets for a thing. It takes no room before `make` is called."""


@dataclass(eq=False)
class _Part:
    """A range of an entry that a thread is at. Once nothing refers to it no thread is, however that one has ended."""

    entry: _Entry[Any]
    start: int
    stop: int
    thread: int = field(default_factory=threading.get_ident)


@dataclass(eq=False)
class _Entry(Generic[Key]):
    """A thing that is made.

    Attributes:
        start: where its memory begins in what is lent.
        next: where the next part begins.
        done_nbytes: size of all parts that are finished.
        parts: those that are not.
        over: it is of no use any more. Lent memory is free when no thread is at a part of it, or reads it.
        used: a caller has taken it.
    """

    key: Key
    nbytes: int
    step: int
    start: int
    memory: Any
    next: int = 0
    done_nbytes: int = 0
    over: bool = False
    used: bool = False
    parts: weakref.WeakSet[_Part] = field(default_factory=weakref.WeakSet)
    leases: weakref.WeakSet[Lease] = field(default_factory=weakref.WeakSet)

    @property
    def stop(self) -> int:
        return self.start + self.nbytes

    @property
    def leased(self) -> bool:
        """Whether a lease is alive. The length of a WeakSet may count one for ever that is not."""
        return any(True for _ in self.leases)

    @property
    def ready(self) -> bool:
        return self.done_nbytes == self.nbytes

    @property
    def unfinished(self) -> bool:
        return not self.over and self.next < self.nbytes

    def claim(self, nbytes: int) -> _Part | None:
        """The next part, of at most this size; None if there is none."""
        if self.next == self.nbytes:
            return None
        part = _Part(self, self.next, min(self.next + nbytes, self.nbytes))
        self.parts.add(part)
        self.next = part.stop
        return part


class Lease:
    """Memory that stays as it is until the end of a ``with`` block, or until nothing refers to the lease: an interrupt
    may come between the two, and must not keep memory for ever."""

    def __init__(self, entry: _Entry[Any]) -> None:
        self._memory = entry.memory
        self._leases = entry.leases
        entry.leases.add(self)

    def __enter__(self) -> Any:
        return self._memory

    def __exit__(self, *error: object) -> None:
        self._leases.discard(self)


class Ahead(Generic[Key]):
    """Makes things in the order in which they will be used, before they are asked for.

    Where a guess was wrong, or a thread failed, or there is no room, `take` gives None, and the caller makes the thing
    in its own way. So a failure is met where the thing is needed, in the caller's own thread.

    An order that is not given is learned: the last pass tells what follows what. All that is alive, in use or ahead,
    lies in one piece of memory, which is lent and used over and over. If a thing is half made when it is asked for, the
    caller makes the rest, so that it never waits long for a thread that gets no time.

    In an order that is given, a thing has memory of its own. If it was not begun when it is asked for, it comes first,
    and the things behind it come next. A caller that waits helps.

    The threads end when they idle. Thread-safe. A forked child begins anew, with what was learned.
    """

    __reduce_ex__ = not_copied("threads, and memory that they work in", "make another one of the same work")

    def __init__(
        self, work: Work[Key], capacity: int, *,
        order: Sequence[Key] | None = None, threads: int = 1, niceness: int = 0, least: float = 0.0,
    ) -> None:  # fmt: skip
        """
        Args:
            capacity: size of the memory that is lent, which is allocated when it is first needed; with `order`, of all
                that is ahead, unless one thing is larger.
            order: all keys, each once.
            threads: how many work in the background.
            niceness: how much the threads give way to others, from 0 to 19.
            least: where the order is learned, a thing of which not more than this share has been begun is left to the
                caller's own way, which may be better than to make the rest.
        """
        self._work: Any = work
        self._least = least
        self._learns = order is None
        self._capacity = aligned(capacity) if self._learns else capacity
        self._num_threads = threads
        self._niceness = niceness
        self._memory: memoryview | None = None
        self._following: dict[Key | None, Key] = dict(zip((None, *(order or ())), order or (), strict=False))
        self._closed = False
        self._begin()
        _all.add(self)
        with self._lock:
            self._plan()

    def _begin(self) -> None:
        # The lock is the one of C: an interrupt cannot come between taking it and the block that gives it back.
        self._lock = threading.RLock()
        self._taker: int | None = None  # a thread that is there already, when the handler of a signal comes in between
        self._changed = threading.Condition(self._lock)
        self._held: dict[Key, _Entry[Key]] = {}
        self._held_nbytes = 0
        self._newest: _Entry[Key] | None = None  # all parts of those before it have been begun
        self._end: Key | None = None  # what the next entry follows
        self._threads: set[int] = set()
        self._asked_for_threads = -_POLL_SECONDS
        self._last = threading.local()

    def take(self, key: Key) -> Lease | None:
        """What was made ahead for `key`; None if the caller has to make it.

        Raises:
            Exception: what `Work.make` raises for the rest that the caller has made here.
        """
        if self._taker == threading.get_ident():
            return None
        with self._lock:
            if self._closed:
                return None
            try:
                self._taker = threading.get_ident()
                entry = self._chosen(key)
                lease = rest = None
                if entry is not None:
                    lease = Lease(entry)
                    rest = entry.claim(entry.nbytes) if self._learns else None
                    entry.used = True
                self._plan()
            finally:
                self._taker = None
        if entry is None:
            return None
        if rest is not None:
            self._make(rest, ahead=False)
        while (part := self._meanwhile(entry)) is not None:
            with suppress(Exception):  # met where the thing is needed
                self._make(part, ahead=False)
        return lease if entry.ready else None

    def forget(self) -> None:
        """Free the memory, and let the threads end once they have done what they are at. What is in use stays as it is.
        It does not wait: the garbage collector may call it in any thread, with any lock held.
        """
        with self._lock:
            self._closed = True
            self._following.clear()
            self._drop(*self._entries)
            self._memory = None
            self._changed.notify_all()

    def close(self) -> None:
        """The same, and wait until the threads have ended."""
        self.forget()
        with self._lock:
            while self._threads - {threading.get_ident()} and not sys.is_finalizing():
                self._changed.wait(_POLL_SECONDS)

    def _make(self, part: _Part, *, ahead: bool) -> None:
        entry = part.entry
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
                if entry.over or entry.ready:
                    self._changed.notify_all()

    def _meanwhile(self, entry: _Entry[Key]) -> _Part | None:
        """Wait for other threads that are at parts of an entry; a part to make meanwhile, None once nothing is left.

        A part of the calling thread is not waited for: it was interrupted, and what keeps the exception keeps the
        part; or it is at work below, and a signal handler has come in between.
        """
        own = threading.get_ident()
        with self._lock:
            done, deadline = entry.done_nbytes, time.monotonic() + _PATIENCE_SECONDS
            while not entry.ready and not entry.over:
                part = None if self._learns else self._next_part()
                if part is not None:
                    return part
                if not any(part.thread != own for part in entry.parts) or sys.is_finalizing():
                    break
                self._changed.wait(_POLL_SECONDS)
                if entry.done_nbytes != done:
                    done, deadline = entry.done_nbytes, time.monotonic() + _PATIENCE_SECONDS
                elif time.monotonic() > deadline:
                    break
            entry.over |= not entry.ready
            if not self._learns and entry.key in self._held:  # it is not in a child that was forked meanwhile
                self._drop(entry)
                self._plan()
        return None

    # All up to _run is called with the lock held.

    @property
    def _entries(self) -> list[_Entry[Key]]:
        return list(self._held.values())

    def _chosen(self, key: Key) -> _Entry[Key] | None:
        """What is made for `key`, if enough of it is; else it is the caller's, or if the order is given begun now."""
        if self._learns:
            self._following[getattr(self._last, "key", None)] = key
            self._last.key = key
        entry = self._find(key)
        if entry is not None and (not self._learns or entry.next > self._least * entry.nbytes):
            return entry
        if not self._learns or self._find(self._following.get(key)) is None:
            self._drop(*(entry for entry in self._entries if not entry.leased))
            self._end = key
        elif entry is not None:
            self._drop(entry)
        return self._place(key) if not self._learns else None

    def _find(self, key: Key | None) -> _Entry[Key] | None:
        entry = None if key is None else self._held.get(key)
        return entry if entry is not None and not entry.over else None

    def _plan(self) -> None:
        """Begin what will be used next, if there is room."""
        if self._learns:
            self._drop(*(entry for entry in self._entries if entry.over or (entry.used and not entry.leased)))
        if self._next_entry() is not None:
            self._start()

    def _drop(self, *entries: _Entry[Key]) -> None:
        for entry in entries:
            entry.over = True
            busy = self._learns and (entry.leased or any(True for _ in entry.parts))
            if not busy and self._held.get(entry.key) is entry:
                del self._held[entry.key]
                self._held_nbytes -= entry.nbytes
            if entry is self._newest:
                self._newest = None

    def _next_part(self) -> _Part | None:
        entry = None if self._closed else self._next_entry()
        return None if entry is None else entry.claim(entry.step)

    def _next_entry(self) -> _Entry[Key] | None:
        """What is to be made next, as soon as there is room for it."""
        entry = self._newest
        while entry is None or not entry.unfinished:
            key = self._following.get(self._end)
            if key is None or key in self._held or (entry := self._place(key)) is None:
                return None
        return entry

    def _place(self, key: Key) -> _Entry[Key] | None:
        nbytes = self._work.nbytes(key)
        start = self._room(aligned(nbytes)) if self._learns else 0
        if start is None or (not self._learns and self._held and self._held_nbytes + nbytes > self._capacity):
            return None
        if self._learns and self._memory is None:
            try:
                self._memory = new_buffer(self._capacity)
            except MemoryError:
                return None
        memory = self._work.memory(key) if self._memory is None else self._memory[start : start + nbytes]
        self._held[key] = self._newest = _Entry(key, nbytes, self._work.step(key), start, memory)
        self._held_nbytes += nbytes
        self._end = key
        return self._newest

    def _room(self, nbytes: int) -> int | None:
        """Where memory of this size is free; None if it is nowhere."""
        if len(self._held) >= _MAX_ENTRIES:
            return None
        end = 0
        for entry in sorted(self._entries, key=lambda entry: entry.start):
            if end + nbytes <= entry.start:
                return end
            end = aligned(entry.stop)
        return end if end + nbytes <= self._capacity else None

    def _start(self) -> None:
        """Threads of the lower module: `threading.Thread.start` waits for ever for one that lacks memory to begin."""
        self._changed.notify_all()
        now = time.monotonic()
        if len(self._threads) < self._num_threads and now - self._asked_for_threads >= _POLL_SECONDS:
            self._asked_for_threads = now
            with suppress(RuntimeError):  # no more threads, or the interpreter is about to end: callers make all
                for _ in range(self._num_threads - len(self._threads)):
                    _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        if self._niceness:
            with suppress(OSError):  # Linux has it for each thread
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        own = threading.get_ident()
        try:
            with self._lock:
                if len(self._threads) < self._num_threads:
                    self._threads.add(own)
            while own in self._threads and self._make_next():
                pass
        finally:
            with self._lock:
                if own in self._threads:
                    self._threads.remove(own)
                    self._asked_for_threads = -_POLL_SECONDS
                self._changed.notify_all()

    def _make_next(self) -> bool:
        """Make one part, in a thread; False if there is nothing to do, for a while."""
        with self._lock:
            while (part := self._next_part()) is None:
                if self._closed or not self._changed.wait(_LINGER_SECONDS):
                    return False
        with suppress(BaseException):  # met again, and told, where the thing is needed
            self._make(part, ahead=True)
        return True


def aligned(nbytes: int) -> int:
    """The size of what `nbytes` take in the memory."""
    return max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT


_all: weakref.WeakSet[Ahead[Any]] = weakref.WeakSet()


def _begin_anew() -> None:
    """In a forked child, which has none of the threads: one may have held a lock, or have been at work."""
    for ahead in list(_all):
        for entry in ahead._entries:  # a `take` that was under way waits for none of them
            entry.over = True
        ahead._begin()


os.register_at_fork(after_in_child=_begin_anew)
