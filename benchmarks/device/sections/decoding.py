"""Decoding, beside another scheme and a copy of the dense weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.device.measure import LOAD_COLUMNS, PROFILES, TRITON, WORD_NBYTES, compressed, load_of, same_bits
from benchmarks.device.runner import Row, Section
from benchmarks.device.splitzip import SplitZip

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import torch

    from benchmarks.device.measure import Bench

SHAPES = ((14336, 4096), (4096, 4096), (28672, 8192))
_QUICK = (64, 512)
_CALLS = 20
OTHER = "SplitZip's scheme, ours"
COPY = "copy of dense weights"
_What = tuple[str, str]  # a profile, and whose kernels


def run(bench: Bench) -> Generator[Row, None, None]:
    for shape in [_QUICK] if bench.quick else SHAPES:
        yield from _of_shape(bench, shape)
        bench.free()


def _of_shape(bench: Bench, shape: tuple[int, int]) -> Generator[Row, None, None]:
    nbytes = shape[0] * shape[1] * WORD_NBYTES
    dense = bench.weights(*shape, bench.rotation(nbytes))
    others = [SplitZip(weight) for weight in dense]
    sizes = {OTHER: sum(each.nbytes for each in others), COPY: nbytes * len(dense)}
    operations: dict[_What, Callable[[int], torch.Tensor]] = {}
    for profile in PROFILES:
        held = [each.frame for each in compressed(dense, profile)]
        sizes[profile] = sum(each.numel() for each in held)
        for name, opened in bench.engines().items():
            if name == TRITON and shape not in (SHAPES[0], _QUICK):
                continue
            frames = [bench.decoder(opened(each)) for each in held]
            operations[profile, name] = lambda k, frames=frames: frames[k % len(frames)]()
    calls = {
        what: bench.by_calls(each, 1 if bench.quick else _CALLS)
        for what, each in operations.items()
        if what[1] == next(iter(bench.engines()))
    }
    operations |= {(OTHER, ""): lambda k: others[k].decode(), (COPY, ""): lambda k: dense[k].clone()}
    right = {what: same_bits(operation(0), dense[0]) for what, operation in operations.items()}
    graphs = {what: bench.by_graph(each, len(dense)) for what, each in operations.items() if right[what]}
    by_graph, by_call = bench.medians(graphs), bench.medians(calls)
    for what in operations:
        row: Row = {"what": what[0], "by": what[1], "shape": f"{shape[0]} x {shape[1]}"}
        row["ratio"] = nbytes * len(dense) / sizes[what[0]]
        if not right[what]:
            yield {**row, "error": "other bits"}
            continue
        seconds = by_graph[what]["median"]
        row |= {"microseconds": seconds * 1e6, "output": nbytes / seconds / 1e12}
        row |= {"bytes": nbytes * (1 + 1 / row["ratio"]) / seconds / 1e12, **load_of(by_graph[what])}
        if what in by_call:
            row["by_call"] = by_call[what]["median"] * 1e6
        yield row


SECTION = Section(
    "decoding",
    50,
    "How fast are frames decoded to BF16?",
    "Normal weights, as many by turns as the cache cannot hold; Triton's kernels with the first matrix alone. TB/s are "
    "those of the dense weights, by replays of a graph. Moved is what is read of the frame and written, as a part of "
    "what a copy moves in that time. Modelled is what docs/devices.md expects. A call also costs the host's time.",
    (
        ("profile", "what", ""), ("kernels", "by", ""), ("matrix", "shape", ""), ("ratio", "ratio", ".3f"),
        ("µs", "microseconds", ".0f"), ("TB/s", "output", ".2f"), ("TB/s modelled", "modelled", ".2f"),
        ("moved", "moved", ".2f"), ("µs a call", "by_call", ".0f"), *LOAD_COLUMNS, ("error", "error", ""),
    ),
    run,
)  # fmt: skip
