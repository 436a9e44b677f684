"""A device whose streams are late: a test double with the names of `torch.cuda` that code for streams uses.

Tensors lie in CPU memory. An operation of torch's is put into the queue of the current stream, and is carried out at
any time later, before the host reads a value. Only the order within a stream, and events, hold anything back. So what
lacks an event is wrong for some seed.

`launch` is for work that torch does not see, such as a kernel of ours.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from tensorwire.torch import ops
from tensorwire.torch.tensors.lazy import LazyTensor

aten = torch.ops.aten

# The host waits for these, or the shape of their results is in the values.
_WAITING = {"_local_scalar_dense", "equal", "is_nonzero", "item", "masked_select", "nonzero", "_unique2", "unique_dim"}
# Their kernels for the CPU, in Python: what they call is queued.
_OURS = {
    "linear": ops.linear_on_cpu, "rows": ops._rows, "decode": ops._decode, "decode.out": ops._decode_out,
}  # fmt: skip


@dataclass
class _Mark:
    """A place in a queue that was recorded."""

    passed: bool = False


class Event:
    """As `torch.cuda.Event`."""

    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self.mark = _Mark(passed=True)

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self._device.current_stream()
        mark = self.mark = _Mark()
        stream.queue.append(lambda: setattr(mark, "passed", True))

    def query(self) -> bool:
        return self.mark.passed

    def synchronize(self) -> None:
        while not self.mark.passed:
            self._device.step()


@dataclass(eq=False)
class Stream:
    """As `torch.cuda.Stream`. Its queue has functions, and marks that it waits for."""

    device: LateDevice
    name: str
    queue: deque[Any] = field(default_factory=deque)

    def wait_event(self, event: Event) -> None:
        if not self.device.forgets(self):
            self.queue.append(event.mark)

    def wait_stream(self, other: Stream) -> None:
        event = Event(self.device)
        event.record(other)
        self.wait_event(event)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self.device)
        event.record(self)
        return event

    def synchronize(self) -> None:
        while self.queue:
            self.device.step()

    @property
    def ready(self) -> bool:
        return bool(self.queue) and getattr(self.queue[0], "passed", True)


class LateDevice(TorchDispatchMode):  # type: ignore[misc] # the checker does not see torch
    """The device, and the mode that queues what torch is asked for; use `running`.

    Attributes:
        streams: all of them; the first one is the default stream.
        copied_nbytes: by name of the stream, the bytes that `copy_` has moved on it.
        forgotten: pairs of the name of a stream and a number: its waits that are left out, 0 for the first.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self.streams = [Stream(self, "default")]
        self._current = [self.streams[0]]
        self.copied_nbytes: Counter[str] = Counter()
        self.forgotten: Callable[[str, int], bool] = lambda stream, number: False
        self._waits: Counter[str] = Counter()
        self.capturing = False

    # What torch.cuda has ------------------------------------------------------------------------------------------

    def Stream(self, device: Any = None, priority: int = 0) -> Stream:  # noqa: N802 - torch's name
        self.streams.append(Stream(self, f"stream {len(self.streams)}"))
        return self.streams[-1]

    def Event(self) -> Event:  # noqa: N802 - torch's name
        return Event(self)

    def current_stream(self, device: Any = None) -> Stream:
        return self._current[-1]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()

    def synchronize(self, device: Any = None) -> None:
        while any(stream.queue for stream in self.streams):
            self.step()

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    # What tests ask for -------------------------------------------------------------------------------------------

    def launch(self, work: Callable[[], object]) -> None:
        """Queue what torch does not see. Some of what is queued is carried out now, by chance."""
        self.current_stream().queue.append(work)
        for _ in range(self._random.choice((0, 0, 0, 1, 2, 5))):
            if any(stream.ready for stream in self.streams):
                self.step()

    def step(self) -> None:
        """Carry out one operation of any stream that waits for nothing."""
        ready = [stream for stream in self.streams if stream.ready]
        assert ready, "all streams wait for each other"
        work = self._random.choice(ready).queue.popleft()
        if not isinstance(work, _Mark):
            with _disable_current_modes(), torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
                work()

    def forgets(self, stream: Stream) -> bool:
        self._waits[stream.name] += 1
        return self.forgotten(stream.name, self._waits[stream.name] - 1)

    @contextmanager
    def running(self) -> Iterator[LateDevice]:
        """Operations are queued until the end, when all are carried out. The host waits where it reads values."""
        originals = {name: getattr(torch.Tensor, name) for name in ("tolist", "numpy")}

        def reading(name: str) -> Callable[..., Any]:
            def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                self.synchronize()
                return originals[name](tensor, *args, **kwargs)

            return read

        with mock.patch.multiple(torch.Tensor, **{name: reading(name) for name in originals}):
            with self:
                yield self
            self.synchronize()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, LazyTensor) for kind in types):
            return NotImplemented  # its own dispatch comes first, and what that calls is queued
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func.namespace == "tensorwire":
            with self:
                return _OURS[
                    func._schema.name.partition("::")[2] + ("" if func._overloadname == "default" else ".out")
                ](*args, **kwargs)
        if not tensors or func.is_view:
            return func(*args, **kwargs)
        if func._schema.name.partition("::")[2] in _WAITING or _has_mask(func, args):
            self.synchronize()
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            if func is aten.copy_.default:
                self.copied_nbytes[self.current_stream().name] += args[0].numel() * args[0].element_size()
            self.launch(lambda: func(*args, **kwargs))
            return _written(func, args, kwargs)
        try:
            result = func(*args, **kwargs)  # of what happens to be there: only shapes are wanted
        except (RuntimeError, IndexError):
            self.synchronize()
            return func(*args, **kwargs)

        def compute() -> None:
            for ours, true in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(ours, torch.Tensor):
                    ours.copy_(true)

        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                leaf.fill_(float("nan"))  # who reads it too early has that
        self.launch(compute)
        return result


def _has_mask(func: Any, args: Any) -> bool:
    return func is aten.index.Tensor and any(index is not None and index.dtype == torch.bool for index in args[1])


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """What a function that writes to its arguments returns: these."""
    written = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[position] if position < len(args) else kwargs.get(argument.name))
    count = len(func._schema.returns)
    return None if count == 0 else written[0] if count == 1 else tuple(written)
