"""Tokens a second of `generate`, which transformers captures where the cache is static."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from benchmarks.device.llama import llama
from benchmarks.device.runner import Row, Section
from tensorwire.torch import prepare, set_linear_mode

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench

STATIC = "static cache, captured"
CONTENDERS = (
    ("dense", None, "exact", STATIC), ("fused, resident", "resident", "fused", STATIC),
    ("dense", None, "exact", "usual cache"), ("exact, fast", "fast", "exact", "usual cache"),
    ("exact, fast", "fast", "exact", STATIC),
)  # fmt: skip
_ROUNDS = 3


def run(bench: Bench) -> Generator[Row, None, None]:
    prompt = torch.arange(1, 65, device=bench.device)[None]
    count = 4 if bench.quick else 128
    dense: dict[str, tuple[float, torch.Tensor]] = {}
    for what, profile, mode, how in CONTENDERS:
        model = llama(bench.device, bench.quick, profile)
        if profile is not None:
            set_linear_mode(model, mode)
            prepare(model)
        options = {"cache_implementation": "static"} if how == STATIC else {}
        taken = []
        for _ in range(1 + (1 if bench.quick else _ROUNDS)):
            bench.settle()
            began = time.perf_counter()
            with torch.no_grad():
                found = model.generate(
                    prompt, min_new_tokens=count, max_new_tokens=count, do_sample=False, pad_token_id=0, **options
                )
            bench.settle()
            taken.append(time.perf_counter() - began)
        tokens = count / min(taken[1:])
        of, expected = dense.setdefault(how, (tokens, found))
        row: Row = {"what": what, "how": how, "tokens": tokens, "of_dense": tokens / of, "first": taken[0]}
        yield {**row, "same": torch.equal(found, expected)}


SECTION = Section(
    "generate",
    70,
    "How many tokens a second does `generate` make?",
    "The same model, one sequence, 128 tokens behind 64, the prompt's time with them; the best of three. The first "
    "call compiles where the cache is static.",
    (
        ("weights", "what", ""), ("cache", "how", ""), ("tokens/s", "tokens", ".1f"),
        ("times dense", "of_dense", ".2f"), ("same tokens", "same", ""), ("s of the first call", "first", ".1f"),
    ),
    run,
)  # fmt: skip
