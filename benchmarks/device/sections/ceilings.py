"""What the card moves at best: the ceilings of all that follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.device.measure import LOAD_COLUMNS, load_of
from benchmarks.device.runner import Row, Section

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from benchmarks.device.measure import Bench

_NODES = 1000


def run(bench: Bench) -> Generator[Row, None, None]:
    numel = 1 << (12 if bench.quick else 28)
    yield from _on_device(bench, numel)
    bench.free()
    yield from _links(bench, numel // 8)
    one, count = torch.zeros(1, device=bench.device), 10 if bench.quick else _NODES
    ways = {"a node of a graph": bench.by_graph, "a call": bench.by_calls}
    for what, found in bench.medians({what: way(lambda _: one.add_(1), count) for what, way in ways.items()}).items():
        yield {"what": f"{what} that does next to nothing", "microseconds": found["median"] * 1e6}


def _on_device(bench: Bench, numel: int) -> Generator[Row, None, None]:
    source = torch.randint(-(1 << 62), 1 << 62, (numel,), device=bench.device)
    target, numbers = torch.empty_like(source), torch.randn(2 * numel, device=bench.device)
    operations: dict[str, tuple[int, Callable[[int], Any]]] = {
        "copy, read and written": (2, lambda _: torch.bitwise_not(source, out=target)),
        "a sum, read": (1, lambda _: numbers.sum()),
        "fill, written": (1, lambda _: target.fill_(-1)),
    }
    for what, (times, operation) in operations.items():
        found = bench.medians({"": bench.by_graph(operation, 1)})[""]
        yield {"what": what, "moved": times * source.nbytes / found["median"] / 1e12, **load_of(found)}


def _links(bench: Bench, numel: int) -> Generator[Row, None, None]:
    on_device = torch.randint(-(1 << 62), 1 << 62, (numel,), device=bench.device)
    pinned = torch.empty(numel, dtype=on_device.dtype, pin_memory=bench.device == "cuda")
    operations: dict[str, Callable[[int], Any]] = {
        "device to pinned memory": lambda _: pinned.copy_(on_device, non_blocking=True),
        "pinned memory to device": lambda _: on_device.copy_(pinned, non_blocking=True),
    }
    for what, operation in operations.items():
        found = bench.medians({"": bench.by_calls(operation, 1)})[""]
        yield {"what": what, "moved": on_device.nbytes / found["median"] / 1e12}


SECTION = Section(
    "ceilings",
    15,
    "What does the card move?",
    "By replays of a graph, between memory of the host and the device by calls.",
    (("what", "what", ""), ("TB/s", "moved", ".3f"), ("µs", "microseconds", ".2f"), *LOAD_COLUMNS),
    run,
)
