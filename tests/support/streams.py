"""A device whose streams are late: a test double with the names of `torch.cuda` that code for streams uses.

What torch is asked for on the device, and what is launched there, is put into the queue of the current stream. It is
carried out at any time later, before the host reads a value. Only the order within a stream, and events, hold anything
back. So what lacks an event has wrong values for some seed. Memory that nothing has written to is NaN.
"""

from __future__ import annotations

import functools
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from tensorwire import FormatError
from tensorwire.torch.frames.open_frame import OpenFrame, Origin
from tensorwire.torch.products.linear import FUSED_ORDER
from tests.support import disguised
from tests.support.disguised import WAITS, Disguised, DisguisedDevice, DisguisedFrame, DisguisedProduct, plain


@dataclass
class Mark:
    """A place in the queue of a stream that was recorded."""

    stream: int = 0
    passed: bool = False


class Event:
    """As `torch.cuda.Event`."""

    def __init__(self, device: LateStreams) -> None:
        self._device = device
        self.mark = Mark(passed=True)

    def record(self, stream: Stream) -> None:
        mark = self.mark = Mark(stream.number)
        stream.queue.append(lambda: setattr(mark, "passed", True))

    def wait(self, stream: Stream) -> None:
        stream.wait_event(self)

    def query(self) -> bool:
        return self.mark.passed

    def synchronize(self) -> None:
        self._device.carry_out(lambda: not self.mark.passed)


@dataclass(eq=False)
class Stream:
    """As `torch.cuda.Stream`. Its queue has functions, and marks that it waits for."""

    device: LateStreams
    number: int
    queue: deque[Any] = field(default_factory=deque)

    def wait_event(self, event: Event) -> None:
        if (self.number, event.mark.stream) not in self.device.forgotten:
            self.queue.append(event.mark)

    def wait_stream(self, other: Stream) -> None:
        event = Event(self.device)
        event.record(other)
        self.wait_event(event)

    @property
    def ready(self) -> bool:
        return bool(self.queue) and getattr(self.queue[0], "passed", True)


class LateStreams:
    """What torch.cuda has of streams.

    Attributes:
        all: all of them; the first one is the default stream.
        copied_nbytes: by number of the stream, the bytes that it has copied from the host.
        forgotten: pairs of streams, by number, of which the first does not wait for events of the second.
        capturing: whether a graph is captured.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.all = [Stream(self, 0)]
        self._current = [self.all[0]]
        self.copied_nbytes: Counter[int] = Counter()
        self.forgotten: set[tuple[int, int]] = set()
        self.capturing = False

    def Stream(self, device: Any = None) -> Stream:  # noqa: N802 - torch's name
        self.all.append(Stream(self, len(self.all)))
        return self.all[-1]

    def Event(self) -> Event:  # noqa: N802 - torch's name
        return Event(self)

    def current_stream(self, device: Any = None) -> Stream:
        return self._current[-1]

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()

    def synchronize(self, device: Any = None) -> None:
        self.carry_out(lambda: any(stream.queue for stream in self.all))

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def launch(self, work: Callable[[], object]) -> None:
        """Put it into the queue of the current stream. Some of what is queued is carried out now, by chance."""
        self.current_stream().queue.append(work)
        some = iter(range(self._random.choice((0, 0, 0, 1, 2, 5))))
        self.carry_out(lambda: next(some, None) is not None and any(stream.ready for stream in self.all))

    def carry_out(self, going_on: Callable[[], bool]) -> None:
        """Carry out operations of any streams that wait for nothing."""
        with _disable_current_modes(), torch.inference_mode():
            while going_on():
                ready = [stream for stream in self.all if stream.ready]
                assert ready, "all streams wait for each other"
                work = self._random.choice(ready).queue.popleft()
                if not isinstance(work, Mark):
                    work()


class LateDevice(DisguisedDevice):
    """The device. `streams` stands in the place of torch.cuda."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.streams = LateStreams(seed)

    def __exit__(self, *error: Any) -> None:
        if self._depth == 1 and error[:1] in ((), (None,)):
            self.streams.synchronize()
        super().__exit__(*error)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func.namespace == "tensorwire":
            return super().run(func, args, kwargs)
        with self:  # in inference mode, what torch makes of other operations comes whole
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        leaves = tree_leaves((args, kwargs))
        there = [leaf for leaf in leaves if isinstance(leaf, Disguised)]
        if not there or func.is_view or self._waits_for(func, args, kwargs):
            if there and not func.is_view:
                self.streams.synchronize()
            result = super().run(func, args, kwargs)
            if "empty" in func._schema.name:
                _spoil(result)
            return result
        self.calls[func._schema.name] += 1
        inner_args, inner_kwargs = tree_map_only(Disguised, lambda value: value.inner, (args, kwargs))
        if inner_kwargs.get("device") is not None:
            inner_kwargs["device"] = "cpu"
        if func._schema.is_mutable:
            if func is torch.ops.aten.copy_.default and not isinstance(args[1], Disguised):
                self.streams.copied_nbytes[self.streams.current_stream().number] += args[1].nbytes
            self.streams.launch(lambda: func(*inner_args, **inner_kwargs))
            return _written(func, args, kwargs)
        try:
            result = func(*inner_args, **inner_kwargs)  # of what happens to be there: only its shape is wanted
        except (RuntimeError, IndexError):
            self.streams.synchronize()
            return super().run(func, args, kwargs)
        result = tree_map_only(torch.Tensor, torch.clone, result)  # which may be an argument
        _spoil(result)

        def compute() -> None:
            for target, value in zip(tree_leaves(result), tree_leaves(func(*inner_args, **inner_kwargs)), strict=True):
                if isinstance(target, torch.Tensor):
                    target.copy_(value)

        self.streams.launch(compute)
        return tree_map_only(torch.Tensor, Disguised, result)

    @staticmethod
    def _waits_for(func: Any, args: Any, kwargs: Any) -> bool:
        """Whether the host does: for values, or for a shape that is in the values."""
        name = func._schema.name
        if name == "aten::copy_":
            return not isinstance(args[0], Disguised)
        if name == "aten::_to_copy":
            return not isinstance(args[0], Disguised) or torch.device(kwargs.get("device") or "lazy").type == "cpu"
        by_mask = name == "aten::index" and any(each is not None and each.dtype == torch.bool for each in args[1])
        return by_mask or name in (*WAITS, "aten::equal", "aten::is_nonzero")

    def _open(self, frame: torch.Tensor) -> LateFrame:
        self.streams.synchronize()
        self.launched("open")
        assert isinstance(frame, Disguised)
        return LateFrame(self, frame)


