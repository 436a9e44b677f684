"""Tokens a second of a model whose weights stay compressed, step by step and by replays of a captured step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.device.llama import DecodeStep, llama, resting_nbytes
from benchmarks.device.measure import load_of
from benchmarks.device.runner import Row, Section
from tensorwire.torch import set_linear_mode

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench

SEQUENCES = (1, 8, 32, 128)
CONTENDERS = (
    ("dense", None, "exact"), ("fused, resident", "resident", "fused"), ("exact, fast", "fast", "exact"),
    ("fused, fast", "fast", "fused"), ("exact, resident", "resident", "exact"),
)  # fmt: skip
_STEPS = 8  # that are timed together


def run(bench: Bench) -> Generator[Row, None, None]:
    for sequences in (1,) if bench.quick else SEQUENCES:
        dense: dict[str, float] = {}
        expected: torch.Tensor | None = None
        for what, profile, mode in CONTENDERS:
            model = llama(bench.device, bench.quick, profile)
            if profile is not None:
                set_linear_mode(model, mode)
            step = DecodeStep(bench, model, sequences)
            step.reset()
            logits = step(0)
            if expected is None:
                expected = logits
            same = torch.equal(logits, expected)
            for how in ("graph", "calls"):
                row: Row = {"what": what, "how": how, "sequences": sequences}
                row |= {"weights": sum(each.numel() for each in model.parameters()) / 1e9}
                row |= {"resting": resting_nbytes(model) / 1e9, "same": same}
                if mode == "exact" and not same:
                    yield {**row, "error": "other logits than those of dense weights"}
                    continue
                try:
                    found, peak = _timed(bench, step, how)
                except (RuntimeError, NotImplementedError) as error:
                    yield {**row, "error": f"{type(error).__name__}: {str(error)[:200]}"}
                    continue
                tokens = sequences / found["median"]
                dense.setdefault(how, tokens)
                yield {**row, "tokens": tokens, "of_dense": tokens / dense[how], "peak": peak, **load_of(found)}


def _timed(bench: Bench, step: DecodeStep, how: str) -> tuple[dict[str, float], float]:
    """Seconds of a step, and GB of the model and what a step takes besides."""
    if bench.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    steps = 2 if bench.quick else _STEPS
    time: Any = bench.by_graph if how == "graph" else bench.by_calls
    found = bench.medians({"": time(step, steps, step.reset)})[""]
    peak = torch.cuda.max_memory_allocated() / 1e9 if bench.device == "cuda" else 0.0
    return found, peak


SECTION = Section(
    "models",
    75,
    "How many tokens a second does a model make?",
    "Llama of transformers with random weights, as wide as that of 8 billion weights. A step makes a token of each "
    "sequence behind 64 tokens: by replays of a captured graph, or as calls. Memory is that of PyTorch's allocator.",
    (
        ("weights", "what", ""),
        ("billions", "weights", ".2f"),
        ("sequences", "sequences", "d"),
        ("by", "how", ""),
        ("tokens/s", "tokens", ".1f"),
        ("times dense", "of_dense", ".2f"),
        ("same logits", "same", ""),
        ("GB at rest", "resting", ".2f"),
        ("GB at most", "peak", ".2f"),
        ("ms to open a GB", "opening", ".0f"),
        ("MHz", "clock", ".0f"),
        ("W", "watts", ".0f"),
        ("error", "error", ""),
    ),
    run,
)
