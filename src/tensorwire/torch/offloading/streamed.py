"""Weights that come to a device when they are needed, copied and decoded while those before them are in use.

There are three streams: one copies frames, one decodes them, and the third is the caller's, which computes. Events say
what waits for what; the host waits for nothing. A frame and its values have a place each in two pieces of memory, which
are used over and over.

    copies    | frame 1 | frame 2 | frame 3 |
    decodes             | 1 |     | 2 |     | 3 |
    caller                  | product 1 |   | product 2 |
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..._ground.copies import not_copied
from ..frames.open_frame import opened, opened_as, opened_there, ready_to_multiply

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 512
"""What lies on the device begins at multiples of this, as torch aligns it."""


def aligned(nbytes: int) -> int:
    """The size of what `nbytes` take on the device."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(eq=False)
class HostWeight:
    """A frame in host memory, and what a device has of it for good.

    Attributes:
        frame: in host memory.
        nbytes: size of its values.
        decoded: whether it will probably be asked for decoded.
        asked: the ways in which it was asked for.
    """

    __reduce_ex__ = not_copied("addresses on a device", "offload the other model")

    frame: Tensor
    decoded: bool = True
    asked: set[bool] = field(default_factory=set)
    _there: Any = None
    _places: dict[int, Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return opened(self.frame).info.uncompressed_nbytes

    def open(self, there: Tensor, others: Sequence[Tensor]) -> None:
        """Make what the device needs of it; `there` has the frame, `others` are places to which it will be copied."""
        self._there = ready_to_multiply(there)
        self._places = {place.data_ptr(): opened_as(place, self._there) for place in (there, *others)}

    def at(self, memory: Tensor) -> Tensor:
        """One of these places, as a frame that is open."""
        return self._places[memory.data_ptr()]

    def newly_at(self, memory: Tensor) -> Tensor:
        """Other memory with the frame, opened."""
        return memory if self._there is None else opened_as(memory, self._there)

    def multiplies(self, x: Tensor, bias: Tensor | None, mode: str) -> bool:
        """Whether inputs like `x` are multiplied without a decoded weight."""
        return self._there is not None and self._there.product_for(x, bias, mode) is not None

    def close(self) -> None:
        """Forget what the device has of it."""
        self._there = None
        self._places = {}

    def empty(self, memory: Tensor) -> Tensor:
        """The front of the memory as its values."""
        reader = opened(self.frame)
        return memory[: self.nbytes].view(reader.dtype).view(reader.shape)


@dataclass(eq=False)
class _Room:
    """A part of a piece of memory: from its beginning on, or up to its end."""

    side: int
    memory: Tensor


class _Ends:
    """Memory for two things, which lie at its two ends. Each is written by one stream only."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        """Room for any two different ones."""
        largest = sorted(map(aligned, sizes))[-2:]
        self._memory = torch.empty(sum(largest), dtype=torch.uint8, device=device)
        self._taken = [0, 0]
        self._next = 0
        self._events: list[Any] = []

    def places(self, nbytes: int) -> list[Tensor]:
        """Where a thing may lie."""
        capacity = self._memory.numel()
        return [self._memory[start : start + nbytes] for start in sorted({0, capacity - aligned(nbytes)})]

    def take(self, nbytes: int, stream: Any) -> _Room | None:
        """A place, which `stream` may write to behind what it has now to wait for; None while there is none."""
        size, capacity = aligned(nbytes), self._memory.numel()
        for side in (self._next, 1 - self._next):
            if not self._taken[side] and self._taken[1 - side] + size <= capacity:
                while self._events:
                    stream.wait_event(self._events.pop())
                self._taken[side], self._next = size, 1 - side
                return _Room(side, self.places(nbytes)[-1 if side else 0])
        return None

    def free(self) -> None:
        """Forget the memory."""
        self._memory = self._memory[:0].clone()

    def give_back(self, place: _Room, event: Any = None) -> None:
        """The place is free behind an event; without one, behind what its writer has done so far."""
        self._taken[place.side] = 0
        if event is not None:
            self._events.append(event)


@dataclass(eq=False)
class _Arrival:
    """A weight on its way to the device, or there.

    Attributes:
        frame: where its frame is; None once only its values are needed.
        values: where its values are; None if it is not decoded.
        ready: the event behind which frame or values are there.
        stream: on which it is used.
        lease: what uses it.
    """

    weight: HostWeight
    frame: _Room | None = None
    values: _Room | None = None
    ready: Any = None
    stream: Any = None
    lease: weakref.ref[WeightLease] | None = None


class WeightLease:
    """A weight on the device until the end of a ``with`` block: its values, or its frame, opened."""

    def __init__(self, streamed: Streamed, entry: _Arrival, memory: Tensor) -> None:
        self._streamed, self._entry, self._memory = streamed, entry, memory

    def __enter__(self) -> Tensor:
        return self._memory

    def __exit__(self, *error: object) -> None:
        self._streamed._release(self._entry)


class Streamed:
    """Brings weights to a device in the order in which they were used last.

    A weight that comes out of turn is copied and decoded when it is asked for. Safe for several threads.
    """

    __reduce_ex__ = not_copied("streams and memory of a device", "offload the other model")

    def __init__(self, weights: Sequence[HostWeight], device: torch.device, streams: Any) -> None:
        """Open all weights on the device.

        Args:
            streams: torch's module of the device.
        """
        self._device, self._streams = device, streams
        self._coded = _Ends([weight.frame.numel() for weight in weights], device)
        self._values = _Ends([weight.nbytes for weight in weights], device)
        self._weights = weights
        for weight in weights:
            first, *others = self._coded.places(weight.frame.numel())
            weight.open(first.copy_(weight.frame), others)
        self._copies, self._decodes = streams.Stream(device=device), streams.Stream(device=device)
        for stream in (self._copies, self._decodes):
            stream.wait_stream(streams.current_stream(device))
        self._lock = threading.RLock()
        self._thread: int | None = None
        self._queue: deque[_Arrival] = deque()
        self._in_use: list[_Arrival] = []
        self._following: dict[HostWeight | None, HostWeight] = {}
        self._last: HostWeight | None = None
        self._end: HostWeight | None = None
        self.closed = False

    def take(self, weight: HostWeight, *, decoded: bool) -> WeightLease | None:
        """The weight on the device, behind what the current stream has to wait for. None if the caller has to bring it
        there by itself: it is closed, or both places are in use.

        Raises:
            RuntimeError: a graph is captured; or what torch raises.
        """
        with self._lock:
            if self.closed or self._thread == threading.get_ident():  # a signal handler has come in between
                return None
            if self._streams.is_current_stream_capturing():
                raise RuntimeError(
                    "a graph is captured of a model whose weights are offloaded: a replay would not copy them; close "
                    "what offload has returned, or give it memory for all weights"
                )
            self._thread = threading.get_ident()
            try:
                self._reclaim()
                self._learn(weight, decoded)
                entry = self._chosen(weight, decoded)
                if entry is None:
                    return None
                entry.stream = self._streams.current_stream(self._device)
                entry.stream.wait_event(entry.ready)
                if decoded:
                    assert entry.values is not None
                    memory = weight.empty(entry.values.memory)
                else:
                    assert entry.frame is not None
                    memory = weight.at(entry.frame.memory)
                lease = WeightLease(self, entry, memory)
                entry.lease = weakref.ref(lease)
                self._in_use.append(entry)
                self._plan()
                return lease
            finally:
                self._thread = None

    def close(self) -> None:
        """Wait for the device, and free the memory. What is in use stays until its end."""
        with self._lock:
            self.closed = True
            self._queue.clear()
            self._following.clear()
            self._streams.synchronize(self._device)
            for weight in self._weights:
                weight.close()
            self._coded.free()
            self._values.free()

    def _release(self, entry: _Arrival) -> None:
        with self._lock:
            self._thread, before = threading.get_ident(), self._thread
            try:
                self._over(entry)
                if not self.closed:
                    self._plan()
            finally:
                self._thread = before

    def _over(self, entry: _Arrival) -> None:
        """What the caller has launched until now may read it, and nothing later."""
        if entry not in self._in_use:
            return
        event = self._recorded(entry.stream)
        self._in_use.remove(entry)
        if self.closed:
            event.synchronize()
        for ends, place in ((self._coded, entry.frame), (self._values, entry.values)):
            if place is not None:
                ends.give_back(place, event)

    def _reclaim(self) -> None:
        """An interrupt may have come before the ``with`` block: then nothing refers to the lease."""
        for entry in list(self._in_use):
            if entry.lease is None or entry.lease() is None:
                self._over(entry)

    def _learn(self, weight: HostWeight, decoded: bool) -> None:
        """What follows what. After a prompt all weights change from values to frames, if they ever have."""
        self._following[self._last] = weight
        self._last = weight
        weight.asked.add(decoded)
        if weight.decoded != decoded:
            weight.decoded = decoded
            for other in self._following.values():
                if decoded in other.asked:
                    other.decoded = decoded

    def _chosen(self, weight: HostWeight, decoded: bool) -> _Arrival | None:
        """What is on its way, if it was expected; else it sets out now."""
        if not any(entry.weight is weight for entry in self._queue):
            self._end = weight
            self._drop_all()
        entry = None
        while self._queue and entry is None:
            entry = self._queue.popleft()
            if entry.weight is not weight or (not decoded and entry.frame is None):
                self._drop(entry)
                entry = None
        if entry is None:
            self._drop_all()
            self._end = weight
            entry = self._copied(weight)
        if entry is not None and decoded and entry.values is None:
            try:
                made = self._decode(entry)
            except BaseException:
                self._drop(entry)
                raise
            if not made:
                self._drop(entry)
                return None
        return entry

    def _plan(self) -> None:
        """Let what comes next set out, as far as there is room."""
        with suppress(Exception):  # met where the weight is needed
            while True:
                for entry in self._queue:
                    if entry.weight.decoded and entry.values is None and not self._decode(entry):
                        break
                weight = self._following.get(self._end)
                if weight is None or any(entry.weight is weight for entry in self._queue):
                    break
                newest = self._copied(weight)
                if newest is None:
                    break
                self._queue.append(newest)
                self._end = weight

    def _copied(self, weight: HostWeight) -> _Arrival | None:
        place = self._coded.take(weight.frame.numel(), self._copies)
        if place is None:
            return None
        try:
            with self._streams.stream(self._copies):
                place.memory.copy_(weight.frame, non_blocking=True)
            return _Arrival(weight, frame=place, ready=self._recorded(self._copies))
        except BaseException:
            self._coded.give_back(place)
            raise

    def _decode(self, entry: _Arrival) -> bool:
        """Decode it, and give the place of its frame back. False if there is no place for its values."""
        weight = entry.weight
        place = self._values.take(weight.nbytes, self._decodes)
        if place is None:
            return False
        assert entry.frame is not None
        try:
            self._decodes.wait_event(entry.ready)
            with self._streams.stream(self._decodes):
                opened_there(weight.at(entry.frame.memory)).decode(0, weight.empty(place.memory))
            event = self._recorded(self._decodes)
        except BaseException:
            self._values.give_back(place)
            raise
        entry.values, entry.ready = place, event
        self._coded.give_back(entry.frame, event)
        entry.frame = None
        return True

    def _drop_all(self) -> None:
        while self._queue:
            self._drop(self._queue.popleft())

    def _drop(self, entry: _Arrival) -> None:
        """It is not used. What writes there next is on the stream that wrote there, and comes after."""
        if entry.frame is not None:
            self._coded.give_back(entry.frame, self._recorded(self._decodes))
        if entry.values is not None:
            self._values.give_back(entry.values)

    def _recorded(self, stream: Any) -> Any:
        event = self._streams.Event()
        event.record(stream)
        return event
