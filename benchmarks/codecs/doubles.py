"""States of optimizers in F64 and C128, with and without exponents: python -m benchmarks.codecs.doubles.

Two models train with AdamW in double precision: the language model of benchmarks/gpt.py, and a complex matrix that
learns the discrete Fourier transform. Their weights, and what AdamW keeps of them, are compressed in two layouts: the
one of the format's table, and words that are not split. Sizes, and GB/s of one thread; the calls of both layouts take
turns. benchmarks/results/doubles.json keeps the rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import tensorwire
from benchmarks import gpt
from benchmarks.results_page import keep_rows
from benchmarks.timing import cpu_by_turns, pinned, speed
from tensorwire._ground.allocation import new_buffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorwire.codec import Profile

    Tensors = dict[str, np.ndarray]

LAYERS, WIDTH, ROWS, STEPS = 4, 128, 8, 60
POINTS, SIGNALS = 768, 16
RATE = 1e-3
ROUNDS = 9
PROFILES: tuple[Profile, ...] = ("fast", "compact")
LAYOUTS = {
    "of the table": tensorwire.Layout(8, 8, 56, "float", True),
    "not split": tensorwire.Layout(8, 0, 0, "none", True),
}


def _trained(model: torch.nn.Module, loss: Callable[[int], torch.Tensor], steps: int) -> Tensors:
    """The weights, and what AdamW keeps of each, one behind the other."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()
    kept: dict[str, list[torch.Tensor]] = {"weights": [each.detach() for each in model.parameters()]}
    for key in ("exp_avg", "exp_avg_sq"):
        kept[key] = [optimizer.state[each][key] for each in model.parameters()]
    return {key: torch.cat([each.flatten() for each in found]).numpy() for key, found in kept.items()}


def real_states(steps: int) -> Tensors:
    model = gpt.GPT(LAYERS, WIDTH).double()
    return _trained(model, lambda step: model(gpt.batch(step, ROWS)), steps)


def complex_states(steps: int) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(POINTS, POINTS, bias=False, dtype=torch.complex128)
    with torch.no_grad():
        model.weight.copy_(torch.randn(POINTS, POINTS, dtype=torch.complex128, generator=generator) * 0.02)

    def loss(step: int) -> torch.Tensor:
        signals = torch.randn(SIGNALS, POINTS, dtype=torch.float64, generator=generator)
        wanted = torch.fft.fft(signals, norm="ortho")
        return (model(signals.to(torch.complex128)) - wanted).abs().square().mean()

    return _trained(model, loss, steps)


def measure(dtype: str, name: str, values: np.ndarray, rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each profile and layout."""
    content = values.view(np.uint8).data
    shared: dict[str, Any] = {"dtype": dtype, "shape": values.shape, "threads": 1}
    for profile in PROFILES:
        frames = {
            each: tensorwire.compress(content, layout=layout, profile=profile, **shared)
            for each, layout in LAYOUTS.items()
        }
        room, out = new_buffer(2 * len(content)), np.empty_like(values)
        calls: dict[tuple[str, str], Callable[[], object]] = {}
        for each, layout in LAYOUTS.items():
            options = shared | {"layout": layout, "profile": profile, "out": room}
            calls["compress", each] = partial(tensorwire.compress, content, **options)
            calls["decompress", each] = partial(tensorwire.decompress, frames[each], out=out, threads=1)
        seconds = cpu_by_turns(calls, rounds)
        for each, frame in frames.items():
            yield {
                "dtype": dtype, "tensors": name, "nbytes": len(content), "profile": profile, "layout": each,
                "ratio": len(content) / len(frame),
                **{what: speed(seconds[what, each], len(content)) for what in ("compress", "decompress")},
            }  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    states = {"F64": real_states(STEPS), "C128": complex_states(STEPS)}
    with pinned(1):
        rows = [
            row
            for dtype, tensors in states.items()
            for name, values in tensors.items()
            for row in measure(dtype, name, values, ROUNDS)
        ]
    columns = (
        ("dtype", "dtype", ""), ("tensors", "tensors", ""), ("profile", lambda row: f"`{row['profile']}`"),
        ("layout", "layout", ""), ("ratio", "ratio", ".4f"), ("compress, GB/s", "compress.median", ".2f"),
        ("decompress, GB/s", "decompress.median", ".2f"),
    )  # fmt: skip
    keep_rows("doubles", "python -m benchmarks.codecs.doubles", rows, columns)


if __name__ == "__main__":
    main()
