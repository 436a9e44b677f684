"""Weights that are decoded on a side stream: results are right in whatever order the streams of a device work.

The streams are queues that are late: see tests/support/streams.py.
"""

from __future__ import annotations

import functools
import gc
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tensorwire.torch.products import side_stream  # noqa: E402
from tensorwire.torch.products.side_stream import SideStream  # noqa: E402
from tests.support.streams import LateStreams, Mark, Stream  # noqa: E402

SEEDS = 40


class Freed(Mark):
    """Passed once all streams that used some memory are done with it."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory, self.marks = memory, list[Mark]()

    @property
    def passed(self) -> bool:  # type: ignore[override]
        return all(mark.passed for mark in self.marks)


class Device(LateStreams):
    """Implements Streams. What is launched here is carried out by `run` alone."""

    def __init__(self) -> None:
        super().__init__(0)
        self.own = self.all[0]
        self.side, self.other, self._others = self.Stream(), self.Stream(), self.Stream()
        self._freed: Freed | None = None
        self.current, self.on, self.event = self.current_stream, self.stream, self.Event

    def keep(self, memory: torch.Tensor, stream: Stream) -> None:
        """Others write to freed memory as soon as the streams that were named have done what they had."""
        if self._freed is None or self._freed.memory is not memory:
            self._freed = Freed(memory)
            self._others.queue += [self._freed, functools.partial(memory.fill_, 0xA5)]
        event = self.Event()
        event.record(stream)
        self._freed.marks.append(event.mark)

    def launch(self, work: Callable[[], object]) -> None:
        self.current_stream().queue.append(work)

    def run(self, chosen: random.Random, steps: int | None = None) -> None:
        """All that was launched, or so many operations."""
        self._random, some = chosen, iter(range(steps or 0))
        if steps is None:
            self.synchronize()
        else:
            self.carry_out(lambda: any(stream.ready for stream in self.all) and next(some, None) is not None)


class Frame:
    """A weight, decoded row by row, so that others may come in between."""

    dtype = torch.float32

    def __init__(self, device: Device, weight: torch.Tensor) -> None:
        self._device, self._weight, self.shape = device, weight, tuple(weight.shape)
        self.alive = [True]

    def decode(self, first: int, out: torch.Tensor) -> None:
        target, source, alive = out.view(self.shape), self._weight, self.alive

        def copy(row: int) -> Callable[[], None]:
            def work() -> None:
                assert alive[0], "the frame was freed while it was decoded"
                target[row] = source[row]

            return work

        for row in range(len(source)):
            self._device.launch(copy(row))

    def __del__(self) -> None:
        self.alive[0] = False


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        output = x.new_full((len(x), len(weight)), float("nan"))
        for row in range(len(weight)):

            def work(row: int = row) -> None:
                output[:, row] = x @ weight[row]

            found.launch(work)
        return output

    monkeypatch.setattr(side_stream, "linear", linear)
    return found


def weights(device: Device, count: int) -> tuple[list[torch.Tensor], list[Frame]]:
    dense = [torch.full((2 + number % 3, 4), 1.0 + number) for number in range(count)]
    return dense, [Frame(device, weight) for weight in dense]


def rest(side: SideStream) -> None:
    """Until the buffers are freed."""
    for _ in range(side_stream._IDLE):
        side.idle()
    assert all(buffer.memory is None for buffer in side._buffers)


def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.stack([x @ row for row in weight], 1)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_order_of_weights_streams_and_work(seed: int, device: Device) -> None:
    chosen, side = random.Random(seed), SideStream(device)
    dense, frames = weights(device, 4)
    usual, found = [0, 1, 2, 3], []
    for _ in range(6):
        order = usual if chosen.random() < 0.7 else [chosen.randrange(4) for _ in range(4)]
        for number in order:
            x = torch.full((2, 4), float(chosen.randrange(1, 100)))
            with device.on(chosen.choice([device.own, device.own, device.other])):
                found.append((side.multiply(x, frames[number], dense[number].shape, None), expected(x, dense[number])))
            if chosen.random() < 0.5:
                device.run(chosen, chosen.randrange(20))
            if chosen.random() < 0.1:
                rest(side)
    device.run(chosen)
    assert all(torch.equal(output, wanted) for output, wanted in found)


def test_the_next_weight_is_decoded_beside_a_product(device: Device) -> None:
    """From the second pass on; and once in a pass, as without it."""
    side = SideStream(device)
    dense, frames = weights(device, 3)
    x, decoded = torch.ones(2, 4), []
    for frame in frames:
        original = frame.decode

        def decode(first: int, out: Any, frame: Any = frame, original: Any = original) -> None:
            decoded.append((frames.index(frame), device.current() is device.side))
            original(first, out)

        frame.decode = decode
    for _ in range(3):
        for number, frame in enumerate(frames):
            side.multiply(x, frame, dense[number].shape, None)
    assert decoded == [
        (0, False), (1, False), (2, False),
        (0, False), (1, True), (2, True), (0, True),
        (1, True), (2, True), (0, True),
    ]  # fmt: skip


def test_a_weight_that_is_freed_while_it_is_decoded_ahead(device: Device) -> None:
    side = SideStream(device)
    dense, frames = weights(device, 3)
    x = torch.ones(2, 4)
    for number in (0, 1, 2, 0):
        side.multiply(x, frames[number], dense[number].shape, None)
    device.side.queue, held = deque(), device.side.queue  # the side stream is slow
    device.run(random.Random(0))
    alive = [frame.alive for frame in frames]
    del frames
    gc.collect()
    assert [each[0] for each in alive] == [False, True, False]
    device.side.queue = held
    device.run(random.Random(0))
    rest(side)
    gc.collect()
    assert not alive[1][0]


@pytest.mark.parametrize("where", ["decode", "linear"])
def test_an_error_in_the_middle(where: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    side, chosen = SideStream(device), random.Random(1)
    dense, frames = weights(device, 2)
    x = torch.full((2, 4), 3.0)

    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patch:
        patch.setattr(*((Frame, "decode") if where == "decode" else (side_stream, "linear")), fail)
        with pytest.raises(torch.OutOfMemoryError):
            side.multiply(x, frames[0], dense[0].shape, None)
    found = [side.multiply(x, frames[number], dense[number].shape, None) for number in (0, 1, 0)]
    device.run(chosen)
    assert all(torch.equal(found[k], expected(x, dense[n])) for k, n in enumerate((0, 1, 0)))


def test_buffers_outlive_a_few_products_with_few_inputs(device: Device) -> None:
    side = SideStream(device)
    dense, frames = weights(device, 1)
    side.multiply(torch.ones(2, 4), frames[0], dense[0].shape, None)
    for _ in range(2 * side_stream._IDLE):
        side.multiply(torch.ones(2, 4), frames[0], dense[0].shape, None)
        side.idle()
    side.multiply(torch.ones(2, 4), frames[0], dense[0].shape, None)
    for _ in range(side_stream._IDLE - 1):
        side.idle()
    assert any(buffer.memory is not None for buffer in side._buffers)
    side.idle()
    assert all(buffer.memory is None for buffer in side._buffers)
