"""Products with many inputs on a device: while one weight is multiplied, the next one is decoded on another stream.

Decoding is bound by memory and such a product by arithmetic, so both at once take less time than one after the other.
The order of weights is learned from one pass and followed in the next one. A weight that comes out of turn is decoded
on the caller's own stream. There are two buffers. A stream that uses one waits for the streams that used it before, by
events: so results are right with all streams and threads of callers.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.functional import linear

from ..._ground.copies import not_copied

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor

    from ..frames.open_frame import AnyFrame

LEAST_INPUTS = 256
"""With fewer a product is bound by memory as well."""
_MOST_NBYTES = 256 << 20
"""A larger dense weight, such as a head, would hold too much memory."""
_IDLE = 64
"""After so many products with few inputs in a row a prompt is over, and the buffers are freed."""


class Streams(Protocol):
    """The streams of a device."""

    side: Any
    """The stream on which weights are decoded ahead."""

    def current(self) -> Any:
        """The caller's stream."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the current one within a ``with`` statement."""

    def event(self) -> Any:
        """An event, with ``record(stream)``, ``wait(stream)`` and ``query()``, which says whether it was reached. To
        wait for one that was not recorded is nothing."""

    def keep(self, memory: Tensor, stream: Any) -> None:
        """Give freed memory to no other tensor until all that was launched on a stream is done."""


class CudaStreams:
    """The streams that torch has."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.side = torch.cuda.Stream(device)

    def current(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return found

    def event(self) -> Any:
        return torch.cuda.Event()

    def keep(self, memory: Tensor, stream: Any) -> None:
        memory.record_stream(stream)


class _Buffer:
    """Memory for one decoded weight.

    Attributes:
        memory: None until it is needed.
        weight: whose values it has, or will have once `written` is reached.
        written, read: recorded behind all operations that wrote to it, and behind all that read from it. Each of them
            waits for those before it.
        users: all streams that use it.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.memory: Tensor | None = None
        self.weight: weakref.ref[AnyFrame] | None = None
        self.written, self.read = streams.event(), streams.event()
        self.users: list[Any] = []

    def holds(self, frame: AnyFrame) -> bool:
        return self.weight is not None and self.weight() is frame

    def used_on(self, stream: Any) -> None:
        if stream not in self.users:
            self.users.append(stream)

    def free(self) -> None:
        """Torch's allocator gives the memory to others once all streams are done with it."""
        memory, self.memory, self.weight = self.memory, None, None
        if memory is not None:
            for stream in self.users:
                self._streams.keep(memory, stream)
        self.users.clear()


class SideStream:
    """Decodes the weights of one device ahead. Thread-safe: one caller at a time launches its work."""

    __reduce_ex__ = not_copied("memory of a device", "it ends with its process")

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._lock = threading.Lock()
        self._buffers = [_Buffer(streams), _Buffer(streams)]  # the one that was read last is the last one
        self._next: weakref.WeakKeyDictionary[AnyFrame, weakref.ref[AnyFrame]] = weakref.WeakKeyDictionary()
        self._last: weakref.ref[AnyFrame] | None = None
        self._idle = 0
        self._at_work: list[tuple[Any, AnyFrame]] = []
        """Frames that the side stream may still read, which nothing else may keep alive, until an event is reached."""

    def multiply(self, x: Tensor, frame: AnyFrame, shape: Sequence[int], bias: Tensor | None) -> Tensor:
        """``torch.nn.functional.linear`` of `x`, on the current stream, with the decoded weight."""
        with self._lock:
            self._idle = 0
            stream = self._streams.current()
            buffer = next((each for each in self._buffers if each.holds(frame)), None)
            if buffer is None:
                buffer = self._buffers[0]
                self._decode(frame, buffer, stream, x)
            buffer.written.wait(stream)
            buffer.read.wait(stream)  # so that `read` stands for all readers
            self._buffers.sort(key=lambda each: each is buffer)
            self._learn(frame)
            try:
                assert buffer.memory is not None
                output = linear(x, _as_weight(buffer.memory, frame).view(*shape), bias)
            finally:  # also after an error: nothing says how far it came
                buffer.used_on(stream)
                buffer.read.record(stream)
            self._decode_ahead(frame, x)
            return output

    def idle(self) -> None:
        """A product with few inputs, which is none of ours."""
        self._idle += 1
        if self._idle == _IDLE:
            with self._lock:
                self._forget()
                for buffer in self._buffers:
                    buffer.free()

    def _forget(self) -> None:
        self._at_work = [(event, frame) for event, frame in self._at_work if not event.query()]

    def _learn(self, frame: AnyFrame) -> None:
        before = None if self._last is None else self._last()
        if before is not None and before is not frame:
            self._next[before] = weakref.ref(frame)
        self._last = weakref.ref(frame)

    def _decode_ahead(self, frame: AnyFrame, like: Tensor) -> None:
        """Begin to decode the weight that came behind this one last time."""
        found = self._next.get(frame)
        following = None if found is None else found()
        self._forget()
        if following is not None and not any(each.holds(following) for each in self._buffers):
            with self._streams.on(self._streams.side):
                self._decode(following, self._buffers[0], self._streams.side, like)
            self._at_work.append((self._buffers[0].written, following))

    def _decode(self, frame: AnyFrame, buffer: _Buffer, stream: Any, like: Tensor) -> None:
        """Decode into a buffer on a stream, which is the current one, behind all that was done with it."""
        buffer.weight = None  # until all is launched: an error leaves no weight behind
        nbytes = _nbytes(frame)
        if buffer.memory is not None and buffer.memory.numel() < nbytes:
            buffer.free()
        if buffer.memory is None:
            buffer.memory = torch.empty(nbytes, dtype=torch.uint8, device=like.device)
        buffer.used_on(stream)
        buffer.read.wait(stream)
        buffer.written.wait(stream)
        buffer.written = self._streams.event()  # the old one may still be asked
        try:
            frame.decode(0, _as_weight(buffer.memory, frame))
        finally:  # also after an error: nothing says how far it came
            buffer.written.record(stream)
        buffer.weight = weakref.ref(frame)


def takes(x: Tensor, frame: AnyFrame) -> bool:
    """Whether `x` is many inputs for a weight that a buffer has room for."""
    if len(frame.shape) != 2 or x.dtype != frame.dtype or x.shape[-1:] != frame.shape[1:]:
        return False
    return x.numel() >= LEAST_INPUTS * max(1, frame.shape[1]) and _nbytes(frame) <= _MOST_NBYTES


def _nbytes(frame: AnyFrame) -> int:
    return math.prod(frame.shape) * int(frame.dtype.itemsize)


def _as_weight(memory: Tensor, frame: AnyFrame) -> Tensor:
    return memory[: _nbytes(frame)].view(frame.dtype)


@functools.cache
def side_stream_of(device: torch.device) -> SideStream | None:
    """The one of a device; None where torch has no streams that were looked at."""
    return SideStream(CudaStreams(device)) if device.type == "cuda" else None
