"""Products of few inputs, beside torch's with dense weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from benchmarks.device.measure import LOAD_COLUMNS, WORD_NBYTES, compressed, in_mode, load_of
from benchmarks.device.runner import Row, Section
from tensorwire.torch import CompressedTensor, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from benchmarks.device.measure import Bench

INPUTS = (1, 8, 32, 2, 4, 16, 64, 128)
SHAPES = ((14336, 4096), (4096, 4096), (4096, 14336), (1024, 4096), (128256, 4096))
TOGETHER = (4096, 1024, 1024), 4096
"""Rows of query, key and value, and their columns."""
_NAMES = "q_proj", "k_proj", "v_proj"


def run(bench: Bench) -> Generator[Row, None, None]:
    for shape in [(64, 512)] if bench.quick else SHAPES:
        yield from _of_shape(bench, shape)
        bench.free()
        if shape in SHAPES[:1] or bench.quick:
            yield from _together(bench)
            bench.free()
            yield from _of_shape(bench, shape, torch.float16)
            bench.free()


def _of_shape(bench: Bench, shape: tuple[int, int], dtype: torch.dtype = torch.bfloat16) -> Generator[Row, None, None]:
    is_f16 = dtype == torch.float16
    dense = bench.weights(*shape, bench.rotation(shape[0] * shape[1] * WORD_NBYTES), dtype)
    fast = compressed(dense, "fast", "fused")
    contenders: dict[str, list[Any]] = {"dense": dense, "fused, resident": compressed(dense, "resident", "fused")}
    contenders |= {"fused, fast": fast, "exact, fast": in_mode(fast, "exact")}
    for count in (1, 4) if bench.quick else INPUTS[:3] if is_f16 else INPUTS:
        x = torch.randn(count, shape[1], device=bench.device).to(dtype)
        operations = {name: lambda k, x=x, every=every: linear(x, every[k]) for name, every in contenders.items()}
        wrong = check(x, contenders)
        row: Row = {"shape": f"{shape[0]} x {shape[1]}{', F16' if is_f16 else ''}", "inputs": count}
        yield from _rows(bench, operations, wrong, len(dense), row)


def _together(bench: Bench) -> Generator[Row, None, None]:
    """Query, key and value of one input: three products, or one launch after `prepare`."""
    rows, columns = ((64, 32, 32), 512) if bench.quick else TOGETHER
    number = bench.rotation(sum(rows) * columns * WORD_NBYTES)
    every = list(zip(*(bench.weights(each, columns, number) for each in rows), strict=True))
    layers = [_layer(weights) for weights in every]
    apart, joint = (
        [_layer([CompressedTensor.from_dense(each, "resident", linear_mode="fused") for each in weights])
         for weights in every]
        for _ in range(2)
    )  # fmt: skip
    for layer in joint:
        prepare(layer)
    contenders = {"dense": layers, "fused, resident": apart, "fused, resident, together": joint}
    for count in (1,) if bench.quick else INPUTS:
        x = torch.randn(count, columns, device=bench.device).to(torch.bfloat16)
        operations = {
            name: lambda k, x=x, chosen=chosen: [getattr(chosen[k], each)(x) for each in _NAMES]
            for name, chosen in contenders.items()
        }
        row: Row = {"shape": f"q, k, v: {' + '.join(map(str, rows))} x {columns}", "inputs": count}
        with torch.no_grad():
            yield from _rows(bench, operations, {}, number, row)


def _layer(weights: Sequence[torch.Tensor]) -> torch.nn.Module:
    """A module with three layers of one input."""
    found = torch.nn.Module()
    for name, weight in zip(_NAMES, weights, strict=True):
        layer = torch.nn.Linear(*reversed(weight.shape), bias=False, device="meta")
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        found.add_module(name, layer)
    return found


def _rows(
    bench: Bench, operations: dict[str, Callable[[int], Any]], wrong: dict[str, str], number: int, facts: Row
) -> Generator[Row, None, None]:
    """Times of `number` weights by turns; those of what is `wrong` are not measured."""
    sound = {name: operation for name, operation in operations.items() if name not in wrong}
    timed = bench.medians({name: bench.by_graph(operation, number) for name, operation in sound.items()})
    calls = {
        name: bench.by_calls(lambda k, operation=operation: operation(k % number), 20)
        for name, operation in sound.items()
        if facts["inputs"] == 1
    }
    by_call = bench.medians(calls)
    for name in operations:
        row: Row = {"what": name, **facts}
        if name in wrong:
            yield {**row, "error": wrong[name]}
            continue
        seconds = timed[name]["median"]
        row |= {"microseconds": seconds * 1e6, "of_dense": timed["dense"]["median"] / seconds, **load_of(timed[name])}
        if name in by_call:
            row["by_call"] = by_call[name]["median"] * 1e6
        yield row


def check(x: torch.Tensor, contenders: dict[str, list[Any]]) -> dict[str, str]:
    """What is wrong with contenders: an exact product that has other bits than torch's, or a fused one that is further
    from float64 than twice torch's."""
    weight = contenders["dense"][0]
    dense, exactly, found = linear(x, weight), x.double() @ weight.double().T, {}
    for name, (held, *_) in contenders.items():
        product = linear(x, held)
        if name.startswith("fused"):
            if not (product - exactly).abs().max() <= 2 * (dense - exactly).abs().max():
                found[name] = "too far from float64"
        elif not torch.equal(product, dense):
            found[name] = "other bits than torch's"
    return found


SECTION = Section(
    "products",
    65,
    "How fast are products with few inputs?",
    "By replays of a graph, all contenders by turns. Times dense is how many times as fast as torch's own product with "
    "dense weights. A call also costs the host's time. Query, key and value of one input are three products, or one.",
    (
        ("weight", "what", ""), ("matrix", "shape", ""), ("inputs", "inputs", "d"), ("µs", "microseconds", ".0f"),
        ("times dense", "of_dense", ".2f"), ("µs a call", "by_call", ".0f"), *LOAD_COLUMNS, ("error", "error", ""),
    ),
    run,
)  # fmt: skip