class LateFrame(DisguisedFrame):
    """A frame on the device. What it is decoded from is there when the work is carried out, or is not."""

    def __init__(self, device: LateDevice, frame: Disguised) -> None:
        super().__init__(device, frame)
        self._late = device.streams
        self._bytes = frame.inner

    def at(self, frame: torch.Tensor) -> LateFrame:
        twin = object.__new__(LateFrame)
        twin.__dict__.update({key: value for key, value in vars(self).items() if key != "product"})
        twin._bytes = plain(frame)
        return twin

    def decode(self, first: int, out: torch.Tensor) -> None:
        self._device.launched("decode")
        target = plain(out)
        self._late.launch(lambda: self.now(target, lambda frame: frame.decode(first, target)))

    @functools.cached_property
    def product(self) -> Any:
        multiplies = len(self.shape) == 2 and self.dtype in (torch.bfloat16, torch.float16)
        return LateProduct(self) if multiplies else None

    def product_for(self, x: torch.Tensor, bias: torch.Tensor | None, mode: str) -> Any:
        takes = self.product is not None and mode == "fused" and x.dtype == self.dtype
        return self.product if takes and x.shape[-1] == self.shape[1] and x.numel() <= 8 * x.shape[-1] else None

    def now(self, target: torch.Tensor, work: Callable[[OpenFrame], object]) -> None:
        """Work with the bytes that are there now. A device that meets others finds wrong values and no error."""
        try:
            frame = OpenFrame(self._bytes.clone(), Origin(verify=False))
            assert frame.shape == self.shape
            work(frame)
        except (FormatError, AssertionError):
            _spoil(target)


class LateProduct(DisguisedProduct):
    """Its result is there when the work is carried out."""

    frame: LateFrame

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        frame, inputs, added = self.frame, plain(x), None if bias is None else plain(bias)
        frame._device.launched("product")
        with _disable_current_modes():
            out = torch.full((len(x), frame.shape[0]), torch.nan, dtype=dtype)

        def work(opened: OpenFrame) -> None:
            sums = opened.linear(inputs, FUSED_ORDER)
            assert sums is not None
            out.copy_(sums if added is None else sums + added)

        frame._late.launch(lambda: frame.now(out, work))
        return Disguised(out)


def _spoil(result: Any) -> None:
    """What is read too early is NaN."""
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.Tensor):
            inner = plain(leaf)
            with _disable_current_modes():
                inner.fill_(torch.nan if inner.is_floating_point() else False if inner.dtype == torch.bool else 85)


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """What a function that writes to its arguments returns: these."""
    written = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[position] if position < len(args) else kwargs.get(argument.name))
    count = len(func._schema.returns)
    return None if count == 0 else written[0] if count == 1 else tuple(written)


assert disguised.DEVICE.type == "lazy"
