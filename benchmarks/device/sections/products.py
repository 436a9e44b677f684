"""Products of few inputs, beside torch's with dense weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from benchmarks.device.measure import WORD_NBYTES, compressed, load_of
from benchmarks.device.runner import Row, Section

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench

INPUTS = (1, 8, 32, 2, 4, 16, 64)
SHAPES = ((14336, 4096), (4096, 4096), (4096, 14336), (1024, 4096), (128256, 4096))
CONTENDERS = (("resident", "fused"), ("fast", "fused"), ("resident", "exact"), ("fast", "exact"))


def run(bench: Bench) -> Generator[Row, None, None]:
    for shape in [(64, 512)] if bench.quick else SHAPES:
        yield from _of_shape(bench, shape)
        bench.free()


def _of_shape(bench: Bench, shape: tuple[int, int]) -> Generator[Row, None, None]:
    dense = bench.weights(*shape, bench.rotation(shape[0] * shape[1] * WORD_NBYTES))
    contenders: dict[str, list[Any]] = {"dense": dense}
    contenders |= {f"{mode}, {profile}": compressed(dense, profile, mode) for profile, mode in CONTENDERS}
    for count in (1, 4) if bench.quick else INPUTS:
        yield from _rows(bench, contenders, shape, count)


def _rows(
    bench: Bench, contenders: dict[str, list[Any]], shape: tuple[int, int], count: int
) -> Generator[Row, None, None]:
    x = torch.randn(count, shape[1], device=bench.device).to(torch.bfloat16)
    operations = {name: lambda k, every=every: linear(x, every[k % len(every)]) for name, every in contenders.items()}
    wrong = check(x, contenders)
    sound = {name: operation for name, operation in operations.items() if name not in wrong}
    number = len(contenders["dense"])
    timed = bench.medians({name: bench.by_graph(operation, number) for name, operation in sound.items()})
    calls = {name: bench.by_calls(operation, 20) for name, operation in sound.items() if count == 1}
    by_call = bench.medians(calls)
    for name in contenders:
        row: Row = {"what": name, "shape": f"{shape[0]} x {shape[1]}", "inputs": count}
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
    70,
    "How fast are products with few inputs?",
    "By replays of a graph, all contenders by turns. Times dense is how many times as fast as torch's own product with "
    "dense weights. A call also costs the host's time.",
    (
        ("weight", "what", ""),
        ("matrix", "shape", ""),
        ("inputs", "inputs", "d"),
        ("µs", "microseconds", ".0f"),
        ("times dense", "of_dense", ".2f"),
        ("µs a call", "by_call", ".0f"),
        ("MHz", "clock", ".0f"),
        ("W", "watts", ".0f"),
        ("error", "error", ""),
    ),
    run,
)
