"""How a GPU is measured: by replays of a graph, which cost the host nothing, and by calls, as a model has them.

Weights rotate, so that none is in the cache when it is read again. On a CPU the same code runs without graphs, which
shows that it works and measures nothing.
"""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from benchmarks.device.power import clock_and_power
from benchmarks.timing import interleave, spread
from tensorwire.torch import CompressedTensor
from tensorwire.torch.device.frame import DeviceFrame
from tensorwire.torch.device.nvidia import driver_for
from tensorwire.torch.frames.open_frame import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensorwire.torch.device.driver import Driver

CACHE_NBYTES = 300 << 20
"""Several times the L2 of a large GPU."""
WORD_NBYTES = 2
_Name = TypeVar("_Name")
PROFILES = ("resident", "fast", "enec")
"""The most wanted first."""
CUDA, TRITON = "CUDA C++", "Triton"
"""Whose kernels."""
_ROUNDS = 15
_LOADED_SECONDS = 0.04  # for which an operation is repeated while the clock is read


def _nothing() -> None:
    pass


@dataclass
class Timed:
    """An operation that can be timed.

    Attributes:
        once: does it `count` times, and gives the seconds of one.
        start: the same without waiting for the end.
        results: of the last time, if it is replayed.
    """

    once: Callable[[], float]
    start: Callable[[], Any]
    count: int
    results: list[Any]


@dataclass
class Bench:
    """What measures: a device, and how.

    Attributes:
        device: "cuda", or "cpu" to try the code.
        quick: little data and few rounds, which measure nothing.
        deadline: when the section that runs is to be over, by `time.monotonic`.
    """

    device: str = "cuda"
    quick: bool = False
    deadline: float = math.inf

    @property
    def left(self) -> float:
        """Seconds until the section that runs is to be over."""
        return self.deadline - time.monotonic()

    def settle(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def free(self) -> None:
        """Give back the memory that nothing holds."""
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def rotation(self, nbytes: int) -> int:
        """How many weights of so many bytes are used by turns; one that fills the cache alone is enough."""
        return 1 if self.quick else -(-CACHE_NBYTES // nbytes)

    def weights(self, rows: int, columns: int, count: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
        """Normal weights, as large as those of trained models."""
        generator = torch.Generator(self.device).manual_seed(rows * columns)
        return [
            (torch.randn((rows, columns), generator=generator, device=self.device) * 0.02).to(dtype)
            for _ in range(count)
        ]

    @functools.cached_property
    def driver(self) -> Driver | None:
        """What launches kernels in CUDA C++; on a CPU what the tests have for it. None where nothing compiles them."""
        if self.device == "cuda":
            return driver_for(torch.device(self.device))
        from tests.torch.device import stand_in

        return None if stand_in.missing() else stand_in.StandIn()

    def engines(self) -> dict[str, Callable[[torch.Tensor], Any]]:
        """What opens frames, by name: each with kernels of its own. On a CPU the core is in Triton's place, whose
        interpreter takes long."""
        driver = self.driver
        found: dict[str, Callable[[torch.Tensor], Any]] = {}
        if driver is not None:
            found[CUDA] = lambda frame: DeviceFrame(frame.clone() if frame.data_ptr() % 16 else frame, driver)
        return {**found, TRITON: opened if self.device == "cpu" else lambda frame: DeviceFrame(frame, None)}

    def decoder(self, frame: Any) -> Callable[[], torch.Tensor]:
        """Decodes an open frame into new memory."""

        def decode() -> torch.Tensor:
            out = torch.empty(frame.shape, dtype=frame.dtype, device=self.device)
            frame.decode(0, out)
            return out

        return decode

    def by_graph(self, operation: Callable[[int], Any], count: int, before: Callable[[], Any] = _nothing) -> Timed:
        """Each of `count` operations, which are replayed together; `before` runs before each replay, and is not
        timed."""
        if self.device != "cuda":
            return self.by_calls(operation, count, before)
        before()
        for number in range(count):
            operation(number)
        before()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [operation(number) for number in range(count)]  # else all would write to the same memory
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def start() -> None:
            before()
            graph.replay()

        def once() -> float:
            before()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3 / len(kept)

        once()
        return Timed(once, start, count, kept)

    def by_calls(self, operation: Callable[[int], Any], count: int, before: Callable[[], Any] = _nothing) -> Timed:
        """Each of `count` calls, one behind the other, which nothing is waited for between."""

        def repeat() -> None:
            for number in range(count):
                operation(number)

        def start() -> None:
            before()
            repeat()

        def once() -> float:
            before()
            self.settle()
            began = time.perf_counter()
            repeat()
            self.settle()
            return (time.perf_counter() - began) / count

        once()
        return Timed(once, start, count, [])

    def medians(self, operations: Mapping[_Name, Timed]) -> dict[_Name, dict[str, float]]:
        """Seconds of each, by turns: median and quartiles; and the clock and the power while it runs."""
        once = {name: operation.once for name, operation in operations.items()}
        rounds = 1 if self.quick else _ROUNDS
        taken = interleave(once, dict.fromkeys(operations, 0.0), rounds, budget=60.0)
        found = {name: spread([each for each in seconds if each is not None]) for name, seconds in taken.items()}
        for name, operation in operations.items():
            found[name] |= self._load(operation, found[name]["median"])
        return found

    def _load(self, operation: Timed, seconds: float) -> dict[str, float]:
        if self.quick or self.device != "cuda":
            return {}
        began = time.monotonic()
        for _ in range(max(1, int(_LOADED_SECONDS / max(seconds * operation.count, 1e-6)))):
            operation.start()
        time.sleep(max(0.0, began + _LOADED_SECONDS - time.monotonic()) / 2)
        found = clock_and_power()
        self.settle()
        return found


LOAD_COLUMNS = (("MHz", "clock", ".0f"), ("W", "watts", ".0f"))
"""A table's, where its rows have what `load_of` gives."""


def load_of(figures: dict[str, float]) -> dict[str, float]:
    """The clock and the power among the figures of an operation."""
    return {name: figures[name] for name in ("clock", "watts") if name in figures}


def compressed(dense: list[torch.Tensor], profile: Any, mode: str = "exact") -> list[CompressedTensor]:
    """The same, compressed; RuntimeError if a bit is lost."""
    held = [CompressedTensor.from_dense(weight, profile, linear_mode=mode) for weight in dense]
    for a, b in zip(held, dense, strict=True):
        if not same_bits(a.decode(), b):
            raise RuntimeError(f"{profile}: a decoded weight has other bits")
    return held


def in_mode(held: list[CompressedTensor], mode: str) -> list[CompressedTensor]:
    """The same frames, multiplied in another mode."""
    return [CompressedTensor(each.frame, linear_mode=mode) for each in held]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))
