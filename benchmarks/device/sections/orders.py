"""Which order of summation the library of a card uses, and what exact products cost where it is one of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from benchmarks.device.measure import CUDA, LOAD_COLUMNS, WORD_NBYTES, compressed, load_of
from benchmarks.device.runner import Row, Section
from benchmarks.device.sections.products import INPUTS, SHAPES
from tensorwire.torch.device.library import library_order

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench


def run(bench: Bench) -> Generator[Row, None, None]:
    tried = found = 0
    for shape in [(64, 512)] if bench.quick else SHAPES:
        dense = bench.weights(*shape, bench.rotation(shape[0] * shape[1] * WORD_NBYTES))
        held = compressed(dense, "resident")
        opened = bench.engines().get(CUDA)
        product = None if opened is None else opened(held[0].frame).product
        for count in INPUTS[:2] if bench.quick else INPUTS[:-1]:  # the last one is more than a kernel takes
            row: Row = {"shape": f"{shape[0]} x {shape[1]}", "inputs": count}
            if product is None:
                yield {**row, "order": "no fused product here"}
                continue
            x = torch.randn(count, shape[1], device=bench.device).to(torch.bfloat16)
            order = library_order(product, x, None)
            tried, found = tried + 1, found + (order is not None)
            row |= {"order": "none of ours" if order is None else str(order), "found": found / tried}
            weights = {"dense": dense, "exact": held}
            timed = bench.medians({
                name: bench.by_graph(lambda k, every=every, x=x: linear(x, every[k]), len(dense))
                for name, every in weights.items()
            })  # fmt: skip
            seconds = timed["exact"]["median"]
            row |= {"microseconds": seconds * 1e6, "of_dense": timed["dense"]["median"] / seconds}
            yield {**row, **load_of(timed["exact"])}
        bench.free()


SECTION = Section(
    "orders",
    25,
    "In which order does the library sum?",
    "By trial with sums that cancel. Found is the share of those so far that are in one of our orders: there an exact "
    "product needs no decoded weight. Times are those of exact products, the dense weight's beside them.",
    (
        ("matrix", "shape", ""), ("inputs", "inputs", "d"), ("order", "order", ""), ("found", "found", ".2f"),
        ("µs", "microseconds", ".0f"), ("times dense", "of_dense", ".2f"), *LOAD_COLUMNS,
    ),
    run,
)  # fmt: skip
