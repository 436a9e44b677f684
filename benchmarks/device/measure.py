"""How a GPU is measured: by replays of a graph, which cost the host nothing, and by calls, as a model has them.

Weights rotate, so that none is in the cache when it is read again.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.timing import interleave, spread
from tensorwire.torch import CompressedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CACHE_NBYTES = 300 << 20
"""Several times the L2 of a large GPU."""
ROUNDS = 15


def rotation(nbytes: int) -> int:
    """How many weights of so many bytes are used by turns."""
    return max(2, -(-CACHE_NBYTES // nbytes))


def weights(rows: int, columns: int, count: int) -> list[torch.Tensor]:
    """Normal weights, as large as those of trained models."""
    generator = torch.Generator("cuda").manual_seed(rows * columns)
    return [
        (torch.randn((rows, columns), generator=generator, device="cuda") * 0.02).to(torch.bfloat16)
        for _ in range(count)
    ]


def compressed(dense: list[torch.Tensor], profile: Any, mode: str = "exact") -> list[CompressedTensor]:
    """The same, compressed; RuntimeError if a bit is lost."""
    held = [CompressedTensor.from_dense(weight, profile, linear_mode=mode) for weight in dense]
    for a, b in zip(held, dense, strict=True):
        if not torch.equal(a.decode().view(torch.int16), b.view(torch.int16)):
            raise RuntimeError(f"{profile}: a decoded weight has other bits")
    return held


def by_graph(operation: Callable[[int], Any], count: int) -> Callable[[], float]:
    """Seconds of one of `count` operations that are replayed together."""
    for number in range(count):
        operation(number)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [operation(number) for number in range(count)]  # else all would write to the same memory
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once() -> float:
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / len(kept)

    once()
    return once


def by_calls(operation: Callable[[int], Any], count: int) -> Callable[[], float]:
    """Seconds of one of `count` calls, one behind the other, which nothing is waited for between."""

    def once() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for number in range(count):
            operation(number)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    once()
    return once


def medians(operations: Mapping[str, Callable[[], float]]) -> dict[str, dict[str, float]]:
    """Seconds of each, by turns: median and quartiles."""
    taken = interleave(operations, dict.fromkeys(operations, 0.0), ROUNDS, budget=60.0)
    return {name: spread([each for each in seconds if each is not None]) for name, seconds in taken.items()}


@functools.cache
def copy_bandwidth() -> float:
    """Bytes a second that a kernel of torch's reads and writes together, which inverts 2 GiB."""
    source = torch.randint(-(1 << 62), 1 << 62, (1 << 28,), device="cuda")
    target = torch.empty_like(source)
    seconds = medians({"": by_graph(lambda _: torch.bitwise_not(source, out=target), 1)})[""]["median"]
    return 2 * source.nbytes / seconds
