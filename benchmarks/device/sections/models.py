"""Tokens a second of a model whose weights stay compressed, step by step and by replays of a captured step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.device.llama import DecodeStep, llama, resting_nbytes
from benchmarks.device.measure import LOAD_COLUMNS, load_of
from benchmarks.device.runner import Row, Section
from tensorwire.torch import prepare, set_linear_mode

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench

SEQUENCES = (1, 8, 32, 128)
DENSE = ("dense", None, "exact")
CONTENDERS = (("fused, resident", "resident", "fused"), ("exact, fast", "fast", "exact"))
LATER = (("fused, fast", "fast", "fused"), ("exact, resident", "resident", "exact"))
"""The less wanted: they come when the others have been measured with all numbers of sequences."""
_STEPS = 8  # that are timed together


def run(bench: Bench) -> Generator[Row, None, None]:
    expected: dict[int, torch.Tensor] = {}
    tokens: dict[tuple[int, str], float] = {}
    for contenders in ((DENSE, *CONTENDERS), LATER):
        for sequences in (1,) if bench.quick else SEQUENCES:
            for what, profile, mode in contenders:
                model = llama(bench.device, bench.quick, profile)
                if profile is not None:
                    set_linear_mode(model, mode)
                    prepare(model)
                step = DecodeStep(bench, model, sequences)
                step.reset()
                logits = expected.setdefault(sequences, step(0))
                for how in ("graph", "calls"):
                    row: Row = {"what": what, "how": how, "sequences": sequences}
                    row |= {"weights": sum(each.numel() for each in model.parameters()) / 1e9}
                    row["resting"] = resting_nbytes(model) / 1e9
                    try:
                        row |= _timed(bench, step, how, logits)
                    except (RuntimeError, NotImplementedError) as error:
                        yield {**row, "error": f"{type(error).__name__}: {str(error)[:200]}"}
                        continue
                    dense = tokens.setdefault((sequences, how), row["tokens"])
                    yield {**row, "of_dense": row["tokens"] / dense}
                del step, logits
                bench.free()


def _timed(bench: Bench, step: DecodeStep, how: str, expected: torch.Tensor) -> Row:
    """Tokens a second, whether they have the logits that are expected, and GB that a step takes besides the model."""
    before = 0
    if bench.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    steps = 2 if bench.quick else _STEPS
    time: Any = bench.by_graph if how == "graph" else bench.by_calls
    timed = time(step, steps, step.reset)
    found = bench.medians({"": timed})[""]
    step.reset()
    logits = timed.results[0] if timed.results else step(0)
    row: Row = {"tokens": len(expected) / found["median"], "same": torch.equal(logits, expected), **load_of(found)}
    if bench.device == "cuda":
        row["besides"] = (torch.cuda.max_memory_allocated() - before) / 1e9
    return row


SECTION = Section(
    "models",
    60,
    "How many tokens a second does a model make?",
    "Llama of transformers with random weights, as wide as that of 8 billion weights. Tokens of "
    "each sequence, greedily, behind 64 tokens: by `generate`, or step by step, by replays of a captured graph or by "
    "calls. Compressed models went through `prepare`. Memory is that of PyTorch's allocator.",
    (
        ("weights", "what", ""), ("billions", "weights", ".2f"), ("sequences", "sequences", "d"), ("by", "how", ""),
        ("tokens/s", "tokens", ".1f"), ("times dense", "of_dense", ".2f"), ("same logits", "same", ""),
        ("GB at rest", "resting", ".2f"), ("GB besides", "besides", ".2f"), ("GB at most", "peak", ".2f"),
        ("ms to open a GB", "opening", ".0f"), *LOAD_COLUMNS, ("error", "error", ""),
    ),
    run,
)  # fmt: skip
