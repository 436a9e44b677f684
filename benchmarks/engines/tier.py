"""Chunks of a real model's keys and values in vLLM's compressed tier: how many stay, and whether they come back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import environment
from benchmarks.engines.captured import CONTEXT, TOKENS, minilm
from benchmarks.engines.tier_program import ROOM
from benchmarks.tables import Row, Table
from benchmarks.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.engines.captured import Captured

CHUNKS = (16, 64, 256)
"""Tokens of a chunk. 16 is a block of vLLM's."""


def measure(quick: bool) -> list[Row]:
    """In a process of the environment that has vLLM."""
    captured = minilm(CONTEXT if quick else TOKENS)
    with TemporaryDirectory() as folder:
        for tokens in CHUNKS:
            np.save(Path(folder, f"{tokens}.npy"), _chunks(captured, tokens))
        found: list[Row] = environment.printed("vllm", "benchmarks.engines.tier_program", folder)
    return found


def _chunks(captured: Captured, tokens: int) -> np.ndarray[Any, Any]:
    """A row for each chunk: what its tokens have in each tensor, tensor by tensor."""
    parts = [words.reshape(len(words) // tokens, -1) for words in captured.values()]
    return np.concatenate(parts, axis=1)


TABLES = (
    Table(
        "tier",
        "vLLM's compressed tier",
        "Chunks of all-MiniLM-L6-v2's keys and values in BF16, of all 6 layers, over 16,384 tokens of docstrings. "
        f"vLLM's factory makes the tier; its room would hold {ROOM:.0%} of the chunks if they were dense. "
        "All are stored in their order, so the first ones go. Chunks that are still there are loaded into zeroed "
        "memory and compared. Files take whole blocks of 4 KiB, which weighs where chunks are small. Used: what the "
        "process has grown by, with room for a chunk in each of its 4 threads, or what the files take on the disk, "
        "of the room. The connector, which copies from a GPU into vLLM's first tier, was not run.",
        (
            ("tokens", "tokens", "d"), ("bytes of a chunk", "chunk_nbytes", ",d"), ("place", "place", ""),
            ("profile", "profile", ""), ("room, in dense chunks", "dense", "d"), ("held", "held", "d"),
            ("times", "times", ".3f"), ("loaded", "loaded", "d"), ("with equal bits", "equal", "d"),
            ("used", "used", ".1%"),
        ),
        measure,
        missing=partial(environment.lacks, "vllm"),
    ),
)  # fmt: skip


def evaluate(results: dict[str, Any]) -> Iterator[Verdict]:
    """Targets of the tier."""
    for row in results.get("tier", ()):
        where = f"{row['tokens']} tokens, {row['place']}, `{row['profile']}`"
        if row["place"] == "memory":
            yield Verdict("chunks in equal bytes, times dense ones", where, row["times"], 1.45)
        yield Verdict("chunks held that come back with equal bits", where, row["equal"] / row["held"], 1)
