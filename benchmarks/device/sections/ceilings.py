"""What the card moves at best: the ceilings of all that follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.device.measure import load_of
from benchmarks.device.runner import Row, Section

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench

_NODES = 1000


def run(bench: Bench) -> Generator[Row, None, None]:
    source = torch.randint(-(1 << 62), 1 << 62, (1 << (12 if bench.quick else 28),), device=bench.device)
    target = torch.empty_like(source)
    numbers = torch.randn(2 * source.numel(), device=bench.device)
    on_device = {
        "copy, read and written": (2, lambda _: torch.bitwise_not(source, out=target)),
        "a sum, read": (1, lambda _: numbers.sum()),
        "fill, written": (1, lambda _: target.fill_(-1)),
    }
    for what, (times, operation) in on_device.items():
        found = bench.medians({"": bench.by_graph(operation, 1)})[""]
        yield {"what": what, "moved": times * source.nbytes / found["median"] / 1e12, **load_of(found)}
    del target, numbers
    part = source[: source.numel() // 8]
    pinned = torch.empty(part.shape, dtype=part.dtype, pin_memory=bench.device == "cuda")
    links = {
        "pinned memory to device": lambda _: part.copy_(pinned, non_blocking=True),
        "device to pinned memory": lambda _: pinned.copy_(part, non_blocking=True),
    }
    for what, operation in links.items():
        found = bench.medians({"": bench.by_calls(operation, 1)})[""]
        yield {"what": what, "moved": part.nbytes / found["median"] / 1e12}
    one = torch.zeros(1, device=bench.device)
    count = 10 if bench.quick else _NODES
    nodes = bench.medians({"node": bench.by_graph(lambda _: one.add_(1), count), "call": bench.by_calls(lambda _: one.add_(1), count)})
    yield {"what": "a node of a graph that does next to nothing", "microseconds": nodes["node"]["median"] * 1e6}
    yield {"what": "the same as a call", "microseconds": nodes["call"]["median"] * 1e6}


SECTION = Section(
    "ceilings",
    15,
    "What does the card move?",
    "By replays of a graph, between memory of the host and the device by calls.",
    (
        ("what", "what", ""),
        ("TB/s", "moved", ".3f"),
        ("µs", "microseconds", ".2f"),
        ("MHz", "clock", ".0f"),
        ("W", "watts", ".0f"),
    ),
    run,
)
